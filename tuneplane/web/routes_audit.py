"""The audit log."""

from __future__ import annotations

from datetime import datetime

from attrs import frozen

from tuneplane.domain.accounts import AuditFilter, AuditLine

from .inputs import PageQuery
from .routing import Answer, Call, Router, Who
from .site import Site

router = Router("audit")


@frozen(kw_only=True)
class AuditQuery(PageQuery):
    """Lines that match all that is given: whole words, and times from ``since`` until before ``until``."""

    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    forced: bool | None = None
    since: datetime | None = None
    until: datetime | None = None

    def only(self) -> AuditFilter:
        return AuditFilter(
            actor=self.actor, action=self.action, subject=self.subject, forced=self.forced, since=self.since, until=self.until
        )


@frozen(kw_only=True)
class AuditPage:
    """One page of the log, newest first."""

    items: tuple[AuditLine, ...]
    next_cursor: str | None


@router.route("GET", "/api/audit", who=Who.ADMIN, query=AuditQuery, answers={200: AuditPage})
async def list_audit(site: Site, call: Call) -> Answer:
    """Who did what to which object; nothing can be changed or taken out."""
    items, cursor = await site.api.audit.list_page(call.user, call.query.page(), call.query.only())
    return Answer(value=AuditPage(items=tuple(items), next_cursor=cursor))
