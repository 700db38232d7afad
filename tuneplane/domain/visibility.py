"""Who may see what (R-FLT-08, R-ADM-01). What somebody may not see is, to him, not there: the same *not found*, the same lists.

Listings say the same rules in SQL; the contract suite compares both.
"""

from __future__ import annotations

from attrs import frozen

from .fleets import Fleet, Visibility
from .ids import UserName
from .jobs import User

ADMIN = "admin"


@frozen(kw_only=True)
class JobAccess:
    """Whose a job is. ``fleet`` None: the Fleet that it was admitted against is gone."""

    owner: UserName
    project: str
    fleet: Fleet | None


def may_see(user: User, fleet: Fleet) -> bool:
    """A project's Fleet is seen by that project's members and by administrators, a public one by all."""
    return user.role == ADMIN or fleet.visibility is Visibility.PUBLIC or fleet.project in user.projects


def may_see_job(user: User, job: JobAccess) -> bool:
    """A job is seen by its owner and the members of its project, as long as they may see its Fleet, and by administrators."""
    near = job.owner == user.username or job.project in user.projects
    return user.role == ADMIN or (near and (job.fleet is None or may_see(user, job.fleet)))


def may_change_job(user: User, job: JobAccess) -> bool:
    """To stop or retry it takes more than to see it: being its owner, or an administrator."""
    return may_see_job(user, job) and (user.role == ADMIN or job.owner == user.username)
