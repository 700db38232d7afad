"""The audit log, as it is read, and the lines that are of no act. Nothing here, or anywhere, changes one that is written."""

from __future__ import annotations

from datetime import datetime

from tuneplane.bridge.postgres import Connection, Row
from tuneplane.domain.accounts import AuditFilter, AuditLine
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.ids import UserName
from tuneplane.domain.jobs import Page

from .database import Aggregate, audit, keys_of, page_of

NEWEST = 2**63 - 1  # above every sequence number


class AuditLog(Aggregate):
    """AuditStore (domain/account_ports.py)."""

    async def audit(self, actor: UserName, action: str, subject: str, detail: str, forced: bool, now: datetime) -> None:
        await self._db.write("audit", _audit, actor, action, subject, detail, forced, now)

    async def list_audit(self, page: Page, only: AuditFilter) -> tuple[list[AuditLine], str | None]:
        below, limit = sequence_below(page), page.limit + 1
        sql = (
            "SELECT *, at AS created_at FROM audit WHERE sequence < $1 AND ($3::text IS NULL OR actor = $3)"
            " AND ($4::text IS NULL OR action = $4) AND ($5::text IS NULL OR subject = $5) AND ($6::boolean IS NULL OR forced = $6)"
            " AND ($7::timestamptz IS NULL OR at >= $7) AND ($8::timestamptz IS NULL OR at < $8) ORDER BY sequence DESC LIMIT $2"
        )
        wanted = (only.actor, only.action, only.subject, only.forced, only.since, only.until)
        rows, cursor = page_of(await self._db.fetch(sql, below, limit, *wanted), page, "sequence")
        return [_line(row) for row in rows], cursor


def sequence_below(page: Page) -> int:
    """Where a page starts: strictly below this number. The order of the log is that of its writing, not of the clocks."""
    keys = keys_of(page)
    if page.cursor is None:
        return NEWEST
    if not (keys.id.isascii() and keys.id.isdigit() and len(keys.id) < len(str(NEWEST))):
        raise InvalidInput("cursor", "is not a cursor of this listing")
    return int(keys.id)


async def _audit(connection: Connection, actor: UserName, action: str, subject: str, detail: str, forced: bool, now: datetime) -> None:
    await audit(connection, actor, action, subject, now, detail, forced=forced)


def _line(row: Row) -> AuditLine:
    return AuditLine(
        sequence=row["sequence"],
        at=row["at"],
        actor=row["actor"],
        action=row["action"],
        subject=row["subject"],
        detail=row["detail"],
        forced=row["forced"],
    )
