"""What a launch says about itself: the cause of each step, the verdict when every member has ended, and what follows it.

The first cause is kept (L-H1): whoever follows it (a stop after a failure, members that end because they were stopped)
does not rewrite it. A failed attempt of a job that nobody asked to stop is followed by another while ``spec.retries`` lasts,
unless a repeat cannot mend its cause. All of this is asked only after evidence for every member (P-11).
"""

from __future__ import annotations

from datetime import datetime

from attrs import frozen

from .errors import Reason, Refused
from .ids import AttemptId, JobId
from .launch_table import (
    ENDED_PHASES,
    AttemptAction,
    AttemptEvent,
    AttemptState,
    Cause,
    JobState,
    LaunchView,
    MemberPhase,
    MemberView,
    Verdict,
    leader_done,
    step,
    succeeded,
)
from .timings import Timings

E, P = AttemptEvent, MemberPhase

STOPPED = "stopped"  # the cause of a stop that somebody asked for
DECLARED_LOST = "declared-lost"  # P-11: an operator's word instead of evidence
NODE_REMOVED = "node-removed"  # R-LIV-05: likewise, for a whole machine
BACKOFF = "retry-backoff"  # the waiting reason between two attempts
MOST_ATTEMPTS = 100  # of one job: eleven of its own, the rest by hand; a job's record is read as a whole

BY_AN_OPERATOR = frozenset({DECLARED_LOST, NODE_REMOVED})  # what really became of it nobody knows: a person decides

NOT_MENDED = {  # causes that a repeat cannot mend, and why
    "max-runtime": "the next attempt would be as long, and the limit is the same",
    "invalid-plan": "the next plan is made of the same job",
    "storage-root": "the machines see another storage root than the console names: that takes an operator",
    "ray-version": "the next attempt runs the same image",
    **dict.fromkeys(BY_AN_OPERATOR, "an operator ended it, and it may still run"),
}


@frozen
class Decision:
    """One step as it is persisted: where to, what to do, and why."""

    target: AttemptState
    action: AttemptAction
    cause: Cause
    verdict: Verdict | None = None


def decide(view: LaunchView, event: AttemptEvent) -> Decision:
    """The step that ``event`` leads to from ``view``. IllegalTransition when the table has no such row."""
    target, action = step(view.state, event)
    if action is not AttemptAction.CONCLUDE:
        return Decision(target, action, cause_of(view, event))
    verdict = conclude(view)
    return Decision(target, action, verdict.cause, verdict)


# ---------------------------------------------------------------- causes


def cause_of(view: LaunchView, event: AttemptEvent) -> Cause:
    """Why the attempt begins to stop or ended, in a sentence."""
    if event is E.STOP_ASKED:
        return cause_of_stop(view.members, view.stop_asked_by)
    if event is E.PREPARE_OVERDUE:
        waiting = ", ".join(f"{m.member} on {m.node} is {m.phase.value}" for m in view.members if m.phase is not P.PREPARED)
        return Cause("prepare-deadline", f"not all members were prepared in time: {waiting or 'a reservation ran out'}")
    if event is E.COMMIT_OVERDUE:
        return Cause("commit-deadline", "not all members started in time after the commit")
    if event is E.RUNTIME_OVERDUE:
        return Cause("max-runtime", f"ran longer than max_runtime_seconds ({view.max_runtime_seconds:g})")
    if event is E.MEMBER_UNKNOWN:
        unknown = ", ".join(f"{m.member} on {m.node}" for m in view.members if m.phase is P.UNKNOWN)
        return Cause("member-unknown", f"the journal that knew {unknown} is gone: it is stopped, whatever it was doing")
    if event is E.MEMBER_SILENT:
        return _silence(view)
    if event is E.LEADER_DONE:
        return Cause("leader-done", "rank 0 has succeeded: the workers are stopped")
    return first_failure(view.members) or Cause("", "")


def first_failure(members: tuple[MemberView, ...]) -> Cause | None:
    """What ended the member that failed first, by the time of its end, then by rank (L-H1)."""
    failed = [member for member in members if member.phase in ENDED_PHASES and not succeeded(member)]
    failed.sort(key=lambda member: (member.ended_at is None, member.ended_at, member.rank))
    return member_cause(failed[0]) if failed else None


def cause_of_stop(members: tuple[MemberView, ...], by: str) -> Cause:
    """Of an attempt that is asked to stop now: what had failed by then came first."""
    return first_failure(members) or Cause(STOPPED, f"stopped by {by or 'a user'}")


