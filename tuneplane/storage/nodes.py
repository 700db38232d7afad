"""Nodes: the view that people and the planner get, the operator's state, and removal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tuneplane.bridge.postgres import Connection, Row
from tuneplane.domain.errors import NotFound, Reason, Refused
from tuneplane.domain.fleets import Fleet
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.hardware import Registry, series_by_card
from tuneplane.domain.ids import FleetId, MemberId, NodeId, UserName
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.jobs import Page, User
from tuneplane.domain.launch_table import MemberPhase
from tuneplane.domain.nodes import MOST_VIOLATIONS, Capacity, Card, Cordon, Left, Node, NodeState, state_under
from tuneplane.domain.nodes import Connection as Link
from tuneplane.domain.ports import Topic
from tuneplane.domain.verdict import DECLARED_LOST, NODE_REMOVED

from .commands import insert_stop, withdraw
from .database import Aggregate, audit, clean, from_json, keys_of, note, page_of, poke
from .decoded import inventory_of
from .fleets import fleet_of
from .hardware import read_registry
from .holds import release
from .seen import fleet_seen, projects_of
from .stopping import was_sent

# Its cards, for people: a planner, which asks for thousands of Nodes, needs only the free ones.
CARDS = """(SELECT coalesce(json_agg(json_build_object('uuid', gpu_uuid, 'index', idx, 'granted', granted, 'occupied', occupied,
            'member', (SELECT member_id FROM gpu_hold WHERE gpu_hold.gpu_uuid = gpu_grant.gpu_uuid),
            'cordons', (SELECT coalesce(json_agg(json_build_object('owner', owner, 'reason', reason, 'since', since) ORDER BY owner), '[]')
                FROM card_cordon WHERE (card_cordon.node_id, card_cordon.gpu_uuid) = (gpu_grant.node_id, gpu_grant.gpu_uuid)))
            ORDER BY idx, gpu_uuid), '[]') FROM gpu_grant WHERE gpu_grant.node_id = node.id)"""

# A Node as one row: its record, session, lease, capacity, cordons and cards, all of one moment.
VIEW = f"""
    SELECT node.*, session.epoch, session.gateway_id, session.opened_at, session.closed_at, session.clock_offset_seconds,
        session.clock_error_seconds, gateway.lease_until, capacity.*,
        (SELECT coalesce(json_agg(json_build_object('owner', owner, 'reason', reason, 'since', since) ORDER BY owner), '[]')
            FROM cordon WHERE cordon.node_id = node.id) AS cordons,
        (SELECT count(*) FROM gpu_grant WHERE gpu_grant.node_id = node.id AND granted) AS gpus,
        (SELECT count(*) FROM gpu_hold WHERE gpu_hold.node_id = node.id) AS gpus_used,
        ARRAY(SELECT gpu_uuid FROM gpu_grant WHERE gpu_grant.node_id = node.id AND granted AND NOT occupied
            AND NOT EXISTS (SELECT FROM gpu_hold WHERE gpu_hold.gpu_uuid = gpu_grant.gpu_uuid)
            AND NOT EXISTS (SELECT FROM card_cordon
                WHERE (card_cordon.node_id, card_cordon.gpu_uuid) = (gpu_grant.node_id, gpu_grant.gpu_uuid))
            ORDER BY idx, gpu_uuid) AS free_gpu_uuids,
        {CARDS} AS cards,
        ARRAY(SELECT port FROM port_hold WHERE port_hold.node_id = node.id ORDER BY port) AS held_ports,
        ARRAY(SELECT member_id FROM resource_hold WHERE resource_hold.node_id = node.id ORDER BY member_id) AS members,
        (SELECT coalesce(json_agg(json_build_object('member', id, 'phase', phase) ORDER BY id), '[]') FROM member
            WHERE member.node_id = node.id AND phase NOT IN ('terminated', 'aborted')) AS left_members,
        ARRAY(SELECT violation FROM member WHERE member.node_id = node.id AND violation <> '' ORDER BY id
            LIMIT {MOST_VIOLATIONS}) AS violations
    FROM node
    JOIN node_capacity AS capacity ON capacity.node_id = node.id
    LEFT JOIN session ON session.node_id = node.id
    LEFT JOIN gateway ON gateway.id = session.gateway_id
    WHERE node.removed_at IS NULL
