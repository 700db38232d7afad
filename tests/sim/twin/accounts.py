"""Accounts, API tokens, console sessions, projects and the audit log of the twin."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from attrs import evolve

from tuneplane.domain.accounts import MOST_SESSIONS, AccountChange, AuditFilter, AuditLine, ConsoleSession, Project
from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.ids import ProjectId, SessionId, TokenId, UserName
from tuneplane.domain.jobs import ApiToken, Page, User
from tuneplane.domain.ports import Topic
from tuneplane.storage.accounts import last_admin
from tuneplane.storage.audit_log import sequence_below
from tuneplane.storage.projects import check_room, project_exists

from .base import Client, audit, page_of, poke, spell_cursor
from .rows import Book

USE_NOTED_EVERY = timedelta(minutes=1)


class Accounts(Client):
    """AccountStore, ProjectStore and AuditStore (domain/account_ports.py)."""

    async def create_user(
        self,
        username: UserName,
        role: str,
        password_hash: str | None,
        now: datetime,
        *,
        token: tuple[ApiToken, str] | None = None,
        by: UserName | None = None,
    ) -> User:
        return await self.write("create_user", _create_user, username, role, password_hash, now, token, by)

    async def get_user(self, username: UserName) -> User | None:
        return await self.read("get_user", lambda book: user_of(book, username))

    async def get_users(self, usernames: Collection[UserName]) -> list[User]:
        return await self.read("get_users", lambda book: [user for name in usernames if (user := user_of(book, name)) is not None])

    async def update_user(self, username: UserName, change: AccountChange, by: UserName, now: datetime) -> User:
        return await self.write("update_user", _update_user, username, change, by, now)

    async def password_hash(self, username: UserName) -> str | None:
        return await self.read("password_hash", lambda book: (book.users.get(username) or (None, None))[1])

    async def list_users(self, page: Page) -> tuple[list[User], str | None]:
        def unit(book: Book) -> tuple[list[User], str | None]:
            users = [_whole(book, user) for user, _ in book.users]
            return page_of(users, page, lambda user: (user.created_at, user.username))

        return await self.read("list_users", unit)

    async def count_users(self) -> int:
        return await self.read("count_users", lambda book: len(book.users))

    async def create_api_token(self, token: ApiToken, secret_hash: str, *, by: UserName | None = None) -> None:
        await self.write("create_api_token", _create_api_token, token, secret_hash, by)

    async def user_by_token(self, secret_hash: str, now: datetime) -> User | None:
        found = await self.read("user_by_token", _user_by_token, secret_hash)
        if found is None:
            return None
        user, token = found
        if token.last_used_at is None or now - token.last_used_at > USE_NOTED_EVERY:
            await self.write("user_by_token", _note_use, token.id, now)
        return user

    async def list_api_tokens(self, username: UserName) -> list[ApiToken]:
        return await self.read("list_api_tokens", _api_tokens, username)

    async def revoke_api_token(self, username: UserName, token: TokenId, now: datetime, *, by: UserName | None = None) -> bool:
        return await self.write("revoke_api_token", _revoke_api_token, username, token, now, by)

    async def open_console_session(self, session: ConsoleSession, password_hash: str) -> User | None:
        return await self.write("open_console_session", _open_session, session, password_hash)

    async def user_by_session(self, session: SessionId, now: datetime) -> User | None:
        return await self.read("user_by_session", _user_by_session, session, now)

    async def close_console_session(self, session: SessionId, now: datetime) -> bool:
        return await self.write("close_console_session", _close_session, session, now)

    async def create_project(self, project: Project, by: UserName) -> None:
        await self.write("create_project", _create_project, project, by)

    async def get_project(self, project: ProjectId) -> Project | None:
        return await self.read("get_project", lambda book: _project(book, book.projects[project]) if project in book.projects else None)

    async def list_projects(self, page: Page) -> tuple[list[Project], str | None]:
        def unit(book: Book) -> tuple[list[Project], str | None]:
            return page_of([_project(book, one) for one in book.projects], page, lambda project: (project.created_at, project.id))

        return await self.read("list_projects", unit)

    async def set_member(self, project: ProjectId, username: UserName, is_member: bool, by: UserName, now: datetime) -> None:
        await self.write("set_member", _take_in if is_member else _take_out, project, username, by, now)

    async def audit(self, actor: UserName, action: str, subject: str, detail: str, forced: bool, now: datetime) -> None:
        await self.write("audit", lambda book: audit(book, actor, action, subject, now, detail, forced=forced))

    async def list_audit(self, page: Page, only: AuditFilter) -> tuple[list[AuditLine], str | None]:
        return await self.read("list_audit", _list_audit, page, only)


# ---------------------------------------------------------------- accounts


def user_of(book: Book, username: UserName) -> User | None:
    return _whole(book, book.users[username][0]) if username in book.users else None


def _whole(book: Book, user: User) -> User:
    return evolve(user, projects=tuple(sorted(project for project, member in book.memberships.rows if member == user.username)))


def _create_user(
    book: Book,
    username: UserName,
    role: str,
    password_hash: str | None,
    now: datetime,
    token: tuple[ApiToken, str] | None,
    by: UserName | None,
) -> User:
    if username in book.users:
        raise Refused("exists", f"there is a user named {username!r} already")
    user, _ = book.users.put(username, (User(username=username, role=role, created_at=now), password_hash))
    audit(book, by, "user.create", username, now, role)
    if token is not None:
        _create_api_token(book, *token, None)
    poke(book, Topic.CONSOLE)
    return user


def _update_user(book: Book, username: UserName, change: AccountChange, by: UserName, now: datetime) -> User:
    if username not in book.users:
        raise NotFound("user", username)
    user, hashed = book.users[username]
    disabled = user.disabled if change.disabled is None else change.disabled
    book.users.put(username, (evolve(user, role=change.role or user.role, disabled=disabled), change.password_hash or hashed))
    if not any(one.role == "admin" and not one.disabled for one, _ in book.users):
        raise last_admin(username)
    if change.ends_sessions:
        for session in [session for session in book.console_sessions if session.username == username]:
            book.console_sessions.drop(session.id)
    if change.revoke_tokens:
        for token, secret, _ in [row for row in book.api_tokens if row[0].username == username]:
            book.api_tokens.put(token.id, (token, secret, True))
    audit(book, by, "user.update", username, now, str(change))
    poke(book, Topic.ACCOUNTS, Topic.CONSOLE)
    return _whole(book, book.users[username][0])


def _create_api_token(book: Book, token: ApiToken, secret_hash: str, by: UserName | None) -> None:
    if token.username not in book.users:
        raise Refused("no-such-user", f"there is no user named {token.username!r}")
    if token.id not in book.api_tokens:
        book.api_tokens.put(token.id, (token, secret_hash, False))
        audit(book, by, "token.create", token.id, token.created_at, f"{token.name} of {token.username}")


def _user_by_token(book: Book, secret_hash: str) -> tuple[User, ApiToken] | None:
    for token, hashed, revoked in book.api_tokens:
        user, _ = book.users[token.username]
        if hashed == secret_hash and not revoked and not user.disabled:
            return _whole(book, user), token
    return None


def _note_use(book: Book, token: TokenId, now: datetime) -> None:
    found, hashed, revoked = book.api_tokens[token]
    book.api_tokens.put(token, (evolve(found, last_used_at=max(found.last_used_at or now, now)), hashed, revoked))


def _api_tokens(book: Book, username: UserName) -> list[ApiToken]:
    found = [token for token, _, revoked in book.api_tokens if token.username == username and not revoked]
    return sorted(found, key=lambda token: (token.created_at, token.id), reverse=True)


def _revoke_api_token(book: Book, username: UserName, token: TokenId, now: datetime, by: UserName | None) -> bool:
    found = book.api_tokens.get(token)
    if found is None or found[0].username != username:
        return False
    book.api_tokens.put(token, (found[0], found[1], True))
    audit(book, by, "token.revoke", token, now)
    poke(book, Topic.ACCOUNTS)
    return True


# ---------------------------------------------------------------- console sessions


def _open_session(book: Book, session: ConsoleSession, password_hash: str) -> User | None:
    user, hashed = book.users.get(session.username) or (None, None)
    if user is None or user.disabled or hashed != password_hash:
        return None
    own = sorted((one for one in book.console_sessions if one.username == user.username), key=lambda one: (one.created_at, one.id))
    newest = {one.id for one in own[-(MOST_SESSIONS - 1) :]}
    for former in own:
        if former.expires_at <= session.created_at or former.id not in newest:
            book.console_sessions.drop(former.id)
    if session.id not in book.console_sessions:
        book.console_sessions.put(session.id, session)
        audit(book, session.username, "session.open", session.id, session.created_at)
    return _whole(book, user)


def _user_by_session(book: Book, session: SessionId, now: datetime) -> User | None:
    found = book.console_sessions.get(session)
    user = user_of(book, found.username) if found is not None and found.expires_at > now else None
    return user if user is not None and not user.disabled else None


def _close_session(book: Book, session: SessionId, now: datetime) -> bool:
    found = book.console_sessions.get(session)
    if found is None:
        return False
    book.console_sessions.drop(session)
    audit(book, found.username, "session.close", session, now)
    poke(book, Topic.ACCOUNTS)
    return True


# ---------------------------------------------------------------- projects


def _project(book: Book, project: Project) -> Project:
    return evolve(project, members=tuple(sorted(member for name, member in book.memberships.rows if name == project.id)))


def _create_project(book: Book, project: Project, by: UserName) -> None:
    if project.id in book.projects:
        raise project_exists(project.id)
    book.projects.put(project.id, project)
    audit(book, by, "project.create", project.id, project.created_at)
    poke(book, Topic.CONSOLE)


def _take_in(book: Book, project: ProjectId, username: UserName, by: UserName, now: datetime) -> None:
    if project not in book.projects:
        raise NotFound("project", project)
    if username not in book.users:
        raise NotFound("user", username)
    if (project, username) not in book.memberships:
        book.memberships.put((project, username), now)
    rows = book.memberships.rows
    check_room(project, username, sum(one == project for one, _ in rows), sum(one == username for _, one in rows))
    audit(book, by, "project.add-member", project, now, username)
    poke(book, Topic.ACCOUNTS, Topic.CONSOLE)


def _take_out(book: Book, project: ProjectId, username: UserName, by: UserName, now: datetime) -> None:
    if project not in book.projects:
        raise NotFound("project", project)
    if (project, username) not in book.memberships:
        raise NotFound(f"member of project {project}", username)
    book.memberships.drop((project, username))
    audit(book, by, "project.remove-member", project, now, username)
    poke(book, Topic.ACCOUNTS, Topic.CONSOLE)


# ---------------------------------------------------------------- the audit log


def _list_audit(book: Book, page: Page, only: AuditFilter) -> tuple[list[AuditLine], str | None]:
    below = sequence_below(page)
    found = [line for line in reversed(list(book.audit)) if line.sequence < below and _matches(line, only)]
    if len(found) <= page.limit:
        return found, None
    last = found[page.limit - 1]
    return found[: page.limit], spell_cursor(last.at, last.sequence)


def _matches(line: AuditLine, only: AuditFilter) -> bool:
    named = all(getattr(only, name) in (None, getattr(line, name)) for name in ("actor", "action", "subject", "forced"))
    return named and (only.since is None or line.at >= only.since) and (only.until is None or line.at < only.until)
