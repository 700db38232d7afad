"""Who can be heard, and what the control plane sees of it (domain/sight.py).

The constants are for queries that have ``member`` (or another table with a ``node_id``) and ``node``: live is an open session row
on a gateway whose lease is fresh, by the database's clock.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tuneplane.bridge.postgres import Connection, Row
from tuneplane.domain.ids import NodeId
from tuneplane.domain.ports import Topic
from tuneplane.domain.sight import Brake, Census, Sight, look, window_from
from tuneplane.domain.timings import Timings

from .database import Aggregate, poke

WITH_SESSION = "LEFT JOIN session ON session.node_id = node.id LEFT JOIN gateway ON gateway.id = session.gateway_id"
LIVE = "coalesce(closed_at IS NULL AND lease_until > now(), false)"
SILENT_SINCE = f"CASE WHEN NOT {LIVE} THEN coalesce(closed_at, lease_until, node.created_at) END"

SEEN_AT = "SELECT sight.*, (SELECT min(live_since) FROM gateway WHERE lease_until > {moment}) AS gateways_since FROM sight"
SEEN, SEEN_NOW = SEEN_AT.format(moment="$1"), SEEN_AT.format(moment="now()")
CENSUS = """
    SELECT count(*) FILTER (WHERE live) AS live, count(*) FILTER (WHERE NOT live AND quiet_since >= $2) AS vanished,
        count(*) FILTER (WHERE NOT live AND EXISTS (SELECT FROM unnest($5::float8[]) AS seconds
            WHERE greatest(quiet_since, $3) + seconds * interval '1 second' BETWEEN $4 AND $1)) AS crossed
    FROM (
        SELECT coalesce(closed_at IS NULL AND lease_until > $1, false) AS live, coalesce(closed_at, lease_until, opened_at) AS quiet_since
        FROM node JOIN session ON session.node_id = node.id LEFT JOIN gateway ON gateway.id = session.gateway_id
        WHERE removed_at IS NULL AND state = 'active'
            AND NOT EXISTS (SELECT FROM cordon WHERE cordon.node_id = node.id AND owner = 'machine')
    ) AS seen
"""


class Sights(Aggregate):
    """SightStore (domain/ports.py)."""

    async def look_around(self, missed: bool, now: datetime) -> Sight:
        return await self._db.write("look_around", _look, missed, self._db.timings, now)

    async def load_sight(self, now: datetime) -> Sight | None:
        return sight_of(await self._db.fetchrow(SEEN, now))


def sight_of(row: Row | None) -> Sight | None:
    """Also of a row that was joined to another; None: nobody has looked yet."""
    if row is None or row["seen_since"] is None:
        return None
    census = Census(live=row["live"], vanished=row["vanished"])
    brake = None
    if row["brake_since"] is not None:
        people = census.live + census.vanished
        brake = Brake(since=row["brake_since"], window_from=row["brake_window_from"], vanished=census.vanished, population=people)
    return Sight(
        seen_since=row["seen_since"],
        looked_at=row["looked_at"],
        gateways_since=row["gateways_since"],
        blind_from=row["blind_from"],
        released_at=row["released_at"],
        brake=brake,
        census=census,
    )


async def _look(connection: Connection, missed: bool, timings: Timings, now: datetime) -> Sight:
    """Whoever watches is told of what only time has changed: a Node that went silent, or was so for long enough to matter."""
    await connection.execute("SELECT FROM sight FOR NO KEY UPDATE")  # any number of workers look; one after the other
    former = sight_of(await connection.fetchrow(SEEN, now))
    base, before = (former.counts_from, former.looked_at) if former is not None else (now, now)
    limits = [timings.quiet_serve, timings.quiet_train]
    counts = await connection.fetchrow(CENSUS, now, window_from(former, now, missed, timings), base, before, limits)
    seen = look(former, Census(live=counts["live"], vanished=counts["vanished"]), now, missed, timings)
    await _write(connection, seen)
    lifted = await _lift_cleared(connection, now - timedelta(seconds=timings.storage_steady))
    changed = counts["crossed"] or former is None or (former.census, former.brake is None) != (seen.census, seen.brake is None)
    if changed or lifted:
        await poke(connection, Topic.CONSOLE, *((Topic.JOBS,) if lifted else ()))
    return seen


async def _write(connection: Connection, seen: Sight) -> None:
    sql = (
        "INSERT INTO sight (seen_since, looked_at, blind_from, released_at, brake_since, brake_window_from, live, vanished)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (one_row) DO UPDATE SET seen_since = excluded.seen_since,"
        " looked_at = excluded.looked_at, blind_from = excluded.blind_from, released_at = excluded.released_at,"
        " brake_since = excluded.brake_since, brake_window_from = excluded.brake_window_from, live = excluded.live,"
        " vanished = excluded.vanished"
    )
    brake, census = seen.brake, seen.census
    since, began = (brake.since, brake.window_from) if brake is not None else (None, None)
    await connection.execute(
        sql, seen.seen_since, seen.looked_at, seen.blind_from, seen.released_at, since, began, census.live, census.vanished
    )


async def _lift_cleared(connection: Connection, cleared: datetime) -> list[NodeId]:
    """Storage cordons whose cause is gone since ``cleared``, by an inventory that is still confirmed (R-LIV-03)."""
    sql = (
        "SELECT node.id FROM cordon JOIN node ON node.id = cordon.node_id JOIN session ON session.node_id = node.id"
        " WHERE owner = 'storage' AND clear_since <= $1 AND inventory_epoch = session.epoch AND closed_at IS NULL"
        " ORDER BY node.id FOR NO KEY UPDATE OF node SKIP LOCKED"
    )
    nodes = [row["id"] for row in await connection.fetch(sql, cleared)]
    sql = "DELETE FROM cordon WHERE node_id = ANY($1::text[]) AND owner = 'storage' AND clear_since <= $2"
    await connection.execute(sql, nodes, cleared)
    return nodes
