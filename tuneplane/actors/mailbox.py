"""Bounded mailboxes and the letters in them.

A mailbox has one owner (the cell of its actor) and ``workers`` tasks that take letters from it. Letters are
at-most-once: a letter is out of the queue before its handler runs, so one that crashes its actor is never met again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from attrs import define, field, frozen, validators
from trio.lowlevel import Abort, Task, checkpoint, current_task, reschedule, wait_task_rescheduled

from .errors import ActorError, ActorGone, AskFailed, MailboxFull
from .exits import ExitReason
from .handlers import Handler
from .trace import About

TURN_LETTERS = 16  # letters: then going through the scheduler is a small part of the cost
TURN_SECONDS = 0.001  # so that slow handlers do not keep everybody else for 16 of them


@frozen
class MailboxSpec:
    """A named mailbox: its ``capacity`` in letters and ``why`` that number; ``workers`` letters are in hand at once."""

    name: str
    capacity: int = field(validator=validators.gt(0))
    why: str
    workers: int = field(default=1, validator=validators.gt(0))


@define(eq=False)
class Letter:
    """An envelope. ``about`` is what the trace tells of it; a letter is also where in a trace its handler stands."""

    about: About
    message: Any
    handler: Handler
    mailbox: Mailbox
    sent_at: float

    @property
    def id(self) -> int:
        return self.about[1]

    @property
    def trace(self) -> str:
        return self.about[3]


@define(eq=False)
class Question(Letter):
    """A letter that someone waits for until ``deadline`` (seconds on the Trio clock)."""

    deadline: float = 0.0
    waiter: Task | None = None  # None as soon as it has its answer, or went away
    reply: Any = None
    failure: ActorError | None = None
    error: Exception | None = None  # what its handler raised, to be told when the actor has ended

    def succeed(self, reply: Any) -> bool:
        """Answer the asker; False when it no longer waits."""
        self.reply = reply
        return self._wake()

    def fail(self, error: ActorError) -> bool:
        self.failure = error
        return self._wake()

    def expired(self, now: float) -> bool:
        """Past its deadline, or its asker was cancelled: work that nobody wants does not begin."""
        return self.waiter is None or now >= self.deadline

    async def wait_answer(self) -> None:
        """Park the asker. A cancel (its own deadline included) takes the waiter out: a later answer finds nobody."""

        def abort(_: object) -> Abort:
            self.waiter = None
            return Abort.SUCCEEDED

        await wait_task_rescheduled(abort)

    def _wake(self) -> bool:
        waiter, self.waiter = self.waiter, None
        if waiter is None:
            return False
        reschedule(waiter)
        return True


class Seat:
    """A worker's place at its mailbox: where it waits, where a letter is put meanwhile, and how long its turn lasts.

    Going through the scheduler costs as much as handling a small letter. So a worker takes up to TURN_LETTERS in a
    row, unless TURN_SECONDS are over; then everybody else has a turn.
    """

    __slots__ = ("abort", "left", "letter", "now", "task", "until")

    def __init__(self, mailbox: Mailbox) -> None:
        self.task = current_task()
        self.letter: Letter | None = None
        self.now = 0.0  # the time, as of the last look at the clock
        self.until = 0.0  # the turn ends
        self.left = 0  # letters left in this turn

        def abort(_: object) -> Abort:
            mailbox.idle.remove(self)
            return Abort.SUCCEEDED

        self.abort = abort

    def begin_turn(self, now: float) -> None:
        self.now = now
        self.until = now + TURN_SECONDS
        self.left = TURN_LETTERS


@frozen
class MailboxStatistics:
    """A snapshot. Seconds are on the Trio clock; counts are since this incarnation started."""

    name: str
    capacity: int
    depth: int
    in_hand: int
    oldest_seconds: float  # age of the letter that waits longest; 0 when none waits
    wait_mean_seconds: float  # from sent to received, over all letters received
    wait_most_seconds: float
    handled: int
    refused: int  # MailboxFull was raised to the sender
    expired: int  # asks dropped before work started
    late: int  # replies that nobody waited for any more
    senders_waiting: int


class Mailbox:
    """The queue. Sending raises ActorGone once closed; ``take`` then returns None."""

    __slots__ = ("_capacity", "_clock", "_closed", "_queue", "_senders", "expired", "handled", "idle", "in_hand", "late", "path",
                 "received", "refused", "spec", "wait_most", "wait_total", "waits_on")  # fmt: skip

    def __init__(self, spec: MailboxSpec, path: str, clock: Callable[[], float]) -> None:
        self.spec = spec
        self.path = path
        self.in_hand: dict[Letter, Task] = {}  # and who has it: at most spec.workers
        self.waits_on: list[Mailbox] = []  # whose replies our workers wait for: at most spec.workers (see asks.py)
        self.idle: list[Seat] = []  # parked workers: then the queue is empty
        self.received = self.handled = self.refused = self.expired = self.late = 0
        self.wait_total = self.wait_most = 0.0
        self._clock = clock
        self._capacity = spec.capacity
        self._queue: deque[Letter] = deque()  # at most spec.capacity
        self._senders: dict[Task, Letter] = {}  # tasks in tell(), oldest first; bounded by the tasks there are
        self._closed: ExitReason | None = None

    def offer(self, letter: Letter) -> bool:
        """Hand over to a parked worker, or queue; False when full. ActorGone."""
        if self.idle:
            seat = self.idle.pop()
            seat.letter = letter
            reschedule(seat.task)
        elif self._closed is not None:
            raise ActorGone(self.path, self._closed)
        elif len(self._queue) < self._capacity:
            self._queue.append(letter)
        else:
            return False
        return True

    def refuse(self) -> MailboxFull:
        """What a sender that does not wait is told after a vain offer."""
        self.refused += 1
        return MailboxFull(self.path, self.spec.name, self._capacity)

    async def wait_room(self, letter: Letter) -> None:
        """Stand in line until the letter is queued. Cancelled: it was not. ActorGone, also while waiting."""
        task = current_task()
        self._senders[task] = letter

        def abort(_: object) -> Abort:
            del self._senders[task]
            return Abort.SUCCEEDED

        await wait_task_rescheduled(abort)
        if self._senders.pop(task, None) is not None:  # nobody moved it to the queue: the mailbox closed
            raise ActorGone(self.path, self._closed)

    def take_nowait(self, seat: Seat) -> Letter | None:
        """The next letter, if one is there and the worker's turn is not over."""
        if not self._queue or seat.left == 0 or seat.now >= seat.until:
            return None
        seat.left -= 1
        return self._pop()

    async def take(self, seat: Seat) -> Letter | None:
        """The next letter in a new turn, None once closed. Cancelled: no letter was taken. Sets ``seat.now``."""
        if self._queue:
            await checkpoint()
            seat.begin_turn(self._clock())
        if self._queue:
            return self._pop()
        if self._closed is not None:
            return None
        return await self._wait_letter(seat)

    async def _wait_letter(self, seat: Seat) -> Letter | None:
        seat.letter = None
        self.idle.append(seat)
        await wait_task_rescheduled(seat.abort)
        seat.begin_turn(self._clock())
        if self._closed is None:
            return seat.letter
        if seat.letter is not None:  # closed between the hand-over and now: stop goes first
            tell_asker(seat.letter, ActorGone(self.path, self._closed))
        return None

    def _pop(self) -> Letter:
        letter = self._queue.popleft()
        if self._senders:
            sender = next(iter(self._senders))
            self._queue.append(self._senders.pop(sender))
            reschedule(sender)
        return letter

    def count_received(self, waited: float) -> None:
        self.received += 1
        self.wait_total += waited
        if waited > self.wait_most:
            self.wait_most = waited

    def close(self, reason: ExitReason) -> None:
        """Refuse what comes, answer what waits in the queue and in line, let idle workers go. Again: only the reason."""
        was_open, self._closed = self._closed is None, reason
        if not was_open:
            return
        while self._queue:
            tell_asker(self._queue.popleft(), ActorGone(self.path, reason))
        for sender in self._senders:
            reschedule(sender)
        while self.idle:
            reschedule(self.idle.pop().task)

    def abandon(self, reason: ExitReason) -> None:
        """Answer those whose letters were in hand when the actor ended: with the handler's own error, if it raised."""
        for letter in self.in_hand:
            error = letter.error if isinstance(letter, Question) else None
            tell_asker(letter, ActorGone(self.path, reason) if error is None else AskFailed(self.path, letter.message, error))
        self.in_hand.clear()

    def statistics(self) -> MailboxStatistics:
        now = self._clock()
        return MailboxStatistics(
            name=self.spec.name,
            capacity=self.spec.capacity,
            depth=len(self._queue),
            in_hand=len(self.in_hand),
            oldest_seconds=now - self._queue[0].sent_at if self._queue else 0.0,
            wait_mean_seconds=self.wait_total / self.received if self.received else 0.0,
            wait_most_seconds=self.wait_most,
            handled=self.handled,
            refused=self.refused,
            expired=self.expired,
            late=self.late,
            senders_waiting=len(self._senders),
        )


def tell_asker(letter: Letter, error: ActorError) -> None:
    """Fail a letter's asker, if there is one."""
    if isinstance(letter, Question):
        letter.fail(error)
