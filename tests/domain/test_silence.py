"""When silence and slowness count, and when they do not: fair judging as a table of moments (R-LCH-16, P-16, L-B8, L-B9, L-B12)."""

from __future__ import annotations

from datetime import datetime, timedelta

import attrs
import pytest

from tests.domain.strategies import EPOCH
from tuneplane.domain.launch_table import AttemptEvent, AttemptState, LaunchView, MemberPhase, MemberView, observe
from tuneplane.domain.sight import Brake, Sight
from tuneplane.domain.timings import PRODUCTION

E, P, S = AttemptEvent, MemberPhase, AttemptState
LONG = 10_000.0
DEADLINE = PRODUCTION.prepare_deadline
GRACE = PRODUCTION.judging_grace


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


SEEN = Sight(seen_since=at(-LONG), looked_at=at(LONG), gateways_since=at(-LONG))  # by workers and a gateway, all along


def gang(*silent: float | None, state: AttemptState = S.RUNNING, phase: MemberPhase = P.RUNNING, **changes: object) -> LaunchView:
    """One member a number: silent since that second, or (None) connected all along. Seen by a gateway and watched for ever."""
    members = tuple(
        MemberView(
            member=f"job-a-1-{rank}",  # type: ignore[arg-type]
            node=f"node-{rank}",  # type: ignore[arg-type]
            rank=rank,
            phase=phase,
            silent_since=at(since) if since is not None else None,
            connected_since=at(-LONG) if since is None else None,
        )
        for rank, since in enumerate(silent)
    )
    made = LaunchView(
        job="job-a",  # type: ignore[arg-type]
        attempt="job-a-1",  # type: ignore[arg-type]
        number=1,
        state=state,
        members=members,
        trace="t",  # type: ignore[arg-type]
        entered_at=EPOCH,
        sight=SEEN,
    )
    return attrs.evolve(made, **changes)


@pytest.mark.parametrize("state", [S.COMMITTED, S.RUNNING])
def test_a_silent_node_of_a_gang_fails_it_at_the_deadline_and_not_before(state: AttemptState) -> None:
    """R-LCH-16: a lost connection alone ends nothing; past the deadline the others are stopped."""
    view = gang(None, 0.0, state=state)
    assert observe(view, at(DEADLINE - 0.1), PRODUCTION) is not E.MEMBER_SILENT
    assert observe(view, at(DEADLINE), PRODUCTION) is E.MEMBER_SILENT


def test_the_fleets_own_deadline_counts_but_never_less_than_the_grace() -> None:
    """`gang_deadline_seconds`; L-B12: a deadline below a database failover would flap."""
    assert observe(gang(None, 0.0, gang_deadline_seconds=90.0), at(90.0), PRODUCTION) is E.MEMBER_SILENT
    hasty = gang(None, 0.0, gang_deadline_seconds=5.0)
    assert observe(hasty, at(GRACE - 0.1), PRODUCTION) is None
    assert observe(hasty, at(GRACE), PRODUCTION) is E.MEMBER_SILENT


@pytest.mark.parametrize("state", [S.COMMITTED, S.RUNNING])
def test_one_machine_alone_is_never_failed_by_silence(state: AttemptState) -> None:
    """R-LCH-03, R-LCH-16: not by a deadline of the commit either, however long."""
    for phase in (P.PREPARED, P.STARTING, P.RUNNING):
        assert observe(gang(0.0, state=state, phase=phase), at(LONG), PRODUCTION) in (None, E.ALL_RUNNING)


def test_a_member_that_has_ended_is_not_waited_for() -> None:
    view = gang(None, 0.0)
    ended = attrs.evolve(view.members[1], phase=P.TERMINATED, exit_code=0)
    assert observe(attrs.evolve(view, members=(view.members[0], ended)), at(LONG), PRODUCTION) is None


def test_a_member_that_returns_in_time_changes_nothing() -> None:
    assert observe(gang(None, None), at(LONG), PRODUCTION) is None


def test_without_a_live_gateway_nobody_is_judged() -> None:
    """L-B8: all replicas of the gateway are down: nobody can be heard."""
    for state in (S.PREPARING, S.COMMITTED, S.RUNNING):
        phase = P.RUNNING if state is S.RUNNING else P.PREPARING
        deaf = attrs.evolve(SEEN, gateways_since=None)
        assert observe(gang(0.0, 0.0, state=state, phase=phase, sight=deaf), at(LONG), PRODUCTION) is None


