"""Server-sent events as a response body: a pump task, a bounded channel, and a sign of life every few seconds.

The body is a class and not an async generator: its pump runs in a nursery that is opened and closed by the one task
that sends the response. A client that goes away cancels that task, so the pump, so whatever it reads upstream.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import structlog
import trio
from attrs import define, field
from quart.wrappers.response import ResponseBody

from tuneplane.domain import codec
from tuneplane.domain.errors import Refused

from .problems import is_ours, problem_of

log = structlog.get_logger("tuneplane.web.streams")

ALIVE_SECONDS = 5.0  # the console calls a stream lost after three of them
PENDING_EVENTS = 8  # of at most 64 KiB each: what a slow client holds here; the pump then waits, and so does its source
MOST_STREAMS = 512  # of a process: each holds a connection and a task
MOST_STREAMS_A_USER = 64  # a person with a dozen tabs, or a script that follows a gang
MEDIA_TYPE = "text/event-stream"
CHECK_SECONDS = 5.0  # who may see no more loses the stream within this even when the poke is lost that says so (R-ADM-01)

Send = Callable[[bytes], Awaitable[None]]
Pump = Callable[[Send], Awaitable[None]]
Check = Callable[[], Awaitable[dict[str, Any]]]


def spell_event(name: str, value: Any, identity: str = "") -> bytes:
    """One event: ``id`` (what a browser repeats as Last-Event-ID), ``event``, and JSON ``data`` on one line."""
    data = json.dumps(codec.encode(value), ensure_ascii=True)
    return (f"id: {identity}\n" if identity else "").encode() + f"event: {name}\ndata: {data}\n\n".encode()


@define(eq=False)
class StreamCount:
    """The open streams, to bound them and to end them when the server stops."""

    open: set[EventStream] = field(factory=set)

    @property
    def total(self) -> int:
        return len(self.open)

    def check(self, user: str) -> None:
        """Refused(code="busy") when another stream would be too many."""
        if self.total >= MOST_STREAMS or sum(stream.user == user for stream in self.open) >= MOST_STREAMS_A_USER:
            raise Refused("busy", "too many event streams are open; close some and try again")

    def check_all(self) -> None:
        """Ask every stream now whether it may go on: somebody is another now, or may see something else."""
        for stream in self.open:
            stream.check_now()

    def close(self) -> None:
        """End all streams; their clients come back to another replica, or later."""
        for stream in self.open:
            stream.close()


class EventStream(ResponseBody):
    """Runs ``pump`` for as long as the client listens. ``check`` is asked every CHECK_SECONDS: it gives the data of the
    ``alive`` event, or raises, which ends the stream with an ``error`` event."""

    def __init__(self, pump: Pump, check: Check, count: StreamCount, user: str) -> None:
        self._pump = pump
        self._check = check
        self._count = count
        self.user = user
        self._stack = AsyncExitStack()
        self._events: trio.MemoryReceiveChannel[bytes]
        self._next_check = 0.0
        self._listening: trio.CancelScope | None = None  # while it waits for an event

    async def __aenter__(self) -> AsyncIterator[bytes]:
        self._count.open.add(self)
        self._stack.callback(self._count.open.discard, self)
        nursery = await self._stack.enter_async_context(trio.open_nursery())
        self._stack.callback(nursery.cancel_scope.cancel)
        sender, self._events = trio.open_memory_channel[bytes](PENDING_EVENTS)
        self._stack.callback(self._events.close)
        nursery.start_soon(self._run, sender)
        self._next_check = trio.current_time() + ALIVE_SECONDS
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.__aexit__(kind, error, trace)  # noqa: ASYNC102 - it cancels its nursery first, whose exits are bounded

    def close(self) -> None:
        """End the stream after what was already taken."""
        self._events.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """The next event. A sign of life goes ahead of waiting events when it is due."""
        with trio.CancelScope(deadline=self._next_check) as self._listening:
            try:
                return await self._events.receive()
            except (trio.EndOfChannel, trio.ClosedResourceError):
                raise StopAsyncIteration from None
            finally:
                self._listening = None
        return await self._alive()

    def check_now(self) -> None:
        """Ask before the next event, whatever waits; a stream that waits for one asks at once."""
        self._next_check = 0.0
        if self._listening is not None:
            self._listening.deadline = 0.0

    async def _alive(self) -> bytes:
        self._next_check = trio.current_time() + CHECK_SECONDS
        try:
            return spell_event("alive", await self._check())
        except Exception as error:
            self._events.close()  # the next turn ends the body
            return self._error(error)

    async def _run(self, sender: trio.MemorySendChannel[bytes]) -> None:
        async with sender:
            try:
                await self._pump(sender.send)
            except trio.BrokenResourceError:
                pass  # the check ended the stream
            except Exception as error:
                await sender.send(self._error(error))

    def _error(self, error: Exception) -> bytes:
        if not is_ours(error):
            log.error("an event stream failed", exc_info=error)
        return spell_event("error", problem_of(error).document())
