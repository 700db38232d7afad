"""What Nodes report of members: applied by the member table, in order of revision, under the live epoch only (P-06)."""

from __future__ import annotations

from datetime import datetime, timedelta

from tuneplane.bridge.postgres import Connection, Row
from tuneplane.domain.frames import CommandKind, Observation
from tuneplane.domain.ids import NodeId
from tuneplane.domain.launch_table import ENDED_PHASES, MemberPhase, step_member
from tuneplane.domain.log_archive import archive_note, with_note
from tuneplane.domain.ports import Topic

from .commands import withdraw
from .database import Aggregate, clean, hold_epoch, note, poke, to_json
from .holds import release

TOLD_BY_US = frozenset({"", "stopped", "aborted"})  # reasons that only repeat our Stop: a refusal says more


class Observations(Aggregate):
    """The observation part of SessionStore (domain/ports.py)."""

    async def observe(self, node: NodeId, epoch: int, observation: Observation, now: datetime) -> bool:
        return await self._db.write("observe", _observe, node, epoch, observation, now)


async def _observe(connection: Connection, node: NodeId, epoch: int, seen: Observation, now: datetime) -> bool:
    await hold_epoch(connection, node, epoch)
    sql = (
        "SELECT member.*, job_id FROM member JOIN attempt ON attempt.id = attempt_id"
        " WHERE member.id = $1 AND node_id = $2 FOR NO KEY UPDATE OF member"
    )
    row = await connection.fetchrow(sql, seen.member, node)
    if row is None or (seen.plan_digest and seen.plan_digest != row["plan_digest"]):
        return False
    if seen.revision <= row["revision"]:
        return True
    before = MemberPhase(row["phase"])
    after = step_member(before, seen.phase)
    if before in ENDED_PHASES:
        await _after_the_end(connection, row, seen, now)
    else:
        await _apply(connection, row, after, seen, now)
    await _tell(connection, row, before, after, now)
    return True


async def _apply(connection: Connection, row: Row, after: MemberPhase, seen: Observation, now: datetime) -> None:
    ended = after in ENDED_PHASES
    code, detail = _reason(row, after, seen)
    sql = (
        "UPDATE member SET phase = $2, revision = $3, boot_id = $4, container_id = $5, exit_code = $6, oom_killed = $7,"
        " reason_code = $8, reason_detail = $9, progress = $10, hold_expires_at = $11, started_at = coalesce($12, started_at),"
        " ended_at = $13, cleaned = $14 WHERE id = $1 AND revision < $3"
    )
    left = seen.hold_seconds_left
    await connection.execute(
        sql,
        row["id"],
        after.value,
        seen.revision,
        clean(seen.boot_id),
        clean(seen.container_id),
        seen.exit_code,
        seen.oom_killed,
        code,
        detail,
        to_json(seen.progress) if seen.progress is not None else None,
        now + timedelta(seconds=left) if left is not None else None,
        seen.started_at,
        (seen.ended_at or now) if ended else None,
        seen.cleaned,
    )
    if ended:  # the evidence: nothing of it runs, nothing of it will
        await withdraw(connection, row["id"], (CommandKind.PREPARE, CommandKind.COMMIT), now)
        await release(connection, row["id"], row["node_id"])


def _reason(row: Row, after: MemberPhase, seen: Observation) -> tuple[str, str]:
    """A member that never started because its Node refused a command ended for that reason, not for our Stop after it."""
    if after is MemberPhase.ABORTED and row["refusal_code"] and seen.reason_code in TOLD_BY_US:
        return row["refusal_code"], row["refusal_detail"]
    return clean(seen.reason_code), clean(seen.reason_detail)


async def _after_the_end(connection: Connection, row: Row, seen: Observation, now: datetime) -> None:
    """How it ended is settled; only the clean-up can still be confirmed (R-LCH-14), and what became of the log."""
    said = archive_note(clean(seen.reason_detail)) if seen.cleaned else ""
    sql = "UPDATE member SET revision = $2, cleaned = cleaned OR $3, reason_detail = $4 WHERE id = $1 AND revision < $2"
    await connection.execute(sql, row["id"], seen.revision, seen.cleaned, with_note(row["reason_detail"], said))
    if seen.cleaned and not row["cleaned"]:
        await note(connection, row["job_id"], now, "member.cleaned", row["id"], said)


async def _tell(connection: Connection, row: Row, before: MemberPhase, after: MemberPhase, now: datetime) -> None:
    if after is before:
        await poke(connection, Topic.CONSOLE)
        return
    sql = "SELECT exit_code, oom_killed, reason_code, reason_detail FROM member WHERE id = $1"
    member = await connection.fetchrow(sql, row["id"])
    parts = [member["reason_code"], member["reason_detail"]]
    parts += [f"exit code {member['exit_code']}"] if member["exit_code"] is not None else []
    parts += ["out of memory"] if member["oom_killed"] else []
    await note(connection, row["job_id"], now, f"member.{after.value}", row["id"], "; ".join(part for part in parts if part))
    await poke(connection, Topic.ATTEMPTS, Topic.CONSOLE, *((Topic.JOBS,) if after in ENDED_PHASES else ()))
