"""What every query module stands on: units with their fault point, errors of ours, pokes, pages and JSON columns."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from attrs import frozen

from tuneplane.bridge.postgres import Connection, Pool, PostgresUnavailable, Row
from tuneplane.domain import codec
from tuneplane.domain.errors import Fenced, InvalidInput, StorageUnavailable
from tuneplane.domain.faultpoint import fault_point
from tuneplane.domain.ids import JobId, NodeId, UserName
from tuneplane.domain.jobs import Page
from tuneplane.domain.ports import Topic
from tuneplane.domain.text import plain
from tuneplane.domain.timings import Timings

T = TypeVar("T")
MAX_PAGE = 500  # interfaces.md
MAX_TEXT = 16 * 1024  # of what a Node says about a member: a sentence, and then some


@contextmanager
def _ours() -> Iterator[None]:
    try:
        yield
    except PostgresUnavailable as error:
        raise StorageUnavailable(str(error)) from error


@frozen
class Database:
    """The pool as the query modules use it. Every error that means *no answer* comes out as StorageUnavailable."""

    pool: Pool
    timings: Timings

    async def write(self, name: str, unit: Callable[..., Awaitable[T]], *args: object) -> T:
        """One unit of work; its COMMIT is the fault point ``storage.<name>``."""
        with _ours():
            return await self.pool.run_bracketed(partial(fault_point, f"storage.{name}"), unit, *args)

    async def read(self, unit: Callable[..., Awaitable[T]], *args: object) -> T:
        """One unit that only reads, in one snapshot."""
        with _ours():
            return await self.pool.read(unit, *args)

    async def fetch(self, sql: str, *args: object) -> list[Row]:
        with _ours():
            return await self.pool.fetch(sql, *args)

    async def fetchrow(self, sql: str, *args: object) -> Row | None:
        with _ours():
            return await self.pool.fetchrow(sql, *args)

    async def fetchval(self, sql: str, *args: object) -> Any:
        with _ours():
            return await self.pool.fetchval(sql, *args)


class Aggregate:
    """Base of the query modules: holds the database, nothing else."""

    def __init__(self, database: Database) -> None:
        self._db = database


# ---------------------------------------------------------------- inside units


async def poke(connection: Connection, *topics: Topic) -> None:
    """Wake whoever looks after ``topics``, when this transaction commits. At most one call a transaction."""
    if topics:
        await connection.execute(
            "SELECT pg_notify(channel, '') FROM unnest($1::text[]) AS channel", [channel_of(topic) for topic in topics]
        )


def channel_of(topic: Topic) -> str:
    return f"tuneplane_{topic.value}"


async def note(connection: Connection, job: JobId, now: datetime, kind: str, subject: str, detail: str = "") -> None:
    """Add one event to the job's timeline."""
    sql = "INSERT INTO timeline (job_id, at, kind, subject, detail) VALUES ($1, $2, $3, $4, $5)"
    await connection.execute(sql, job, now, kind, subject, clean(detail))


async def audit(
    connection: Connection, actor: UserName | None, action: str, subject: str, now: datetime, detail: str = "", *, forced: bool = False
) -> None:
    """One line of the audit log, in its act's own unit: both happen, or neither (R-ADM-02, P-09). No ``actor``, nobody's act: no line."""
    if actor is None:
        return
    sql = "INSERT INTO audit (at, actor, action, subject, detail, forced) VALUES ($1, $2, $3, $4, $5, $6)"
    await connection.execute(sql, now, actor, action, subject, clean(detail), forced)


async def hold_epoch(connection: Connection, node: NodeId, epoch: int) -> None:
    """Raise Fenced unless ``epoch`` is the Node's open session; it stays so until this transaction ends (P-06)."""
    sql = "SELECT FROM session WHERE node_id = $1 AND epoch = $2 AND closed_at IS NULL FOR SHARE"
    if await connection.fetchrow(sql, node, epoch) is None:
        raise Fenced(f"session epoch {epoch} of Node {node} is not the live one")


# ---------------------------------------------------------------- pages


@frozen
class Keys:
    """Where a page starts: strictly before this creation time and id. ``limit`` is one more than asked for."""

    at: datetime
    id: str
    limit: int


LAST = datetime(9999, 1, 1, tzinfo=UTC)


def keys_of(page: Page) -> Keys:
    """Raises InvalidInput for a limit or cursor that we did not make."""
    if not 1 <= page.limit <= MAX_PAGE:
        raise InvalidInput("limit", f"must be between 1 and {MAX_PAGE}")
    if page.cursor is None:
        return Keys(LAST, "", page.limit + 1)
    try:
        at, name = json.loads(base64.urlsafe_b64decode(page.cursor.encode("ascii")))
        return Keys(datetime.fromisoformat(at).astimezone(UTC), str(name), page.limit + 1)
    except (ValueError, TypeError):
        raise InvalidInput("cursor", "is not a cursor of this listing") from None


def page_of(rows: Sequence[Row], page: Page, key: str = "id") -> tuple[Sequence[Row], str | None]:
    """The rows of the page, and the cursor of the next one when there are more."""
    if len(rows) <= page.limit:
        return rows, None
    last = rows[page.limit - 1]
    cursor = json.dumps([last["created_at"].isoformat(), last[key]]).encode()
    return rows[: page.limit], base64.urlsafe_b64encode(cursor).decode("ascii")


# ---------------------------------------------------------------- columns


def to_json(value: object) -> str:
    """ASCII only: escapes keep what a text column cannot hold."""
    return json.dumps(codec.encode(value))


def from_json(kind: type[T], text: str | None) -> T | None:
    return None if text is None else codec.decode(kind, json.loads(text))


def clean(text: str) -> str:
    """What a text column can hold and a terminal can show: no control characters, no lone surrogate, bounded."""
    return plain(text).encode("utf-8", "replace").decode()[:MAX_TEXT]