"""  # noqa: S608  a number of ours
LEAN_VIEW = VIEW.replace(CARDS, "'[]'")


class Nodes(Aggregate):
    """NodeStore, and the planner's look at them (domain/ports.py)."""

    async def get_node(self, node: NodeId, now: datetime) -> Node | None:
        row = await self._db.fetchrow(f"{VIEW} AND node.id = $1", node)
        return node_of(row, now, await self._registry()) if row is not None else None

    async def fleet_of_node(self, node: NodeId) -> Fleet | None:
        row = await self._db.fetchrow(
            "SELECT fleet.* FROM node JOIN fleet ON fleet.id = fleet_id WHERE node.id = $1 AND removed_at IS NULL", node
        )
        return fleet_of(row) if row is not None else None

    async def list_nodes(
        self, fleet: FleetId | None, page: Page, now: datetime, *, seen_by: User | None = None
    ) -> tuple[list[Node], str | None]:
        keys = keys_of(page)
        sql = (
            f"{VIEW} AND ($1::text IS NULL OR fleet_id = $1) AND (node.created_at, node.id) < ($2, $3)"
            f" AND EXISTS (SELECT FROM fleet WHERE fleet.id = fleet_id AND {fleet_seen('$5')})"
            " ORDER BY node.created_at DESC, node.id DESC LIMIT $4"
        )
        found = await self._db.fetch(sql, fleet, keys.at, keys.id, keys.limit, projects_of(seen_by))
        rows, cursor = page_of(found, page)
        registry = await self._registry()
        return [node_of(row, now, registry) for row in rows], cursor

    async def placement_nodes(self, fleet: FleetId, now: datetime) -> list[Node]:
        rows = await self._db.fetch(f"{LEAN_VIEW} AND fleet_id = $1 ORDER BY node.id", fleet)
        registry = await self._registry()
        return [node_of(row, now, registry) for row in rows]

    async def _registry(self) -> Registry:
        return await read_registry(self._db.fetch)

    async def set_node_state(self, node: NodeId, state: NodeState, reason: str, now: datetime, *, by: UserName | None = None) -> Node:
        """``active`` is the operator's word that all is well: it lifts the operator's cordon and that of a lost journal."""
        return await self._db.write("set_node_state", _set_state, node, state, clean(reason), now, by)

    async def accept_epoch(self, node: NodeId, hold: str, by: UserName, now: datetime) -> Node:
        """The operator's word that this database is the one that counts; nothing else lifts a Node's hold (P-07)."""
        return await self._db.write("accept_epoch", _accept_epoch, node, hold, by, now)

    async def delete_node(self, node: NodeId, force: bool, by: UserName, now: datetime) -> None:
        await self._db.write("delete_node", _delete, node, force, by, now)

    async def declare_lost(self, node: NodeId, member: MemberId, by: UserName, reason: str, now: datetime) -> None:
        await self._db.write("declare_lost", _declare_lost, node, member, by, clean(reason), now)


