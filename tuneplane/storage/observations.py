"""What Nodes report of members: applied by the member table, in order of revision, under the live epoch only (P-06)."""

from __future__ import annotations

from datetime import datetime, timedelta

from attrs import evolve

from tuneplane.bridge.postgres import Connection, Row
from tuneplane.domain.evidence import (
    CONTRADICTION,
    LOST,
    LOST_DETAIL,
    Known,
    Ruling,
    weigh,
    why_contradicted,
    why_reverted,
    why_violation,
)
from tuneplane.domain.frames import CommandKind, Observation
from tuneplane.domain.ids import NodeId
from tuneplane.domain.launch_table import ENDED_PHASES, MemberPhase
from tuneplane.domain.log_archive import archive_note, with_note
from tuneplane.domain.ports import Topic

from . import strangers
from .commands import insert_stop, settle_stop, withdraw
from .database import Aggregate, clean, hold_epoch, note, poke, to_json
from .doubt import doubt_reported, make_unknown
from .holds import release

TOLD_BY_US = frozenset({"", "stopped", "aborted"})  # reasons that only repeat our Stop: a refusal says more


ROW = (
    "SELECT member.*, job_id, node.journal_id AS present_journal,"
    " EXISTS (SELECT FROM command WHERE member_id = member.id AND kind = 'commit' AND sent_epoch IS NOT NULL) AS commit_sent,"
    " EXISTS (SELECT FROM command WHERE member_id = member.id AND kind = 'forget') AS forgetting"
    " FROM member JOIN attempt ON attempt.id = attempt_id JOIN node ON node.id = node_id"
    " WHERE member.id = $1 AND node_id = $2 FOR NO KEY UPDATE OF member"
)


class Observations(Aggregate):
    """The observation part of SessionStore (domain/ports.py)."""

    async def observe(self, node: NodeId, epoch: int, observation: Observation, now: datetime) -> bool:
        """A report that proves that the Node's journal went back first puts that journal in doubt, then counts as it stands."""
        for _ in range(2):
            doubt = await self._db.write("observe", _observe, node, epoch, observation, now)
            if not doubt:
                break
            await self._db.write("doubt_journal", doubt_reported, node, epoch, doubt, now)
        return doubt is not None


async def _observe(connection: Connection, node: NodeId, epoch: int, seen: Observation, now: datetime) -> str | None:
    """None: no member of ours. A text: why the Node's journal is in doubt; then nothing was stored."""
    await hold_epoch(connection, node, epoch)
    row = await connection.fetchrow(ROW, seen.member, node)
    if row is None and await strangers.settle(connection, node, seen, now):
        return ""
    if row is None or (seen.plan_digest and seen.plan_digest != row["plan_digest"]):
        return None
    known = _known(row)
    ruling = weigh(known, seen, row["present_journal"], epoch)
    if ruling is Ruling.REVERTED:
        return why_reverted(known, seen)
    if ruling is not Ruling.KNOWN:
        await _EFFECTS[ruling](connection, row, known, seen, now)
        sql = "UPDATE member SET revision = $2, revision_epoch = $3, journal_id = $4 WHERE id = $1"
        revision = 0 if ruling is Ruling.CONTRADICTED else seen.revision
        await connection.execute(sql, row["id"], revision, epoch, row["present_journal"])
    return ""


def _known(row: Row) -> Known:
    return Known(
        phase=MemberPhase(row["phase"]),
        revision=row["revision"],
        journal=row["journal_id"],
        epoch=row["revision_epoch"],
        commit_sent=row["commit_sent"],
        forgetting=row["forgetting"],
    )


async def _take(connection: Connection, row: Row, known: Known, seen: Observation, now: datetime) -> None:
    await _apply(connection, row, seen.phase, seen, now)
    await _tell(connection, row, known.phase, seen.phase, now)


