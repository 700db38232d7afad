"""The launch protocol, control side: one table for the attempt, one for its members.

Read this page and you know the protocol. An attempt is driven by *looking*, not by remembering: a Launch actor on
any worker reads the rows as a :class:`LaunchView`, :func:`observe` names the one thing that is true now, and
:func:`step` says where that leads and what to do. The action is persisted in the same transaction as the new state,
guarded by the claim epoch and the old state (P-05), so that a crash or a second worker repeats a look, never an act.

    pending --claimed--> preparing --all-prepared--> committed --all-running--> running
       |                    |                            |                        |
       +--- stop-asked, overdue, member-failed, -unknown ->+-----> stopping <-----+-- member-silent, leader-done
                                                                      |
                        all-ended (evidence for every member) --> ended

Nothing leaves ``stopping`` but evidence: a silent machine proves nothing (R-LCH-03), its hold is shown, not released.
Whether an attempt that ended is followed by another is said in ``verdict.py``.

Judging is fair (P-16, P-19, L-B8, L-B9): no deadline counts time in which nobody could see (``sight.py``).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum

from attrs import frozen

from .errors import IllegalTransition
from .ids import AttemptId, JobId, MemberId, NodeId, TraceId
from .jobspec import Orchestrator
from .sight import Sight, counted, silence
from .timings import Timings


class AttemptState(str, Enum):
    PENDING = "pending"  # plans and holds are written; nobody has acted on them
    PREPARING = "preparing"  # Prepare commands are persisted
    COMMITTED = "committed"  # the commit is decided, once, and persisted
    RUNNING = "running"
    STOPPING = "stopping"  # Stop commands are persisted; waiting for evidence
    ENDED = "ended"


class AttemptEvent(str, Enum):
    CLAIMED = "claimed"
    ALL_PREPARED = "all-prepared"
    ALL_RUNNING = "all-running"
    ALL_ENDED = "all-ended"
    MEMBER_FAILED = "member-failed"
    MEMBER_UNKNOWN = "member-unknown"  # P-02: the journal that knew it is gone; only a Stop's tombstone settles it
    MEMBER_SILENT = "member-silent"  # R-LCH-16: a Node of a gang said nothing for longer than the gang deadline
    LEADER_DONE = "leader-done"  # Ray: rank 0 has succeeded; its workers have nothing left to do
    STOP_ASKED = "stop-asked"
    PREPARE_OVERDUE = "prepare-overdue"
    COMMIT_OVERDUE = "commit-overdue"
    RUNTIME_OVERDUE = "runtime-overdue"


class AttemptAction(str, Enum):
    SEND_PREPARE = "send-prepare"
    SEND_COMMIT = "send-commit"
    SEND_STOP = "send-stop"
    CONCLUDE = "conclude"
    NOTHING = "nothing"


S, E, A = AttemptState, AttemptEvent, AttemptAction

ATTEMPT_TABLE: dict[tuple[AttemptState, AttemptEvent], tuple[AttemptState, AttemptAction]] = {
    (S.PENDING, E.CLAIMED): (S.PREPARING, A.SEND_PREPARE),
    (S.PENDING, E.STOP_ASKED): (S.STOPPING, A.SEND_STOP),
    (S.PREPARING, E.ALL_PREPARED): (S.COMMITTED, A.SEND_COMMIT),
    (S.PREPARING, E.ALL_ENDED): (S.ENDED, A.CONCLUDE),
    (S.PREPARING, E.MEMBER_FAILED): (S.STOPPING, A.SEND_STOP),
    (S.PREPARING, E.MEMBER_UNKNOWN): (S.STOPPING, A.SEND_STOP),
    (S.PREPARING, E.STOP_ASKED): (S.STOPPING, A.SEND_STOP),
    (S.PREPARING, E.PREPARE_OVERDUE): (S.STOPPING, A.SEND_STOP),
    (S.COMMITTED, E.ALL_RUNNING): (S.RUNNING, A.NOTHING),
    (S.COMMITTED, E.ALL_ENDED): (S.ENDED, A.CONCLUDE),
    (S.COMMITTED, E.MEMBER_FAILED): (S.STOPPING, A.SEND_STOP),
    (S.COMMITTED, E.MEMBER_UNKNOWN): (S.STOPPING, A.SEND_STOP),
    (S.COMMITTED, E.MEMBER_SILENT): (S.STOPPING, A.SEND_STOP),
    (S.COMMITTED, E.LEADER_DONE): (S.STOPPING, A.SEND_STOP),
    (S.COMMITTED, E.STOP_ASKED): (S.STOPPING, A.SEND_STOP),
    (S.COMMITTED, E.COMMIT_OVERDUE): (S.STOPPING, A.SEND_STOP),
    (S.RUNNING, E.ALL_ENDED): (S.ENDED, A.CONCLUDE),
    (S.RUNNING, E.MEMBER_FAILED): (S.STOPPING, A.SEND_STOP),
    (S.RUNNING, E.MEMBER_UNKNOWN): (S.STOPPING, A.SEND_STOP),
    (S.RUNNING, E.MEMBER_SILENT): (S.STOPPING, A.SEND_STOP),
    (S.RUNNING, E.LEADER_DONE): (S.STOPPING, A.SEND_STOP),
    (S.RUNNING, E.STOP_ASKED): (S.STOPPING, A.SEND_STOP),
    (S.RUNNING, E.RUNTIME_OVERDUE): (S.STOPPING, A.SEND_STOP),
    (S.STOPPING, E.ALL_ENDED): (S.ENDED, A.CONCLUDE),
}


def step(state: AttemptState, event: AttemptEvent) -> tuple[AttemptState, AttemptAction]:
    """The row of the table, or IllegalTransition."""
    try:
        return ATTEMPT_TABLE[state, event]
    except KeyError:
        raise IllegalTransition("attempt", state.value, event.value) from None


# ---------------------------------------------------------------- members, as the control plane knows them


class MemberPhase(str, Enum):
    PENDING = "pending"
    PREPARING = "preparing"
    PREPARED = "prepared"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    TERMINATED = "terminated"  # it ran and ended, with evidence (or is `lost`, by proof that it runs no more)
    ABORTED = "aborted"  # it never ran and never will: a tombstone says so
    UNKNOWN = "unknown"  # the journal that knew it is gone, or contradicts what it told before


P = MemberPhase
ENDED_PHASES = frozenset({P.TERMINATED, P.ABORTED})
_ALIVE = (P.PREPARING, P.PREPARED, P.STARTING, P.RUNNING, P.STOPPING, P.TERMINATED, P.ABORTED)

# What a Node's observation may turn a member into. A Node may skip phases (reports coalesce) and never goes back; what
# else it may report, and what becomes of the member then, is weighed in domain/evidence.py.
MEMBER_TABLE: dict[MemberPhase, tuple[MemberPhase, ...]] = {
    P.PENDING: _ALIVE,
    P.PREPARING: _ALIVE,
    P.PREPARED: (P.PREPARED, P.STARTING, P.RUNNING, P.STOPPING, P.TERMINATED, P.ABORTED),
    P.STARTING: (P.STARTING, P.RUNNING, P.STOPPING, P.TERMINATED, P.ABORTED),
    P.RUNNING: (P.RUNNING, P.STOPPING, P.TERMINATED),
    P.STOPPING: (P.STOPPING, P.TERMINATED, P.ABORTED),
    P.UNKNOWN: (P.UNKNOWN, P.TERMINATED, P.ABORTED),  # only its end settles it (domain/evidence.py)
    P.TERMINATED: (P.TERMINATED,),
    P.ABORTED: (P.ABORTED,),
}


# ---------------------------------------------------------------- looking


@frozen(kw_only=True)
class MemberView:
    member: MemberId
    node: NodeId
    rank: int
    phase: MemberPhase
    exit_code: int | None = None
    oom_killed: bool = False
    reason_code: str = ""
    reason_detail: str = ""
    ended_at: datetime | None = None
    hold_expires_at: datetime | None = None  # when a prepared, uncommitted reservation expires on its Node
    silent_since: datetime | None = None  # its Node has no live session since then
    connected_since: datetime | None = None  # its Node's live session began then


@frozen(kw_only=True)
class LaunchView:
    """All that the launch protocol looks at, read in one snapshot."""

    job: JobId
    attempt: AttemptId
    number: int
    state: AttemptState
    members: tuple[MemberView, ...]
    trace: TraceId
    stop_asked_at: datetime | None = None
    stop_asked_by: str = ""
    entered_at: datetime  # when the attempt entered its present state
    running_at: datetime | None = None
    max_runtime_seconds: float | None = None
    cause_code: str = ""  # the first cause, kept when the attempt began to stop
    cause_detail: str = ""
    orchestrator: Orchestrator = Orchestrator.PROCESS_GROUP
    retries: int = 0  # of the spec: attempts after the first
    gang_deadline_seconds: float | None = None  # the Fleet's own; None: ``Timings.prepare_deadline``
    sight: Sight | None = None  # what the control plane can see; None: nobody has looked yet


def succeeded(member: MemberView) -> bool:
    return member.phase is P.TERMINATED and member.exit_code == 0 and not member.oom_killed and not member.reason_code


def leader_done(view: LaunchView) -> bool:
    """Ray: whether rank 0, which runs the job's command, has succeeded by its own evidence, unprompted."""
    return view.orchestrator is Orchestrator.RAY and any(member.rank == 0 and succeeded(member) for member in view.members)


