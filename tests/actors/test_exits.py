"""Exit reasons and how errors are parted from cancels and interrupts (house: mixed exception groups)."""

from __future__ import annotations

import pytest
import trio

from tuneplane.actors import Crashed, ExitReason, Finished, GaveUp, Killed, Stopped, describe, is_failure
from tuneplane.actors.exits import ErrorsKept

CRASHED = Crashed(ExceptionGroup("x", [ValueError("bad"), OSError("disk")]))


@pytest.mark.parametrize(
    ("reason", "failure", "line"),
    [
        (Finished(), False, "finished"),
        (Stopped(), False, "stopped"),
        (Killed(), True, "killed"),
        (CRASHED, True, "crashed: ValueError: bad; OSError: disk"),
        (
            GaveUp("root/a", 3, 5.0, CRASHED),
            True,
            "gave up: root/a needed more than 3 restarts in 5 s; last crashed: ValueError: bad; OSError: disk",
        ),
    ],
)
def test_exit_reason_is_described_in_one_line(reason: ExitReason, failure: bool, line: str) -> None:
    assert is_failure(reason) is failure
    assert describe(reason) == line


def test_errors_are_kept_and_flattened() -> None:
    errors: list[Exception] = []
    first, second, third = ValueError(), KeyError(), OSError()
    with ErrorsKept(errors):
        raise first
    with ErrorsKept(errors):
        raise ExceptionGroup("nursery", [ExceptionGroup("inner", [second]), third])
    assert errors == [first, second, third]


def test_interrupt_goes_up_untouched() -> None:
    errors: list[Exception] = []
    with pytest.raises(KeyboardInterrupt), ErrorsKept(errors):
        raise KeyboardInterrupt
    assert errors == []


def test_mixed_group_is_split_so_that_neither_part_is_lost() -> None:
    errors: list[Exception] = []
    error = ValueError()
    with pytest.raises(BaseExceptionGroup) as caught, ErrorsKept(errors):
        raise BaseExceptionGroup("nursery", [error, KeyboardInterrupt()])
    assert errors == [error]
    assert caught.value.split(KeyboardInterrupt)[1] is None


async def test_cancelled_part_of_a_mixed_group_reaches_its_scope() -> None:
    errors: list[Exception] = []
    goes_on = False

    async def fail_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while cancelled")

    with trio.CancelScope() as scope:
        with ErrorsKept(errors):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail_when_cancelled)
                nursery.start_soon(trio.sleep_forever)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        goes_on = True
    assert scope.cancelled_caught
    assert not goes_on
    assert [type(error) for error in errors] == [ValueError]
