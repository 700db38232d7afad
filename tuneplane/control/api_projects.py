"""Projects, their members, and the audit log as administrators read it (R-ADM-01, R-ADM-02)."""

from __future__ import annotations

from attrs import frozen

from tuneplane.domain.accounts import DEFAULT_PROJECT, AuditFilter, AuditLine, Project
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.fleets import check_slug
from tuneplane.domain.ids import ProjectId, UserName
from tuneplane.domain.jobs import Page, User

from .api_base import Base, require_admin


@frozen(kw_only=True)
class ProjectDraft:
    """Body of ``POST /api/projects``."""

    id: str


@frozen(kw_only=True)
class Projects(Base):
    """Who shares jobs and project Fleets with whom."""

    async def create(self, caller: User, draft: ProjectDraft) -> Project:
        """A project without members. Refused(code="exists")."""
        require_admin(caller)
        check_slug(draft.id, "id")
        if draft.id == DEFAULT_PROJECT:
            raise InvalidInput("id", "'default' is where jobs of no project are, and has no members")
        project = Project(id=ProjectId(draft.id), created_at=self.clock())
        await self.storage.create_project(project, caller.username)
        self.tell(caller.username, "project.create", project.id)
        return project

    async def list_page(self, caller: User, page: Page) -> tuple[list[Project], str | None]:
        require_admin(caller)
        return await self.storage.list_projects(page)

    async def add_member(self, caller: User, project: ProjectId, username: UserName) -> None:
        """A repeat changes nothing. NotFound names the project or the user."""
        require_admin(caller)
        await self.storage.set_member(project, username, True, caller.username, self.clock())
        self.tell(caller.username, "project.add-member", project, username)

    async def remove_member(self, caller: User, project: ProjectId, username: UserName) -> None:
        """He loses sight of the project's Fleets and jobs at once, his own included. NotFound also when he is no member."""
        require_admin(caller)
        await self.storage.set_member(project, username, False, caller.username, self.clock())
        self.tell(caller.username, "project.remove-member", project, username)


@frozen(kw_only=True)
class AuditLog(Base):
    """What was done; it can be read here and changed nowhere."""

    async def list_page(self, caller: User, page: Page, only: AuditFilter) -> tuple[list[AuditLine], str | None]:
        """Newest first."""
        require_admin(caller)
        for name in ("since", "until"):
            moment = getattr(only, name)
            if moment is not None and moment.tzinfo is None:
                raise InvalidInput(name, "must say its time zone, such as Z for UTC")
        return await self.storage.list_audit(page, only)
