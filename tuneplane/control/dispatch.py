"""The dispatcher: outgoing commands from rows to the mailboxes of the sessions. Rows are the truth, pokes only say *look*.

A mailbox that is full is no error: the command stays in its row and the next look finds it. Stops come first in every
look and go to a mailbox and a lane of their own (R-SES-07).
"""

from __future__ import annotations

from typing import ClassVar

import structlog
from attrs import define, field

from tuneplane.actors import Actor, ActorGone, Context, MailboxFull, MailboxSpec, on_signal, trace_scope
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import GatewayId
from tuneplane.domain.jobs import OutgoingCommand
from tuneplane.domain.ports import Storage, Topic
from tuneplane.domain.timings import Timings

from .patience import Alarm, Backoff, signal_on_pokes
from .roster import Roster
from .session import SendCommand, SendStop

log = structlog.get_logger("tuneplane.control.dispatch")

COMMANDS_A_LOOK = 1024  # many times the mailbox of one session, so that one busy Node cannot hide the others


@define
class Dispatcher(Actor):
    """One look at the unsent commands of this gateway's sessions after every poke and every poll interval."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = ()
    storage: Storage
    gateway: GatewayId
    timings: Timings
    backoff: Backoff
    roster: Roster
    _again: Alarm = field(factory=lambda: Alarm("look"), init=False)

    async def run(self, context: Context) -> None:
        await signal_on_pokes(context, {Topic.COMMANDS: "look"}, self.storage, self.backoff)

    @on_signal("look")
    async def look(self, context: Context) -> None:
        try:
            found = await self.storage.outgoing_commands(self.gateway, COMMANDS_A_LOOK)
        except StorageUnavailable as error:
            log.warning("no commands are sent without the database", error=str(error))  # P-17
            self._again.set(context, self.backoff.next_seconds())
            return
        refused = [outgoing for outgoing in found if not self._hand_over(outgoing)]
        if refused or len(found) == COMMANDS_A_LOOK:
            self._again.set(context, self.timings.poll / 20)  # a mailbox empties at the pace of one commit a letter

    def _hand_over(self, outgoing: OutgoingCommand) -> bool:
        """False when the session's mailbox is full. A session that is gone needs no second look: its next one asks anew."""
        command = outgoing.command
        entry = self.roster.session(outgoing.node, command.session_epoch)
        if entry is None:
            return True
        letter = SendStop(command) if command.kind is CommandKind.STOP else SendCommand(command)
        try:
            with trace_scope(command.trace):
                entry.ref.tell_nowait(letter)
        except MailboxFull:
            return False
        except ActorGone:
            return True
        return True
