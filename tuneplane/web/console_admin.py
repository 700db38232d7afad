"""The console's pages for administrators: users, projects and the audit log. Changes go through the HTTP API, as everywhere."""

from __future__ import annotations

from urllib.parse import urlencode

from attrs import evolve, frozen

from tuneplane.domain.accounts import MOST_MEMBERS, AuditFilter

from .console import _render, show_problem
from .inputs import PageQuery
from .routing import Answer, Call, Router, Who
from .site import Site

router = Router("console", page=show_problem)
ROLES = {"admin": "administrator", "user": "user"}


@frozen(kw_only=True)
class AuditPageQuery(PageQuery):
    """The fields of the page's form; one that was left empty is not asked for."""

    actor: str = ""
    action: str = ""
    subject: str = ""
    forced: bool = False

    def only(self) -> AuditFilter:
        return AuditFilter(
            actor=self.actor or None, action=self.action or None, subject=self.subject or None, forced=True if self.forced else None
        )

    def spell(self) -> str:
        """As the end of an address, for the link to older lines."""
        given = {name: getattr(self, name) for name in ("actor", "action", "subject") if getattr(self, name)}
        return "".join(f"&{urlencode({name: value})}" for name, value in (given | ({"forced": "true"} if self.forced else {})).items())


@router.route("GET", "/users", who=Who.ADMIN, query=PageQuery)
async def users_page(site: Site, call: Call) -> Answer:
    """Accounts: their roles, whether they are enabled, and forms to make one and to set a password."""
    users, cursor = await site.api.accounts.list_page(call.user, call.query.page())
    return _render("users.html", site, call, users=users, cursor=cursor, roles=ROLES)


@router.route("GET", "/projects", who=Who.ADMIN, query=PageQuery)
async def projects_page(site: Site, call: Call) -> Answer:
    """Projects and their members."""
    projects, cursor = await site.api.projects.list_page(call.user, call.query.page())
    return _render("projects.html", site, call, projects=projects, cursor=cursor, most=MOST_MEMBERS)


@router.route("GET", "/audit", who=Who.ADMIN, query=AuditPageQuery)
async def audit_page(site: Site, call: Call) -> Answer:
    """Who did what, newest first."""
    query: AuditPageQuery = call.query
    query = evolve(query, **{name: getattr(query, name).strip() for name in ("actor", "action", "subject")})
    lines, cursor = await site.api.audit.list_page(call.user, query.page(), query.only())
    return _render("audit.html", site, call, lines=lines, cursor=cursor, query=query, rest=query.spell())
