"""Projects, the audit log and console sessions as values, and what of an account may change (R-ADM-01, R-ADM-02)."""

from __future__ import annotations

from datetime import datetime

from attrs import frozen

from .ids import ProjectId, SessionId, UserName

DEFAULT_PROJECT = ProjectId("default")  # of everybody, so of nobody: what runs in it is its owner's own
MOST_MEMBERS = 1000  # of a project; each is listed with it
MOST_PROJECTS_A_USER = 200  # each goes with every question of what its member may see
MOST_SESSIONS = 50  # of a user: a dozen browsers and a script that signs in; beyond them the oldest end


@frozen(kw_only=True)
class Project:
    """Who shares jobs and `project` Fleets."""

    id: ProjectId
    created_at: datetime
    members: tuple[UserName, ...] = ()  # in the order of their names


@frozen(kw_only=True)
class AuditLine:
    """Who did what to which object; ``forced``: by an operator's word against what the system knew."""

    sequence: int
    at: datetime
    actor: UserName
    action: str
    subject: str
    detail: str
    forced: bool


@frozen(kw_only=True)
class AuditFilter:
    """Only lines that match all that is given."""

    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    forced: bool | None = None
    since: datetime | None = None
    until: datetime | None = None


@frozen(kw_only=True)
class ConsoleSession:
    """One sign-in in one browser, until it ends; its cookie names it and is signed."""

    id: SessionId
    username: UserName
    created_at: datetime
    expires_at: datetime


@frozen(kw_only=True)
class AccountChange:
    """What is None stays. ``password_hash`` ends the account's console sessions, as ``disabled`` does;
    ``revoke_tokens`` ends its API tokens, too."""

    role: str | None = None
    disabled: bool | None = None
    password_hash: str | None = None
    revoke_tokens: bool = False

    @property
    def ends_sessions(self) -> bool:
        return self.disabled is True or self.password_hash is not None

    def __str__(self) -> str:
        """What the audit log says of it."""
        told = [f"role {self.role}" if self.role is not None else ""]
        told.append({True: "disabled", False: "enabled", None: ""}[self.disabled])
        told.append("password" if self.password_hash is not None else "")
        told.append("tokens revoked" if self.revoke_tokens else "")
        return ", ".join(part for part in told if part)
