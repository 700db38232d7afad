"""Stopping the members of an attempt: the one unit that a user's stop and a launch's own failure share (R-LCH-12)."""

from __future__ import annotations

from datetime import datetime

from tuneplane.bridge.postgres import Connection, Row
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import AttemptId, JobId, MemberId

from .commands import insert_stop, withdraw
from .database import note
from .holds import release

UNANSWERED = (CommandKind.PREPARE, CommandKind.COMMIT)


async def stop_members(connection: Connection, job: JobId, attempt: AttemptId, reason: str, now: datetime) -> None:
    """Withdraw what was never sent, send Stop to the rest. Job and attempt are locked; a repeat changes nothing.

    A member whose Prepare was never sent is aborted here and now: the lock on its command row proves that no Node has
    heard of it, and the withdrawal that none will.
    """
    sql = "SELECT id, node_id FROM member WHERE attempt_id = $1 AND phase NOT IN ('terminated', 'aborted') ORDER BY id FOR NO KEY UPDATE"
    never_sent = []
    for member in await connection.fetch(sql, attempt):
        await withdraw(connection, member["id"], UNANSWERED, now)
        if await was_sent(connection, member["id"]):
            await insert_stop(connection, member["id"], reason, now)
        else:
            never_sent.append(member)
    for member in sorted(never_sent, key=lambda one: (one["node_id"], one["id"])):
        await _abort(connection, job, member, reason, now)


async def was_sent(connection: Connection, member: MemberId) -> bool:
    """Whether a Node may have heard of ``member``."""
    sql = "SELECT FROM command WHERE member_id = $1 AND sent_epoch IS NOT NULL LIMIT 1"
    return await connection.fetchrow(sql, member) is not None


async def _abort(connection: Connection, job: JobId, member: Row, reason: str, now: datetime) -> None:
    sql = (
        "UPDATE member SET phase = 'aborted', ended_at = $2, cleaned = true, reason_code = $3,"
        " reason_detail = 'no machine had been told of it' WHERE id = $1"
    )
    await connection.execute(sql, member["id"], now, reason)
    await release(connection, member["id"], member["node_id"])
    await note(connection, job, now, "member.aborted", member["id"], "its Prepare was never sent")
