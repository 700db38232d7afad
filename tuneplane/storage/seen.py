"""The rules of domain/visibility.py as conditions of listings: what somebody may not see is in no page, count or cursor of his."""

from __future__ import annotations

from tuneplane.domain.jobs import User
from tuneplane.domain.visibility import ADMIN

HIDDEN = "fleet.visibility = 'project' AND NOT coalesce(fleet.project = ANY({projects}), false)"


def fleet_seen(projects: str) -> str:
    """``fleet`` is seen by a member of ``projects`` (a parameter: an array, or NULL for who sees all)."""
    return f"({projects}::text[] IS NULL OR NOT ({HIDDEN.format(projects=projects)}))"


def job_seen(seen_by: User | None, at: int) -> tuple[str, list[object]]:
    """`` AND`` the condition under which ``job`` is seen, and its arguments from ``$at`` on. A Fleet that is gone hides nothing.

    The owner comes first and alone where there is no project: an index has his jobs in their order.
    """
    if seen_by is None or seen_by.role == ADMIN:
        return "", []
    projects = f"${at + 1}"
    near = f"(owner = ${at} OR job.project = ANY({projects}))" if seen_by.projects else f"owner = ${at}"
    hidden = f"EXISTS (SELECT FROM fleet WHERE fleet.id = job.fleet_id AND {HIDDEN.format(projects=projects + '::text[]')})"
    return f" AND {near} AND NOT {hidden}", [seen_by.username, list(seen_by.projects)]


def projects_of(seen_by: User | None) -> list[str] | None:
    """The parameter: None for who sees all."""
    return None if seen_by is None or seen_by.role == ADMIN else list(seen_by.projects)
