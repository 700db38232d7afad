"""Accounts, API tokens and the audit log."""

from __future__ import annotations

from datetime import datetime, timedelta

from tuneplane.bridge.postgres import Connection, ConstraintViolated, Row
from tuneplane.domain.errors import Refused
from tuneplane.domain.ids import TokenId, UserName
from tuneplane.domain.jobs import ApiToken, Page, User

from .database import Aggregate, audit, keys_of, page_of

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
        row = await self._db.fetchrow("SELECT * FROM account WHERE username = $1", username)
        return _user(row) if row is not None else None

    async def password_hash(self, username: UserName) -> str | None:
        found: str | None = await self._db.fetchval("SELECT password_hash FROM account WHERE username = $1", username)
        return found

    async def list_users(self, page: Page) -> tuple[list[User], str | None]:
        keys = keys_of(page)
        sql = "SELECT * FROM account WHERE (created_at, username) < ($1, $2) ORDER BY created_at DESC, username DESC LIMIT $3"
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
            "SELECT account.*, api_token.id AS token_id, last_used_at FROM api_token JOIN account USING (username)"
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

    async def audit(self, actor: UserName, action: str, subject: str, detail: str, forced: bool, now: datetime) -> None:
        await self._db.write("audit", _audit, actor, action, subject, detail, forced, now)


async def _create_user(
    connection: Connection,
    username: UserName,
    role: str,
    password_hash: str | None,
    now: datetime,
    token: tuple[ApiToken, str] | None,
    by: UserName | None,
) -> Row:
    sql = "INSERT INTO account (username, role, password_hash, created_at) VALUES ($1, $2, $3, $4) RETURNING *"
    row = await connection.fetchrow(sql, username, role, password_hash, now)
    await audit(connection, by, "user.create", username, now, role)
    if token is not None:
        await _create_api_token(connection, *token, None)
    return row


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
    return True


async def _audit(connection: Connection, actor: UserName, action: str, subject: str, detail: str, forced: bool, now: datetime) -> None:
    await audit(connection, actor, action, subject, now, detail, forced=forced)


def _user(row: Row) -> User:
    return User(username=row["username"], role=row["role"], disabled=row["disabled"], created_at=row["created_at"])


def _token(row: Row) -> ApiToken:
    return ApiToken(
        id=row["id"], username=row["username"], name=row["name"], created_at=row["created_at"], last_used_at=row["last_used_at"]
    )
