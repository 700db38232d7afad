"""A cell runs one incarnation of an actor, from ``on_start`` to the last waiter answered.

Tasks of a cell: the cell itself (owner: its supervisor), one worker per mailbox and ``workers``, one for signals if
the class has any, one for ``run``, and the effects and timers that the actor started. All live in one nursery.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import trio

from .actor import Actor, Context
from .errors import ActorGone, AskFailed, CleanUpOverdue, NoHandler, StartOverdue
from .exits import Crashed, ErrorsKept, ExitReason, Finished, Killed, Stopped, describe
from .flag import Flag
from .handlers import Handler
from .mailbox import Letter, Mailbox, Question, Seat
from .ref import Ref
from .spec import ChildSpec
from .trace import HANDLED, RECEIVED, Kind, current_point, keep_trace_only
from .tree import Phase, TreeNode

if TYPE_CHECKING:
    from .system import System


class Cell:
    """See the module. ``live`` is called once; everything else may be called at any time, from any task."""

    def __init__(self, system: System, spec: ChildSpec, path: str) -> None:
        self.system = system
        self.spec = spec
        self.path = path
        self.actor = spec.factory()
        self._kind = type(self.actor).__qualname__
        self.handlers: dict[type, Handler] = self.actor.__handlers__
        self.mailboxes = {box.name: Mailbox(box, path, system.now) for box in self.actor.mailboxes}
        self.ref = Ref(self)
        self.context = Context(self)
        self.stopping = trio.Event()
        self.exited = trio.Event()
        self.exit_reason: ExitReason | None = None
        self.closed = False
        self._scope = trio.CancelScope()  # the whole incarnation but its clean-up
        self._until_stopping: set[trio.CancelScope] = set()
        self._nursery: trio.Nursery | None = None
        self._graceful = 0  # tasks that a stop waits for, while its grace lasts
        self._quiet = trio.Event()  # none of them is left
        self._killed = False
        self._finished = False
        self._errors: list[Exception] = []
        self._raised: dict[str, None] = {}  # signals not yet looked at, in the order of their first raise
        self._signalled = Flag()
        self._signals_idle = False
        self._signals_begun = trio.lowlevel.ParkingLot()

    @property
    def stop_limit(self) -> float:
        """Seconds within which a stop should be over."""
        return self.spec.stop_seconds + self.spec.cleanup_seconds

    async def live(self, ready: Callable[[], None]) -> ExitReason:
        """Run the incarnation; ``ready`` is called when ``on_start`` has returned. Errors end up in the exit reason.

        Cancelled (or interrupted) from outside: the clean-up runs and the waiters are answered before it goes on up.
        """
        interrupted = True
        keep_trace_only()
        try:
            with ErrorsKept(self._errors):
                await self._serve(ready)
            interrupted = False
        finally:
            self._release(self._reason(interrupted))
            try:
                with trio.CancelScope(shield=True, deadline=self.system.now() + self.spec.cleanup_seconds) as limit:
                    await self._clean_up()
                if limit.cancelled_caught:
                    self._report_clean_up()
            finally:
                reason = self._finish(self._reason(interrupted))
        return reason

    async def _serve(self, ready: Callable[[], None]) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    await self._start(nursery, ready)
                    await self._wait_end()
                finally:
                    self._nursery = None  # it takes no more tasks
                nursery.cancel_scope.cancel()  # effects and timers have no grace

    async def _start(self, nursery: trio.Nursery, ready: Callable[[], None]) -> None:
        with self.scope_until_stopping(), trio.CancelScope(deadline=self.system.now() + self.spec.start_seconds) as limit:
            await self.actor.on_start(self.context)
        if limit.cancelled_caught:
            raise StartOverdue(self.path, self.spec.start_seconds)
        if not self.closed:
            self.system.register(self.ref)
            self._open_tasks(nursery)
            ready()

    def _open_tasks(self, nursery: trio.Nursery) -> None:
        graceful: list[tuple[str, Callable[..., Awaitable[None]], Any]] = [
            (box.spec.name, self._work, box) for box in self.mailboxes.values() for _ in range(box.spec.workers)
        ]
        if type(self.actor).run is not Actor.run:  # the default only waits, and this cell does that anyway
            graceful.append(("run", self._run_body, None))
        if self.actor.__signals__:
            self._signals_idle = True
            graceful.append(("signals", self._watch_signals, None))
        self._graceful = len(graceful)
        for name, work, argument in graceful:
            nursery.start_soon(self._run_graceful, work, argument, name=f"{self.path} {name}")

    async def _run_graceful(self, work: Callable[..., Awaitable[None]], argument: Any) -> None:
        await (work() if argument is None else work(argument))
        self._graceful -= 1
        if self._graceful == 0:
            self._quiet.set()

    async def _wait_end(self) -> None:
        await self.stopping.wait()
        if self._graceful:
            with trio.move_on_after(self.spec.stop_seconds):
                await self._quiet.wait()

    async def _run_body(self) -> None:
        await self.actor.run(self.context)
        self._finished = not self.stopping.is_set()
        self._close(Finished())

    async def _work(self, mailbox: Mailbox) -> None:
        """Serve one letter after the other until the mailbox closes."""
        seat = Seat(mailbox)
        while (letter := mailbox.take_nowait(seat) or await mailbox.take(seat)) is not None:
            mailbox.in_hand[letter] = seat.task  # from here on the exit answers it, whatever happens
            if self._raised:
                await self._let_signals_go_first(seat)
            if isinstance(letter, Question) and letter.expired(seat.now):
                mailbox.expired += 1
                self.system.trace.record(Kind.EXPIRED, seat.now, letter.about)
            else:
                await self._handle(letter, mailbox, seat)
            del mailbox.in_hand[letter]
            letter.message = None  # an idle worker keeps its last letter, which should not keep a large message

    async def _let_signals_go_first(self, seat: Seat) -> None:
        while self._raised and self._signals_idle:  # the signal task was woken and has not run yet
            await self._signals_begun.park()
        seat.now = self.system.now()

    async def _handle(self, letter: Letter, mailbox: Mailbox, seat: Seat) -> None:
        trace = self.system.trace
        mailbox.count_received(seat.now - letter.sent_at)
        trace.record(RECEIVED, seat.now, letter.about)
        current_point.set(letter)
        try:
            reply = await letter.handler.method(self.actor, letter.message, self.context)
        except Exception as error:
            if not self._is_answer(error, letter):
                trace.record(Kind.CRASHED, self.system.now(), letter.about)
                raise
        else:
            if isinstance(letter, Question):
                mailbox.late += not letter.succeed(reply)
        mailbox.handled += 1
        seat.now = self.system.now()
        trace.record(HANDLED, seat.now, letter.about)

    def _is_answer(self, error: Exception, letter: Letter) -> bool:
        """Whether ``error`` is one that the handler may answer an ask with. If not, the asker hears of it at the exit."""
        if not isinstance(letter, Question):
            return False
        if not isinstance(error, letter.handler.raises):
            letter.error = error
            return False
        letter.mailbox.late += not letter.fail(AskFailed(self.path, letter.message, error))
        return True

    async def _watch_signals(self) -> None:
        """Run the handlers of raised signals, one at a time, in the order of their first raise."""
        while not self.closed:
            self._signals_idle = True
            await self._signalled.wait()
            self._signals_idle = False
            self._signals_begun.unpark_all()
            while self._raised and not self.closed:
                name = next(iter(self._raised))
                del self._raised[name]
                await self.actor.__signals__[name](self.actor, self.context)

    async def _clean_up(self) -> None:
        with ErrorsKept(self._errors):
            await self.actor.on_stop(self.context)

    def _report_clean_up(self) -> None:
        error = CleanUpOverdue(self.path, self.spec.cleanup_seconds)
        self._errors.append(error)
        self.system.report_overdue(self.path, str(error))

    # --- called from any task; none of these waits ---

    def require_signal(self, name: str) -> None:
        if name not in self.actor.__signals__:
            raise NoHandler(self.path, f"signal {name!r}")

    def signal(self, name: str) -> None:
        if self.closed:
            return
        self.require_signal(name)
        self._raised[name] = None
        self._signalled.raise_flag()

    def request_stop(self) -> None:
        self._close(Stopped())

    def kill(self) -> None:
        self._killed = self._killed or self.exit_reason is None
        self._close(Killed())
        self._scope.cancel()

    def start_soon(self, work: Callable[..., Awaitable[Any]], *args: Any, name: str) -> None:
        if self._nursery is None:
            raise ActorGone(self.path, self.exit_reason or Stopped())
        self._nursery.start_soon(work, *args, name=name)

    @contextmanager
    def scope_until_stopping(self) -> Iterator[trio.CancelScope]:
        with trio.CancelScope() as scope:
            if self.closed:
                scope.cancel()
            self._until_stopping.add(scope)
            try:
                yield scope
            finally:
                self._until_stopping.discard(scope)

    async def wait_exit(self) -> ExitReason:
        await self.exited.wait()
        assert self.exit_reason is not None
        return self.exit_reason

    def snapshot(self) -> TreeNode:
        boxes = tuple(mailbox.statistics() for mailbox in self.mailboxes.values())
        return TreeNode(path=self.path, kind=self._kind, phase=Phase.RUNNING, restarts=0, last_exit="", mailboxes=boxes)

    # --- the end ---

    def _close(self, reason: ExitReason) -> None:
        """Deregister, then answer what has not begun; let the tasks know. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.system.deregister(self.ref)
        for mailbox in self.mailboxes.values():
            mailbox.close(reason)
        self.stopping.set()
        self._signalled.raise_flag()
        for scope in self._until_stopping:
            scope.cancel()

    def _reason(self, interrupted: bool) -> ExitReason:
        if self._errors:
            return Crashed(ExceptionGroup(f"{self.path} crashed", self._errors))
        if self._killed or interrupted:
            return Killed()
        return Finished() if self._finished else Stopped()

    def _release(self, reason: ExitReason) -> None:
        """No task of the actor is left: answer those whose letters were in hand."""
        self._close(reason)
        for mailbox in self.mailboxes.values():
            mailbox.close(reason)
            mailbox.abandon(reason)

    def _finish(self, reason: ExitReason) -> ExitReason:
        del self.actor  # refs are kept for long, the state need not be
        self.exit_reason = reason
        self.system.note(Kind.CRASHED if isinstance(reason, Crashed) else Kind.STOPPED, self.path, describe(reason))
        self.exited.set()
        return reason
