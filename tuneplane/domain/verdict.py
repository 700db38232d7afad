"""What a launch says about itself: the cause of each step, and the verdict when every member has ended (L-H1).

The first cause is kept: whoever follows it (a stop after a failure, members that end because they were stopped) does not
rewrite it.
"""

from __future__ import annotations

from attrs import frozen

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
    step,
    succeeded,
)

E, P = AttemptEvent, MemberPhase


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


def cause_of(view: LaunchView, event: AttemptEvent) -> Cause:
    """Why the attempt begins to stop or ended, in a sentence: the first cause is kept (L-H1)."""
    if event is E.STOP_ASKED:
        return Cause("stopped", f"stopped by {view.stop_asked_by or 'a user'}")
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
    failed = sorted(
        (m for m in view.members if m.phase in ENDED_PHASES and not succeeded(m)), key=lambda m: (m.ended_at is None, m.ended_at, m.rank)
    )
    return member_cause(failed[0]) if failed else Cause("", "")


def member_cause(member: MemberView) -> Cause:
    """What ended one failed member, for a person."""
    if member.oom_killed:
        return Cause("out-of-memory", f"{member.member} was killed: it used more memory than its limit")
    if member.reason_code:
        return Cause(member.reason_code, member.reason_detail or member.reason_code)
    if member.phase is P.ABORTED:
        return Cause("aborted", f"{member.member} never started")
    return Cause("exit-code", f"{member.member} ended with exit code {member.exit_code}")


def conclude(view: LaunchView) -> Verdict:
    """The verdict over an attempt whose members have all ended. Success needs exit 0 of every member, unprompted."""
    if view.stop_asked_at is not None:
        return Verdict(JobState.STOPPED, Cause("stopped", f"stopped by {view.stop_asked_by or 'a user'}"))
    if view.cause_code:
        return Verdict(JobState.FAILED, Cause(view.cause_code, view.cause_detail))
    if all(succeeded(member) for member in view.members):
        return Verdict(JobState.SUCCEEDED, Cause("", ""))
    return Verdict(JobState.FAILED, cause_of(view, E.ALL_ENDED))
