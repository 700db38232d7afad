"""Commands: one durable row an operation, persisted before it is sent, sent again until it is answered or withdrawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from tuneplane.bridge.postgres import Connection, Row
from tuneplane.domain.frames import Command, CommandKind
from tuneplane.domain.ids import GatewayId, MemberId, NodeId, OperationId, operation_id
from tuneplane.domain.jobs import OutgoingCommand
from tuneplane.domain.ports import Topic

from . import strangers
from .database import Aggregate, clean, hold_epoch, note, poke

INSERT = (
    "INSERT INTO command (operation, member_id, node_id, kind, claim_epoch, trace, created_at, reason, hold_seconds, stop_signal,"
    " stop_grace_seconds) SELECT $1, member.id, node_id, $3, claim_epoch, trace, $4, $5, $6, $7, $8"
    " FROM member JOIN attempt ON attempt.id = attempt_id JOIN job ON job.id = job_id WHERE member.id = $2"
)
KEEP = " ON CONFLICT (operation) DO NOTHING"
AGAIN = (
    " ON CONFLICT (operation) DO UPDATE SET answered_at = NULL, accepted = NULL, code = '', detail = '', sent_epoch = NULL,"
    " sent_at = NULL, reason = excluded.reason"
)


class Commands(Aggregate):
    """The command part of SessionStore (domain/ports.py)."""

    async def outgoing_commands(self, gateway: GatewayId, limit: int) -> list[OutgoingCommand]:
        sql = (
            "SELECT command.*, session.epoch, member.plan_digest, CASE kind WHEN 'prepare' THEN member.plan END AS plan,"
            " member.phase IN ('terminated', 'aborted') AS ended"
            " FROM session JOIN command USING (node_id) JOIN member ON member.id = member_id"
            " WHERE gateway_id = $1 AND closed_at IS NULL AND answered_at IS NULL AND withdrawn_at IS NULL"
            " AND (sent_epoch IS NULL OR sent_epoch < epoch) ORDER BY kind <> 'stop', command.created_at, operation LIMIT $2"
        )
        found = [(row, _outgoing(row)) for row in await self._db.fetch(sql, gateway, limit)]
        found += [(row, strangers.outgoing(row)) for row in await self._db.fetch(strangers.OUTGOING, gateway, limit)]
        found.sort(key=lambda one: (one[0]["kind"] != "stop", one[0]["created_at"], one[0]["operation"]))  # stops first over both
        return [outgoing for _, outgoing in found[:limit]]

    async def mark_sent(self, operation: OperationId, node: NodeId, epoch: int, now: datetime) -> bool:
        return await self._db.write("mark_sent", _mark_sent, operation, node, epoch, now)

    async def answer_command(
        self, operation: OperationId, node: NodeId, epoch: int, accepted: bool, code: str, detail: str, now: datetime
    ) -> None:
        """A refused Prepare or Commit is settled by a Stop, whose tombstone is the evidence; the refusal becomes its reason."""
        await self._db.write("answer_command", _answer, operation, node, epoch, accepted, clean(code), clean(detail), now)


def _outgoing(row: Row) -> OutgoingCommand:
    return OutgoingCommand(node=row["node_id"], command=_command(row))


def _command(row: Row) -> Command:
    kind = CommandKind(row["kind"])
    with_digest = kind in (CommandKind.PREPARE, CommandKind.COMMIT)
    return Command(
        operation=row["operation"],
        kind=kind,
        member=row["member_id"],
        session_epoch=row["epoch"],
        claim_epoch=row["claim_epoch"],
        plan=row["plan"] or b"",
        plan_digest=row["plan_digest"] if with_digest else "",
        hold_seconds=row["hold_seconds"],
        stop_signal=row["stop_signal"],
        stop_grace_seconds=row["stop_grace_seconds"],
        reason=row["reason"],
        trace=row["trace"],
        ended=row["ended"],
    )


async def _mark_sent(connection: Connection, operation: OperationId, node: NodeId, epoch: int, now: datetime) -> bool:
    """The command's row lock decides between this and a stop that withdraws it: never sent, or sent and then stopped."""
    sql = "SELECT FROM session WHERE node_id = $1 AND epoch = $2 AND closed_at IS NULL FOR SHARE"
    if await connection.fetchrow(sql, node, epoch) is None:
        return False
    sql = (
        "UPDATE command SET sent_epoch = $3, sent_at = $4 WHERE operation = $1 AND node_id = $2"
        " AND answered_at IS NULL AND withdrawn_at IS NULL RETURNING operation"
    )
    marked = await connection.fetchrow(sql, operation, node, epoch, now) is not None
    return marked or await strangers.mark_sent(connection, operation, node, epoch)


