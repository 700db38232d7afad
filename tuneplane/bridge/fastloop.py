"""A trio-asyncio loop that drains its whole ready queue per Trio wake-up.

The stock loop passes every asyncio callback through a Trio memory channel and a cancel scope of its own; under load
that is 40 % of a gateway's CPU. Here callbacks wait in a deque, and one wake-up of the loop's task runs all that are
there. It touches private names of trio-asyncio, so it is used only with the versions it was tested with
(:data:`TESTED`); any other installation gets the stock loop. Both run the same fault tests (tests/contract).
"""

from __future__ import annotations

import asyncio
import heapq
import math
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import trio
import trio_asyncio._loop as stock
from sniffio import thread_local as sniffio_library
from trio_asyncio._handles import AsyncHandle

TESTED = {"trio": "0.35.0", "trio-asyncio": "0.16.0"}
READS_AT_ONCE = 8  # buffers of one connection before the others have their turn
TESTED_PYTHON = (3, 11)  # the handles' private fields are CPython's


def is_supported() -> bool:
    """Whether the installed versions are exactly those that this module was tested with."""
    return sys.version_info[:2] == TESTED_PYTHON and all(version(name) == tested for name, tested in TESTED.items())


@asynccontextmanager
async def loop_class(batched: bool) -> AsyncIterator[None]:
    """Let ``trio_asyncio.open_loop`` inside this block build the batched loop; put the stock class back afterwards."""
    former = stock.TrioEventLoop
    if batched:
        stock.TrioEventLoop = BatchedEventLoop
    try:
        yield
    finally:
        stock.TrioEventLoop = former


class _ReadyQueue:
    """Stands in for both ends of the memory channel where inherited code uses it (threads, signals, shutdown)."""

    def __init__(self, loop: BatchedEventLoop) -> None:
        self.handles: deque[Any] = deque()
        self._loop = loop

    def send_nowait(self, handle: Any) -> None:
        self.handles.append(handle)
        self._loop.wake()

    def receive_nowait(self) -> Any:
        if not self.handles:
            raise trio.WouldBlock
        return self.handles.popleft()


class BatchedEventLoop(stock.TrioEventLoop):  # type: ignore[misc]
    """The loop. Its queue is unbounded, as asyncio's own is: call_soon has no way to refuse."""

    def __init__(self, queue_len: int | None = None) -> None:
        super().__init__(queue_len)
        self._sleeper: trio.lowlevel.Task | None = None
        self.read_more = False  # set by a protocol whose read filled its buffer
        self._queue = self._q_send = self._q_recv = _ReadyQueue(self)

    def wake(self) -> None:
        """Reschedule the loop's task if it sleeps."""
        sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None:
            trio.lowlevel.reschedule(sleeper)

    def _queue_handle(self, handle: Any) -> Any:
        self._check_closed()
        if isinstance(handle, asyncio.TimerHandle):
            heapq.heappush(self._timers, handle)
            if self._timers[0] is handle:
                self.wake()
        else:
            self._queue.handles.append(handle)
            self.wake()
        return handle

    async def _sleep(self, seconds: float) -> None:
        self._sleeper = trio.lowlevel.current_task()

        def abort(_: Any) -> trio.lowlevel.Abort:
            self._sleeper = None
            return trio.lowlevel.Abort.SUCCEEDED

        if seconds is math.inf:
            await trio.lowlevel.wait_task_rescheduled(abort)
        else:
            with trio.move_on_after(seconds):
                await trio.lowlevel.wait_task_rescheduled(abort)

    def _collect_due_timers(self) -> float:
        """Move due timers to the ready queue. Seconds until the next one."""
        if not self._timers:
            return math.inf
        now = self.time()
        while self._timers and (self._timers[0]._cancelled or self._timers[0]._when <= now):
            handle = heapq.heappop(self._timers)
            if not handle._cancelled:
                self._queue.handles.append(handle)
        return self._timers[0]._when - now if self._timers else math.inf

    def _run_io(self, handle: Any) -> None:
        """One callback; again, without another wait, while it says that it had its buffer full."""
        for _ in range(READS_AT_ONCE):
            self.read_more = False
            handle._run()
            if not self.read_more or handle._cancelled:
                return

    async def _io_task(self, fd: Any, handle: Any, wait_ready: Any) -> None:
        """As the stock one, without a turn of the loop after a callback that has queued nothing."""
        with handle._scope:
            try:
                while not handle._cancelled:
                    try:
                        await wait_ready(fd)
                    except OSError:
                        if handle._cancelled:  # removed, and its descriptor closed, in one step
                            break
                        raise
                    if handle._cancelled:
                        break
                    self._run_io(handle)
                    if self._queue.handles:
                        await self.synchronize()
            except Exception as error:
                handle._raise(error)

    async def _main_loop_one(self, no_wait: bool = False) -> None:
        if no_wait:  # only while shutting down
            await super()._main_loop_one(no_wait=True)
            return
        pause = self._collect_due_timers()
        if not self._queue.handles:
            await self._sleep(pause)
            return
        await self._run_ready(len(self._queue.handles))
        await trio.lowlevel.cancel_shielded_checkpoint()  # the other Trio tasks' turn

    async def _run_ready(self, count: int) -> None:
        """Run the first ``count`` handles: later ones wait for the next turn, as asyncio does it."""
        handles = self._queue.handles
        former, sniffio_library.name = sniffio_library.name, "asyncio"
        try:
            for _ in range(count):
                handle = handles.popleft()
                if isinstance(handle, AsyncHandle):
                    sniffio_library.name = former
                    handle._context.run(self._nursery.start_soon, handle._run, name=handle._callback)
                    await handle._started.wait()
                    sniffio_library.name = "asyncio"
                elif not handle._cancelled:
                    handle._run()
        finally:
            sniffio_library.name = former