async def _lose(connection: Connection, row: Row, known: Known, seen: Observation, now: datetime) -> None:
    """Its Commit was sent, and the journal that says it never ran is not the one that would know."""
    honest = evolve(seen, phase=MemberPhase.TERMINATED, exit_code=None, oom_killed=False, reason_code=LOST, reason_detail=LOST_DETAIL)
    await _take(connection, row, known, honest, now)


async def _leave_unknown(connection: Connection, row: Row, known: Known, seen: Observation, now: datetime) -> None:
    sql = "UPDATE member SET boot_id = $2, container_id = $3, started_at = coalesce($4, started_at) WHERE id = $1"
    await connection.execute(sql, row["id"], clean(seen.boot_id), clean(seen.container_id), seen.started_at)
    await poke(connection, Topic.CONSOLE)


async def _contradict(connection: Connection, row: Row, known: Known, seen: Observation, now: datetime) -> None:
    await make_unknown(connection, row["id"], row["job_id"], CONTRADICTION, why_contradicted(known, seen), now)
    await poke(connection, Topic.ATTEMPTS, Topic.COMMANDS, Topic.CONSOLE)


async def _settle(connection: Connection, row: Row, known: Known, seen: Observation, now: datetime) -> None:
    """How it ended is settled; only the clean-up can still be confirmed (R-LCH-14), and what became of the log."""
    said = archive_note(clean(seen.reason_detail)) if seen.cleaned else ""
    sql = "UPDATE member SET cleaned = cleaned OR $2, reason_detail = $3, violation = '' WHERE id = $1"
    await connection.execute(sql, row["id"], seen.cleaned, with_note(row["reason_detail"], said))
    await settle_stop(connection, row["id"], now)
    if seen.cleaned and not row["cleaned"]:
        await note(connection, row["job_id"], now, "member.cleaned", row["id"], said)
    await poke(connection, Topic.CONSOLE)


async def _violate(connection: Connection, row: Row, known: Known, seen: Observation, now: datetime) -> None:
    """It gets a Stop, once, and is shown until its Node reports its end."""
    if row["violation"]:
        return
    why = why_violation(seen)
    await connection.execute("UPDATE member SET violation = $2, cleaned = false WHERE id = $1", row["id"], why)
    await connection.execute("DELETE FROM command WHERE member_id = $1 AND kind = 'forget'", row["id"])  # due again, after its end
    await insert_stop(connection, row["id"], "ended", now, again=True)
    await note(connection, row["job_id"], now, "member.violation", row["id"], why)
    await poke(connection, Topic.COMMANDS, Topic.CONSOLE)


_EFFECTS = {
    Ruling.APPLY: _take,
    Ruling.LOST: _lose,
    Ruling.UNSETTLED: _leave_unknown,
    Ruling.CONTRADICTED: _contradict,
    Ruling.SETTLED: _settle,
    Ruling.VIOLATION: _violate,
}


async def _apply(connection: Connection, row: Row, after: MemberPhase, seen: Observation, now: datetime) -> None:
    ended = after in ENDED_PHASES
    code, detail = _reason(row, after, seen)
    sql = (
        "UPDATE member SET phase = $2, revision = $3, boot_id = $4, container_id = $5, exit_code = $6, oom_killed = $7,"
        " reason_code = $8, reason_detail = $9, progress = $10, hold_expires_at = $11, started_at = coalesce($12, started_at),"
        " ended_at = $13, cleaned = $14 WHERE id = $1"
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
        await settle_stop(connection, row["id"], now)
        await release(connection, row["id"], row["node_id"])


def _reason(row: Row, after: MemberPhase, seen: Observation) -> tuple[str, str]:
    """A member that never started because its Node refused a command ended for that reason, not for our Stop after it."""
    if after is MemberPhase.ABORTED and row["refusal_code"] and seen.reason_code in TOLD_BY_US:
        return row["refusal_code"], row["refusal_detail"]
    return clean(seen.reason_code), clean(seen.reason_detail)


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