def observe(view: LaunchView, now: datetime, timings: Timings) -> AttemptEvent | None:
    """The one event that is true of ``view`` at ``now``, or None when there is nothing to do but wait."""
    ended = [member for member in view.members if member.phase in ENDED_PHASES]
    if view.state is S.ENDED:
        return None
    if view.stop_asked_at is not None and view.state is not S.STOPPING:
        return E.STOP_ASKED
    if view.state is S.PENDING:
        return E.CLAIMED
    if len(ended) == len(view.members):
        return E.ALL_ENDED
    if view.state is S.STOPPING:
        return None
    committed = view.state in (S.COMMITTED, S.RUNNING)
    if committed and leader_done(view):
        return E.LEADER_DONE
    if any(not succeeded(member) for member in ended):
        return E.MEMBER_FAILED
    if any(member.phase is P.UNKNOWN for member in view.members):
        return E.MEMBER_UNKNOWN
    if committed and _too_long_silent(view, now, timings):
        return E.MEMBER_SILENT
    return _overdue_or_complete(view, now, timings)


def _too_long_silent(view: LaunchView, now: datetime, timings: Timings) -> bool:
    """R-LCH-16: of a gang. One machine alone keeps nobody waiting, so its silence never ends its work."""
    deadline = max(gang_deadline(view, timings), timings.judging_grace)
    silent = [m.silent_since for m in view.members if m.phase not in ENDED_PHASES and m.silent_since is not None]
    return len(view.members) > 1 and any(silence(view.sight, since, now, timings) >= deadline for since in silent)