@pytest.mark.parametrize("back", ["gateways", "worker"])
def test_after_the_control_plane_returns_everybody_has_a_full_deadline(back: str) -> None:
    """L-B8: stopped for ten minutes and started: nothing has failed, and nothing does until a whole deadline was watched."""
    down = 600.0
    view = gang(0.0, 0.0)

    def seen(after: float) -> AttemptEvent | None:
        sight = attrs.evolve(SEEN, **{"gateways_since" if back == "gateways" else "seen_since": at(down)})
        return observe(attrs.evolve(view, sight=sight), at(down + after), PRODUCTION)

    assert seen(0.0) is None
    assert seen(DEADLINE - 0.1) is None
    assert seen(DEADLINE) is E.MEMBER_SILENT


def test_a_failover_of_forty_seconds_changes_nothing() -> None:
    """L-B12: leases lapse, the Nodes come back with the database; even the shortest deadline is not reached."""
    view = gang(None, 15.0, gang_deadline_seconds=1.0)  # the gateway's lease ran out 15 s into it
    for second in range(40):
        assert observe(attrs.evolve(view, sight=attrs.evolve(SEEN, looked_at=at(-5.0))), at(float(second)), PRODUCTION) is None
    for second in range(40, 40 + int(GRACE)):
        back = attrs.evolve(view, sight=attrs.evolve(SEEN, seen_since=at(40.0), looked_at=at(float(second))))
        assert observe(back, at(float(second)), PRODUCTION) is None


@pytest.mark.parametrize(
    ("state", "phase", "event", "deadline"),
    [
        (S.PREPARING, P.PREPARING, E.PREPARE_OVERDUE, PRODUCTION.prepare_deadline),
        (S.COMMITTED, P.STARTING, E.COMMIT_OVERDUE, PRODUCTION.commit_deadline),
    ],
)
def test_the_other_deadlines_are_as_fair(state: AttemptState, phase: MemberPhase, event: AttemptEvent, deadline: float) -> None:
    """L-B8, P-16: time in which nobody could see is not time in which a member was slow."""
    view = gang(None, None, state=state, phase=phase)
    assert observe(view, at(deadline - 0.1), PRODUCTION) is None
    assert observe(view, at(deadline), PRODUCTION) is event
    for blind in ({"gateways_since": at(deadline - 1)}, {"seen_since": at(deadline - 1)}, {"gateways_since": None}, {"looked_at": EPOCH}):
        assert observe(attrs.evolve(view, sight=attrs.evolve(SEEN, **blind)), at(deadline), PRODUCTION) is None
    assert observe(attrs.evolve(view, sight=None), at(deadline), PRODUCTION) is None


def test_a_node_that_has_just_come_back_is_told_before_it_is_late() -> None:
    """P-10, R-LCH-16: the Commit is sent again in the new session, and takes effect or does not within the grace."""
    view = gang(None, state=S.COMMITTED, phase=P.PREPARED)
    back = attrs.evolve(view, members=(attrs.evolve(view.members[0], connected_since=at(1000.0)),))
    assert observe(back, at(1001.0), PRODUCTION) is None
    assert observe(back, at(1000.0 + GRACE), PRODUCTION) is E.COMMIT_OVERDUE


def test_in_stopping_silence_is_waited_out() -> None:
    """R-LCH-03, P-11: the silent Node's hold stays, for ever if need be."""
    assert observe(gang(None, 0.0, state=S.STOPPING, phase=P.STOPPING), at(LONG * 1000), PRODUCTION) is None


def test_under_the_mass_failure_brake_no_gang_fails_by_silence_and_each_has_a_whole_deadline_after_it() -> None:
    """P-19: the control plane suspects itself; what a slow member owes is owed all the same."""
    brake = Brake(since=at(5.0), window_from=at(-60.0), vanished=9, population=10)
    view = gang(None, 0.0, sight=attrs.evolve(SEEN, brake=brake))
    assert observe(view, at(LONG), PRODUCTION) is None
    released = attrs.evolve(view, sight=attrs.evolve(SEEN, released_at=at(3000.0)))
    assert observe(released, at(3000.0 + DEADLINE - 0.1), PRODUCTION) is None
    assert observe(released, at(3000.0 + DEADLINE), PRODUCTION) is E.MEMBER_SILENT
    slow = gang(None, None, state=S.PREPARING, phase=P.PREPARING, sight=attrs.evolve(SEEN, brake=brake))
    assert observe(slow, at(DEADLINE), PRODUCTION) is E.PREPARE_OVERDUE
