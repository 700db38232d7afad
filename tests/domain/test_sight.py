"""What the control plane has seen, look by look: gaps, the mass-failure brake and its release (P-16, P-19, L-B8, L-B9)."""

from __future__ import annotations

from datetime import datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.strategies import EPOCH
from tuneplane.domain.sight import BRAKE_FEWEST, BRAKE_SHARE, RELEASE_SHARE, Brake, Census, Sight, look, window_from
from tuneplane.domain.timings import PRODUCTION

STEP = PRODUCTION.claim_renew
WINDOW = PRODUCTION.judging_grace
CALM = Census(live=10, vanished=0)


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def look_at(former: Sight | None, seconds: float, census: Census = CALM, *, missed: bool = False) -> Sight:
    """As the storage does: the gateways are told apart."""
    return attrs.evolve(look(former, census, at(seconds), missed, PRODUCTION), gateways_since=at(-1e6))


def looks(former: Sight | None, first: float, last: float, census: Census = CALM) -> Sight:
    seen, seconds = former, first
    while seen is None or seconds <= last:
        seen, seconds = look_at(seen, seconds, census), seconds + STEP
    return seen


def test_sight_grows_while_looks_follow_one_another() -> None:
    seen = looks(None, 0.0, 300.0)
    assert (seen.seen_since, seen.looked_at) == (at(0.0), at(300.0))
    assert seen.silence(at(100.0), at(302.0), PRODUCTION) == 202.0
    assert seen.silence(at(-100.0), at(302.0), PRODUCTION) == 302.0  # what was before the first look counts for nothing


def test_after_a_gap_everybody_begins_anew_from_the_look_that_follows() -> None:
    """L-B8: a start of the control plane, an outage of the database, a stalled process: a full grace."""
    seen = looks(None, 0.0, 100.0)
    gap = PRODUCTION.claim_lease
    assert seen.silence(at(50.0), at(100.0 + gap), PRODUCTION) == 50.0 + gap
    assert seen.silence(at(50.0), at(100.1 + gap), PRODUCTION) == 0.0
    assert "no worker has looked" in seen.why_suspended(at(100.1 + gap), PRODUCTION)
    back = look_at(seen, 700.0)
    assert (back.seen_since, back.blind_from) == (at(700.0), at(100.0))
    assert looks(back, 705.0, 745.0).silence(at(50.0), at(745.0), PRODUCTION) == 45.0


def test_a_short_outage_counts_for_nothing_either_when_the_looker_knows_of_it() -> None:
    """P-16; unless another worker could look meanwhile."""
    seen = looks(None, 0.0, 100.0)
    assert look_at(seen, 112.0, missed=False).seen_since == at(0.0)
    assert look_at(seen, 112.0, missed=True).seen_since == at(112.0)
    assert look_at(look_at(seen, 109.0), 112.0, missed=True).seen_since == at(0.0)


def test_a_clock_that_was_set_forward_is_a_gap_and_one_set_back_is_no_time() -> None:
    seen = looks(None, 0.0, 100.0)
    assert look_at(seen, 3700.0).seen_since == at(3700.0)
    behind = look_at(seen, 40.0)
    assert (behind.looked_at, behind.silence(at(90.0), at(42.0), PRODUCTION)) == (at(100.0), 0.0)


def test_without_a_gateway_no_silence_counts() -> None:
    """L-B8: nobody can be heard."""
    seen = attrs.evolve(looks(None, 0.0, 300.0), gateways_since=None)
    assert seen.counted(at(0.0), at(300.0), PRODUCTION) == 0.0
    assert "no gateway lives" in seen.why_suspended(at(300.0), PRODUCTION)
    late = attrs.evolve(seen, gateways_since=at(250.0))
    assert late.counted(at(0.0), at(300.0), PRODUCTION) == 50.0


