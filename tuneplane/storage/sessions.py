"""Gateways and their leases, credentials, and the one live session of each Node (R-SES-02, P-02, P-15, P-18)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from tuneplane.bridge.postgres import Connection, Row
from tuneplane.domain.errors import Refused
from tuneplane.domain.frames import Hello
from tuneplane.domain.ids import GatewayId, MemberId, NodeId
from tuneplane.domain.jobs import GatewayAddress, NodeIdentity, SessionOpened
from tuneplane.domain.ports import Topic

from .database import Aggregate, clean, poke
from .doubt import doubt_journal, reconcile


class Sessions(Aggregate):
    """The session part of SessionStore (domain/ports.py)."""

    async def register_gateway(self, gateway: GatewayId, host: str, port: int, now: datetime, lease_until: datetime) -> None:
        """Sessions that an earlier process of the same name left open are closed: their streams died with it."""
        await self._db.write("register_gateway", _register, gateway, host, port, now, lease_until)

    async def renew_gateway(self, gateway: GatewayId, lease_until: datetime) -> bool:
        lapsed = lease_until - timedelta(seconds=self._db.timings.gateway_lease)  # the gateway's own present
        return await self._db.write("renew_gateway", _renew, gateway, lease_until, lapsed)

    async def close_gateway(self, gateway: GatewayId, now: datetime) -> None:
        await self._db.write("close_gateway", _close_gateway, gateway, now)

    async def authenticate(self, secret_hash: str, now: datetime) -> NodeIdentity:
        sql = (
            "SELECT node.id, fleet_id, removed_at, expires_at, revoked_at FROM credential"
            " JOIN node ON node.id = node_id WHERE secret_hash = $1"
        )
        row = await self._db.fetchrow(sql, secret_hash)
        _check_credential(row, now)
        assert row is not None  # _check_credential refuses None
        return NodeIdentity(node=row["id"], fleet=row["fleet_id"], credential_expires_at=row["expires_at"])

    async def open_session(self, identity: NodeIdentity, gateway: GatewayId, hello: Hello, now: datetime) -> SessionOpened:
        """Refused ``identity-in-use`` while another machine, or another boot of it, holds a live session (P-15)."""
        return await self._db.write("open_session", _open, identity, gateway, hello, now)

    async def close_session(self, node: NodeId, epoch: int, reason: str, now: datetime) -> None:
        await self._db.write("close_session", _close, node, epoch, clean(reason), now)

    async def reconcile(self, node: NodeId, epoch: int, reported: Collection[MemberId], now: datetime) -> None:
        """Absence of a member that the Node's journal had is doubt of that journal (P-02)."""
        await self._db.write("reconcile", reconcile, node, epoch, sorted(reported), now)

    async def live_epochs(self, gateway: GatewayId) -> dict[NodeId, int]:
        rows = await self._db.fetch("SELECT node_id, epoch FROM session WHERE gateway_id = $1 AND closed_at IS NULL", gateway)
        return {row["node_id"]: row["epoch"] for row in rows}

    async def gateway_of(self, node: NodeId, now: datetime) -> GatewayAddress | None:
        sql = (
            "SELECT gateway.id, host, port FROM session JOIN gateway ON gateway.id = gateway_id"
            " WHERE node_id = $1 AND closed_at IS NULL AND lease_until > $2"
        )
        row = await self._db.fetchrow(sql, node, now)
        return GatewayAddress(gateway=row["id"], host=row["host"], port=row["port"]) if row is not None else None


def _check_credential(row: Row | None, now: datetime) -> None:
    if row is None:
        raise Refused("credential-unknown", "no Node has this credential")
    if row["removed_at"] is not None:
        raise Refused("node-removed", f"Node {row['id']} was removed: join again")
    if row["revoked_at"] is not None:
        raise Refused("credential-revoked", f"this credential of Node {row['id']} was revoked")
    if row["expires_at"] <= now:
        raise Refused("credential-expired", f"the credential of Node {row['id']} expired at {row['expires_at']:%Y-%m-%d %H:%M:%SZ}")


# ---------------------------------------------------------------- gateways


async def _register(connection: Connection, gateway: GatewayId, host: str, port: int, now: datetime, lease_until: datetime) -> None:
    await _close_all(connection, gateway, now, "gateway-restarted")
    sql = (
        "INSERT INTO gateway (id, host, port, started_at, live_since, lease_until) VALUES ($1, $2, $3, $4, $4, $5)"
        " ON CONFLICT (id) DO UPDATE SET host = excluded.host, port = excluded.port, started_at = excluded.started_at,"
        " live_since = excluded.live_since, lease_until = excluded.lease_until"
    )
    await connection.execute(sql, gateway, host, port, now, lease_until)


async def _renew(connection: Connection, gateway: GatewayId, lease_until: datetime, present: datetime) -> bool:
    """A lease that had run out begins anew: nobody could see through this gateway meanwhile (P-16)."""
    sql = (
        "UPDATE gateway SET lease_until = $2, live_since = CASE WHEN lease_until < $3 THEN $3 ELSE live_since END"
        " WHERE id = $1 RETURNING id"
    )
    return await connection.fetchrow(sql, gateway, lease_until, present) is not None