def node_of(row: Row, now: datetime, registry: Registry) -> Node:
    """One row of ``VIEW`` as a value, judged at ``now``; the series of its cards by ``registry``."""
    inventory = inventory_of(row["inventory"]) if row["inventory"] is not None else None
    fresh = row["epoch"] is not None and row["inventory_epoch"] == row["epoch"]
    cordons = tuple(_cordon(item) for item in json.loads(row["cordons"]))
    return Node(
        id=row["id"],
        fleet=row["fleet_id"],
        address=row["address"],
        state=state_under(NodeState(row["state"]), cordons),
        connection=_link(row, now),
        cordons=cordons,
        inventory=inventory,
        inventory_observed_at=row["inventory_observed_at"],
        inventory_healthy=fresh and inventory is not None and not inventory.problems,
        capacity=_capacity(row),
        free_gpu_uuids=tuple(row["free_gpu_uuids"]),
        card_series=series_by_card(inventory, registry),
        cards=tuple(_card(item) for item in json.loads(row["cards"])),
        held_ports=tuple(row["held_ports"]),
        members=tuple(row["members"]),
        left=tuple(Left(member=item["member"], phase=MemberPhase(item["phase"])) for item in json.loads(row["left_members"])),
        violations=tuple(row["violations"]),
        created_at=row["created_at"],
        enrolled_by=row["enrolled_by"],
    )


def _card(item: dict[str, Any]) -> Card:
    return Card(**{**item, "cordons": tuple(_cordon(cordon) for cordon in item["cordons"])})


def _cordon(item: dict[str, str]) -> Cordon:
    return Cordon(owner=item["owner"], reason=item["reason"], since=datetime.fromisoformat(item["since"]))


def _link(row: Row, now: datetime) -> Link:
    """Live: the session's row is open and its gateway's lease is fresh ("At 10,000 Nodes")."""
    if row["epoch"] is None:
        return Link(state="never")
    lease = row["lease_until"] if row["closed_at"] is None else None
    live = lease is not None and lease > now
    since = row["opened_at"] if live else row["closed_at"] or lease or row["opened_at"]
    return Link(
        state="connected" if live else "disconnected",
        since=since,
        gateway=row["gateway_id"],
        epoch=row["epoch"],
        lease_expires_at=lease,
        clock_offset_seconds=row["clock_offset_seconds"],
        clock_error_seconds=row["clock_error_seconds"],
    )


def _capacity(row: Row) -> Capacity | None:
    """None until all three budgets are declared (R-ENR-09)."""
    if row["cpu_millis_budget"] is None or row["memory_bytes_budget"] is None or not row["gpus_declared"]:
        return None
    return Capacity(
        cpu_millis=row["cpu_millis_budget"],
        cpu_millis_used=row["cpu_millis_used"],
        memory_bytes=row["memory_bytes_budget"],
        memory_bytes_used=row["memory_bytes_used"],
        gpus=row["gpus"],
        gpus_used=row["gpus_used"],
    )


async def view(connection: Connection, node: NodeId, now: datetime) -> Node:
    row = await connection.fetchrow(f"{VIEW} AND node.id = $1", node)
    return node_of(row, now, await read_registry(connection.fetch))


async def set_cordon(connection: Connection, node: NodeId, owner: str, reason: str | None, now: datetime) -> None:
    """Set or (None) lift the cordon of one owner; the others' stay (L-F4). ``since`` is kept while it lasts."""
    if reason is None:
        await connection.execute("DELETE FROM cordon WHERE node_id = $1 AND owner = $2", node, owner)
        return
    sql = (
        "INSERT INTO cordon (node_id, owner, reason, since) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (node_id, owner) DO UPDATE SET reason = excluded.reason, clear_since = NULL"
    )
    await connection.execute(sql, node, owner, clean(reason), now)


async def _set_state(connection: Connection, node: NodeId, state: NodeState, reason: str, now: datetime, by: UserName | None) -> Node:
    sql = "UPDATE node SET state = $2 WHERE id = $1 AND removed_at IS NULL RETURNING id"
    if await connection.fetchrow(sql, node, state.value) is None:
        raise NotFound("Node", node)
    await set_cordon(connection, node, "operator", None if state is NodeState.ACTIVE else reason or f"set to {state.value}", now)
    if state is NodeState.ACTIVE:
        await set_cordon(connection, node, "journal", None, now)
    await audit(connection, by, f"node.{state.value}", node, now, reason)
    await poke(connection, Topic.JOBS, Topic.CONSOLE)
    return await view(connection, node, now)


