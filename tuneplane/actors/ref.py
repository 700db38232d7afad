"""Refs: the only way to reach an actor. A ref stands for one incarnation; after a restart look the path up again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import trio
from trio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled, current_task

from .asks import waiting_for
from .errors import ActorGone, AskExpired, NoHandler
from .exits import ExitReason
from .mailbox import TURN_LETTERS, Letter, MailboxStatistics, Question
from .trace import SENT, Kind, current_point

if TYPE_CHECKING:
    from .cell import Cell

Kindred = TypeVar("Kindred", bound=Letter)


class Ref:
    """Sends letters and signals to one incarnation of an actor. Freely copied and kept; never keeps the actor alive."""

    __slots__ = ("_cell", "_system", "path")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._system = cell.system
        self.path = cell.path

    def __repr__(self) -> str:
        return f"<Ref {self.path}>"

    @property
    def alive(self) -> bool:
        """Whether it still takes letters: False from the moment it was asked to stop."""
        return not self._cell.closed

    @property
    def exit_reason(self) -> ExitReason | None:
        """None until the incarnation has ended, clean-up included."""
        return self._cell.exit_reason

    def tell_nowait(self, message: Any) -> None:
        """Send or raise at once: MailboxFull (retryable), ActorGone, NoHandler (a programming error)."""
        self._send_nowait(self._write(Letter, message))

    async def tell(self, message: Any) -> None:
        """Send, waiting in line while the mailbox is full: for the edges of the system only. ActorGone, NoHandler.

        Cancelled: the letter was not sent. Always a cancellation point; other tasks get a turn when it has to wait, and
        at every TURN_LETTERS-th letter of the system.
        """
        await checkpoint_if_cancelled()
        letter = self._write(Letter, message)
        if not self._offer(letter):
            await self._stand_in_line(letter)
        elif letter.about[1] % TURN_LETTERS == 0:
            await cancel_shielded_checkpoint()

    async def ask(self, message: Any, deadline_seconds: float) -> Any:
        """Send and wait for the reply; the deadline travels in the envelope.

        MailboxFull or AskCycle: refused at once. AskExpired: no reply in time. ActorGone: the target is dead, or died
        before it answered (with its exit reason). AskFailed: its handler raised. Cancelled: work that has not begun
        never will. Supervisors run no handlers, so they never ask their children.
        """
        await checkpoint_if_cancelled()
        question = self._write(Question, message)
        question.waiter = task = current_task()
        question.deadline = question.sent_at + deadline_seconds
        with waiting_for(question.mailbox, task):
            self._send_nowait(question)
            with trio.CancelScope(deadline=question.deadline) as scope:
                await question.wait_answer()
        if scope.cancelled_caught:
            raise AskExpired(self.path, message, deadline_seconds)
        if question.failure is not None:
            raise question.failure
        return question.reply

    def signal(self, name: str) -> None:
        """Raise the coalesced flag ``name``: never refused, ahead of letters, ignored by the dead. NoHandler."""
        self._cell.signal(name)

    def stop(self) -> None:
        """Ask it to stop: it takes no more letters, finishes what is in hand within its grace, cleans up. Idempotent."""
        self._cell.request_stop()

    def kill(self) -> None:
        """Cancel it now, without grace; its clean-up still runs, within its deadline. Idempotent."""
        self._cell.kill()

    async def wait_exit(self) -> ExitReason:
        """Wait until the incarnation has ended, clean-up included."""
        return await self._cell.wait_exit()

    def statistics(self) -> tuple[MailboxStatistics, ...]:
        """One snapshot per mailbox, in the order of the class."""
        return tuple(mailbox.statistics() for mailbox in self._cell.mailboxes.values())

    def _write(self, kind: type[Kindred], message: Any) -> Kindred:
        """The envelope: caused by the letter in hand, or the first of a trace of its own."""
        cell, system = self._cell, self._system
        handler = cell.handlers.get(type(message))
        if handler is None:
            raise NoHandler(self.path, type(message).__qualname__)
        number = next(system.letter_ids)
        point = current_point.get()
        cause, trace = (0, f"{system.trace_prefix}{number:x}") if point is None else (point.id, point.trace)
        about = (self.path, number, cause, trace, handler.what)
        return kind(about, message, handler, cell.mailboxes[handler.mailbox], system.now())

    def _send_nowait(self, letter: Letter) -> None:
        if not self._offer(letter):
            self._record(Kind.REFUSED, letter)
            raise letter.mailbox.refuse()

    def _offer(self, letter: Letter) -> bool:
        """False when the mailbox is full."""
        try:
            offered = letter.mailbox.offer(letter)
        except ActorGone:
            self._record(Kind.REFUSED, letter)
            raise
        if offered:
            self._system.trace.record(SENT, letter.sent_at, letter.about)
        return offered

    async def _stand_in_line(self, letter: Letter) -> None:
        self._record(SENT, letter)
        try:
            await letter.mailbox.wait_room(letter)
        except (ActorGone, trio.Cancelled):
            self._record(Kind.REFUSED, letter)
            raise

    def _record(self, kind: Kind, letter: Letter) -> None:
        self._system.trace.record(kind, letter.sent_at, letter.about)
