"""The actor that looks at the machine again and again (R-PLC-04: an inventory older than 45 s counts for nothing)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import trio
from attrs import define, field

from tuneplane.actors import Actor, Context, MailboxSpec
from tuneplane.domain.inventory import Budgets, Stranger
from tuneplane.domain.node_ports import EngineDown, EngineRefused, EngineUnclear

from .address import Reach
from .board import Board
from .card_desk import CardDesk
from .core import NodeCore
from .inventory import survey
from .strangers import find_strangers


@define(eq=False)
class InventoryActor(Actor):
    """Posts a survey on the board at once and then every ``inventory_confirm`` seconds, or when an alarm changes."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = ()
    core: NodeCore
    board: Board
    budgets: Budgets
    storage_root: str
    cards: CardDesk
    reach: Reach
    _strangers: tuple[Stranger, ...] | None = field(default=None, init=False)  # as last seen

    async def run(self, context: Context) -> None:
        with context.until_stopping():
            while True:
                asked = self.board.asked()  # before the look: what changes during it may not be in it
                await self._look()
                with trio.move_on_after(self.core.timings.inventory_confirm):
                    await asked.wait()

    async def _look(self) -> None:
        strangers, problems = await self._look_for_strangers()
        alarms = (*([self.board.session_alarm] if self.board.session_alarm else []), *problems)
        found = await survey(
            budgets=self.budgets,
            storage_root=self.storage_root,
            mark=self.core.node,
            engine=self.core.engine,
            network=self.core.network,
            reach=self.reach,
            look_at_cards=partial(self.cards.look, self.board.accepted_cards),
            alarms=alarms,
            hold=self.core.journal.hold,
            strangers=strangers,
        )
        self.core.grants = found.grants
        self.board.post(found)

    async def _look_for_strangers(self) -> tuple[tuple[Stranger, ...], tuple[str, ...]]:
        """A runtime that does not answer proves no card free (P-07): then they are still those that were seen last."""
        try:
            self._strangers, problems = await find_strangers(self.core)
        except (EngineDown, EngineUnclear, EngineRefused) as error:
            problems = (f"what else of Tuneplane's runs here cannot be told: {error}",) if self._strangers is None else ()
        return self._strangers or (), problems
