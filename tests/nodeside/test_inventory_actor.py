"""What the Node tells of itself while its container runtime does not answer."""

from __future__ import annotations

from pathlib import Path

import trio
from attrs import define

from tests.nodeside.harness import open_node_on
from tests.support.engine import PlayEngine
from tuneplane.actors import ChildSpec, SupervisorSpec, open_system
from tuneplane.domain.fleets import Budgets, Inventory
from tuneplane.domain.node_member import LABEL_CARDS, LABEL_CPU, LABEL_MEMBER, LABEL_MEMORY, LABEL_NODE
from tuneplane.domain.node_ports import Cards, ContainerSpec, ContainerState, EngineUnclear
from tuneplane.nodeside.address import Reach
from tuneplane.nodeside.board import Board
from tuneplane.nodeside.inventory_actor import InventoryActor

WAIT_SECONDS = 20.0
CARD = "GPU-1"
LABELS = {LABEL_MEMBER: "job-x-1-0", LABEL_NODE: "node-1", LABEL_CARDS: CARD, LABEL_CPU: "1000", LABEL_MEMORY: "1"}


@define(eq=False)
class MuteEngine(PlayEngine):
    """Answers, but does not list."""

    mute: bool = False

    async def list_labelled(self, label: str, value: str) -> list[ContainerState]:
        if self.mute:
            raise EngineUnclear("listing took too long")
        return await super().list_labelled(label, value)


async def no_cards() -> Cards:
    return Cards()


async def test_stranger_keeps_its_card_while_the_runtime_does_not_list(tmp_path: Path) -> None:
    """P-07: silence is no proof that the card is free; and before the first list a Node says that it does not know."""
    engine = MuteEngine(mute=True)
    await engine.start(await engine.create(ContainerSpec(name="stranger", image="any", command=("x",), labels=LABELS)))
    board = Board()
    async with open_node_on(tmp_path / "state", engine) as node:
        actor = InventoryActor(node.core, board, Budgets(), "", no_cards, Reach("", ""))
        tree = SupervisorSpec(name="root", children=(ChildSpec(name="inventory", factory=lambda: actor),))
        async with open_system("test", tree):
            assert any("listing took too long" in problem for problem in (await _next_look(board)).problems)
            engine.mute = False
            assert [one.gpu_uuids for one in (await _next_look(board)).strangers] == [(CARD,)]
            engine.mute = True
            after = await _next_look(board)
            assert [one.gpu_uuids for one in after.strangers] == [(CARD,)]
            assert not any("listing" in problem for problem in after.problems)
            engine.mute = False
            engine.containers.clear()
            assert (await _next_look(board)).strangers == ()


async def _next_look(board: Board) -> Inventory:
    """The survey of a look that begins now."""
    seen = board.seen_at
    board.look_again()
    with trio.fail_after(WAIT_SECONDS):
        while board.survey is None or board.seen_at == seen:
            await board.changed().wait()
    return board.survey.inventory
