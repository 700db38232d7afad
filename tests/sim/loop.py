"""The seeded scheduler: Trio's run loop for a world without I/O, which decides from a seed who runs next.

What :func:`seeded_run` drops of Trio's ``unrolled_run`` is what a simulation never has: instruments, guests, the wait for
idleness, and the look at sockets before every batch (here every ``LOOK_EVERY`` turns, for Ctrl-C). What it keeps is copied:
one batch a turn, of the tasks that could run when the turn began, in an order drawn from the seed. A third of a seed's
time was spent there. It is written for the Trio in ``MADE_FOR``; with another one, Trio's own loop runs, as seeded and slower.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from math import inf
from operator import attrgetter
from typing import Any

import trio
from outcome import Error, Value
from trio._core import _run
from trio._core._ki import enable_ki_protection
from trio._core._traps import CancelShieldedCheckpoint, WaitTaskRescheduled

from . import quick
from .clock import HANG_SECONDS, SimClock

MADE_FOR = ("0.35.0",)
LOOK_EVERY = 1000  # turns of the loop: some hundredths of a second


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """While the block runs, the order in which ``trio.run`` runs its tasks is a function of the seed.

    The switch ``_ALLOW_DETERMINISTIC_SCHEDULING`` is Trio's own, for test libraries.
    """
    run: Any = _run
    scope = run.CancelScope
    former = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r, run.unrolled_run, scope._might_change_registered_deadline
    run._ALLOW_DETERMINISTIC_SCHEDULING, run._r = True, random.Random(seed)
    if trio.__version__ in MADE_FOR:
        run.unrolled_run, scope._might_change_registered_deadline = seeded_run, _registration
    try:
        with ExitStack() as short_ways:
            if trio.__version__ in MADE_FOR:
                short_ways.enter_context(quick.installed())
            yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING, run._r, run.unrolled_run, scope._might_change_registered_deadline = former


class _Registration:
    """What Trio does around every change of a scope, six times in the life of each, there as a generator."""

    __slots__ = ("scope",)

    def __init__(self, scope: Any) -> None:
        self.scope = scope

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        scope = self.scope
        old = scope._registered_deadline
        new = inf if scope._cancel_status is None or scope._cancel_called else scope._deadline
        if old != new:
            scope._registered_deadline = new
            deadlines = _run.GLOBAL_RUN_CONTEXT.runner.deadlines
            if old != inf:
                deadlines.remove(old, scope)
            if new != inf:
                deadlines.add(new, scope)


def _registration(scope: Any) -> _Registration:
    return _Registration(scope)


def _shuffle(batch: list[Any], draw: Callable[[int], int]) -> None:
    """As ``random.shuffle``, with the same numbers, in a third of the time."""
    for last in range(len(batch) - 1, 0, -1):
        bits = (last + 1).bit_length()
        other = draw(bits)
        while other > last:
            other = draw(bits)
        batch[last], batch[other] = batch[other], batch[last]


_order = attrgetter("_counter")


@enable_ki_protection
def seeded_run(runner: Any, async_fn: Any, args: Any) -> Generator[float, Any, None]:
    """In place of ``trio._core._run.unrolled_run``; ``trio.run`` drives it."""
    clock = runner.clock
    assert isinstance(clock, SimClock)
    try:
        runner.entry_queue.wakeup.wakeup_on_signals()
        clock.start_clock()
        runner.init_task = runner.spawn_impl(runner.init, (async_fn, args), None, "<init>", system_task=True)
        turns, runq, deadlines = 0, runner.runq, runner.deadlines
        while runner.tasks:
            turns += 1
            wait = 0.0 if runq else clock.deadline_to_sleep_time(deadlines.next_deadline())
            if wait or turns % LOOK_EVERY == 0:
                runner.io_manager.process_events((yield min(wait, HANG_SECONDS)))
            heap = deadlines._heap
            if heap and heap[0][0] <= clock.now:
                deadlines.expire(clock.now)
            _run_batch(runner, runq)
    except GeneratorExit:
        raise
    except BaseException as error:
        raise trio.TrioInternalError("internal error in the simulator's loop") from error
    finally:
        runner.close()
        _run.GLOBAL_RUN_CONTEXT.__dict__.clear()
        if runner.ki_pending:
            interrupt = KeyboardInterrupt()
            if isinstance(runner.main_task_outcome, Error):
                interrupt.__context__ = runner.main_task_outcome.error
            runner.main_task_outcome = Error(interrupt)


def _run_batch(runner: Any, runq: Any) -> None:
    if len(runq) == 1:  # most turns of the loop have one runnable task
        batch = [runq.popleft()]
    else:
        batch = list(runq)
        runq.clear()
        batch.sort(key=_order)
        _shuffle(batch, _run._r.getrandbits)
    context = _run.GLOBAL_RUN_CONTEXT
    while batch:
        task = context.task = batch.pop()
        send, value = task._next_send_fn, task._next_send
        task._next_send_fn = task._next_send = None
        try:
            message = task.context.run(send, value)
        except StopIteration as stop:
            runner.task_exited(task, Value(stop.value))
        except BaseException as error:
            final = Error(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
            error = None  # type: ignore[assignment]
            runner.task_exited(task, final)
        else:
            task._schedule_points += 1
            if message is CancelShieldedCheckpoint:
                quick.reschedule_in(runner, task)
            elif callable(abort := message.abort_func if type(message) is WaitTaskRescheduled else message):
                task._cancel_points += 1
                task._abort_func = abort
                if runner.ki_pending and task is runner.main_task:
                    task._attempt_delivery_of_pending_ki()
                if task._cancel_status.effectively_cancelled:
                    task._attempt_delivery_of_any_pending_cancel()
            else:
                raise TypeError(f"not a request of Trio's: {message!r}")
        del context.task
