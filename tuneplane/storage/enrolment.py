"""Join Tokens and joining (R-ENR-01, R-ENR-03, P-14)."""

from __future__ import annotations

from datetime import datetime

from tuneplane.bridge.postgres import Connection, ConstraintViolated, Row
from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.fleets import Delivery, FleetKind
from tuneplane.domain.ids import FleetId, NodeId, TokenId, UserName
from tuneplane.domain.jobs import JoinRequest, JoinToken
from tuneplane.domain.nodes import Node
from tuneplane.domain.ports import Topic

from .database import Aggregate, audit, poke
from .inventories import write_inventory
from .nodes import view


class Enrolment(Aggregate):
    """EnrolmentStore (domain/ports.py)."""

    async def mint_join_token(self, token: JoinToken, secret_hash: str) -> None:
        try:
            await self._db.write("mint_join_token", _mint, token, secret_hash)
        except ConstraintViolated as error:
            if error.constraint != "join_token_fleet_id_fkey":
                raise
            raise NotFound("Fleet", token.fleet) from error

    async def list_join_tokens(self, fleet: FleetId) -> list[JoinToken]:
        rows = await self._db.fetch("SELECT * FROM join_token WHERE fleet_id = $1 ORDER BY created_at DESC, id DESC", fleet)
        return [_token(row) for row in rows]

    async def revoke_join_token(self, fleet: FleetId, token: TokenId, now: datetime, *, by: UserName | None = None) -> bool:
        return await self._db.write("revoke_join_token", _revoke, fleet, token, now, by)

    async def join(
        self,
        fleet: FleetId,
        request: JoinRequest,
        *,
        node: NodeId,
        token_hash: str,
        join_key_hash: str,
        credential_hash: str,
        credential_expires_at: datetime,
        now: datetime,
    ) -> Node:
        return await self._db.write(
            "join", _join, fleet, request, node, token_hash, join_key_hash, credential_hash, credential_expires_at, now
        )

    async def nodes_at_address(self, fleet: FleetId, address: str, besides: NodeId) -> list[NodeId]:
        sql = (
            "SELECT node.id FROM node JOIN session ON session.node_id = node.id JOIN gateway ON gateway.id = gateway_id"
            " JOIN fleet ON fleet.id = fleet_id JOIN fleet AS joined ON joined.id = $1"
            " WHERE lower(address) = lower($2) AND node.id <> $3 AND removed_at IS NULL AND closed_at IS NULL AND lease_until > now()"
            " AND (fleet.id = $1 OR fleet.visibility = 'public' OR fleet.project = joined.project) ORDER BY node.id"
        )
        return [row["id"] for row in await self._db.fetch(sql, fleet, address, besides)]


async def _mint(connection: Connection, token: JoinToken, secret_hash: str) -> None:
    sql = (
        "INSERT INTO join_token (id, fleet_id, secret_hash, created_by, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6)"
        " ON CONFLICT (id) DO NOTHING RETURNING id"  # a repeat after a lost answer
    )
    made = (token.id, token.fleet, secret_hash, token.created_by, token.created_at, token.expires_at)
    if await connection.fetchrow(sql, *made) is not None:
        await audit(connection, token.created_by, "join-token.create", token.id, token.created_at, token.fleet)


async def _revoke(connection: Connection, fleet: FleetId, token: TokenId, now: datetime, by: UserName | None) -> bool:
    sql = "UPDATE join_token SET revoked_at = coalesce(revoked_at, $3) WHERE id = $1 AND fleet_id = $2 RETURNING id"
    if await connection.fetchrow(sql, token, fleet, now) is None:
        return False
    await audit(connection, by, "join-token.revoke", token, now, fleet)
    return True


