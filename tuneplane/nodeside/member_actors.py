"""The actors around members: one per member that has something left to do, and the steward that takes the commands."""

from __future__ import annotations

import logging
import sqlite3
from typing import ClassVar

import trio
from attrs import define, field, frozen

from tuneplane.actors import (
    Actor,
    ActorGone,
    ChildSpec,
    Context,
    MailboxSpec,
    NameTaken,
    Pool,
    Ref,
    Restart,
    System,
    handles,
    on_signal,
    trace_scope,
)
from tuneplane.domain.frames import Command, CommandAnswer, CommandKind
from tuneplane.domain.ids import MemberId
from tuneplane.domain.inventory import MOST_STRANGERS

from .core import NodeCore
from .driver import MemberDriver
from .members import Members

log = logging.getLogger(__name__)

WAKE_TRIES = 100  # an actor that has just finished frees its name within a few turns of the scheduler
NAME_SECONDS = 0.02
MOST_STRANGER_STOPS = 2 * MOST_STRANGERS  # at once; each that is shown, and asked again by a session that came since


@frozen
class StopArrived:
    """A Stop. ``reply_to`` gets an Answered."""

    command: Command
    reply_to: Ref


@frozen
class CommandArrived:
    """Any other command."""

    command: Command
    reply_to: Ref


@frozen
class Answered:
    answer: CommandAnswer


def arrival(command: Command, reply_to: Ref) -> StopArrived | CommandArrived:
    """The letter for a command: stops travel in a mailbox of their own (R-SES-07), but for that of a stranger, which first
    asks the engine and must not keep others waiting where it hangs."""
    ahead = command.kind is CommandKind.STOP and not command.stranger
    return (StopArrived if ahead else CommandArrived)(command, reply_to)


@define(eq=False)
class MemberActor(Actor):
    """Holds one member's driver, and with it the member's effect lock: there is one actor of that name (P-01).

    Killed or crashed it starts again from the journal. Its stop is the daemon leaving: the container is not touched
    (L-C21).
    """

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = ()
    core: NodeCore
    member: MemberId
    driver: MemberDriver = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.driver = MemberDriver(self.core, self.member)

    async def run(self, context: Context) -> None:
        with context.until_stopping():
            while not self.driver.done:
                await self.driver.drive()

    @on_signal("changed")
    async def changed(self, context: Context) -> None:
        self.driver.poke()


@define(eq=False)
class PoolDrivers:
    """Drivers as actors of the pool ``members``."""

    core: NodeCore
    system: System
    pool: Pool

    async def wake(self, member: MemberId) -> None:
        """At once, or after the member's last actor has left its name. The journal has the command either way."""
        for _ in range(WAKE_TRIES):
            ref = self.system.ref(f"{self.pool.path}/{member}")
            if ref is not None and ref.alive:
                ref.signal("changed")
                return
            try:
                await self.pool.start_child(
                    ChildSpec(name=member, factory=lambda: MemberActor(self.core, member), restart=Restart.TRANSIENT)
                )
            except NameTaken:  # it is leaving, or waits for its restart and will read the journal then
                await trio.sleep(NAME_SECONDS)
                continue
            return


@define(eq=False)
class Steward(Actor):
    """Journals commands and answers them; never waits for what they lead to. Stops have a mailbox of their own."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = (
        MailboxSpec("stops", 256, "one a member that a machine can hold; journalled in milliseconds each"),
        MailboxSpec("commands", 256, "two a member that a machine can hold, forgets in batches"),
    )
    core: NodeCore
    members: Members = field(init=False)
    _strangers: int = field(default=0, init=False)  # stops of strangers that are not answered yet

    async def on_start(self, context: Context) -> None:
        base = context.path.rsplit("/", 1)[0]
        self.members = Members(self.core, PoolDrivers(self.core, context.system, context.system.pool(f"{base}/members")))
        await self.members.resume()

    @handles(StopArrived, mailbox="stops")
    async def stop_arrived(self, letter: StopArrived, context: Context) -> None:
        await self._accept(letter)

    @handles(CommandArrived, mailbox="commands")
    async def command_arrived(self, letter: CommandArrived, context: Context) -> None:
        if not (letter.command.stranger and letter.command.kind is CommandKind.STOP):
            await self._accept(letter)
        elif self._strangers < MOST_STRANGER_STOPS:  # beyond: unanswered, so it comes again with the next session
            self._strangers += 1
            context.start_task(self._accept_stranger, letter)

    async def _accept_stranger(self, letter: CommandArrived) -> None:
        """Beside the others: it asks the engine, and may be answered only when a container is gone."""
        try:
            await self._accept(letter)
        finally:
            self._strangers -= 1

    async def _accept(self, letter: StopArrived | CommandArrived) -> None:
        command = letter.command
        with trace_scope(command.trace or command.operation):
            try:
                answer = await self.members.accept(command)
            except (OSError, sqlite3.Error) as error:  # full disk, say: unanswered, so it comes again with the next session
                log.error("cannot journal %s of %s: %s", command.kind.value, command.member, error)
                return
            if answer is not None:
                try:
                    await letter.reply_to.tell(Answered(answer))
                except ActorGone:
                    return  # the session ended; the next one asks again
