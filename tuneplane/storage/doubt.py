"""Doubt: a journal that is not the one we knew makes its Node cordoned and its members unknown (P-02, P-12).

Only a Stop's tombstone settles an unknown member; what was prepared or committed and not answered is not sent again.
"""

from __future__ import annotations

from datetime import datetime

from tuneplane.bridge.postgres import Connection
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import JobId, MemberId, NodeId
from tuneplane.domain.ports import Topic

from .commands import insert_stop, withdraw
from .database import hold_epoch, note, poke
from .nodes import set_cordon

# Every member that the Node may remember: it has heard of it, and was not told to forget it.
REMEMBERED = (
    "SELECT member.id, job_id, phase, cleaned FROM member JOIN attempt ON attempt.id = attempt_id WHERE node_id = $1"
    " AND EXISTS (SELECT FROM command WHERE member_id = member.id AND sent_epoch IS NOT NULL)"
    " AND NOT EXISTS (SELECT FROM command WHERE member_id = member.id AND kind = 'forget')"
    " ORDER BY member.id FOR NO KEY UPDATE OF member"
)
# What the Node's journal had, by its own report or accepted answer, and now lacks. Not one whose Stop is under way: a
# Stop is journalled whether or not the member was known, and its tombstone may be younger than the report.
MISSING = (
    "SELECT id FROM member WHERE node_id = $1 AND (phase NOT IN ('terminated', 'aborted') OR NOT cleaned) AND NOT (id = ANY($2::text[]))"
    " AND (revision > 0 OR EXISTS (SELECT FROM command WHERE member_id = member.id AND accepted AND sent_epoch < $3))"
    " AND NOT EXISTS (SELECT FROM command WHERE member_id = member.id AND kind = 'stop' AND withdrawn_at IS NULL"
    " AND (answered_at IS NULL OR sent_epoch = $3)) ORDER BY id"
)


async def doubt_journal(connection: Connection, node: NodeId, doubt: str, now: datetime) -> None:
    """Cordon the Node; what lives there is unknown, what has ended is cleaned up once more. The Node's row is locked.

    Stored revisions do not count any more: a new journal counts from the start, and the session epoch keeps the old ones
    out (P-06).
    """
    await set_cordon(connection, node, "journal", doubt, now)
    rows = await connection.fetch(REMEMBERED, node)
    ended = [row for row in rows if row["phase"] in ("terminated", "aborted")]  # a week of them: one statement
    await connection.execute("UPDATE member SET revision = 0 WHERE id = ANY($1::text[])", [row["id"] for row in ended])
    for row in rows:
        if row["phase"] not in ("terminated", "aborted"):
            await make_unknown(connection, row["id"], row["job_id"], "journal-changed", doubt, now)
        elif not row["cleaned"]:  # the journal that would have confirmed it is gone (R-LCH-14)
            await insert_stop(connection, row["id"], "journal-changed", now, again=True)


async def make_unknown(connection: Connection, member: MemberId, job: JobId, code: str, why: str, now: datetime) -> None:
    """The member's row is locked. The reason is kept until its end is told with one of its own."""
    sql = (
        "UPDATE member SET phase = 'unknown', revision = 0, progress = NULL, hold_expires_at = NULL, reason_code = $2,"
        " reason_detail = $3 WHERE id = $1"
    )
    await connection.execute(sql, member, code, why)
    await withdraw(connection, member, (CommandKind.PREPARE, CommandKind.COMMIT), now)
    await insert_stop(connection, member, code, now, again=True)
    await note(connection, job, now, "member.unknown", member, why)


async def doubt_reported(connection: Connection, node: NodeId, epoch: int, doubt: str, now: datetime) -> None:
    """A unit: one report has shown that the journal went back."""
    await connection.fetchrow("SELECT FROM node WHERE id = $1 FOR NO KEY UPDATE", node)
    await hold_epoch(connection, node, epoch)
    await doubt_journal(connection, node, doubt, now)
    await poke(connection, Topic.ATTEMPTS, Topic.COMMANDS, Topic.CONSOLE)


async def reconcile(connection: Connection, node: NodeId, epoch: int, reported: list[MemberId], now: datetime) -> None:
    """A unit: the report of session ``epoch`` is complete. What it lacks and once had is unknown, and the journal in doubt."""
    await connection.fetchrow("SELECT FROM node WHERE id = $1 FOR NO KEY UPDATE", node)
    await hold_epoch(connection, node, epoch)
    missing = [row["id"] for row in await connection.fetch(MISSING, node, reported, epoch)]
    if missing:
        await doubt_journal(connection, node, why_missing(missing), now)
        await poke(connection, Topic.ATTEMPTS, Topic.COMMANDS, Topic.CONSOLE)


def why_missing(missing: list[MemberId]) -> str:
    """For the cordon and the timelines."""
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"the Node's complete report lacks {missing[0]}{more}, which its journal had: the journal went back"
