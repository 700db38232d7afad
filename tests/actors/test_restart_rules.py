"""House, actor kernel: restart kinds, sliding-window budget, exponential back-off with jitter, as pure rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplane.actors import Backoff, Budget, Crashed, ExitReason, Finished, GaveUp, Killed, Restart, Stopped
from tuneplane.actors.restart import Window, wants_restart

CRASHED = Crashed(ExceptionGroup("x", [ValueError("x")]))
GAVE_UP = GaveUp("root/a", 1, 1.0, CRASHED)
RESTARTS = {
    Restart.PERMANENT: {Finished: True, Stopped: True, Killed: True, Crashed: True, GaveUp: True},
    Restart.TRANSIENT: {Finished: False, Stopped: False, Killed: True, Crashed: True, GaveUp: True},
    Restart.TEMPORARY: {Finished: False, Stopped: False, Killed: False, Crashed: False, GaveUp: False},
}


@pytest.mark.parametrize("kind", Restart)
@pytest.mark.parametrize("reason", [Finished(), Stopped(), Killed(), CRASHED, GAVE_UP], ids=lambda reason: type(reason).__name__)
def test_restart_kind_and_exit_reason_decide(kind: Restart, reason: ExitReason) -> None:
    assert wants_restart(kind, reason) is RESTARTS[kind][type(reason)]


@given(restart=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_backoff_doubles_up_to_its_cap_and_jitter_takes_at_most_half(restart: int, jitter: float) -> None:
    backoff = Backoff(first=0.1, most=10.0)
    full = backoff.delay(restart, 0.0)
    assert full == min(10.0, 0.1 * 2 ** (restart - 1)) if restart < 100 else full == 10.0
    assert full / 2 <= backoff.delay(restart, jitter) <= full


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60).map(sorted), st.integers(0, 5), st.floats(0.1, 50))
def test_window_refuses_exactly_what_exceeds_the_budget_within_any_window(times: list[float], restarts: int, seconds: float) -> None:
    window = Window(Budget(restarts=restarts, seconds=seconds))
    for index, now in enumerate(times):
        inside = [time for time in times[: index + 1] if time > now - seconds]
        assert window.charge(now) == (len(inside) if len(inside) <= restarts else None)


def test_window_holds_no_more_than_one_beyond_its_budget_in_use() -> None:
    """A supervisor ends at the first None, so the window never grows past it."""
    window = Window(Budget(restarts=2, seconds=10))
    assert [window.charge(float(now)) for now in (0, 1, 2)] == [1, 2, None]


@pytest.mark.parametrize("build", [lambda: Budget(restarts=-1), lambda: Budget(seconds=0), lambda: Backoff(first=-1)])
def test_restart_numbers_out_of_range_are_refused(build: object) -> None:
    with pytest.raises(ValueError):
        build()  # type: ignore[operator]
