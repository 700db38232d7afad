"""Trio's busiest steps, shorter: the same effects without what a simulation never has (instruments, guests, misuse of scopes).

As ``loop``, which installs them: written for one version of Trio, each a copy of the original that leaves out checks of what
cannot be here, and goes to the original for anything rare. Half of Trio's share of a seed's time was spent in what is left out:
an outcome object and a request object a wake-up, properties and generators around every scope, a traceback a cancellation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from math import inf
from types import CoroutineType, ModuleType, coroutine
from typing import Any

import trio
import trio.testing
from outcome import Error
from trio._core import _run
from trio._core._parking_lot import ParkingLot
from trio._core._traps import CancelShieldedCheckpoint
from trio.lowlevel import Abort

running: Any = _run.GLOBAL_RUN_CONTEXT
CancelScope: Any = _run.CancelScope
CancelStatus: Any = _run.CancelStatus
CancelReason: Any = _run.CancelReason
Cancelled: Any = trio.Cancelled
Task: Any = _run.Task
enter_checked: Any = CancelScope.__enter__
close_checked: Any = CancelScope._close
child_finished: Any = _run.Nursery._child_finished
spawn_checked: Any = _run.Runner.spawn_impl
make_task: Any = type.__call__
NO_SEND: Any = _run._NO_SEND


class _Nothing:
    """What a task that waited is told, in place of a new ``outcome.Value(None)``."""

    __slots__ = ()

    def unwrap(self) -> None:
        return None


NOTHING = _Nothing()

# ---------------------------------------------------------------- waiting and waking


@coroutine
def wait_task_rescheduled(abort: Callable[[Any], Abort]) -> Generator[Any, Any, Any]:
    """``loop`` takes the abort function itself as the request."""
    told = yield abort
    return None if told is NOTHING else told.unwrap()


@coroutine
def cancel_shielded_checkpoint() -> Generator[Any, Any, None]:
    yield CancelShieldedCheckpoint


def reschedule_in(runner: Any, task: Any, next_send: Any = NO_SEND) -> None:
    assert task._runner is runner
    assert task._next_send_fn is None
    task._next_send_fn = task.coro.send
    task._next_send = NOTHING if next_send is NO_SEND else next_send
    task._abort_func = task.custom_sleep_data = None
    runner.runq.append(task)


def reschedule(task: Any, next_send: Any = NO_SEND) -> None:
    reschedule_in(running.runner, task, next_send)


def current_time() -> float:
    now: float = running.runner.clock.now
    return now


def unpark_all(lot: Any) -> list[Any]:
    return lot.unpark(count=len(lot._parked)) if lot._parked else []


# ---------------------------------------------------------------- cancel scopes


def enter(scope: Any) -> Any:
    task = running.task
    if scope._has_been_entered or task._cancel_status is None:
        return enter_checked(scope)
    scope._has_been_entered = True
    now = running.runner.clock.now
    if scope._relative_deadline != inf:
        scope._deadline, scope._relative_deadline = now + scope._relative_deadline, inf
    if now >= scope._deadline:
        scope._cancel(CancelReason(source="deadline"))
    status = scope._cancel_status = _status_below(task._cancel_status, scope)
    task._cancel_status._tasks.remove(task)
    task._cancel_status = status
    status._tasks.add(task)
    if scope._deadline != inf and not scope._cancel_called:
        scope._registered_deadline = scope._deadline
        running.runner.deadlines.add(scope._deadline, scope)
    return scope


def _status_below(parent: Any, scope: Any) -> Any:
    """``CancelStatus(scope=scope, parent=parent)``."""
    status = CancelStatus.__new__(CancelStatus)
    status._scope, status._parent = scope, parent
    status._children, status._tasks = set(), set()
    status.abandoned_by_misnesting = False
    inherited = parent.effectively_cancelled and not scope._shield
    status.effectively_cancelled = scope._cancel_called or inherited
    if inherited and scope._cancel_reason is None:
        scope._cancel_reason = parent._scope._cancel_reason
    parent._children.add(status)
    return status


def close(scope: Any, error: BaseException | None) -> BaseException | None:
    """``CancelScope._close``: of a scope that is the innermost one of its task, whose nurseries are closed."""
    status, task = scope._cancel_status, running.task
    if status is None or task._cancel_status is not status or len(status._tasks) != 1 or status._children:
        return close_checked(scope, error)  # type: ignore[no-any-return]
    parent = status._parent
    if parent is None or (error is not None and status.effectively_cancelled):
        return close_checked(scope, error)  # type: ignore[no-any-return]
    status._tasks.remove(task)
    task._cancel_status = parent
    parent._tasks.add(task)
    parent._children.remove(status)
    status._parent = scope._cancel_status = None
    if scope._registered_deadline != inf:
        running.runner.deadlines.remove(scope._registered_deadline, scope)
        scope._registered_deadline = inf
    return error


def recalculate(status: Any) -> None:
    """Of this status and those below it, where anything changes."""
    todo = [status]
    while todo:
        current = todo.pop()
        scope, parent = current._scope, current._parent
        inherited = parent is not None and not scope._shield and parent.effectively_cancelled
        cancelled = scope.cancel_called or inherited
        if cancelled != current.effectively_cancelled:
            if inherited and scope._cancel_reason is None:
                scope._cancel_reason = parent._scope._cancel_reason
            current.effectively_cancelled = cancelled
            if cancelled:
                for task in current._tasks:
                    deliver(task)
            todo.extend(current._children)


def deliver(task: Any) -> None:
    """``Task._attempt_delivery_of_any_pending_cancel``, without raising and catching what is sent."""
    abort = task._abort_func
    if abort is None or not task._cancel_status.effectively_cancelled:
        return
    reason = task._cancel_status._scope._cancel_reason

    def raise_cancel() -> None:
        raise _cancelled(reason)

    success = abort(raise_cancel)
    task._abort_func = None
    if success is Abort.SUCCEEDED:
        reschedule_in(task._runner, task, Error(_cancelled(reason)))
    elif success is not Abort.FAILED:
        raise trio.TrioInternalError("abort function must return Abort enum")


def _cancelled(reason: Any) -> BaseException:
    if reason is None:
        return Cancelled._create(source="unknown", reason="misnesting")  # type: ignore[no-any-return]
    return Cancelled._create(source=reason.source, reason=reason.reason, source_task=reason.source_task)  # type: ignore[no-any-return]


def finished(nursery: Any, task: Any, outcome: Any) -> None:
    """``Nursery._child_finished``: of a nursery that is cancelled, nobody reads the reason that is spelt out there."""
    if type(outcome) is Error and not nursery.cancel_scope._cancel_called:
        child_finished(nursery, task, outcome)
        return
    nursery._children.remove(task)
    if nursery._closed and not hasattr(nursery, "_pending_excs"):
        return
    if type(outcome) is Error:
        nursery._pending_excs.append(outcome.error)
    nursery._check_nursery_closed()


# ---------------------------------------------------------------- tasks


def spawn(
    runner: Any, function: Any, args: Any, nursery: Any, name: Any, *, system_task: bool = False, context: Context | None = None
) -> Any:
    """``Runner.spawn_impl``, for functions that return coroutines, which is what all of ours do."""
    if nursery is None or system_task:
        return spawn_checked(runner, function, args, nursery, name, system_task=system_task, context=context)
    if nursery._closed:
        raise RuntimeError("Nursery is closed to new arrivals")
    context = copy_context() if context is None else context
    coro = context.run(function, *args)
    if type(coro) is not CoroutineType:
        raise TypeError(f"{function!r} is not an async function")
    task = make_task(
        Task, coro=coro, parent_nursery=nursery, runner=runner, name=_name(name or function), context=context, ki_protected=False
    )
    runner.tasks.add(task)
    nursery._children.add(task)
    status = task._cancel_status = nursery._cancel_status
    status._tasks.add(task)
    reschedule_in(runner, task, None)
    return task


def _name(of: Any) -> str:
    if isinstance(of, str):
        return of
    of = getattr(of, "func", of)
    try:
        return f"{of.__module__}.{of.__qualname__}"
    except AttributeError:
        return repr(of)


# ---------------------------------------------------------------- installing


def _modules() -> Iterator[ModuleType]:
    return (module for name, module in sorted(sys.modules.items()) if name == "trio" or name.startswith("trio."))


def _places() -> Iterator[tuple[Any, str, Any]]:
    """Every name under which Trio knows one of its functions, and every method."""
    functions: tuple[tuple[Any, Any], ...] = (
        (trio.lowlevel.wait_task_rescheduled, wait_task_rescheduled),
        (trio.lowlevel.cancel_shielded_checkpoint, cancel_shielded_checkpoint),
        (trio.lowlevel.reschedule, reschedule),
        (trio.current_time, current_time),
    )
    for original, substitute in functions:
        for module in _modules():
            yield from ((module, name, substitute) for name, value in list(vars(module).items()) if value is original)
    yield from ((_run.Runner, "reschedule", reschedule_in), (_run.Runner, "spawn_impl", spawn), (ParkingLot, "unpark_all", unpark_all))
    yield from ((CancelScope, "__enter__", enter), (CancelScope, "_close", close), (CancelStatus, "recalculate", recalculate))
    yield from ((_run.Task, "_attempt_delivery_of_any_pending_cancel", deliver), (_run.Nursery, "_child_finished", finished))


PLACES = [(owner, name, vars(owner)[name], substitute) for owner, name, substitute in _places()]


@contextmanager
def installed() -> Iterator[None]:
    """While the block runs, Trio takes the short ways."""
    for owner, name, _, substitute in PLACES:
        setattr(owner, name, substitute)
    try:
        yield
    finally:
        for owner, name, original, _ in PLACES:
            setattr(owner, name, original)