async def _join(
    connection: Connection,
    fleet: FleetId,
    request: JoinRequest,
    node: NodeId,
    token_hash: str,
    join_key_hash: str,
    credential_hash: str,
    credential_expires_at: datetime,
    now: datetime,
) -> Node:
    await connection.execute("SELECT FROM fleet WHERE id = $1 FOR KEY SHARE", fleet)  # first, as who deletes it with its tokens
    sql = (
        "SELECT join_token.*, fleet.kind, fleet.delivery FROM join_token JOIN fleet ON fleet.id = fleet_id"
        " WHERE secret_hash = $1 AND fleet_id = $2 FOR NO KEY UPDATE OF join_token"
    )
    token = await connection.fetchrow(sql, token_hash, fleet)  # the lock that decides a race of two machines
    _check(token, fleet, join_key_hash, now)
    if token["used_by"] is None:
        await _enrol(connection, fleet, request, node, token, join_key_hash, now)
    else:
        node = token["used_by"]
        await _repeat(connection, request, node, token, now)
    sql = "INSERT INTO credential (secret_hash, node_id, created_at, expires_at) VALUES ($1, $2, $3, $4)"
    await connection.execute(sql, credential_hash, node, now, credential_expires_at)
    await write_inventory(connection, node, request.inventory, Delivery(token["delivery"]), now)
    await audit(connection, token["created_by"], "node.join", node, now, f"{fleet} at {request.address}")
    await poke(connection, Topic.CONSOLE)
    return await view(connection, node, now)


def _check(token: Row | None, fleet: FleetId, join_key_hash: str, now: datetime) -> None:
    if token is None:
        raise Refused("token-unknown", f"this is no Join Token of Fleet {fleet}; only Fleets of kind 'node' have any")
    if token["kind"] != FleetKind.NODE.value:
        raise Refused("not-a-node-fleet", f"Fleet {fleet} is of kind {token['kind']}: only node Fleets enrol machines")
    if token["revoked_at"] is not None:
        raise Refused("token-revoked", f"the Join Token was revoked at {token['revoked_at']:%Y-%m-%d %H:%M:%SZ}")
    if token["used_by"] is not None and token["join_key_hash"] != join_key_hash:
        raise Refused("token-used", f"the Join Token was used by Node {token['used_by']}: mint another one")
    if token["expires_at"] <= now:
        raise Refused("token-expired", f"the Join Token expired at {token['expires_at']:%Y-%m-%d %H:%M:%SZ}")


async def _enrol(
    connection: Connection, fleet: FleetId, request: JoinRequest, node: NodeId, token: Row, join_key_hash: str, now: datetime
) -> None:
    sql = "INSERT INTO node (id, fleet_id, address, created_at, enrolled_by) VALUES ($1, $2, $3, $4, $5)"
    await connection.execute(sql, node, fleet, request.address, now, token["created_by"])
    await connection.execute("INSERT INTO node_capacity (node_id) VALUES ($1)", node)
    sql = "UPDATE join_token SET used_at = $2, used_by = $3, join_key_hash = $4, try_ordinal = $5 WHERE id = $1"
    await connection.execute(sql, token["id"], now, node, join_key_hash, request.try_)


async def _repeat(connection: Connection, request: JoinRequest, node: NodeId, token: Row, now: datetime) -> None:
    """The same machine again: it lost our answer. A late first request must not undo a second (P-14)."""
    if request.try_ <= token["try_ordinal"]:
        raise Refused("stale-try", f"join attempt {request.try_} is older than {token['try_ordinal']}, which was answered")
    sql = "SELECT removed_at FROM node WHERE id = $1 AND NOT EXISTS (SELECT FROM session WHERE node_id = $1) FOR NO KEY UPDATE OF node"
    row = await connection.fetchrow(sql, node)
    if row is None or row["removed_at"] is not None:
        raise Refused("token-used", f"Node {node} joined with this token and has connected since (or was removed): mint another one")
    await connection.execute("UPDATE credential SET revoked_at = $2 WHERE node_id = $1 AND revoked_at IS NULL", node, now)
    await connection.execute("UPDATE node SET address = $2 WHERE id = $1", node, request.address)
    await connection.execute("UPDATE join_token SET try_ordinal = $2 WHERE id = $1", token["id"], request.try_)


def _token(row: Row) -> JoinToken:
    return JoinToken(
        id=row["id"],
        fleet=row["fleet_id"],
        created_by=row["created_by"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        used_at=row["used_at"],
        used_by=row["used_by"],
    )
