"""Causes, verdicts and what follows them: the first cause is kept, a stop is final, a retry needs evidence (L-H1, R-LCH-12, P-11)."""

from __future__ import annotations

from datetime import timedelta

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.domain.strategies import EPOCH, launch_views
from tuneplane.domain.errors import Refused
from tuneplane.domain.ids import AttemptId, JobId
from tuneplane.domain.jobspec import Orchestrator
from tuneplane.domain.launch_table import (
    ENDED_PHASES,
    FINAL_JOB_STATES,
    MEMBER_TABLE,
    AttemptEvent,
    AttemptState,
    Cause,
    JobState,
    LaunchView,
    MemberPhase,
    MemberView,
    observe,
)
from tuneplane.domain.sight import Sight
from tuneplane.domain.timings import PRODUCTION
from tuneplane.domain.verdict import (
    BY_AN_OPERATOR,
    MOST_ATTEMPTS,
    NOT_MENDED,
    backoff_reason,
    cause_of,
    cause_of_stop,
    check_retry,
    conclude,
    decide,
    retry_delay,
)

E, P, J, S = AttemptEvent, MemberPhase, JobState, AttemptState


def _ended(view: LaunchView, **changes: object) -> LaunchView:
    """``view`` with evidence for every member."""
    members = tuple(attrs.evolve(member, phase=P.TERMINATED) for member in view.members)
    return attrs.evolve(view, state=S.STOPPING, members=members, **changes)


def _clean(member: MemberView) -> bool:
    return member.exit_code == 0 and not member.oom_killed and not member.reason_code


@given(launch_views())
def test_conclude_success_needs_exit_zero_of_all_and_no_cause(view: LaunchView) -> None:
    """A process group: all members, unprompted; nothing else succeeds."""
    assume(view.stop_asked_at is not None or view.cause_code not in ("stopped", "leader-done"))  # no group comes to that unasked
    ended = _ended(view, orchestrator=Orchestrator.PROCESS_GROUP)
    verdict = conclude(ended)
    clean = all(_clean(member) for member in ended.members) and not view.cause_code
    assert verdict.state in FINAL_JOB_STATES | {J.QUEUED}
    assert (verdict.state is J.SUCCEEDED) == (clean and view.stop_asked_at is None)
    assert verdict.state is J.SUCCEEDED or verdict.cause.code


@given(launch_views())
def test_conclude_of_ray_rank_zero_is_the_verdict(view: LaunchView) -> None:
    """Rank 0 runs the job's command: its own success is the job's, whatever became of the workers; its failure never is."""
    ended = _ended(view, orchestrator=Orchestrator.RAY, stop_asked_at=None)
    leader = ended.members[0]
    if _clean(leader):
        assert conclude(ended).state is J.SUCCEEDED
    elif not view.cause_code:
        assert conclude(ended).state is not J.SUCCEEDED


@given(launch_views(), st.integers(1, 5))
def test_conclude_a_retry_never_follows_a_stop(view: LaunchView, number: int) -> None:
    """R-LCH-12: however the attempt ended, whichever it was."""
    verdict = conclude(_ended(view, number=number, stop_asked_at=EPOCH))
    assert verdict.state in (J.STOPPED, J.FAILED)


@given(launch_views(), st.integers(1, 5))
def test_conclude_retries_while_they_last_and_where_a_repeat_can_mend(view: LaunchView, number: int) -> None:
    verdict = conclude(_ended(view, number=number, stop_asked_at=None))
    if verdict.state is J.QUEUED:
        assert number <= view.retries
        assert verdict.cause.code not in NOT_MENDED
    if verdict.state is J.FAILED:
        assert number > view.retries or verdict.cause.code in NOT_MENDED


@given(launch_views(), st.sampled_from(sorted(BY_AN_OPERATOR)), st.integers(0, 3))
def test_conclude_what_an_operator_ended_is_not_retried_by_itself(view: LaunchView, code: str, which: int) -> None:
    """P-11, R-LIV-05: also where another cause came first; it may still run."""
    ended = _ended(view, number=1, retries=10, stop_asked_at=None, orchestrator=Orchestrator.PROCESS_GROUP)
    rank = which % len(ended.members)
    members = tuple(attrs.evolve(m, reason_code=code) if m.rank == rank else m for m in ended.members)
    assert conclude(attrs.evolve(ended, members=members)).state is J.FAILED


@given(launch_views())
def test_conclude_a_stop_after_a_failure_does_not_rewrite_it(view: LaunchView) -> None:
    """L-H1: the failure came first, and says why; the stop only keeps it from being tried again."""
    ended = _ended(view, cause_code="exit-code", cause_detail="rank 2 ended with exit code 1", stop_asked_at=EPOCH, number=1, retries=9)
    assert conclude(ended) == conclude(attrs.evolve(ended, stop_asked_by="eve"))
    verdict = conclude(ended)
    assert (verdict.state, verdict.cause) == (J.FAILED, Cause("exit-code", "rank 2 ended with exit code 1"))