@pytest.mark.parametrize(
    ("live", "vanished", "braked"),
    [
        (10, 0, False),
        (7, 3, False),  # less than half
        (6, 5, False),
        (5, 5, True),
        (0, 10, True),
        (0, 3, True),
        (0, 2, False),  # two dead machines are two dead machines
        (0, 1, False),
        (9_000, 1_000, False),
        (5_000, 5_000, True),
    ],
)
def test_the_brake_goes_on_when_a_large_share_vanishes_together(live: int, vanished: int, braked: bool) -> None:
    """P-19."""
    seen = look_at(looks(None, 0.0, 100.0), 105.0, Census(live=live, vanished=vanished))
    assert (seen.brake is not None) == braked
    if seen.brake is not None:
        assert seen.silence(at(0.0), at(10_000.0), PRODUCTION) == 0.0
        assert (seen.brake.vanished, seen.brake.population) == (vanished, live + vanished)
        assert "the control plane suspects itself" in seen.why_suspended(at(106.0), PRODUCTION)


def test_the_brake_holds_until_most_are_back_and_then_everybody_has_a_whole_grace() -> None:
    """P-19: it does not flutter while they come back one by one; what stays away is judged from the release on."""
    seen = looks(None, 0.0, 100.0)
    for back in range(8):
        seen = look_at(seen, 105.0 + back * STEP, Census(live=2 + back, vanished=8 - back))
        share = (8 - back) / 10
        assert (seen.brake is not None) == (share >= RELEASE_SHARE and 8 - back >= BRAKE_FEWEST), back
    assert seen.released_at == at(105.0 + 6 * STEP)
    assert seen.silence(at(100.0), at(150.0), PRODUCTION) == 150.0 - 135.0


def test_the_brake_is_released_when_an_operator_takes_the_vanished_out() -> None:
    """P-19: drained, cordoned and removed Nodes are in no census; that is the evidence of a person."""
    seen = look_at(looks(None, 0.0, 100.0), 105.0, Census(live=2, vanished=8))
    assert seen.brake is not None
    assert look_at(seen, 110.0, Census(live=2, vanished=0)).brake is None


def test_who_vanished_together_is_counted_over_the_time_that_one_cause_may_take_to_show() -> None:
    seen = looks(None, 0.0, 100.0)
    assert window_from(seen, at(105.0), False, PRODUCTION) == at(105.0 - WINDOW)
    assert window_from(None, at(0.0), False, PRODUCTION) == at(-WINDOW)
    braked = look_at(seen, 105.0, Census(live=0, vanished=10))
    assert window_from(braked, at(9000.0), False, PRODUCTION) == at(105.0 - WINDOW)  # as long as it is on


def test_what_vanished_while_nobody_looked_vanished_together() -> None:
    """L-B8: the site's power took Nodes and database; machines that were off long before do not count."""
    seen = looks(None, 0.0, 100.0)
    assert window_from(seen, at(700.0), False, PRODUCTION) == at(100.0 - WINDOW)
    back = look_at(seen, 700.0)
    assert window_from(look_at(back, 720.0), at(722.0), False, PRODUCTION) == at(100.0 - WINDOW)  # blind again soon after
    later = looks(back, 705.0, 700.0 + WINDOW)
    assert window_from(later, at(700.0 + WINDOW), False, PRODUCTION) == at(100.0 - WINDOW)
    assert window_from(later, at(705.0 + WINDOW), False, PRODUCTION) == at(705.0)


MOVES = st.lists(st.tuples(st.floats(0.1, 40.0), st.integers(0, 12), st.integers(0, 12), st.booleans()), max_size=30)


@given(MOVES)
def test_no_order_of_looks_counts_time_that_nobody_saw(moves: list[tuple[float, int, int, bool]]) -> None:
    """P-16, P-19: silence is never more than the time since the last gap, the last brake, and is none under the brake."""
    seen, now, blind_until = None, 0.0, 0.0
    braked_until = 0.0
    for step, live, vanished, missed in moves:
        former, now = seen, now + step
        if former is None or step > PRODUCTION.claim_lease or (missed and step > STEP):
            blind_until = now
        seen = look_at(former, now, Census(live=live, vanished=vanished), missed=missed)
        braked = vanished >= BRAKE_FEWEST and vanished / (live + vanished) >= (
            RELEASE_SHARE if former is not None and former.brake is not None else BRAKE_SHARE
        )
        if braked or (former is not None and former.brake is not None):
            braked_until = now
        assert isinstance(seen.brake, Brake) == braked
        assert seen.silence(at(-1e5), at(now), PRODUCTION) <= (0.0 if braked else now - max(blind_until, braked_until)) + 1e-6
