"""Accounts, API tokens and console sessions."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from tuneplane.bridge.postgres import Connection, ConstraintViolated, Row
from tuneplane.domain.accounts import MOST_SESSIONS, AccountChange, ConsoleSession
from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.ids import SessionId, TokenId, UserName
from tuneplane.domain.jobs import ApiToken, Page, User
from tuneplane.domain.ports import Topic

from .database import Aggregate, audit, keys_of, page_of, poke

VIEW = (
    "SELECT account.*, ARRAY(SELECT project_id FROM project_member WHERE project_member.username = account.username ORDER BY project_id)"
    " AS projects"
)
USER = f"{VIEW} FROM account"
USE_NOTED_EVERY = timedelta(minutes=1)  # last_used_at is for people; a write per request would be for nobody


class Accounts(Aggregate):
    """AccountStore (domain/ports.py)."""

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
        try:
            row = await self._db.write("create_user", _create_user, username, role, password_hash, now, token, by)
        except ConstraintViolated as error:
            if error.constraint != "account_pkey":
                raise
            raise Refused("exists", f"there is a user named {username!r} already") from error
        return _user(row)

    async def get_user(self, username: UserName) -> User | None:
        row = await self._db.fetchrow(f"{USER} WHERE username = $1", username)
        return _user(row) if row is not None else None

    async def get_users(self, usernames: Collection[UserName]) -> list[User]:
        return [_user(row) for row in await self._db.fetch(f"{USER} WHERE username = ANY($1)", list(usernames))]

    async def update_user(self, username: UserName, change: AccountChange, by: UserName, now: datetime) -> User:
        return _user(await self._db.write("update_user", _update_user, username, change, by, now))

    async def password_hash(self, username: UserName) -> str | None:
        found: str | None = await self._db.fetchval("SELECT password_hash FROM account WHERE username = $1", username)
        return found

    async def list_users(self, page: Page) -> tuple[list[User], str | None]:
        keys = keys_of(page)
        sql = f"{USER} WHERE (created_at, username) < ($1, $2) ORDER BY created_at DESC, username DESC LIMIT $3"
        rows, cursor = page_of(await self._db.fetch(sql, keys.at, keys.id, keys.limit), page, "username")
        return [_user(row) for row in rows], cursor

    async def count_users(self) -> int:
        return int(await self._db.fetchval("SELECT count(*) FROM account"))

    async def create_api_token(self, token: ApiToken, secret_hash: str, *, by: UserName | None = None) -> None:
        try:
            await self._db.write("create_api_token", _create_api_token, token, secret_hash, by)
        except ConstraintViolated as error:
            if error.constraint != "api_token_username_fkey":
                raise
            raise Refused("no-such-user", f"there is no user named {token.username!r}") from error

    async def user_by_token(self, secret_hash: str, now: datetime) -> User | None:
        sql = (
            f"{VIEW}, api_token.id AS token_id, last_used_at FROM api_token JOIN account USING (username)"
            " WHERE secret_hash = $1 AND revoked_at IS NULL AND NOT disabled"
        )
        row = await self._db.fetchrow(sql, secret_hash)
        if row is None:
            return None
        if row["last_used_at"] is None or now - row["last_used_at"] > USE_NOTED_EVERY:
            await self._db.write("user_by_token", _note_use, row["token_id"], now)
        return _user(row)

    async def list_api_tokens(self, username: UserName) -> list[ApiToken]:
        sql = "SELECT * FROM api_token WHERE username = $1 AND revoked_at IS NULL ORDER BY created_at DESC, id DESC"
        return [_token(row) for row in await self._db.fetch(sql, username)]

    async def revoke_api_token(self, username: UserName, token: TokenId, now: datetime, *, by: UserName | None = None) -> bool:
        return await self._db.write("revoke_api_token", _revoke_api_token, username, token, now, by)

    async def open_console_session(self, session: ConsoleSession, password_hash: str) -> User | None:
        row = await self._db.write("open_console_session", _open_session, session, password_hash)
        return _user(row) if row is not None else None

    async def user_by_session(self, session: SessionId, now: datetime) -> User | None:
        sql = f"{VIEW} FROM console_session JOIN account USING (username) WHERE id = $1 AND expires_at > $2 AND NOT disabled"
        row = await self._db.fetchrow(sql, session, now)
        return _user(row) if row is not None else None

    async def close_console_session(self, session: SessionId, now: datetime) -> bool:
        return await self._db.write("close_console_session", _close_session, session, now)


async def _create_user(
    connection: Connection,
    username: UserName,
    role: str,
    password_hash: str | None,
    now: datetime,
    token: tuple[ApiToken, str] | None,
    by: UserName | None,
) -> Row:
    sql = "INSERT INTO account (username, role, password_hash, created_at) VALUES ($1, $2, $3, $4) RETURNING *, '{}'::text[] AS projects"
    row = await connection.fetchrow(sql, username, role, password_hash, now)
    await audit(connection, by, "user.create", username, now, role)
    if token is not None:
        await _create_api_token(connection, *token, None)
    await poke(connection, Topic.CONSOLE)
    return row


async def _update_user(connection: Connection, username: UserName, change: AccountChange, by: UserName, now: datetime) -> Row:
    """All enabled administrators are locked, in order: two who end each other leave one of them."""
    sql = "SELECT username FROM account WHERE username = $1 OR (role = 'admin' AND NOT disabled) ORDER BY username FOR UPDATE"
    if username not in [row["username"] for row in await connection.fetch(sql, username)]:
        raise NotFound("user", username)
    sql = (
        "UPDATE account SET role = coalesce($2, role), disabled = coalesce($3, disabled), password_hash = coalesce($4, password_hash)"
        " WHERE username = $1"
    )
    await connection.execute(sql, username, change.role, change.disabled, change.password_hash)
    left = await connection.fetchrow("SELECT FROM account WHERE role = 'admin' AND NOT disabled LIMIT 1")
    if left is None:
        raise last_admin(username)
    if change.ends_sessions:
        await connection.execute("DELETE FROM console_session WHERE username = $1", username)
    if change.revoke_tokens:
        await connection.execute("UPDATE api_token SET revoked_at = $2 WHERE username = $1 AND revoked_at IS NULL", username, now)
    await audit(connection, by, "user.update", username, now, str(change))
    await poke(connection, Topic.ACCOUNTS, Topic.CONSOLE)
    return await connection.fetchrow(f"{USER} WHERE username = $1", username)


def last_admin(username: UserName) -> Refused:
    return Refused("last-admin", f"{username} is the last enabled administrator: make somebody else one first")


async def _open_session(connection: Connection, session: ConsoleSession, password_hash: str) -> Row | None:
    """The lock on the account makes a sign-in come before a change of the password, and end by it, or after it, and fail."""
    sql = "SELECT FROM account WHERE username = $1 AND NOT disabled AND password_hash = $2 FOR NO KEY UPDATE"
    if await connection.fetchrow(sql, session.username, password_hash) is None:
        return None
    sql = (
        "DELETE FROM console_session WHERE username = $1 AND (expires_at <= $2 OR id IN (SELECT id FROM console_session"
        " WHERE username = $1 ORDER BY created_at DESC, id DESC OFFSET $3))"
    )
    await connection.execute(sql, session.username, session.created_at, MOST_SESSIONS - 1)
    sql = (
        "INSERT INTO console_session (id, username, created_at, expires_at) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (id) DO NOTHING RETURNING id"  # a repeat after a lost answer
    )
    if await connection.fetchrow(sql, session.id, session.username, session.created_at, session.expires_at) is not None:
        await audit(connection, session.username, "session.open", session.id, session.created_at)
    return await connection.fetchrow(f"{USER} WHERE username = $1", session.username)


async def _close_session(connection: Connection, session: SessionId, now: datetime) -> bool:
    row = await connection.fetchrow("DELETE FROM console_session WHERE id = $1 RETURNING username", session)
    if row is None:
        return False
    await audit(connection, row["username"], "session.close", session, now)
    await poke(connection, Topic.ACCOUNTS)
    return True


async def _create_api_token(connection: Connection, token: ApiToken, secret_hash: str, by: UserName | None) -> None:
    sql = (
        "INSERT INTO api_token (id, username, name, secret_hash, created_at) VALUES ($1, $2, $3, $4, $5)"
        " ON CONFLICT (id) DO NOTHING RETURNING id"  # a repeat after a lost answer
    )
    if await connection.fetchrow(sql, token.id, token.username, token.name, secret_hash, token.created_at) is not None:
        await audit(connection, by, "token.create", token.id, token.created_at, f"{token.name} of {token.username}")


async def _note_use(connection: Connection, token: TokenId, now: datetime) -> None:
    await connection.execute("UPDATE api_token SET last_used_at = greatest(last_used_at, $2) WHERE id = $1", token, now)


async def _revoke_api_token(connection: Connection, username: UserName, token: TokenId, now: datetime, by: UserName | None) -> bool:
    sql = "UPDATE api_token SET revoked_at = coalesce(revoked_at, $3) WHERE id = $1 AND username = $2 RETURNING id"
    if await connection.fetchrow(sql, token, username, now) is None:
        return False
    await audit(connection, by, "token.revoke", token, now)
    await poke(connection, Topic.ACCOUNTS)
    return True


def _user(row: Row) -> User:
    return User(
        username=row["username"],
        role=row["role"],
        disabled=row["disabled"],
        created_at=row["created_at"],
        projects=tuple(row["projects"]),
    )


def _token(row: Row) -> ApiToken:
    return ApiToken(
        id=row["id"], username=row["username"], name=row["name"], created_at=row["created_at"], last_used_at=row["last_used_at"]
    )