def gang_deadline(view: LaunchView, timings: Timings) -> float:
    """Seconds that the members of a gang wait for one another: to be prepared, and for a silent one to return."""
    return timings.prepare_deadline if view.gang_deadline_seconds is None else view.gang_deadline_seconds


def hold_seconds(view: LaunchView, timings: Timings) -> float:
    """How long a Node keeps an uncommitted reservation: past the deadline by which its gang is prepared (P-08)."""
    return max(timings.hold, gang_deadline(view, timings) + timings.hold - timings.prepare_deadline)


def _slow_to_start(view: LaunchView, now: datetime, timings: Timings) -> bool:
    """P-10: a member that does not run though its Node has had time to be told. Silence is judged elsewhere."""
    grace = timedelta(seconds=min(timings.judging_grace, timings.commit_deadline))
    lagging = [m for m in view.members if m.phase is not P.RUNNING and not succeeded(m) and m.silent_since is None]
    told = [m for m in lagging if m.connected_since is None or now - m.connected_since >= grace]
    return bool(told) and counted(view.sight, view.entered_at, now, timings) >= timings.commit_deadline


def _overdue_or_complete(view: LaunchView, now: datetime, timings: Timings) -> AttemptEvent | None:
    if view.state is S.PREPARING:
        if all(member.phase is P.PREPARED for member in view.members):
            # P-08: a hold that is about to expire is not committed; the Node will report its tombstone
            return E.ALL_PREPARED if _hold_is_safe(view, now, timings) else E.PREPARE_OVERDUE
        return E.PREPARE_OVERDUE if counted(view.sight, view.entered_at, now, timings) >= gang_deadline(view, timings) else None
    if view.state is S.COMMITTED:
        if all(member.phase is P.RUNNING or succeeded(member) for member in view.members):
            return E.ALL_RUNNING
        return E.COMMIT_OVERDUE if _slow_to_start(view, now, timings) else None
    if view.max_runtime_seconds is not None and view.running_at is not None:
        if now - view.running_at >= timedelta(seconds=view.max_runtime_seconds):
            return E.RUNTIME_OVERDUE
    return None


def _hold_is_safe(view: LaunchView, now: datetime, timings: Timings) -> bool:
    margin = timedelta(seconds=timings.commit_margin)
    return all(member.hold_expires_at is None or now + margin < member.hold_expires_at for member in view.members)


def next_look(view: LaunchView, now: datetime, timings: Timings) -> float:
    """Seconds until time alone can make a new event true (never more than the poll interval)."""
    due = timings.poll
    if view.state is S.RUNNING and view.max_runtime_seconds is not None and view.running_at is not None:
        left = (view.running_at - now).total_seconds() + view.max_runtime_seconds
        due = min(due, max(left, 0.0))
    return due


@frozen
class Cause:
    code: str
    detail: str


class JobState(str, Enum):
    QUEUED = "queued"
    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


FINAL_JOB_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED})

JOB_STATE_OF_ATTEMPT = {
    S.PENDING: JobState.PREPARING,
    S.PREPARING: JobState.PREPARING,
    S.COMMITTED: JobState.STARTING,
    S.RUNNING: JobState.RUNNING,
    S.STOPPING: JobState.STOPPING,
}


@frozen
class Verdict:
    """How an attempt ended: the job's state after it (``queued``: another attempt follows) and the first cause."""

    state: JobState
    cause: Cause
