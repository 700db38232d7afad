"""The tables under any interleaving: commands, outcomes and finds in any order, daemons that restart, sessions that babble."""

from __future__ import annotations

from datetime import timedelta

from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.test_member_table import GRANTS, NOW, OUTCOMES, PLACE, PLAN, command
from tuneplane.domain.errors import IllegalTransition
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.member_table import ENDED, RESUME, UNSEEN, MemberAction, MemberEvent, NodePhase
from tuneplane.domain.node_member import Facts, NodeMember, advance, decide
from tuneplane.domain.session_table import SESSION_TABLE, Role, SessionState, step_session

P, E, A = NodePhase, MemberEvent, MemberAction
SAYS_LOST = {E.FENCED, E.REMOVED, E.FOUND_ENDED, E.FOUND_UNPROVEN, E.FOUND_FOREIGN, E.FOUND_RUNNING}
steps = st.lists(st.one_of(st.sampled_from(CommandKind), st.just("restart"), st.integers(0, 20)), max_size=40)


@settings(max_examples=400)
@given(steps, st.booleans())
def test_one_member_under_any_interleaving_starts_once_and_ends_for_a_reason(script: list[object], twice: bool) -> None:
    """P-01, P-03, P-06, P-08: a driver that acts by the table, commands at any moment, restarts that forget all but the journal."""
    record: NodeMember | None = None
    action, begun = A.KEEP, A.KEEP
    starts = 0
    for number, step in enumerate(script):
        place = evolve(PLACE, now=NOW + timedelta(seconds=number))
        before = record
        if step == "restart":
            if record is not None:
                action = begun = RESUME[record.phase]
            continue
        if isinstance(step, CommandKind):
            decision = decide(record, command(step), place, GRANTS, (), unseen=twice and record is not None and record.phase in UNSEEN)
            record = decision.record
            if decision.action is not A.KEEP:
                action = begun = decision.action
            event = E(step.value)
        elif record is not None and OUTCOMES[begun]:
            event = OUTCOMES[begun][step % len(OUTCOMES[begun])]  # type: ignore[operator]
            try:
                record, action = advance(record, event, Facts(container_id="c", exit_code=0, reason_code="x"), place)
            except IllegalTransition:
                continue  # found in a phase where a command came first: the driver looks again
            if record.phase is P.ABSENT:
                record = None
            if action is not A.KEEP:
                begun = action
        else:
            continue
        starts += action is A.START and isinstance(step, int)
        _judge(before, record, event)
        action = A.KEEP
    assert starts <= 1


def _judge(before: NodeMember | None, after: NodeMember | None, event: MemberEvent) -> None:
    if before is not None and before.phase in ENDED:
        assert after is None or after.phase in ENDED, "only Forget and GONE leave an end"
        assert after is not None or event is E.GONE
        return
    if after is None or after.phase not in ENDED:
        return
    # no evidence without its cause
    if after.phase is P.TERMINATED:
        assert event in SAYS_LOST, event
        assert event is E.FOUND_ENDED or after.reason_code == "lost"
        assert event is E.FOUND_ENDED or after.exit_code is None
    if event is E.HOLD_EXPIRED:
        assert before is not None
        assert before.phase in UNSEEN
    if after.phase is P.ABORTED and before is not None:
        assert before.phase is not P.RUNNING, "what was seen running never becomes what never ran"


@given(
    st.lists(
        st.tuples(st.sampled_from(Role), st.sampled_from(sorted({kind for row in SESSION_TABLE.values() for kind in row}, key=str))),
        max_size=20,
    )
)
def test_session_table_nothing_is_obeyed_before_the_welcome_or_after_the_goodbye(frames: list[tuple[Role, type]]) -> None:
    """R-SES-04, P-06: a Welcome comes once, after one Hello; a Goodbye is the last word."""
    state, told = SessionState.OPENED, []
    for sender, kind in frames:
        following = step_session(state, sender, kind)
        if following is None:
            continue
        assert state is not SessionState.ENDED
        told.append(kind.__name__)
        state = following
        if kind.__name__ not in ("Hello", "Welcome", "Goodbye"):
            assert told[:2] == ["Hello", "Welcome"]
    assert told.count("Hello") <= 1
    assert told.count("Welcome") <= 1
    assert "Goodbye" not in told[:-1]


def test_plan_of_these_tests_is_one_that_fits() -> None:
    """Otherwise every interleaving would end at its Prepare."""
    assert decide(None, command(CommandKind.PREPARE), PLACE, GRANTS, ()).record.phase is P.PREPARING  # type: ignore[union-attr]
    assert PLAN.member == command(CommandKind.PREPARE).member
