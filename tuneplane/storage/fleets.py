"""Fleets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from enum import Enum

from tuneplane.bridge.postgres import Connection, ConstraintViolated, Row
from tuneplane.domain.errors import NotFound, Reason, Refused
from tuneplane.domain.fleets import Capability, Delivery, Fleet, FleetKind, FleetState, Visibility
from tuneplane.domain.ids import FleetId, UserName
from tuneplane.domain.jobs import Page, User
from tuneplane.domain.ports import Topic

from .database import Aggregate, audit, keys_of, page_of, poke
from .seen import fleet_seen, projects_of

NAMED_IN_REFUSAL = 20  # Nodes and jobs that a refusal lists by name; the sentence has the whole count


class Fleets(Aggregate):
    """FleetStore (domain/ports.py)."""

    async def create_fleet(self, fleet: Fleet, *, by: UserName | None = None) -> None:
        try:
            await self._db.write("create_fleet", _create, fleet, by)
        except ConstraintViolated as error:
            if error.constraint != "fleet_pkey":
                raise
            raise Refused("exists", f"there is a Fleet named {fleet.id!r} already", field="id") from error

    async def get_fleet(self, fleet: FleetId) -> Fleet | None:
        row = await self._db.fetchrow("SELECT * FROM fleet WHERE id = $1", fleet)
        return fleet_of(row) if row is not None else None

    async def list_fleets(self, page: Page, *, seen_by: User | None = None) -> tuple[list[Fleet], str | None]:
        keys = keys_of(page)
        seen = fleet_seen("$4")
        sql = f"SELECT * FROM fleet WHERE (created_at, id) < ($1, $2) AND {seen} ORDER BY created_at DESC, id DESC LIMIT $3"  # noqa: S608
        rows, cursor = page_of(await self._db.fetch(sql, keys.at, keys.id, keys.limit, projects_of(seen_by)), page)
        return [fleet_of(row) for row in rows], cursor

    async def update_fleet(
        self,
        fleet: FleetId,
        *,
        capabilities: tuple[Capability, ...] | None,
        visibility: Visibility | None,
        project: str | None,
        state: FleetState | None,
        config: dict[str, str] | None,
        by: UserName | None = None,
        now: datetime | None = None,
    ) -> Fleet:
        return await self._db.write("update_fleet", _update, fleet, capabilities, visibility, project, state, config, by, now)

    async def delete_fleet(self, fleet: FleetId, *, by: UserName | None = None, now: datetime | None = None) -> None:
        await self._db.write("delete_fleet", _delete, fleet, by, now)


async def _create(connection: Connection, fleet: Fleet, by: UserName | None) -> None:
    sql = (
        "INSERT INTO fleet (id, kind, delivery, capabilities, visibility, project, state, config, created_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
    )
    changing = (_names(fleet.capabilities), fleet.visibility.value, fleet.project, fleet.state.value, json.dumps(fleet.config))
    await connection.execute(sql, fleet.id, fleet.kind.value, fleet.delivery.value, *changing, fleet.created_at)
    await audit(connection, by, "fleet.create", fleet.id, fleet.created_at, fleet.kind.value)
    await poke(connection, Topic.CONSOLE)


async def _update(
    connection: Connection,
    fleet: FleetId,
    capabilities: tuple[Capability, ...] | None,
    visibility: Visibility | None,
    project: str | None,
    state: FleetState | None,
    config: dict[str, str] | None,
    by: UserName | None,
    now: datetime | None,
) -> Fleet:
    sql = (
        "UPDATE fleet SET capabilities = coalesce($2, capabilities), visibility = coalesce($3, visibility),"
        " project = CASE WHEN coalesce($3, visibility) = 'public' THEN NULL ELSE coalesce($4, project) END,"
        " state = coalesce($5, state), config = coalesce($6, config) WHERE id = $1 RETURNING *"
    )
    row = await connection.fetchrow(
        sql,
        fleet,
        None if capabilities is None else _names(capabilities),
        None if visibility is None else visibility.value,
        project,
        None if state is None else state.value,
        None if config is None else json.dumps(config),
    )
    if row is None:
        raise NotFound("Fleet", fleet)
    given = {"capabilities": capabilities, "visibility": visibility, "project": project, "state": state, "config": config}
    await audit(connection, by, "fleet.update", fleet, now or row["created_at"], what_changed(given))
    await poke(connection, Topic.JOBS, Topic.ACCOUNTS, Topic.CONSOLE)  # who may see it may be others now
    return fleet_of(row)


def what_changed(given: Mapping[str, object]) -> str:
    """What the audit log says of a change: the fields that were given, and the words of those that are words (R-ADM-02)."""
    named = [f"{name} {value.value}" if isinstance(value, Enum) else name for name, value in given.items() if value is not None]
    return ", ".join(named)


# What keeps a Fleet (R-FLT-06): a code, the rows of it that live there, and what is said of one. Every such table has a
# foreign key to the Fleet, so that no row can come while it is being deleted. Deployments will be one more line.
KEEPERS = (
    ("node", "SELECT id FROM node WHERE live_fleet_id = $1 ORDER BY id", "Node {} is enrolled in it", "Nodes"),
    ("job", "SELECT id FROM job WHERE live_fleet_id = $1 ORDER BY id", "job {} has not ended", "jobs that have not ended"),
)


async def _delete(connection: Connection, fleet: FleetId, by: UserName | None, now: datetime | None) -> None:
    """The row lock excludes joins and submissions meanwhile: both reference it."""
    row = await connection.fetchrow("SELECT created_at FROM fleet WHERE id = $1 FOR UPDATE", fleet)
    if row is None:
        raise NotFound("Fleet", fleet)
    left = {code: [str(row["id"]) for row in await connection.fetch(sql, fleet)] for code, sql, _, _ in KEEPERS}
    refuse_kept(fleet, left)
    await connection.execute("DELETE FROM fleet WHERE id = $1", fleet)
    await audit(connection, by, "fleet.delete", fleet, now or row["created_at"])
    await poke(connection, Topic.JOBS, Topic.CONSOLE)


def refuse_kept(fleet: FleetId, left: dict[str, list[str]]) -> None:
    """Refused(code="fleet-in-use") naming what lives in the Fleet, some of each kind; the sentence has the whole counts."""
    kept = [(code, left[code], one, many) for code, _, one, many in KEEPERS if left[code]]
    if kept:
        counts = " and ".join(f"{len(names)} {many}" for _, names, _, many in kept)
        reasons = tuple(Reason(code, one.format(name), name) for code, names, one, _ in kept for name in names[:NAMED_IN_REFUSAL])
        raise Refused("fleet-in-use", f"Fleet {fleet} still has {counts}", reasons=reasons)


def _names(capabilities: tuple[Capability, ...]) -> list[str]:
    return [capability.value for capability in capabilities]


def fleet_of(row: Row) -> Fleet:
    created_at: datetime = row["created_at"]
    return Fleet(
        id=row["id"],
        kind=FleetKind(row["kind"]),
        delivery=Delivery(row["delivery"]),
        capabilities=tuple(Capability(name) for name in row["capabilities"]),
        visibility=Visibility(row["visibility"]),
        project=row["project"],
        state=FleetState(row["state"]),
        config=json.loads(row["config"]),
        created_at=created_at,
    )