async def _answer(
    connection: Connection, operation: OperationId, node: NodeId, epoch: int, accepted: bool, code: str, detail: str, now: datetime
) -> None:
    await hold_epoch(connection, node, epoch)
    sql = (
        "SELECT member.id, job_id, phase FROM member JOIN attempt ON attempt.id = attempt_id"
        " WHERE member.id = (SELECT member_id FROM command WHERE operation = $1 AND node_id = $2) FOR NO KEY UPDATE OF member"
    )
    member = await connection.fetchrow(sql, operation, node)
    if member is None:
        await strangers.answer(connection, operation, node, accepted, code, now)
    sql = (
        "UPDATE command SET answered_at = $2, accepted = $3, code = $4, detail = $5 WHERE operation = $1 AND answered_at IS NULL"
        " RETURNING kind"
    )
    row = await connection.fetchrow(sql, operation, now, accepted, code, detail) if member is not None else None
    if row is None or accepted:
        return
    kind = CommandKind(row["kind"])
    await note(connection, member["job_id"], now, f"member.{kind.value}-refused", member["id"], f"{code}: {detail}")
    if kind in (CommandKind.PREPARE, CommandKind.COMMIT) and member["phase"] not in ("terminated", "aborted"):
        sql = "UPDATE member SET refusal_code = $2, refusal_detail = $3 WHERE id = $1 AND refusal_code = ''"
        await connection.execute(sql, member["id"], code or "refused", detail)
        await insert_stop(connection, member["id"], code or "refused", now)
        await poke(connection, Topic.COMMANDS, Topic.CONSOLE)


# ---------------------------------------------------------------- for other units; the member's row is locked


async def insert_prepare(connection: Connection, member: MemberId, hold_seconds: float, now: datetime) -> None:
    await connection.execute(INSERT + KEEP, operation_id(member, "prepare"), member, "prepare", now, "", hold_seconds, "", 0.0)


async def insert_commit(connection: Connection, member: MemberId, now: datetime) -> None:
    await connection.execute(INSERT + KEEP, operation_id(member, "commit"), member, "commit", now, "", 0.0, "", 0.0)


async def insert_forget(connection: Connection, member: MemberId, now: datetime) -> None:
    await connection.execute(INSERT + KEEP, operation_id(member, "forget"), member, "forget", now, "", 0.0, "", 0.0)


async def insert_stop(connection: Connection, member: MemberId, reason: str, now: datetime, *, again: bool = False) -> None:
    """A Stop with the job's own signal and grace. ``again``: even if an earlier one was answered (by another journal)."""
    sql = "SELECT spec FROM job JOIN attempt ON attempt.job_id = job.id JOIN member ON attempt_id = attempt.id WHERE member.id = $1"
    policy = json.loads(await connection.fetchval(sql, member))["spec"]["stop"]
    sql = INSERT + (AGAIN if again else KEEP)
    values = (operation_id(member, "stop"), member, "stop", now, clean(reason), 0.0, policy["signal"], float(policy["grace_seconds"]))
    await connection.execute(sql, *values)


async def withdraw(connection: Connection, member: MemberId, kinds: Sequence[CommandKind], now: datetime) -> None:
    """Let what was not answered not be sent (again): a copy under way meets the tombstone of the Stop that follows."""
    sql = (
        "UPDATE command SET withdrawn_at = $3 WHERE member_id = $1 AND kind = ANY($2::text[])"
        " AND answered_at IS NULL AND withdrawn_at IS NULL"
    )
    await connection.execute(sql, member, [kind.value for kind in kinds], now)


async def settle_stop(connection: Connection, member: MemberId, now: datetime) -> None:
    """The end was reported: a Stop that nobody answered has nothing left to do, and must not follow a Forget."""
    sql = (
        "UPDATE command SET answered_at = $2, accepted = true, code = 'settled' WHERE member_id = $1 AND kind = 'stop'"
        " AND answered_at IS NULL AND withdrawn_at IS NULL"
    )
    await connection.execute(sql, member, now)
