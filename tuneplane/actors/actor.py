"""What an actor is made of: the base class, its context, and the tasks and timers it may start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import trio

from .handlers import Handler, handler_table, signal_table
from .mailbox import MailboxSpec

if TYPE_CHECKING:
    from .cell import Cell
    from .ref import Ref
    from .system import System


class Actor:
    """Owner of some state; nobody else touches it. Subclass with ``@define`` and declare handlers.

    Handlers of different mailboxes, signals and ``run`` interleave at their awaits: change state only in a synchronous
    ``apply(event)``, and let slow effects be tasks (``Context.start_task``) whose outcome comes back as a letter.
    """

    __slots__ = ()
    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = ()
    __handlers__: ClassVar[dict[type, Handler]] = {}  # built when the class is
    __signals__: ClassVar[dict[str, Callable[..., Awaitable[None]]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = tuple(spec.name for spec in cls.mailboxes)
        if len(set(names)) < len(names):
            raise TypeError(f"{cls.__qualname__}: mailbox names repeat: {names}")
        cls.__handlers__ = handler_table(cls, names)
        cls.__signals__ = signal_table(cls)

    async def on_start(self, context: Context) -> None:
        """Make ready, within the child's ``start_seconds``. Letters wait until it returns; an error is a crash."""

    async def run(self, context: Context) -> None:
        """The body. Returning ends the actor as Finished. Asked to stop, it has the grace to return by itself."""
        await context.wait_stopping()

    async def on_stop(self, context: Context) -> None:
        """Clean up after any kind of exit, also of a start that failed half-way. Shielded, bounded by ``cleanup_seconds``."""


class TaskHandle:
    """An effect: a child task of the actor. It never outlives the actor, and its crash is the actor's crash."""

    __slots__ = ("_done", "_scope", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._scope = trio.CancelScope()
        self._done = trio.Event()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def cancel(self) -> None:
        """Cancel it; it is not done before it has unwound."""
        self._scope.cancel()

    async def wait_done(self) -> None:
        await self._done.wait()

    async def run(self, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Called by the kernel, once."""
        try:
            with self._scope:
                await work(*args)
        finally:
            self._done.set()


class Timer:
    """Raises one signal when its time has come. It belongs to a state: cancel it when you leave that state."""

    __slots__ = ("_fire", "_live", "_scope")

    def __init__(self, fire: Callable[[], None], seconds: float) -> None:
        self._fire = fire
        self._live = True
        self._scope = trio.CancelScope(deadline=trio.current_time() + seconds)

    @property
    def pending(self) -> bool:
        """Whether its time is still to come: it has neither been cancelled nor fired, nor is about to."""
        return self._live and not self._scope.cancel_called

    def reset(self, seconds: float) -> None:
        """Count from now again; of no effect on a timer that fired or was cancelled."""
        if self._live:
            self._scope.deadline = trio.current_time() + seconds

    def cancel(self) -> None:
        self._live = False
        self._scope.cancel()

    async def run(self) -> None:
        """Called by the kernel, once."""
        with self._scope:
            await trio.sleep_forever()
        if self._live:
            self._live = False
            self._fire()


class Context:
    """The actor's view of itself and its system. Valid in its own tasks only."""

    __slots__ = ("_cell", "name", "path", "ref", "system")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self.ref: Ref = cell.ref
        self.name: str = cell.spec.name
        self.path: str = cell.path
        self.system: System = cell.system

    def start_task(self, work: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None) -> TaskHandle:
        """Run ``work(*args)`` beside the handlers, under the trace of the letter in hand.

        Effects get no grace: once the body and the letters in hand are done, they are cancelled. ActorGone in clean-up.
        """
        handle = TaskHandle(name or f"{self.path} {getattr(work, '__qualname__', work)}")
        self._cell.start_soon(handle.run, work, *args, name=handle.name)
        return handle

    def timer(self, signal: str, seconds: float) -> Timer:
        """Raise ``signal`` after ``seconds``, unless cancelled. NoHandler, ActorGone in clean-up."""
        self._cell.require_signal(signal)
        timer = Timer(lambda: self._cell.signal(signal), seconds)
        self._cell.start_soon(timer.run, name=f"{self.path} timer {signal}")
        return timer

    def stop_self(self) -> None:
        """End as Stopped, like ``Ref.stop``: the handler that calls it goes on to its end."""
        self._cell.request_stop()

    @property
    def stopping(self) -> bool:
        return self._cell.stopping.is_set()

    async def wait_stopping(self) -> None:
        """Wait until the actor was asked to stop."""
        await self._cell.stopping.wait()

    @contextmanager
    def until_stopping(self) -> Iterator[trio.CancelScope]:
        """A scope that is cancelled as soon as the actor is asked to stop: for bodies that need no grace."""
        with self._cell.scope_until_stopping() as scope:
            yield scope
