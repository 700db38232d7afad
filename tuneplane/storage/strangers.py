"""An operator's stop of a stranger (P-07): commands for what this database does not know as a member."""

from __future__ import annotations

from datetime import datetime

from tuneplane.bridge.postgres import Connection, Row
from tuneplane.domain.frames import Command, CommandKind, Observation
from tuneplane.domain.ids import NodeId, OperationId, stranger_operation
from tuneplane.domain.jobs import OutgoingCommand
from tuneplane.domain.launch_table import ENDED_PHASES
from tuneplane.domain.ports import Topic

from .database import poke

STRANGER_GRACE_SECONDS = 10.0  # its own signal and grace are known to nobody: those of a JobSpec that says nothing
OUTGOING = (
    "SELECT stranger_command.*, session.epoch FROM session JOIN stranger_command USING (node_id) WHERE gateway_id = $1"
    " AND closed_at IS NULL AND answered_at IS NULL AND (sent_epoch IS NULL OR sent_epoch < epoch)"
    " ORDER BY kind <> 'stop', created_at, operation LIMIT $2"
)


def outgoing(row: Row) -> OutgoingCommand:
    stop = row["kind"] == "stop"
    command = Command(
        operation=row["operation"],
        kind=CommandKind(row["kind"]),
        member=row["member"],
        session_epoch=row["epoch"],
        claim_epoch=0,
        stop_signal="SIGTERM" if stop else "",
        stop_grace_seconds=STRANGER_GRACE_SECONDS if stop else 0.0,
        reason=f"stopped by {row['asked_by']}: nobody claims it" if stop else "",
        stranger=True,
        container=row["container_id"],
    )
    return OutgoingCommand(node=row["node_id"], command=command)


async def mark_sent(connection: Connection, operation: OperationId, node: NodeId, epoch: int) -> bool:
    """The session's row is locked."""
    sql = "UPDATE stranger_command SET sent_epoch = $3 WHERE operation = $1 AND node_id = $2 AND answered_at IS NULL RETURNING operation"
    return await connection.fetchrow(sql, operation, node, epoch) is not None


async def answer(connection: Connection, operation: OperationId, node: NodeId, accepted: bool, code: str, now: datetime) -> None:
    """An operation of no stranger changes nothing. When the Node has forgotten it, so do we."""
    sql = (
        "UPDATE stranger_command SET answered_at = $3, accepted = $4, code = $5 WHERE operation = $1 AND node_id = $2"
        " AND answered_at IS NULL RETURNING kind, member"
    )
    row = await connection.fetchrow(sql, operation, node, now, accepted, code)
    if row is not None and row["kind"] == "forget" and accepted:
        await connection.execute("DELETE FROM stranger_command WHERE node_id = $1 AND member = $2", node, row["member"])


async def settle(connection: Connection, node: NodeId, seen: Observation, now: datetime) -> bool:
    """Whether ``seen`` is the clean end of a stopped stranger: then it is acknowledged, and forgotten."""
    if seen.phase not in ENDED_PHASES or not seen.cleaned:
        return False
    sql = "SELECT container_id, asked_by FROM stranger_command WHERE node_id = $1 AND member = $2 AND kind = 'stop' AND accepted LIMIT 1"
    row = await connection.fetchrow(sql, node, seen.member)
    if row is None:
        return False
    sql = (
        "INSERT INTO stranger_command (operation, node_id, member, container_id, kind, asked_by, created_at)"
        " VALUES ($1, $2, $3, $4, 'forget', $5, $6) ON CONFLICT (operation) DO NOTHING"
    )
    operation = stranger_operation(row["container_id"], seen.member, "forget")
    await connection.execute(sql, operation, node, seen.member, row["container_id"], row["asked_by"], now)
    await poke(connection, Topic.COMMANDS)
    return True
