"""What people see of jobs that wait: reasons as many as one reads, and all waiting jobs by cause (R-PLC-03, L-L4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from attrs import evolve, frozen

from .errors import Reason
from .ids import FleetId, JobId
from .jobs import Job, JobSummary, Waiting
from .launch_table import JobState

MOST_REASONS = 12  # about single Nodes, that a job shows; a Fleet may have thousands
ABOUT_ALL = frozenset({"too-few-machines", "behind", "earmarked", "no-nodes"})  # not about one Node
CLOSED = frozenset({"not-ready", "no-budgets"})  # Nodes that take nobody's work: least to the point
NOT_LOOKED_AT = Reason("in-line", "no worker has looked at it yet: it is not among the first of its Fleet's queue, or has just come")


@frozen(kw_only=True)
class WaitingJobs:
    """Jobs of one Fleet that show the very same reasons; ``since`` and ``oldest`` are of the one that has waited the longest."""

    fleet: FleetId
    code: str
    reasons: tuple[Reason, ...]
    jobs: int
    since: datetime
    oldest: JobId


@frozen(kw_only=True)
class WaitingGroup:
    """Jobs of one Fleet that wait for one cause. ``cause`` is the code of their first reason, ``code`` that of the wait."""

    fleet: FleetId
    code: str  # of Waiting
    cause: str
    jobs: int
    since: datetime  # of the one that has waited the longest
    oldest: JobId
    detail: str  # its first reason


def shorten(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    """At most :data:`MOST_REASONS` about Nodes, those that are open to work first; of more, one a code, with the nearest Node
    and how many others there are."""
    general = tuple(one for one in reasons if one.code in ABOUT_ALL)
    single = sorted((one for one in reasons if one.code not in ABOUT_ALL), key=lambda one: one.code in CLOSED)
    if len(single) <= MOST_REASONS:
        return (*general, *single)
    by_code: dict[str, list[Reason]] = {}
    for one in single:
        by_code.setdefault(one.code, []).append(one)
    return (*general, *map(_one_for_all, by_code.values()))


def _one_for_all(reasons: Sequence[Reason]) -> Reason:
    nearest = max(reasons, key=lambda one: one.have or 0)
    return evolve(nearest, detail=f"{nearest.detail} ({len(reasons) - 1} more Nodes: {nearest.code})") if len(reasons) > 1 else nearest


def by_cause(found: Iterable[WaitingJobs]) -> list[WaitingGroup]:
    """The most jobs first."""
    groups: dict[tuple[FleetId, str, str], WaitingGroup] = {}
    for one in found:
        first = one.reasons[0] if one.reasons else Reason(one.code, one.code)
        key = (one.fleet, one.code, first.code)
        made = WaitingGroup(
            fleet=one.fleet, code=one.code, cause=first.code, jobs=one.jobs, since=one.since, oldest=one.oldest, detail=first.detail
        )
        groups[key] = _joined(groups[key], made) if key in groups else made
    return sorted(groups.values(), key=lambda one: (-one.jobs, one.fleet, one.code, one.cause))


def _joined(one: WaitingGroup, other: WaitingGroup) -> WaitingGroup:
    oldest = min(one, other, key=lambda group: (group.since, group.oldest))
    return evolve(oldest, jobs=one.jobs + other.jobs)


def waiting_of(job: Job | JobSummary) -> Waiting | None:
    """What a job shows: a queued one always says why it waits, and since when."""
    if job.state is not JobState.QUEUED or job.waiting is not None:
        return job.waiting
    return Waiting(code=NOT_LOOKED_AT.code, reasons=(NOT_LOOKED_AT,), since=job.created_at)