async def _accept_epoch(connection: Connection, node: NodeId, hold: str, by: UserName, now: datetime) -> Node:
    """The epoch is raised to what the Node has seen, so that its next one is newer for both, and the session is closed."""
    row = await connection.fetchrow("SELECT inventory FROM node WHERE id = $1 AND removed_at IS NULL FOR NO KEY UPDATE", node)
    if row is None:
        raise NotFound("Node", node)
    inventory = from_json(Inventory, row["inventory"])
    if inventory is None or inventory.hold is None or inventory.hold.id != hold:
        raise Refused("no-such-hold", f"Node {node} does not report a hold of this id: look at it again")
    await connection.execute("UPDATE node SET accepted_hold = $2 WHERE id = $1", node, hold)
    sql = (
        "UPDATE session SET epoch = greatest(epoch, $2), closed_at = coalesce(closed_at, $3), close_reason = 'epoch-accepted'"
        " WHERE node_id = $1"
    )
    await connection.execute(sql, node, inventory.hold.known_epoch, now)
    await audit(connection, by, "node.accept-epoch", node, now, hold)
    await poke(connection, Topic.SESSIONS, Topic.CONSOLE)
    return await view(connection, node, now)


# ---------------------------------------------------------------- removal


async def _delete(connection: Connection, node: NodeId, force: bool, by: UserName, now: datetime) -> None:
    if await connection.fetchrow("SELECT FROM node WHERE id = $1 AND removed_at IS NULL FOR NO KEY UPDATE", node) is None:
        raise NotFound("Node", node)
    sql = "UPDATE session SET closed_at = $2, close_reason = 'node-removed' WHERE node_id = $1 AND closed_at IS NULL"
    await connection.execute(sql, node, now)  # R-CRD-04: its gateway misses it among the live ones
    sql = (
        "SELECT member.id, member.phase, attempt.job_id FROM member JOIN attempt ON attempt.id = attempt_id"
        " WHERE node_id = $1 AND phase NOT IN ('terminated', 'aborted') ORDER BY member.id FOR NO KEY UPDATE OF member"
    )
    members = await connection.fetch(sql, node)
    seen = await view(connection, node, now)
    if not force:
        _refuse_busy(seen, members)
    for member in members:
        await _give_up(connection, node, member, now)
    await connection.execute("UPDATE credential SET revoked_at = $2 WHERE node_id = $1 AND revoked_at IS NULL", node, now)
    sql = "UPDATE command SET withdrawn_at = $2 WHERE node_id = $1 AND answered_at IS NULL AND withdrawn_at IS NULL"
    await connection.execute(sql, node, now)
    await connection.execute("UPDATE node SET removed_at = $2 WHERE id = $1", node, now)
    left = left_behind([(member["id"], member["phase"]) for member in members], seen.violations)
    await audit(connection, by, "node.delete", node, now, left, forced=force)
    await poke(connection, Topic.SESSIONS, Topic.ATTEMPTS, Topic.JOBS, Topic.CONSOLE)


def left_behind(members: Sequence[tuple[MemberId, str]], violations: Sequence[str]) -> str:
    """What the audit log says of members that a removal ended by force, and of what they were doing as far as anybody knew;
    and of those that had ended, and run all the same."""
    told = [*(f"{member} ({phase})" for member, phase in members), *violations]
    return f"left behind: {', '.join(told)}" if told else ""


def _refuse_busy(node: Node, members: list[Row]) -> None:
    """``node`` as it is now that its row is locked: its drain may have been taken back while that was waited for."""
    if members:
        reasons = tuple(Reason("member", f"{member['id']} is {member['phase']} on it", node.id) for member in members)
        raise Refused("node-busy", f"Node {node.id} still has {len(members)} members: drain it and let them finish", reasons=reasons)
    if node.violations:
        reasons = tuple(Reason("violation", violation, node.id) for violation in node.violations)
        raise Refused("node-busy", f"Node {node.id} still runs what had ended: its stop is under way", reasons=reasons)
    if node.state is NodeState.ACTIVE:
        raise Refused(
            "node-busy", f"Node {node.id} is active: drain or cordon it first", reasons=(Reason("state", "it is active", node.id),)
        )


