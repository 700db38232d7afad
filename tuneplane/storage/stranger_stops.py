"""An operator asks for the stop of a stranger (P-07)."""

from __future__ import annotations

from datetime import datetime

from tuneplane.bridge.postgres import Connection
from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.ids import MemberId, NodeId, UserName, stranger_operation
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.nodes import Node
from tuneplane.domain.ports import Topic

from .database import Aggregate, audit, from_json, poke
from .nodes import view


class Strangers(Aggregate):
    """The part of NodeStore about strangers (domain/ports.py)."""

    async def stop_stranger(self, node: NodeId, container: str, member: MemberId, by: UserName, now: datetime) -> Node:
        return await self._db.write("stop_stranger", _stop, node, container, member, by, now)


async def _stop(connection: Connection, node: NodeId, container: str, member: MemberId, by: UserName, now: datetime) -> Node:
    row = await connection.fetchrow("SELECT inventory FROM node WHERE id = $1 AND removed_at IS NULL FOR NO KEY UPDATE", node)
    if row is None:
        raise NotFound("Node", node)
    inventory = from_json(Inventory, row["inventory"])
    if inventory is None or (container, member) not in {(one.container, one.member) for one in inventory.strangers}:
        raise Refused("no-such-stranger", f"Node {node} does not report a stranger of this container and member")
    sql = (
        "INSERT INTO stranger_command (operation, node_id, member, container_id, kind, asked_by, created_at)"
        " VALUES ($1, $2, $3, $4, 'stop', $5, $6) ON CONFLICT (operation) DO UPDATE SET answered_at = NULL, accepted = NULL, code = '',"
        " sent_epoch = NULL, asked_by = excluded.asked_by WHERE stranger_command.accepted IS FALSE"
    )
    await connection.execute(sql, stranger_operation(container, member, "stop"), node, member, container, by, now)
    await audit(connection, by, "node.stop-stranger", node, now, f"{member} {container}")
    await poke(connection, Topic.COMMANDS, Topic.CONSOLE)
    return await view(connection, node, now)
