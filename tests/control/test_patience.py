"""Waiting longer after each failure, with jitter (P-09, P-17)."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tuneplane.control.patience import FIRST_SECONDS, MOST_SECONDS, Backoff, Pace


@given(st.binary(min_size=2, max_size=2), st.integers(0, 60))
def test_backoff_every_wait_is_within_its_bounds(entropy: bytes, failures: int) -> None:
    backoff = Backoff(lambda size: entropy)
    waits = [backoff.next_seconds() for _ in range(failures + 1)]
    assert all(FIRST_SECONDS / 2 <= wait <= MOST_SECONDS for wait in waits)
    assert waits == sorted(waits)


def test_backoff_reset_begins_anew() -> None:
    backoff = Backoff(lambda size: b"\0\0")
    first = backoff.next_seconds()
    for _ in range(10):
        backoff.next_seconds()
    backoff.reset()
    assert backoff.next_seconds() == first


async def test_pace_the_first_look_is_free_and_the_next_one_waits(autojump_clock: trio.testing.MockClock) -> None:
    pace = Pace()
    assert pace.seconds_left() == 0
    pace.rest(2.0)
    await trio.sleep(0.5)
    assert pace.seconds_left() == pytest.approx(1.5)
    await trio.sleep(2.0)
    assert pace.seconds_left() == 0
