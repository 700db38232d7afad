"""Clock offsets by round trips (R-LIV-06)."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from tests.domain.strategies import EPOCH
from tuneplane.domain.clocks import CLOCK_STEP_SECONDS, CLOCK_WARN_SECONDS, TRIPS_KEPT, ClockMeter, Offset, clock_warning


def trip(meter: ClockMeter, offset: float, there: float, back: float) -> Offset:
    """One round trip with a clock that is ``offset`` ahead."""
    meter.answered(EPOCH + timedelta(seconds=offset), EPOCH + timedelta(seconds=there), there + back)
    assert meter.best is not None
    return meter.best


@given(st.floats(-1e5, 1e5), st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=20))
def test_the_offset_is_within_its_error_whatever_the_way_was(offset: float, trips: list[tuple[float, float]]) -> None:
    meter = ClockMeter()
    for there, back in trips:
        best = trip(meter, offset, there, back)
        assert abs(best.seconds - offset) <= best.error_seconds + 1e-4
    last = trips[-TRIPS_KEPT:]
    assert best.error_seconds <= max(sum(way) for way in last) / 2


def test_a_quick_trip_counts_more_than_slow_ones_after_it() -> None:
    meter = ClockMeter()
    assert trip(meter, 3.0, 0.01, 0.01).seconds == 3.0
    assert trip(meter, 3.0, 4.0, 0.0) == Offset(seconds=3.0, error_seconds=0.01)


def test_a_clock_that_was_set_is_believed_at_once() -> None:
    meter = ClockMeter()
    trip(meter, 3.0, 0.01, 0.01)
    assert trip(meter, 0.0, 0.02, 0.02).seconds == 0.0


def test_a_change_that_nobody_would_see_tells_nothing_new() -> None:
    first = Offset(seconds=1.0, error_seconds=0.01)
    assert not first.differs(Offset(seconds=1.0 + CLOCK_STEP_SECONDS, error_seconds=0.01))
    assert first.differs(Offset(seconds=1.1 + CLOCK_STEP_SECONDS, error_seconds=0.01))
    assert not first.differs(Offset(seconds=4.0, error_seconds=4.0))


def test_people_are_warned_beyond_the_limit_and_only_beyond_doubt() -> None:
    assert clock_warning(None, None) == ""
    assert clock_warning(CLOCK_WARN_SECONDS, None) == ""
    assert "6.0 s ahead of" in clock_warning(CLOCK_WARN_SECONDS + 1, None)
    assert "6.0 s behind" in clock_warning(-CLOCK_WARN_SECONDS - 1, 0.5)
    assert clock_warning(CLOCK_WARN_SECONDS + 1, 1.5) == ""
