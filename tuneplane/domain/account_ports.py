"""The storage ports of accounts, projects and the audit log; ports.py has the others, and the rules for all."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Protocol

from .accounts import AccountChange, AuditFilter, AuditLine, ConsoleSession, Project
from .ids import ProjectId, SessionId, TokenId, UserName
from .jobs import ApiToken, Page, User


class AccountStore(Protocol):
    """Users come out with the projects that they are members of."""

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
        """Refused(code="exists") when the name is taken. ``token`` (with its secret's hash) is its own from the start."""

    async def get_user(self, username: UserName) -> User | None: ...

    async def get_users(self, usernames: Collection[UserName]) -> list[User]:
        """Those of them that there are, disabled ones included, in no order."""

    async def update_user(self, username: UserName, change: AccountChange, by: UserName, now: datetime) -> User:
        """Change what is given. NotFound. Refused ``last-admin`` when no enabled administrator would be left.

        Disabling and a new password end the console sessions in the same unit; whoever shows a stream is poked.
        """

    async def password_hash(self, username: UserName) -> str | None: ...

    async def list_users(self, page: Page) -> tuple[list[User], str | None]: ...

    async def count_users(self) -> int: ...

    async def create_api_token(self, token: ApiToken, secret_hash: str, *, by: UserName | None = None) -> None: ...

    async def user_by_token(self, secret_hash: str, now: datetime) -> User | None:
        """The enabled owner of a live API token."""

    async def list_api_tokens(self, username: UserName) -> list[ApiToken]: ...

    async def revoke_api_token(self, username: UserName, token: TokenId, now: datetime, *, by: UserName | None = None) -> bool: ...

    async def open_console_session(self, session: ConsoleSession, password_hash: str) -> User | None:
        """Write it, and its owner; None when he is disabled, or his password is no longer the one of this hash."""

    async def user_by_session(self, session: SessionId, now: datetime) -> User | None:
        """The enabled owner of a session that has not ended."""

    async def close_console_session(self, session: SessionId, now: datetime) -> bool:
        """End it, by its owner; False when it has ended already."""


class ProjectStore(Protocol):
    async def create_project(self, project: Project, by: UserName) -> None:
        """Without members. Refused(code="exists")."""

    async def get_project(self, project: ProjectId) -> Project | None: ...

    async def list_projects(self, page: Page) -> tuple[list[Project], str | None]: ...

    async def set_member(self, project: ProjectId, username: UserName, is_member: bool, by: UserName, now: datetime) -> None:
        """Take ``username`` in (a repeat changes nothing), or out. NotFound: project, user, or a member to take out. Refused:
        ``too-many-members``, ``too-many-projects``."""


class AuditStore(Protocol):
    async def audit(self, actor: UserName, action: str, subject: str, detail: str, forced: bool, now: datetime) -> None:
        """A line that is of no unit: for what is no act. Acts write theirs themselves."""

    async def list_audit(self, page: Page, only: AuditFilter) -> tuple[list[AuditLine], str | None]:
        """Newest first."""
