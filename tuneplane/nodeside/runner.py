"""Where blocking code of one owner runs: a thread of its own in production, in the caller for simulations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio
from attrs import define, field

T = TypeVar("T")


@define
class ThreadRunner:
    """Runs one call at a time on a worker thread, in the order of arrival. A started call is always awaited to its end,
    also when the caller is cancelled: a write's outcome is then known, and the cancellation comes after it."""

    _turn: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1))

    async def __call__(self, work: Callable[[], T], /) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._turn)


async def run_inline(work: Callable[[], T], /) -> T:
    """The same contract without a thread, for code that runs on a mock clock."""
    await trio.lowlevel.checkpoint_if_cancelled()
    result = work()
    await trio.lowlevel.cancel_shielded_checkpoint()
    return result
