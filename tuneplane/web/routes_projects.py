"""Projects and their members."""

from __future__ import annotations

from attrs import frozen

from tuneplane.control.api import ProjectDraft
from tuneplane.domain.accounts import Project
from tuneplane.domain.ids import ProjectId, UserName

from .inputs import PageQuery
from .routing import Answer, Call, Router, Who
from .site import Site

router = Router("projects")
MEMBER = "/api/projects/{project}/members/{username}"


@frozen(kw_only=True)
class ProjectPage:
    """One page of projects, newest first."""

    items: tuple[Project, ...]
    next_cursor: str | None


@router.route("GET", "/api/projects", who=Who.ADMIN, query=PageQuery, answers={200: ProjectPage})
async def list_projects(site: Site, call: Call) -> Answer:
    """Projects with their members. Everybody's own are in ``GET /api/whoami``."""
    items, cursor = await site.api.projects.list_page(call.user, call.query.page())
    return Answer(value=ProjectPage(items=tuple(items), next_cursor=cursor))


@router.route("POST", "/api/projects", who=Who.ADMIN, body=ProjectDraft, answers={201: Project}, problems=(409,), acts=("project.create",))
async def create_project(site: Site, call: Call) -> Answer:
    """Create a project, without members."""
    return Answer(status=201, value=await site.api.projects.create(call.user, call.body))


@router.route("PUT", MEMBER, who=Who.ADMIN, answers={204: None}, problems=(409, 422), acts=("project.add-member",))
async def add_member(site: Site, call: Call) -> Answer:
    """Make a user a member of a project; a repeat changes nothing."""
    await site.api.projects.add_member(call.user, ProjectId(call.path["project"]), UserName(call.path["username"]))
    return Answer(status=204)


@router.route("DELETE", MEMBER, who=Who.ADMIN, answers={204: None}, acts=("project.remove-member",))
async def remove_member(site: Site, call: Call) -> Answer:
    """End a membership: the project's Fleets and jobs are out of his sight at once."""
    await site.api.projects.remove_member(call.user, ProjectId(call.path["project"]), UserName(call.path["username"]))
    return Answer(status=204)