@given(launch_views())
def test_conclude_a_failure_after_a_stop_does_not_rewrite_it(view: LaunchView) -> None:
    """L-H1, the other way round: what a signal made of the members is not why the job ended."""
    ended = _ended(view, cause_code="stopped", cause_detail="stopped by ada", stop_asked_at=EPOCH, stop_asked_by="ada")
    assert conclude(ended).cause == Cause("stopped", "stopped by ada")
    assert conclude(ended).state is J.STOPPED


@given(launch_views(), st.permutations(range(4)))
def test_cause_of_the_first_failure_is_kept(view: LaunchView, order: list[int]) -> None:
    """L-H1: of several members that failed in one look the first by time names the cause."""
    members = tuple(
        attrs.evolve(m, phase=P.TERMINATED, oom_killed=False, reason_code=f"cause-{when}", ended_at=EPOCH + timedelta(seconds=when))
        for m, when in zip(view.members, order, strict=False)
    )
    failed = attrs.evolve(view, members=members)
    first = f"cause-{min(order[: len(members)])}"
    assert cause_of(failed, E.MEMBER_FAILED).code == first
    assert cause_of_stop(members, "ada").code == first


def test_cause_of_members_that_failed_at_once_is_the_lowest_rank() -> None:
    members = tuple(_member(rank, exit_code=rank + 1) for rank in (2, 0, 1))
    assert cause_of_stop(members, "ada") == Cause("exit-code", "job-a-1-0 ended with exit code 1")


def test_cause_of_a_stop_is_whoever_asked_unless_a_member_had_failed() -> None:
    succeeded = _member(0, exit_code=0)
    assert cause_of_stop((succeeded, _member(1, phase=P.RUNNING, ended_at=None)), "ada") == Cause("stopped", "stopped by ada")
    assert cause_of_stop((), "") == Cause("stopped", "stopped by a user")


def test_cause_of_silence_names_the_node_and_since_when() -> None:
    """R-LCH-16: the one that has been silent longest."""
    members = tuple(
        _member(rank, phase=P.RUNNING, ended_at=None, silent_since=since)
        for rank, since in enumerate((None, EPOCH + timedelta(seconds=9), EPOCH + timedelta(seconds=5)))
    )
    view = attrs.evolve(_view(), members=members)
    cause = cause_of(view, E.MEMBER_SILENT)
    assert cause.code == "member-silent"
    assert cause.detail == "Node node-2 (job-a-1-2) is silent since 2026-11-30 12:00:05Z, past the gang deadline"


@given(launch_views(), st.floats(1, 1000))
def test_cause_of_every_event_is_a_sentence_or_empty(view: LaunchView, most: float) -> None:
    for event in E:
        cause = cause_of(attrs.evolve(view, max_runtime_seconds=most), event)
        assert bool(cause.code) == bool(cause.detail)


def _member(rank: int, **changes: object) -> MemberView:
    made = MemberView(member=f"job-a-1-{rank}", node=f"node-{rank}", rank=rank, phase=P.TERMINATED, ended_at=EPOCH)  # type: ignore[arg-type]
    return attrs.evolve(made, **changes)


def _view(**changes: object) -> LaunchView:
    made = LaunchView(job="job-a", attempt="job-a-1", number=1, state=S.RUNNING, members=(_member(0),), trace="t", entered_at=EPOCH)  # type: ignore[arg-type]
    return attrs.evolve(made, **changes)


# ---------------------------------------------------------------- back-off


def test_retry_delay_doubles_and_is_capped() -> None:
    delays = [retry_delay(number, PRODUCTION) for number in range(1, MOST_ATTEMPTS + 1)]
    assert delays[:4] == [10.0, 20.0, 40.0, 80.0]
    assert max(delays) == delays[-1] == PRODUCTION.retry_most
    assert delays == sorted(delays)


def test_backoff_reason_says_when_and_why() -> None:
    reason = backoff_reason(AttemptId("job-a-1"), 1, Cause("exit-code", "job-a-1-0 ended with exit code 3"), EPOCH)
    assert (reason.code, reason.subject) == ("retry-backoff", "job-a-1")
    assert reason.detail == (
        "attempt 2 starts at 2026-11-30 12:00:00Z at the earliest: attempt 1 ended (exit-code: job-a-1-0 ended with exit code 3)"
    )


