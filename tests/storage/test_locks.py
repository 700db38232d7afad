"""The one order of locks: units wait for each other and never deadlock (storage/__init__)."""

from __future__ import annotations

import pytest

from tests.contract import test_storage_races as races
from tests.contract.storage_world import on_postgres
from tests.support.postgres import Postgres, database_name
from tests.support.waiting import eventually

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
    name = database_name(database)
    gone = f"SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = '{name}'"
    await eventually(lambda: postgres.sql(gone) == "t", "the end of all backends: each reports what it counted")
    assert postgres.sql(f"SELECT deadlocks FROM pg_stat_database WHERE datname = '{name}'") == "0"