def cause_between_attempts(by: str, number: int, last: Cause | None) -> Cause:
    """Of a job that is asked to stop while it waits, after ``number`` attempts: nothing is left to fail, nothing is hidden."""
    stop = cause_of_stop((), by)
    return stop if last is None else Cause(stop.code, f"{stop.detail}; {_how_it_ended(number, last)}")


def member_cause(member: MemberView) -> Cause:
    """What ended one failed member, for a person."""
    if member.oom_killed:
        return Cause("out-of-memory", f"{member.member} was killed: it used more memory than its limit")
    if member.reason_code:
        return Cause(member.reason_code, member.reason_detail or member.reason_code)
    if member.phase is P.ABORTED:
        return Cause("aborted", f"{member.member} never started")
    return Cause("exit-code", f"{member.member} ended with exit code {member.exit_code}")


def _silence(view: LaunchView) -> Cause:
    silent = [(m.silent_since, m.rank, m) for m in view.members if m.phase not in ENDED_PHASES and m.silent_since is not None]
    if not silent:
        return Cause("member-silent", "a Node of the gang was silent for longer than the gang deadline")
    since, _, member = min(silent, key=lambda one: one[:2])
    return Cause("member-silent", f"Node {member.node} ({member.member}) is silent since {spell_moment(since)}, past the gang deadline")


def spell_moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%SZ}"


# ---------------------------------------------------------------- verdicts


def conclude(view: LaunchView) -> Verdict:
    """The verdict over an attempt whose members have all ended.

    Success needs exit 0 of every member, unprompted; of a Ray job that of rank 0. A stop is final, and does not hide a
    failure that came before it.
    """
    stopped = view.stop_asked_at is not None
    if leader_done(view) and not stopped:
        return Verdict(JobState.SUCCEEDED, Cause("", ""))
    if view.cause_code not in ("", STOPPED, "leader-done"):
        return _failed(view, Cause(view.cause_code, view.cause_detail))
    if stopped:
        return Verdict(JobState.STOPPED, Cause(STOPPED, f"stopped by {view.stop_asked_by or 'a user'}"))
    failure = first_failure(view.members)
    return _failed(view, failure) if failure is not None else Verdict(JobState.SUCCEEDED, Cause("", ""))


def _failed(view: LaunchView, cause: Cause) -> Verdict:
    return Verdict(JobState.QUEUED if may_retry(view, cause) else JobState.FAILED, cause)


def may_retry(view: LaunchView, cause: Cause) -> bool:
    """Whether another attempt follows by itself. Never after a stop (R-LCH-12), nor where an operator ended a member (P-11)."""
    codes = {cause.code, *(member.reason_code for member in view.members if member.reason_code in BY_AN_OPERATOR)}
    return view.stop_asked_at is None and view.number <= view.retries and not codes & set(NOT_MENDED)


def check_retry(job: JobId, state: JobState, stop_asked_at: datetime | None, attempts: int) -> None:
    """Whether a person may have ``job`` tried once more; Refused says why not. Queued after an attempt: it already will be."""
    if stop_asked_at is not None or state is JobState.STOPPED:
        raise Refused("job-stopped", f"job {job} was asked to stop, and a stopped job never starts again: submit it anew")
    if state is JobState.SUCCEEDED:
        raise Refused("job-succeeded", f"job {job} has succeeded: submit it anew to run it again")
    if state is not JobState.FAILED and not (state is JobState.QUEUED and attempts):
        raise Refused("job-live", f"job {job} is {state.value}: only a job that has failed can be tried again")
    if attempts >= MOST_ATTEMPTS:
        raise Refused("too-many-attempts", f"job {job} has had {attempts} attempts, the most that one job may have: submit it anew")


def retry_delay(number: int, timings: Timings) -> float:
    """Seconds from the end of attempt ``number`` (1, 2, …) to the next one, at the earliest."""
    return min(timings.retry_first * 2.0 ** min(number - 1, 32), timings.retry_most)


def backoff_reason(attempt: AttemptId, number: int, cause: Cause, not_before: datetime) -> Reason:
    """Why a job waits between two attempts."""
    why = _how_it_ended(number, cause)
    return Reason(BACKOFF, f"attempt {number + 1} starts at {spell_moment(not_before)} at the earliest: {why}", attempt)


def _how_it_ended(number: int, cause: Cause) -> str:
    return f"attempt {number} ended ({cause.code}: {cause.detail})"
