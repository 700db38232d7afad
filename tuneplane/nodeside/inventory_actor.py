"""The actor that looks at the machine again and again (R-PLC-04: an inventory older than 45 s counts for nothing)."""

from __future__ import annotations

from typing import ClassVar

import trio
from attrs import define

from tuneplane.actors import Actor, Context, MailboxSpec
from tuneplane.domain.fleets import Budgets, Stranger
from tuneplane.domain.node_ports import EngineDown, EngineRefused, EngineUnclear

from .address import Reach
from .board import Board
from .core import NodeCore
from .inventory import CardReader, survey
from .strangers import find_strangers


@define(eq=False)
class InventoryActor(Actor):
    """Posts a survey on the board at once and then every ``inventory_confirm`` seconds, or when an alarm changes."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = ()
    core: NodeCore
    board: Board
    budgets: Budgets
    storage_root: str
    read_cards: CardReader
    reach: Reach

    async def run(self, context: Context) -> None:
        with context.until_stopping():
            while True:
                await self._look()
                changed = self.board.changed()
                with trio.move_on_after(self.core.timings.inventory_confirm):
                    await changed.wait()

    async def _look(self) -> None:
        strangers, problems = await self._strangers()
        alarms = (*([self.board.session_alarm] if self.board.session_alarm else []), *problems)
        found = await survey(
            budgets=self.budgets,
            storage_root=self.storage_root,
            mark=self.core.node,
            engine=self.core.engine,
            network=self.core.network,
            reach=self.reach,
            read_cards=self.read_cards,
            alarms=alarms,
            hold=self.core.journal.hold,
            strangers=strangers,
        )
        self.core.grants = found.grants
        self.board.post(found)

    async def _strangers(self) -> tuple[tuple[Stranger, ...], tuple[str, ...]]:
        try:
            return await find_strangers(self.core)
        except (EngineDown, EngineUnclear, EngineRefused):
            return (), ()  # the survey itself says that the runtime does not answer
