"""Holds on cards, ports, CPU, memory and staging bytes: taken with the placement, given back with the evidence.

The triggers keep the sums; this module keeps the order of locks: the Node's capacity row first, then its holds. A
placement takes them in the same order, so that a card that is being released is waited for, never deadlocked over.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuneplane.bridge.postgres import Connection
from tuneplane.domain.ids import MemberId, NodeId
from tuneplane.domain.jobs import PlacedMember


async def take(connection: Connection, members: Sequence[PlacedMember]) -> None:
    """Take what ``members`` need. ConstraintViolated where anything is missing or held: then nothing was taken."""
    for member in sorted(members, key=lambda one: (one.node, one.rank)):
        sql = "INSERT INTO resource_hold (member_id, node_id, cpu_millis, memory_bytes) VALUES ($1, $2, $3, $4)"
        await connection.execute(sql, member.member, member.node, member.cpu_millis, member.memory_bytes)
        sql = "INSERT INTO gpu_hold (gpu_uuid, member_id, node_id) SELECT card, $2, $3 FROM unnest($1::text[]) AS card ORDER BY card"
        await connection.execute(sql, list(member.gpu_uuids), member.member, member.node)
        sql = "INSERT INTO port_hold (node_id, port, member_id) SELECT $1, port, $2 FROM unnest($3::int[]) AS port ORDER BY port"
        await connection.execute(sql, member.node, member.member, list(member.ports))


async def release(connection: Connection, member: MemberId, node: NodeId) -> None:
    """Give back all that ``member`` holds on ``node``. Only with evidence of its end; nothing held is no error."""
    await connection.fetchrow("SELECT FROM node_capacity WHERE node_id = $1 FOR NO KEY UPDATE", node)
    for table in ("gpu_hold", "port_hold", "resource_hold"):
        await connection.execute(f"DELETE FROM {table} WHERE member_id = $1", member)  # noqa: S608  one of three names