async def _close_gateway(connection: Connection, gateway: GatewayId, now: datetime) -> None:
    await _close_all(connection, gateway, now, "gateway-closed")
    await connection.execute("DELETE FROM gateway WHERE id = $1", gateway)
    await poke(connection, Topic.CONSOLE)


async def _close_all(connection: Connection, gateway: GatewayId, now: datetime, reason: str) -> None:
    sql = "SELECT node_id FROM session WHERE gateway_id = $1 AND closed_at IS NULL ORDER BY node_id FOR NO KEY UPDATE"
    await connection.fetch(sql, gateway)
    sql = "UPDATE session SET closed_at = $2, close_reason = $3 WHERE gateway_id = $1 AND closed_at IS NULL"
    await connection.execute(sql, gateway, now, reason)


# ---------------------------------------------------------------- sessions


async def _open(connection: Connection, identity: NodeIdentity, gateway: GatewayId, hello: Hello, now: datetime) -> SessionOpened:
    sql = (
        "SELECT journal_id, journal_sequence, accepted_hold, accepted_cards FROM node"
        " WHERE id = $1 AND removed_at IS NULL FOR NO KEY UPDATE"
    )
    node = await connection.fetchrow(sql, identity.node)
    if node is None:
        raise Refused("node-removed", f"Node {identity.node} was removed: join again")
    epoch, machine = await _raise_epoch(connection, identity.node, gateway, hello, now)
    doubt = _doubt(node, machine, hello)
    if doubt is not None:
        await doubt_journal(connection, identity.node, doubt, now)
    sql = "UPDATE node SET journal_id = $2, journal_sequence = $3 WHERE id = $1"
    await connection.execute(sql, identity.node, hello.journal_id, hello.journal_sequence)
    doubted = (Topic.ATTEMPTS, Topic.COMMANDS) if doubt is not None else ()
    await poke(connection, Topic.SESSIONS, Topic.CONSOLE, *doubted)
    return SessionOpened(
        node=identity.node, epoch=epoch, gateway=gateway, accepted_hold=node["accepted_hold"], accepted_cards=node["accepted_cards"]
    )


async def _raise_epoch(connection: Connection, node: NodeId, gateway: GatewayId, hello: Hello, now: datetime) -> tuple[int, str]:
    """The new epoch, and the id of the machine that had the former session ("" if that could not tell)."""
    sql = (
        "SELECT session.*, gateway.lease_until FROM session LEFT JOIN gateway ON gateway.id = gateway_id"
        " WHERE node_id = $1 FOR NO KEY UPDATE OF session"
    )
    former = await connection.fetchrow(sql, node)
    if former is not None:
        _check_same_machine(node, former, hello, now)
    epoch = 1 if former is None else int(former["epoch"]) + 1
    sql = (
        "INSERT INTO session (node_id, epoch, gateway_id, machine_id, boot_id, opened_at, clock_offset_seconds)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (node_id) DO UPDATE SET epoch = excluded.epoch,"
        " gateway_id = excluded.gateway_id, machine_id = excluded.machine_id, boot_id = excluded.boot_id,"
        " opened_at = excluded.opened_at, closed_at = NULL, close_reason = '',"
        " clock_offset_seconds = excluded.clock_offset_seconds, clock_error_seconds = NULL"
    )
    offset = (hello.sent_at - now).total_seconds()
    await connection.execute(sql, node, epoch, gateway, clean(hello.machine_id), clean(hello.boot_id), now, offset)
    return epoch, former["machine_id"] if former is not None else ""


def _check_same_machine(node: NodeId, former: Row, hello: Hello, now: datetime) -> None:
    live = former["closed_at"] is None and former["lease_until"] is not None and former["lease_until"] > now
    if live and (former["machine_id"], former["boot_id"]) != (clean(hello.machine_id), clean(hello.boot_id)):
        raise Refused("identity-in-use", f"Node {node} has a live session from another machine or boot: it is refused until that one ends")


def _doubt(node: Row, machine: str, hello: Hello) -> str | None:
    """Why the journal is not the one we knew (P-02, P-12)."""
    if node["journal_id"] is None:
        return None
    if node["journal_id"] != hello.journal_id:
        return f"the Node came back with another journal ({hello.journal_id}, was {node['journal_id']})"
    if hello.journal_sequence < node["journal_sequence"]:
        return f"the Node's journal went back from {node['journal_sequence']} to {hello.journal_sequence}"
    if machine and hello.machine_id and clean(hello.machine_id) != machine:
        return f"the Node's journal is on another machine ({clean(hello.machine_id)}, was {machine}): a clone, or it was moved"
    return None


async def _close(connection: Connection, node: NodeId, epoch: int, reason: str, now: datetime) -> None:
    sql = "UPDATE session SET closed_at = $3, close_reason = $4 WHERE node_id = $1 AND epoch = $2 AND closed_at IS NULL RETURNING epoch"
    if await connection.fetchrow(sql, node, epoch, now, reason) is not None:
        await poke(connection, Topic.CONSOLE)
