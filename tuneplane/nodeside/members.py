"""The commands of the control plane, journalled and answered; the drivers they wake.

Journalling never waits for a driver (P-01): that is why a stop is accepted while the member's pull, create or start
hangs. Whoever serves stops and other commands does so in two lanes of its own; the journal puts them in one order.
"""

from __future__ import annotations

import sqlite3
from typing import Protocol

from attrs import define

from tuneplane.domain.frames import Command, CommandAnswer, CommandKind
from tuneplane.domain.ids import MemberId
from tuneplane.domain.member_table import ENDED, MemberAction, NodePhase
from tuneplane.domain.node_ports import EngineDown, EngineRefused, EngineUnclear, Life

from .core import NodeCore
from .strangers import is_leftover, why_no_stranger


class Drivers(Protocol):
    """Where drivers run: a pool of actors in the daemon, a nursery in a test."""

    async def wake(self, member: MemberId) -> None:
        """Poke the member's driver; start one when none runs."""


@define(eq=False)
class Members:
    """Accepts commands for all members of this Node."""

    core: NodeCore
    drivers: Drivers

    async def resume(self) -> None:
        """After a start of the daemon: a driver for every member that is not ended and clean."""
        for record in self.core.journal.members():
            await self._look_again(record.member)

    async def accept(self, command: Command) -> CommandAnswer | None:
        """Journal and answer; the effects follow. None: a command of an older session, to be ignored (P-06).

        OSError or sqlite3.Error: the journal could not be written, or perhaps it was; the command is not answered and
        will be sent again, under the same operation. What was journalled is acted on at once all the same (P-09).
        """
        core = self.core
        if command.stranger and command.kind is CommandKind.STOP:
            try:
                if await is_leftover(core, command):
                    return await self._end_leftover(command)
                refusal = await why_no_stranger(core, command)
            except (EngineDown, EngineUnclear, EngineRefused):
                refusal = "runtime-silent"
            if refusal:
                return CommandAnswer(operation=command.operation, accepted=False, code=refusal)
        try:
            accepted = await core.journal.accept(command, core.place(), core.grants)
        except (OSError, sqlite3.Error):
            await self._look_again(command.member)  # noqa: ASYNC120 - a daemon that is going answers nothing
            raise
        if accepted is None:
            return None
        if accepted.repeated:
            await self._look_again(command.member)
        elif accepted.record is not None:
            core.outbox.report(command.member)
            if accepted.action is not MemberAction.KEEP:
                await self.drivers.wake(command.member)
        return accepted.answer

    async def _end_leftover(self, command: Command) -> CommandAnswer | None:
        """Have the member's driver end a container that runs though the member is over; answered when it is gone (P-07).

        Not journalled: the control plane asks again until it has an answer, and a second time does no harm.
        """
        gone = self.core.leftovers.want(command) if self.core.journal.heeds(command) else None
        if gone is None:
            return None
        await self.drivers.wake(command.member)
        await gone.wait()
        found = await self.core.engine.inspect(command.container)
        return CommandAnswer(operation=command.operation, accepted=True) if found is None or found.life is not Life.RUNNING else None

    async def _look_again(self, member: MemberId) -> None:
        """Report the member, and let its driver go by the journal alone, if anything is left to do."""
        record = self.core.journal.member(member)
        if record is None:
            return
        self.core.outbox.report(member)
        if record.phase not in ENDED or not record.cleaned or record.phase is NodePhase.FORGOTTEN:
            await self.drivers.wake(member)
