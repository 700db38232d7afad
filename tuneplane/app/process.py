"""A process of ours from start to end: one Trio run, one supervision tree, and a bounded stop on SIGTERM or SIGINT.

The first signal asks the system to stop: its ladder runs (accept loops, then sessions, then services). Before there is
a system, it cancels the start. A later signal, or a stop that takes longer than ``STOP_SECONDS``, ends the process at
once and says so; what that leaves behind is what every restart repairs anyway.
Exit status: 0 after an asked stop, 1 when the tree gave up, 3 after a forced end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable

import structlog
import trio
from attrs import define

from tuneplane.actors import SupervisorSpec, SystemFailed, describe, open_system
from tuneplane.domain.errors import TuneplaneError

from .faults import install_fault_hook_from
from .logs import install_logging

log = structlog.get_logger(__name__)

# The longest ladder of ours: grace of the sessions and servers, then their clean-up, each within seconds (Timings,
# ChildSpec), then PostgreSQL's own fast stop; an init system waits 90 s before it kills.
STOP_SECONDS = 45.0
IMPATIENT_SECONDS = 1.0  # a second signal sooner is the same request: wrappers signal the process and its group
FORCED = 3  # exit status: the process had to be cut off


class TreeEnded(TuneplaneError):
    """The supervision tree ended without being asked: it gave up, or crashed. Logged in detail by its supervisors."""

    code = "tree-ended"


@define(eq=False)
class Stopping:
    """How the present phase of the process is asked to stop."""

    ask: Callable[[], None]
    asked: bool = False


Main = Callable[[Stopping], Awaitable[None]]


def run_process(name: str, main: Main) -> None:
    """Run ``main`` as process ``name``: logging, fault hook, Trio, signals. An error of one leaf comes out as that leaf."""
    install_logging(name)
    install_fault_hook_from(os.environ)
    try:
        trio.run(_with_signals, main)
    except BaseExceptionGroup as group:
        raise _only_leaf(group) from group


async def _with_signals(main: Main) -> None:
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            stopping = Stopping(ask=scope.cancel)
            await nursery.start(_watch_signals, stopping)
            await main(stopping)
        nursery.cancel_scope.cancel()


async def _watch_signals(stopping: Stopping, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        number = await anext(signals)
        log.info("stopping", signal=signal.Signals(number).name)
        stopping.asked = True
        stopping.ask()
        asked_at = trio.current_time()
        with trio.move_on_after(STOP_SECONDS):
            async for _ in signals:
                if trio.current_time() - asked_at >= IMPATIENT_SECONDS:
                    break
        log.error("the stop was cut off", after_seconds=round(trio.current_time() - asked_at, 1))
        sys.stderr.flush()
        os._exit(FORCED)


async def run_system(name: str, root: SupervisorSpec, stopping: Stopping, on_ready: Callable[[], Awaitable[None]] | None = None) -> None:
    """Run the tree until it is asked to stop and has stopped. ``on_ready`` runs when all children are up.

    Raises TreeEnded when a child does not start, or the tree gave up later.
    """
    try:
        async with open_system(name, root) as system:
            stopping.ask = system.stop
            if stopping.asked:
                system.stop()
            elif on_ready is not None:
                await on_ready()
            log.info("up", system=name)
            reason = await system.wait()
    except SystemFailed as error:
        raise TreeEnded(f"{name} failed: {error}") from error
    log.info("down", system=name, reason=describe(reason))


def _only_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    leaf: BaseException = group
    while isinstance(leaf, BaseExceptionGroup) and len(leaf.exceptions) == 1:
        leaf = leaf.exceptions[0]
    return leaf
