"""The launch tables, as the law states them (house.md "The launch, end to end"; P-02, P-03, P-08; R-LCH-01, -03, -10, -12)."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.domain.strategies import EPOCH, MOMENTS, launch_views
from tuneplane.domain.errors import IllegalTransition
from tuneplane.domain.launch_table import (
    ATTEMPT_TABLE,
    ENDED_PHASES,
    MEMBER_TABLE,
    AttemptAction,
    AttemptEvent,
    AttemptState,
    LaunchView,
    MemberPhase,
    next_look,
    observe,
    step,
)
from tuneplane.domain.timings import PRODUCTION

S, E, A, P = AttemptState, AttemptEvent, AttemptAction, MemberPhase


@pytest.mark.parametrize(("state", "event"), list(product(S, E)))
def test_step_every_pair_is_a_row_or_names_itself(state: AttemptState, event: AttemptEvent) -> None:
    if (state, event) in ATTEMPT_TABLE:
        assert step(state, event) == ATTEMPT_TABLE[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"attempt.*{event.value}.*{state.value}"):
            step(state, event)


def test_member_table_never_goes_back() -> None:
    """R-LCH-05: apart from `unknown`, whose journal is gone, no phase is ever met twice."""
    order = {phase: number for number, phase in enumerate(P)}
    for phase, targets in MEMBER_TABLE.items():
        if phase is not P.UNKNOWN:
            assert all(order[target] >= order[phase] for target in targets), phase
    assert all(MEMBER_TABLE[phase] == (phase,) for phase in ENDED_PHASES)


def test_member_table_what_ran_cannot_abort() -> None:
    """P-03: `aborted` proves that nothing ever ran, so a member seen running never becomes it."""
    assert P.ABORTED not in MEMBER_TABLE[P.RUNNING]


def test_attempt_table_commit_is_decided_once_and_only_when_all_are_prepared() -> None:
    """R-LCH-01: one row sends Commit; no row leads back before it."""
    rows = [key for key, (_, action) in ATTEMPT_TABLE.items() if action is A.SEND_COMMIT]
    assert rows == [(S.PREPARING, E.ALL_PREPARED)]


def test_attempt_table_nothing_starts_after_stopping() -> None:
    """R-LCH-12: from `stopping` only `ended` is reached, and `ended` leads nowhere."""
    assert [target for (state, _), (target, _) in ATTEMPT_TABLE.items() if state is S.STOPPING] == [S.ENDED]
    assert not [key for key in ATTEMPT_TABLE if key[0] is S.ENDED]


@pytest.mark.parametrize("state", [state for state in S if state not in (S.STOPPING, S.ENDED)])
def test_attempt_table_stop_works_in_every_state(state: AttemptState) -> None:
    assert step(state, E.STOP_ASKED) == (S.STOPPING, A.SEND_STOP)


@given(launch_views(), MOMENTS)
def test_observe_any_view_names_a_legal_event(view: LaunchView, now: object) -> None:
    event = observe(view, now, PRODUCTION)  # type: ignore[arg-type]
    if event is not None:
        step(view.state, event)


@given(launch_views(), st.floats(0, 1e9))
def test_observe_time_alone_never_ends_an_attempt(view: LaunchView, seconds: float) -> None:
    """R-LCH-03, P-11: with one member without evidence nothing concludes, however long we wait."""
    assume(any(member.phase not in ENDED_PHASES for member in view.members))
    event = observe(view, EPOCH + timedelta(seconds=seconds), PRODUCTION)
    assert event is None or step(view.state, event)[1] is not A.CONCLUDE


@given(launch_views(), MOMENTS)
def test_observe_commit_needs_every_member_prepared_and_a_safe_hold(view: LaunchView, now: object) -> None:
    """P-08: no commit within the margin of a hold's expiry."""
    if observe(view, now, PRODUCTION) is E.ALL_PREPARED:  # type: ignore[arg-type]
        margin = timedelta(seconds=PRODUCTION.commit_margin)
        assert all(member.phase is P.PREPARED for member in view.members)
        assert all(m.hold_expires_at is None or m.hold_expires_at > now + margin for m in view.members)  # type: ignore[operator]


@given(launch_views(), MOMENTS)
def test_observe_an_accepted_stop_always_wins(view: LaunchView, now: object) -> None:
    view = attrs.evolve(view, stop_asked_at=EPOCH)
    assume(view.state not in (S.STOPPING, S.ENDED))
    assert observe(view, now, PRODUCTION) is E.STOP_ASKED  # type: ignore[arg-type]


ACTING = st.sampled_from([S.PREPARING, S.COMMITTED, S.RUNNING])


def _with_first(view: LaunchView, state: AttemptState, phase: MemberPhase) -> LaunchView:
    """``view`` in ``state``, its first member in ``phase``."""
    return attrs.evolve(view, state=state, members=(attrs.evolve(view.members[0], phase=phase), *view.members[1:]))


@given(launch_views(), ACTING)
def test_observe_one_failed_member_stops_the_gang(view: LaunchView, state: AttemptState) -> None:
    """R-LCH-10, L-H1: a member that failed while others live leads to `stopping`."""
    view = _with_first(view, state, P.ABORTED)
    assume(any(m.phase not in ENDED_PHASES for m in view.members))
    event = observe(view, EPOCH, PRODUCTION)
    assert event is not None
    assert step(view.state, event)[0] is S.STOPPING


@given(launch_views(), ACTING)
def test_observe_an_unknown_member_is_stopped(view: LaunchView, state: AttemptState) -> None:
    """P-02: absence proves nothing, so a Stop is sent and only its tombstone counts."""
    view = _with_first(view, state, P.UNKNOWN)
    event = observe(view, EPOCH, PRODUCTION)
    assert event is not None
    assert step(view.state, event) == (S.STOPPING, A.SEND_STOP)


@given(launch_views(), MOMENTS)
def test_observe_what_time_makes_true_is_looked_at_in_time(view: LaunchView, now: object) -> None:
    """A look at ``next_look`` sees max_runtime_seconds as soon as it is over."""
    delay = next_look(view, now, PRODUCTION)  # type: ignore[arg-type]
    assert 0 <= delay <= PRODUCTION.poll
    if observe(view, now, PRODUCTION) is None and view.state is S.RUNNING and delay < PRODUCTION.poll:  # type: ignore[arg-type]
        later = now + timedelta(seconds=delay + 1e-3)  # type: ignore[operator]
        assert observe(view, later, PRODUCTION) is E.RUNTIME_OVERDUE
