"""What people see of jobs that wait: reasons as many as one reads, and all waiting jobs by cause (R-PLC-03, L-L4)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from attrs import evolve, frozen

from .errors import Reason
from .ids import FleetId, JobId

MOST_REASONS = 12  # about single Nodes, that a job shows; a Fleet may have thousands
ABOUT_ALL = frozenset({"too-few-machines", "behind", "earmarked", "no-nodes"})  # not about one Node
CLOSED = frozenset({"not-ready", "no-budgets"})  # Nodes that take nobody's work: least to the point
NOT_LOOKED_AT = "in-line"  # of a queued job that no allocator has looked at yet


@frozen(kw_only=True)
class WaitingGroup:
    """Jobs of one Fleet that wait for one cause. ``cause`` is the code of their first reason, ``code`` that of the wait."""

    fleet: FleetId
    code: str
    cause: str
    jobs: int
    since: datetime | None  # of the one that has waited the longest
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
