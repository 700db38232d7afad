"""``open_system``: the one place where a tree meets the nursery it lives in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from .errors import SystemFailed
from .exits import ExitReason, GaveUp, Killed
from .spec import SupervisorSpec
from .supervisor import OVERDUE_MARGIN_SECONDS, Supervisor
from .system import System
from .trace import TRACE_SIZE


@asynccontextmanager
async def open_system(name: str, root: SupervisorSpec, *, seed: int | None = None, trace_size: int = TRACE_SIZE) -> AsyncIterator[System]:
    """Run the tree ``root`` around a block. The block begins when every child is ready; leaving it stops the tree.

    However the block ends (cancelled too), the tree stops by its ladder, children in reverse, shielded until the sum
    of all graces has passed; after that it is cancelled as a whole. When the root gives up, the block is cancelled and
    SystemFailed is raised. ``seed`` makes jitter and trace ids repeatable; ``trace_size`` 0 switches the trace off.
    """
    system = System(name, seed=seed, trace_size=trace_size)
    system.root = supervisor = Supervisor(system, root, root.name)
    tree = trio.CancelScope(shield=True)
    block = trio.CancelScope()
    ready = trio.Event()
    failure: Exception | None = None

    async def live() -> None:
        try:
            with tree:
                await supervisor.live(ready.set)
        finally:
            if _failed(supervisor.exit_reason) or not ready.is_set():
                block.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live, name=f"{name} {root.name}")
        try:
            with block:
                await ready.wait()
                yield system
        except Exception as error:  # the block's own: raised below, where no nursery wraps it in a group
            failure = error
        finally:
            system.stop()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + supervisor.stop_limit + OVERDUE_MARGIN_SECONDS):
                await supervisor.wait_exit()
            tree.cancel()
    if _failed(supervisor.exit_reason):
        assert supervisor.exit_reason is not None
        raise SystemFailed(name, supervisor.exit_reason) from failure
    if failure is not None:
        raise failure


def _failed(reason: ExitReason | None) -> bool:
    return isinstance(reason, GaveUp | Killed)
