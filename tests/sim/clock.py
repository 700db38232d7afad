"""Virtual time for one run of Trio: it stands still while any task can run, then jumps to the next moment that anything waits for.

As ``trio.testing.MockClock`` with ``autojump_threshold=0``, but a jump costs no turn of Trio's loop: the loop asks for the
time to the next deadline exactly when nobody can run. That needs a world without threads and real I/O, which the
simulator is. Simulated parts wait through :func:`sleep` and :meth:`SimClock.call_at`, a third of the price of a Trio deadline.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

import trio
from trio.abc import Clock
from trio.lowlevel import Abort

HANG_SECONDS = 1.0  # nothing is to come but Ctrl-C and Trio's farewell


class SimClock(Clock):
    """Starts at 0. ``call_at`` callbacks run between two turns of the loop, in the order of their moments, outside any task."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._number = itertools.count().__next__

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """No task can run now: go to the next moment. How long to wait for real: only if nothing is to come."""
        due = self._due
        if due and due[0][0] < deadline:
            deadline = due[0][0]
        if deadline > self.now:
            if deadline == inf:
                return HANG_SECONDS
            self.now = deadline
        while due and due[0][0] <= self.now:
            heappop(due)[2]()
        return 0.0

    def call_at(self, when: float, callback: Callable[[], object]) -> None:
        heappush(self._due, (when, self._number(), callback))


async def sleep_until(when: float) -> None:
    """``trio.sleep_until``; a checkpoint. Cancelled, it leaves nothing but a dead entry in the clock.

    For a test that borrows a part of the simulator it is Trio's own, on whatever clock that test runs.
    """
    clock = trio.lowlevel.current_clock()
    if type(clock) is not SimClock:
        await trio.sleep_until(when)
        return
    sleeper = _Sleeper(trio.lowlevel.current_task())
    heappush(clock._due, (when, clock._number(), sleeper.wake))
    await trio.lowlevel.wait_task_rescheduled(sleeper.abort)


def call_at(when: float, callback: Callable[[], object]) -> None:
    """See :meth:`SimClock.call_at`; of the clock of this run."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, SimClock)
    clock.call_at(when, callback)


class _Sleeper:
    __slots__ = ("task",)

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.task: trio.lowlevel.Task | None = task

    def wake(self) -> None:
        if self.task is not None:
            trio.lowlevel.reschedule(self.task)

    def abort(self, raise_cancel: Callable[[], Any]) -> Abort:
        self.task = None
        return Abort.SUCCEEDED


def sleep(seconds: float) -> Awaitable[None]:
    """``sleep_until``, from the moment of this call on."""
    return sleep_until(trio.current_time() + seconds)
