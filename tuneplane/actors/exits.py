"""Exit reasons: a closed set. Every incarnation of an actor or supervisor ends with exactly one of them."""

from __future__ import annotations

from types import TracebackType
from typing import Union

from attrs import field, frozen


@frozen
class Finished:
    """The actor's ``run`` returned by itself."""


@frozen
class Stopped:
    """It was asked to stop: by its supervisor, by ``Ref.stop`` or by itself. The ladder may have ended in a cancel."""


@frozen
class Killed:
    """``Ref.kill``, or a cancel from outside the system (the process is going down)."""


@frozen
class Crashed:
    """One or more of its tasks, its start or its clean-up raised. ``errors`` never holds ``Cancelled``."""

    errors: ExceptionGroup[Exception] = field(eq=False)


@frozen
class GaveUp:
    """A supervisor spent its restart budget: ``child`` ended with ``last`` once too often."""

    child: str
    restarts: int
    seconds: float
    last: ExitReason


ExitReason = Union[Finished, Stopped, GaveUp, Crashed, Killed]


def is_failure(reason: ExitReason) -> bool:
    """What makes a transient child start again: everything but finishing and a stop that was asked for."""
    return not isinstance(reason, Finished | Stopped)


def describe(reason: ExitReason) -> str:
    """One line for logs, traces and error texts."""
    if isinstance(reason, Crashed):
        return "crashed: " + "; ".join(f"{type(error).__name__}: {error}" for error in reason.errors.exceptions)
    if isinstance(reason, GaveUp):
        return f"gave up: {reason.child} needed more than {reason.restarts} restarts in {reason.seconds:g} s; last {describe(reason.last)}"
    return {Finished: "finished", Stopped: "stopped", Killed: "killed"}[type(reason)]


class ErrorsKept:
    """``with ErrorsKept(errors):`` keeps the errors raised in the block for the actor's owner and re-raises the rest.

    The rest is ``Cancelled`` and the likes of ``KeyboardInterrupt``. A mixed group is split, so that neither part is
    lost: errors do not vanish in a cancel, and a cancel is never swallowed.
    """

    def __init__(self, errors: list[Exception]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None) -> bool:
        if raised is None:
            return False
        errors, rest = split_errors(raised)
        self._errors += errors
        if rest is not None and rest is not raised:
            raise rest
        return rest is None


def split_errors(raised: BaseException) -> tuple[list[Exception], BaseException | None]:
    """Part the errors proper from what must go on upwards."""
    if isinstance(raised, Exception):  # an ExceptionGroup of errors only is an Exception too
        return _leaves(raised), None
    if isinstance(raised, BaseExceptionGroup):
        errors, rest = raised.split(Exception)
        return (_leaves(errors) if errors is not None else []), rest
    return [], raised


def _leaves(raised: BaseException) -> list[Exception]:
    """The errors themselves: the nurseries of the kernel wrap each in groups that tell the reader nothing."""
    if isinstance(raised, BaseExceptionGroup):
        return [leaf for part in raised.exceptions for leaf in _leaves(part)]
    assert isinstance(raised, Exception)
    return [raised]
