"""Projects and their members."""

from __future__ import annotations

from datetime import datetime

from tuneplane.bridge.postgres import Connection, ConstraintViolated, Row
from tuneplane.domain.accounts import MOST_MEMBERS, MOST_PROJECTS_A_USER, Project
from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.ids import ProjectId, UserName
from tuneplane.domain.jobs import Page
from tuneplane.domain.ports import Topic

from .database import Aggregate, audit, keys_of, page_of, poke

VIEW = (
    "SELECT project.*, ARRAY(SELECT username FROM project_member WHERE project_id = project.id ORDER BY username) AS members FROM project"
)


class Projects(Aggregate):
    """ProjectStore (domain/account_ports.py)."""

    async def create_project(self, project: Project, by: UserName) -> None:
        try:
            await self._db.write("create_project", _create, project, by)
        except ConstraintViolated as error:
            if error.constraint != "project_pkey":
                raise
            raise project_exists(project.id) from error

    async def get_project(self, project: ProjectId) -> Project | None:
        row = await self._db.fetchrow(f"{VIEW} WHERE id = $1", project)
        return _project(row) if row is not None else None

    async def list_projects(self, page: Page) -> tuple[list[Project], str | None]:
        keys = keys_of(page)
        sql = f"{VIEW} WHERE (created_at, id) < ($1, $2) ORDER BY created_at DESC, id DESC LIMIT $3"
        rows, cursor = page_of(await self._db.fetch(sql, keys.at, keys.id, keys.limit), page)
        return [_project(row) for row in rows], cursor

    async def set_member(self, project: ProjectId, username: UserName, is_member: bool, by: UserName, now: datetime) -> None:
        await self._db.write("set_member", _take_in if is_member else _take_out, project, username, by, now)


def project_exists(project: ProjectId) -> Refused:
    return Refused("exists", f"there is a project named {project!r} already", field="id")


async def _create(connection: Connection, project: Project, by: UserName) -> None:
    await connection.execute("INSERT INTO project (id, created_at) VALUES ($1, $2)", project.id, project.created_at)
    await audit(connection, by, "project.create", project.id, project.created_at)
    await poke(connection, Topic.CONSOLE)


async def _lock(connection: Connection, project: ProjectId) -> None:
    """One change of a project's members at a time: they are counted."""
    if await connection.fetchrow("SELECT FROM project WHERE id = $1 FOR NO KEY UPDATE", project) is None:
        raise NotFound("project", project)


async def _take_in(connection: Connection, project: ProjectId, username: UserName, by: UserName, now: datetime) -> None:
    await _lock(connection, project)
    if await connection.fetchrow("SELECT FROM account WHERE username = $1 FOR NO KEY UPDATE", username) is None:
        raise NotFound("user", username)
    sql = "INSERT INTO project_member (project_id, username, added_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
    await connection.execute(sql, project, username, now)
    sql = (
        "SELECT (SELECT count(*) FROM project_member WHERE project_id = $1) AS members,"
        " (SELECT count(*) FROM project_member WHERE username = $2) AS projects"
    )
    counted = await connection.fetchrow(sql, project, username)
    check_room(project, username, counted["members"], counted["projects"])
    await _tell(connection, "project.add-member", project, username, by, now)


def check_room(project: ProjectId, username: UserName, members: int, projects: int) -> None:
    """Refused when there is one too many, the new one included."""
    if members > MOST_MEMBERS:
        raise Refused("too-many-members", f"project {project} has {MOST_MEMBERS} members, which is the most")
    if projects > MOST_PROJECTS_A_USER:
        raise Refused("too-many-projects", f"{username} is a member of {MOST_PROJECTS_A_USER} projects, which is the most")


async def _take_out(connection: Connection, project: ProjectId, username: UserName, by: UserName, now: datetime) -> None:
    await _lock(connection, project)
    sql = "DELETE FROM project_member WHERE project_id = $1 AND username = $2 RETURNING username"
    if await connection.fetchrow(sql, project, username) is None:
        raise NotFound(f"member of project {project}", username)
    await _tell(connection, "project.remove-member", project, username, by, now)


async def _tell(connection: Connection, action: str, project: ProjectId, username: UserName, by: UserName, now: datetime) -> None:
    await audit(connection, by, action, project, now, username)
    await poke(connection, Topic.ACCOUNTS, Topic.CONSOLE)


def _project(row: Row) -> Project:
    return Project(id=row["id"], created_at=row["created_at"], members=tuple(row["members"]))
