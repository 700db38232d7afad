"""The one order of locks: units wait for each other and never deadlock (storage/__init__)."""

from __future__ import annotations

import pytest
import trio

from tests.contract import test_storage_races as races
from tests.contract.storage_world import FLEET, USER, World, on_postgres
from tests.support.postgres import Postgres, database_name
from tests.support.waiting import eventually
from tuneplane.bridge.loop import open_bridge
from tuneplane.bridge.postgres import Connection
from tuneplane.domain.errors import Refused
from tuneplane.domain.ids import FleetId, NodeId
from tuneplane.storage import open_storage

CROWDS = [
    races.test_everything_at_once_ends_with_nothing_held,
    races.test_a_card_released_while_another_waits_for_it_goes_to_the_other,
    races.test_gangs_over_the_same_two_nodes_in_both_orders_do_not_deadlock,
    races.test_stop_against_the_sending_of_prepare_is_one_or_the_other,
]


@pytest.mark.seconds(90)
@pytest.mark.parametrize("crowd", CROWDS, ids=lambda crowd: crowd.__name__.removeprefix("test_"))
async def test_crowd_never_deadlocks(database: str, postgres: Postgres, crowd: races.Crowd) -> None:
    """A deadlock would be repeated and go unseen: PostgreSQL counts them."""
    await crowd(lambda: on_postgres(database))
    await _check_that_none_was(database, postgres)


async def _check_that_none_was(database: str, postgres: Postgres) -> None:
    name = database_name(database)
    gone = f"SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = '{name}'"
    await eventually(lambda: postgres.sql(gone) == "t", "the end of all backends: each reports what it counted")
    assert postgres.sql(f"SELECT deadlocks FROM pg_stat_database WHERE datname = '{name}'") == "0"


UNTIL_SOMEBODY_WAITS = """DO $$ BEGIN
    FOR i IN 1..1000 LOOP
        PERFORM pg_stat_clear_snapshot();
        EXIT WHEN EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock');
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$"""


async def _settle_slowly(connection: Connection) -> None:
    """What the end of a stopped stranger does, with the removal of its Node begun in between."""
    await connection.execute("SELECT FROM session WHERE node_id = 'n1' FOR SHARE")
    await connection.execute(UNTIL_SOMEBODY_WAITS)
    sql = "INSERT INTO stranger_command (operation, node_id, member, container_id, kind, asked_by, created_at)"
    await connection.execute(f"{sql} VALUES ('x', 'n1', 'm', '', 'forget', 'ada', now())")


async def test_the_end_of_a_stranger_and_the_removal_of_its_node_do_not_deadlock(database: str, postgres: Postgres) -> None:
    """A report has its session's row and then refers to the Node's; a removal has the Node's row and then ends the session."""
    async with open_bridge(), open_storage(database) as storage:
        world = World(storage)
        await world.node("n1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storage._db.pool.run, _settle_slowly)
            waits = f"SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = '{database_name(database)}' AND query LIKE 'DO $$%'"
            await eventually(lambda: postgres.sql(waits) == "t", "the report to have its session's row")
            nursery.start_soon(storage.delete_node, NodeId("n1"), True, USER, world.now)
    await _check_that_none_was(database, postgres)


UNTIL_TWO_WAIT = UNTIL_SOMEBODY_WAITS.replace("EXISTS (SELECT FROM", "(SELECT count(*) = 2 FROM")


async def _hold_the_fleet(connection: Connection) -> None:
    await connection.execute(f"SELECT FROM fleet WHERE id = '{FLEET}' FOR UPDATE")
    await connection.execute(UNTIL_TWO_WAIT)


async def test_a_join_and_the_deletion_of_its_fleet_do_not_deadlock(database: str, postgres: Postgres) -> None:
    """R-FLT-06: both have the Fleet's row before that of a Join Token, which goes with its Fleet."""
    name = database_name(database)
    async with open_bridge(), open_storage(database) as storage:
        world = World(storage)
        await world.fleet()
        await world.token()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storage._db.pool.run, _hold_the_fleet)
            holds = f"SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = '{name}' AND query LIKE 'DO $$%'"
            await eventually(lambda: postgres.sql(holds) == "t", "the Fleet's row to be held")
            nursery.start_soon(storage.delete_fleet, FleetId(FLEET))
            waits = f"SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = '{name}' AND wait_event_type = 'Lock'"
            await eventually(lambda: postgres.sql(waits) == "t", "the deletion to wait for it")
            with pytest.raises(Refused, match="is no Join Token"):
                await world.join()
    await _check_that_none_was(database, postgres)
