"""The generated test (house.md, Proof; P-01 to P-09): every fault point, killed before and after, and with its answer lost.

The real process is killed with SIGKILL at the point and started again, the step repeats, and then: at most one container
was ever started for the member, by the runtime's own record and by the job's side effect, and the launch converged.
"""

from __future__ import annotations

import pytest

from tuneplane.domain.faultpoint import FAULT_POINTS

from .rig import Rig, Strike
from .scenarios import Scenario
from .table import MOMENTS, REACH, cases

pytestmark = [pytest.mark.e2e]

CASES = list(cases())


def test_every_registered_point_has_a_story_and_every_moment() -> None:
    """A fault point that no test reaches fails the build: each story fails when its point is not passed."""
    assert set(REACH) == set(FAULT_POINTS)
    reached = {(strike.point, strike.moment) for strike, _ in CASES}
    assert reached == {(point, moment) for point in FAULT_POINTS for moment in MOMENTS}


@pytest.mark.parametrize(("strike", "scenario"), CASES, ids=[str(strike) for strike, _ in CASES])
def test_fault_at(rig: Rig, strike: Strike, scenario: Scenario) -> None:
    scenario(rig, strike)
    assert strike.line in rig.struck(strike.process), f"{strike.line} was not reached"
