"""Who had to wait for a Node's or a Fleet's row sees what was written meanwhile (R-PLC-04, R-LIV-04, R-LIV-05, L-F1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
import trio

from tests.contract.storage_world import FLEET, USER, World, an_inventory
from tests.storage.test_locks import UNTIL_SOMEBODY_WAITS
from tests.support.postgres import Postgres, database_name
from tests.support.waiting import eventually
from tuneplane.bridge.loop import open_bridge
from tuneplane.bridge.postgres import Connection
from tuneplane.domain.errors import Refused
from tuneplane.domain.fleets import FleetState
from tuneplane.domain.ids import FleetId, NodeId
from tuneplane.storage import PostgresStorage, doubt, drains, fleets, inventories, open_storage

N1 = NodeId("n1")
Unit = Callable[[Connection, datetime], Awaitable[object]]


async def _drain_the_machine(connection: Connection, now: datetime) -> None:
    await drains._set(connection, N1, 1, True, "", now)


async def _change_the_cards(connection: Connection, now: datetime) -> None:
    await inventories._record(connection, N1, 1, an_inventory(("GPU-b",)), "d", now)


async def _doubt_the_journal(connection: Connection, now: datetime) -> None:
    await doubt.doubt_reported(connection, N1, 1, "it went back", now)


async def _drain_the_fleet(connection: Connection, now: datetime) -> None:
    await fleets._update(connection, FleetId(FLEET), None, None, None, FleetState.DRAINING, None, USER, now)


@asynccontextmanager
async def under_way(storage: PostgresStorage, unit: Unit, now: datetime, database: str, postgres: Postgres) -> AsyncIterator[None]:
    """``unit`` has written, and commits as soon as somebody waits for what it has locked."""

    async def slowly(connection: Connection) -> None:
        await unit(connection, now)
        await connection.execute(UNTIL_SOMEBODY_WAITS)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage._db.pool.run, slowly)
        waits = f"SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = '{database_name(database)}' AND query LIKE 'DO $$%'"
        await eventually(lambda: postgres.sql(waits) == "t", "the unit to have written, and not yet committed")
        yield


@pytest.mark.parametrize("unit", [_drain_the_machine, _change_the_cards, _doubt_the_journal, _drain_the_fleet])
async def test_what_closes_a_node_and_a_placement_come_one_after_the_other(database: str, postgres: Postgres, unit: Unit) -> None:
    """R-LIV-04, L-F1: who is told that a machine is drained is not given work by a placement that was under way."""
    async with open_bridge(), open_storage(database) as storage:
        world = World(storage)
        await world.node("n1", cards=("GPU-a",))
        await world.submit()

        async with under_way(storage, unit, world.now, database, postgres):
            assert not await world.place()
        node = await storage.get_node(N1, world.now)
        assert node is not None
        assert (node.left, node.members) == ((), ())


async def _take_the_drain_back(connection: Connection, now: datetime) -> None:
    await drains._set(connection, N1, 1, False, "", now)


async def test_a_machine_that_takes_its_drain_back_is_active_to_a_removal_that_waited(database: str, postgres: Postgres) -> None:
    """R-LIV-05: an active Node is not removed."""
    async with open_bridge(), open_storage(database) as storage:
        world = World(storage)
        await world.node("n1")
        await storage.set_machine_drain(N1, 1, True, "", world.now)
        async with under_way(storage, _take_the_drain_back, world.now, database, postgres):
            with pytest.raises(Refused, match="is active"):
                await storage.delete_node(N1, False, USER, world.now)
