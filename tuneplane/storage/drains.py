"""What a machine asks for itself (`tuneplane-node drain`), and what its heartbeats tell of its clock."""

from __future__ import annotations

from datetime import datetime

from tuneplane.bridge.postgres import Connection
from tuneplane.domain.clocks import Offset
from tuneplane.domain.ids import NodeId, UserName
from tuneplane.domain.nodes import Node
from tuneplane.domain.ports import Topic

from .database import Aggregate, audit, clean, hold_epoch, poke
from .nodes import set_cordon, view

MACHINE = UserName("(tuneplane-node)")  # who acts: root on the machine, whose name nobody knows here; no name of an account


class Drains(Aggregate):
    """That part of SessionStore (domain/ports.py)."""

    async def set_machine_drain(self, node: NodeId, epoch: int, wanted: bool, reason: str, now: datetime) -> Node:
        return await self._db.write("set_machine_drain", _set, node, epoch, wanted, clean(reason), now)

    async def note_clock(self, node: NodeId, epoch: int, offset: Offset, now: datetime) -> None:
        await self._db.write("note_clock", _note_clock, node, epoch, offset)


async def _set(connection: Connection, node: NodeId, epoch: int, wanted: bool, reason: str, now: datetime) -> Node:
    await connection.execute("SELECT FROM node WHERE id = $1 FOR NO KEY UPDATE", node)
    await hold_epoch(connection, node, epoch)
    held = await connection.fetchrow("SELECT FROM cordon WHERE node_id = $1 AND owner = 'machine'", node) is not None
    if held != wanted:
        await set_cordon(connection, node, "machine", machine_reason(reason) if wanted else None, now)
        await audit(connection, MACHINE, "node.machine-drain" if wanted else "node.machine-undrain", node, now, reason)
        await poke(connection, Topic.JOBS, Topic.CONSOLE)
    return await view(connection, node, now)


def machine_reason(reason: str) -> str:
    """What people read of it."""
    return f"drained on the machine itself{f' ({reason})' if reason else ''}; tuneplane-node drain --cancel there takes it back"


async def _note_clock(connection: Connection, node: NodeId, epoch: int, offset: Offset) -> None:
    sql = (
        "UPDATE session SET clock_offset_seconds = $3, clock_error_seconds = $4"
        " WHERE node_id = $1 AND epoch = $2 AND closed_at IS NULL RETURNING node_id"
    )
    if await connection.fetchrow(sql, node, epoch, offset.seconds, offset.error_seconds) is not None:
        await poke(connection, Topic.CONSOLE)