@pytest.mark.parametrize(
    ("state", "stopped", "attempts", "code"),
    [
        (J.RUNNING, False, 1, "job-live"),
        (J.STOPPING, True, 1, "job-stopped"),
        (J.QUEUED, False, 0, "job-live"),
        (J.SUCCEEDED, False, 1, "job-succeeded"),
        (J.STOPPED, True, 1, "job-stopped"),
        (J.FAILED, True, 1, "job-stopped"),
        (J.FAILED, False, MOST_ATTEMPTS, "too-many-attempts"),
        (J.FAILED, False, MOST_ATTEMPTS - 1, ""),
        (J.QUEUED, False, 1, ""),
    ],
)
def test_check_retry_lets_only_what_failed_be_tried_again(state: JobState, stopped: bool, attempts: int, code: str) -> None:
    """R-LCH-12: a job that was asked to stop never starts again, whatever it ended as."""
    asked = EPOCH if stopped else None
    if not code:
        check_retry(JobId("job-a"), state, asked, attempts)
        return
    with pytest.raises(Refused) as caught:
        check_retry(JobId("job-a"), state, asked, attempts)
    assert caught.value.code == code


# ---------------------------------------------------------------- any history


@attrs.define
class Story:
    """One attempt as rows would hold it: what Nodes report, what users ask, and the steps that follow."""

    view: LaunchView
    verdict: object = None

    def look(self, seconds: float) -> None:
        """Every step that is due, as a launch consumer takes them."""
        for _ in range(8):
            event = observe(self.view, EPOCH + timedelta(seconds=seconds), PRODUCTION)
            if event is None:
                return
            before, step = self.view, decide(self.view, event)
            if step.target is S.ENDED:
                assert all(member.phase in ENDED_PHASES for member in before.members), "only evidence ends an attempt"
                self.verdict = step.verdict
            if before.stop_asked_at is not None:
                assert step.target in (S.STOPPING, S.ENDED), "a stop wins from every state"
                assert step.verdict is None or step.verdict.state in (J.STOPPED, J.FAILED), "no retry follows a stop"
            assert before.state is not S.ENDED, "nothing leads from `ended`"
            cause = step.cause.code if step.target is S.STOPPING and not before.cause_code else before.cause_code
            entered = EPOCH + timedelta(seconds=seconds)
            running = entered if step.target is S.RUNNING else before.running_at
            self.view = attrs.evolve(before, state=step.target, cause_code=cause, entered_at=entered, running_at=running)
        raise AssertionError("the table goes round in circles")


MOVES = st.one_of(
    st.tuples(st.just("report"), st.integers(0, 3), st.sampled_from(P), st.sampled_from([0, 1, None])),
    st.tuples(st.just("wait"), st.floats(0, 900)),
    st.tuples(st.just("silence"), st.integers(0, 3)),
    st.tuples(st.just("return"), st.integers(0, 3)),
    st.tuples(st.just("stop")),
)


@given(launch_views(), st.lists(MOVES, max_size=25))
def test_any_history_ends_only_by_evidence_and_a_stop_wins(view: LaunchView, moves: list[tuple[object, ...]]) -> None:
    """R-LCH-03, R-LCH-12, R-LCH-16, P-11: from every reachable state, whatever is reported, however long nobody speaks."""
    members = tuple(_member(member.rank, phase=P.PENDING, ended_at=None) for member in view.members)
    story = Story(attrs.evolve(view, state=S.PENDING, members=members, stop_asked_at=None, cause_code="", sight=None))
    seconds = 0.0
    for kind, *more in moves:
        if kind == "wait":
            seconds += more[0]  # type: ignore[operator]
        elif kind == "stop":
            story.view = attrs.evolve(story.view, stop_asked_at=EPOCH, stop_asked_by="ada")
        else:
            story.view = _moved(story.view, kind, more, seconds)
        looked_at = EPOCH + timedelta(seconds=seconds)
        story.view = attrs.evolve(story.view, sight=Sight(seen_since=EPOCH, looked_at=looked_at, gateways_since=EPOCH))
        story.look(seconds)
    if any(member.phase not in ENDED_PHASES for member in story.view.members):
        assert story.verdict is None


def _moved(view: LaunchView, kind: object, more: list[object], seconds: float) -> LaunchView:
    """What one Node's report, silence or return makes of the rows; a report that its table refuses makes nothing."""
    rank, now = int(str(more[0])) % len(view.members), EPOCH + timedelta(seconds=seconds)
    old = view.members[rank]
    if kind == "report":
        phase = MemberPhase(more[1])
        if phase not in MEMBER_TABLE[old.phase] or old.phase in ENDED_PHASES:
            return view
        ended = {"ended_at": now, "exit_code": more[2]} if phase in ENDED_PHASES else {}
        new = attrs.evolve(old, phase=phase, **ended)
    else:
        new = attrs.evolve(old, silent_since=now if kind == "silence" else None)
    return attrs.evolve(view, members=(*view.members[:rank], new, *view.members[rank + 1 :]))
