"""What the Node tells of itself while its container runtime does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from attrs import define, evolve

from tests.nodeside.harness import open_node_on
from tests.support.engine import PlayEngine
from tuneplane.actors import ChildSpec, SupervisorSpec, open_system
from tuneplane.domain.frames import InventoryReport
from tuneplane.domain.inventory import Budgets, CardBinding, Gpu, Inventory
from tuneplane.domain.node_member import LABEL_CARDS, LABEL_CPU, LABEL_MEMBER, LABEL_MEMORY, LABEL_NODE
from tuneplane.domain.node_ports import Cards, ContainerSpec, ContainerState, EngineUnclear, Life
from tuneplane.domain.timings import Timings
from tuneplane.nodeside import storage_probe
from tuneplane.nodeside.address import Reach
from tuneplane.nodeside.board import Board
from tuneplane.nodeside.card_desk import CardDesk, CardReader
from tuneplane.nodeside.core import NodeCore
from tuneplane.nodeside.inventory_actor import InventoryActor
from tuneplane.nodeside.strangers import find_strangers
from tuneplane.wire.node_codec import decode_node_frame, encode_node_frame

WAIT_SECONDS = 10.0
CARD = "GPU-1"
LABELS = {LABEL_MEMBER: "job-x-1-0", LABEL_NODE: "node-1", LABEL_CARDS: CARD, LABEL_CPU: "1000", LABEL_MEMORY: "1"}

BARE = Inventory(hostname="host-a", node_version="1", cpu_count=1, memory_bytes=1)


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


def desk(core: NodeCore, read_cards: CardReader) -> CardDesk:
    return CardDesk(read_cards, Budgets(), core.state_dir, core.machine, core.disk)


async def test_stranger_keeps_its_card_while_the_runtime_does_not_list(tmp_path: Path) -> None:
    """P-07: silence is no proof that the card is free; and before the first list a Node says that it does not know."""
    engine = MuteEngine(mute=True)
    await engine.start(await engine.create(ContainerSpec(name="stranger", image="any", command=("x",), labels=LABELS)))
    board = Board()
    async with open_node_on(tmp_path / "state", engine) as node:
        actor = InventoryActor(node.core, board, Budgets(), "", desk(node.core, no_cards), Reach("", ""))
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


async def test_daemon_that_starts_before_its_driver_answers_grants_nothing_and_then_all(tmp_path: Path) -> None:
    """L-D4: what runs goes on, nothing new comes, and no cards is not what is told."""
    engine, board, answers = PlayEngine(), Board(), [Cards(problem="the GPU driver does not answer: Unknown Error")]

    async def driver() -> Cards:
        return answers[-1]

    budgets = Budgets(cpu_millis=1, memory_bytes=1, gpu_indexes=(0,))
    running = await engine.create(ContainerSpec(name="busy", image="any", command=("x",), labels=LABELS))
    await engine.start(running)
    async with open_node_on(tmp_path / "state", engine) as node:
        cards = CardDesk(driver, budgets, node.core.state_dir, node.core.machine, node.core.disk)
        actor = InventoryActor(node.core, board, budgets, "", cards, Reach("", ""))
        tree = SupervisorSpec(name="root", children=(ChildSpec(name="inventory", factory=lambda: actor),))
        async with open_system("test", tree):
            mute = await _next_look(board)
            assert (mute.cards_known, mute.gpus, node.core.grants.gpu_uuids) == (False, (), frozenset())
            assert any("does not answer" in problem for problem in mute.problems)
            answers.append(Cards(gpus=(Gpu(index=0, uuid="GPU-9", name="H100", memory_bytes=1),)))
            board.look_again()
            told = await _next_look(board)
            assert (told.cards_known, told.card_bindings) == (True, (CardBinding(index=0, uuid="GPU-9"),))
            assert node.core.grants.gpu_uuids == {"GPU-9"}
            assert [state.life for state in await engine.list_labelled(LABEL_NODE, "node-1")] == [Life.RUNNING]


async def test_alarm_that_is_raised_during_a_look_is_told_by_another_one_at_once(tmp_path: Path) -> None:
    """P-07, R-PLC-04: not only when the inventory is due again."""
    board = Board()

    async def alarming() -> Cards:
        await trio.lowlevel.checkpoint()
        board.raise_alarm("the control plane went back")
        return Cards()

    seldom = evolve(Timings(), inventory_confirm=3600.0)
    async with open_node_on(tmp_path / "state", PlayEngine(), timings=seldom) as node:
        actor = InventoryActor(node.core, board, Budgets(), "", desk(node.core, alarming), Reach("", ""))
        tree = SupervisorSpec(name="root", children=(ChildSpec(name="inventory", factory=lambda: actor),))
        async with open_system("test", tree):
            with trio.fail_after(WAIT_SECONDS):
                while board.survey is None or board.session_alarm not in board.survey.inventory.problems:
                    await board.changed().wait()


async def test_labels_that_anybody_wrote_make_no_frame_that_ends_the_session(tmp_path: Path) -> None:
    """P-07: what a label does not tell in a form of ours is unknown; the report reaches the gateway all the same."""
    engine = PlayEngine()
    for number, cards in enumerate(("-x", "GPU-1,,GPU-2", "GPU 1", "GPU-\u00fc", ",".join(f"GPU-{card}" for card in range(65)))):
        labels = {**LABELS, LABEL_MEMBER: f"job-x-{number}-\u00fc", LABEL_CARDS: cards, LABEL_CPU: "\u0664", LABEL_MEMORY: "9" * 19}
        await engine.start(await engine.create(ContainerSpec(name=f"stranger-{number}", image="any", command=("x",), labels=labels)))
    async with open_node_on(tmp_path / "state", engine) as node:
        strangers, _ = await find_strangers(node.core)
    assert [(one.gpu_uuids, one.cpu_millis, one.memory_bytes) for one in strangers] == [(None, None, None)] * 5
    report = InventoryReport(inventory=evolve(BARE, strangers=strangers), digest="")
    assert decode_node_frame(encode_node_frame(report)) == report


async def test_mount_that_hangs_is_told_and_holds_up_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L-J1, L-J2, R-LIV-03: a real child that does not come back; the look ends, the root is not seen, and it is seen again."""
    board = Board()
    with monkeypatch.context() as dead:
        dead.setattr(storage_probe, "PROBE_SECONDS", 0.3)
        dead.setattr(storage_probe, "PROBE", "sleep 60")
        async with open_node_on(tmp_path / "state", PlayEngine()) as node:
            actor = InventoryActor(node.core, board, Budgets(), str(tmp_path), desk(node.core, no_cards), Reach("", ""))
            tree = SupervisorSpec(name="root", children=(ChildSpec(name="inventory", factory=lambda: actor),))
            async with open_system("test", tree):
                lost = await _next_look(board)
                assert not lost.storage_root_seen
                assert any("did not answer within 0.3 s" in problem for problem in lost.problems)
                dead.undo()
                assert (await _next_look(board)).storage_root_seen


async def _next_look(board: Board) -> Inventory:
    """The survey of a look that begins after this call: one may be on its way, the next one is not."""
    with trio.fail_after(WAIT_SECONDS):
        for _ in range(2):
            changed = board.changed()
            board.look_again()
            await changed.wait()
    assert board.survey is not None
    return board.survey.inventory