async def _give_up(connection: Connection, node: NodeId, member: Row, now: datetime) -> None:
    """An operator's audited word that the machine is gone stands for evidence (R-LIV-05, P-11)."""
    detail = f"Node {node} was removed by force while this was {member['phase']} on it"
    await _end_by_word(connection, node, member, NODE_REMOVED, detail, now)
    await note(connection, member["job_id"], now, "member.given-up", member["id"], detail)


async def _end_by_word(connection: Connection, node: NodeId, member: Row, code: str, detail: str, now: datetime) -> None:
    sql = (
        "UPDATE member SET phase = CASE phase WHEN 'pending' THEN 'aborted' ELSE 'terminated' END, ended_at = $2,"
        " reason_code = $3, reason_detail = $4 WHERE id = $1"
    )
    await connection.execute(sql, member["id"], now, code, detail)
    await release(connection, member["id"], node)


async def _declare_lost(connection: Connection, node: NodeId, name: MemberId, by: UserName, reason: str, now: datetime) -> None:
    """The locks on Node and session keep it from coming back meanwhile: it would have to be asked.

    Its expired session is closed: were only its gateway cut off from us, the lease would be renewed and the same epoch be
    valid again, without a report of what still runs.
    """
    sql = "SELECT id FROM node WHERE id = $1 AND removed_at IS NULL FOR NO KEY UPDATE"
    if await connection.fetchrow(sql, node) is None:
        raise NotFound("Node", node)
    if await connection.fetchrow("SELECT FROM member WHERE id = $1 AND node_id = $2", name, node) is None:
        raise NotFound("member", name)
    await _end_silent_session(connection, node, name, now)
    sql = (
        "SELECT member.id, phase, job_id FROM member JOIN attempt ON attempt.id = attempt_id"
        " WHERE member.id = $1 FOR NO KEY UPDATE OF member"
    )
    member = await connection.fetchrow(sql, name)
    if member["phase"] in ("terminated", "aborted"):
        raise Refused("member-ended", f"{name} has ended already ({member['phase']})")
    detail = f"declared lost by {by} while Node {node} was silent and this was {member['phase']} on it: {reason}"
    await _end_by_word(connection, node, member, DECLARED_LOST, detail, now)
    await withdraw(connection, name, (CommandKind.PREPARE, CommandKind.COMMIT), now)
    if await was_sent(connection, name):  # it may run still: should the machine come back, this waits for it
        await insert_stop(connection, name, DECLARED_LOST, now, again=True)
    else:  # no machine has heard of it: nobody will confirm that there is nothing to clean
        await connection.execute("UPDATE member SET cleaned = true WHERE id = $1", name)
    await note(connection, member["job_id"], now, "member.declared-lost", name, detail)
    await audit(connection, by, "member.declare-lost", name, now, f"on Node {node}: {reason}", forced=True)
    await poke(connection, Topic.SESSIONS, Topic.ATTEMPTS, Topic.JOBS, Topic.COMMANDS, Topic.CONSOLE)


async def _end_silent_session(connection: Connection, node: NodeId, name: MemberId, now: datetime) -> None:
    """Close the open session, as of the moment from which the Node counts as silent. Refused while its lease is fresh."""
    sql = (
        "SELECT lease_until FROM session JOIN gateway ON gateway.id = gateway_id"
        " WHERE node_id = $1 AND closed_at IS NULL FOR NO KEY UPDATE OF session"
    )
    session = await connection.fetchrow(sql, node)
    if session is None:
        return
    if session["lease_until"] > now:
        raise Refused("node-live", f"Node {node} is connected: stop the job, and it will confirm the end of {name} itself")
    sql = "UPDATE session SET closed_at = $2, close_reason = 'member-declared-lost' WHERE node_id = $1"
    await connection.execute(sql, node, session["lease_until"])
