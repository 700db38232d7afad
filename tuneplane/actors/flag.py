"""A coalesced wake-up: what cannot be refused, because any number of raises before a look are one."""

from __future__ import annotations

import trio
from trio.lowlevel import Abort, Task


class Flag:
    """One task waits; anyone raises, also before the wait. Cancelling the wait leaves the flag as it is."""

    __slots__ = ("_raised", "_waiter")

    def __init__(self) -> None:
        self._raised = False
        self._waiter: Task | None = None

    def raise_flag(self) -> None:
        self._raised = True
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            trio.lowlevel.reschedule(waiter)

    async def wait(self) -> None:
        """Return when raised, and lower it. Always a checkpoint."""
        if self._raised:
            await trio.lowlevel.checkpoint()
        else:
            await self._park()
        self._raised = False

    async def _park(self) -> None:
        assert self._waiter is None, "a flag has one waiter"
        self._waiter = trio.lowlevel.current_task()

        def abort(_: object) -> Abort:
            self._waiter = None
            return Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
