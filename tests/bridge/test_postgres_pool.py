"""The pool on a real PostgreSQL: cancellation, exhaustion, lost connections, a server that dies, freezes and returns."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tests.support.postgres import Postgres, database_name, open_postgres
from tests.support.waiting import eventually
from tuneplane.bridge import postgres as module
from tuneplane.bridge.loop import open_bridge
from tuneplane.bridge.postgres import ConstraintViolated, Pool, PostgresUnavailable, StatementFailed, open_pool

TABLE = "CREATE TABLE t (i int PRIMARY KEY)"
BUSY = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()"


@pytest.fixture(params=[True, False], ids=["batched", "stock"])
def batched(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@asynccontextmanager
async def a_pool(dsn: str, *, size: int = 2, batched: bool = True, command_seconds: float = 10.0) -> AsyncIterator[Pool]:
    async with open_bridge(batched=batched), open_pool(dsn, size=size, command_seconds=command_seconds) as pool:
        yield pool


async def insert(connection: Any, *numbers: int) -> int:
    for number in numbers:
        await connection.execute("INSERT INTO t VALUES ($1)", number)
    return len(numbers)


async def insert_and_sleep(connection: Any, number: int) -> None:
    await insert(connection, number)
    await connection.execute("SELECT pg_sleep(20)")


async def none_busy(pool: Pool) -> bool:
    return not await pool.fetchval(BUSY)


async def healthy(pool: Pool, size: int = 2) -> None:
    """All connections can be had at once, and none is left in a statement or transaction."""
    meeting = "SELECT pg_sleep(0.05)"
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for _ in range(size):
                nursery.start_soon(pool.execute, meeting)
        await eventually(lambda: none_busy(pool), "no connection in a statement or transaction")


# ---------------------------------------------------------------- units of work


async def test_unit_commits_as_a_whole(blank_database: str, batched: bool) -> None:
    async with a_pool(blank_database, batched=batched) as pool:
        await pool.execute(TABLE)
        assert await pool.run(insert, 1, 2, 3) == 3
        assert await pool.fetchval("SELECT count(*) FROM t") == 3
        assert await pool.fetchrow("SELECT * FROM t WHERE i = 9") is None
        assert [row["i"] for row in await pool.fetch("SELECT i FROM t ORDER BY i")] == [1, 2, 3]


async def test_unit_that_raises_changes_nothing_and_raises_what_it_raised(blank_database: str) -> None:
    async def unit(connection: Any) -> None:
        await insert(connection, 1)
        raise LookupError("mine")

    async with a_pool(blank_database) as pool:
        await pool.execute(TABLE)
        with pytest.raises(LookupError, match="mine"):
            await pool.run(unit)
        assert await pool.fetchval("SELECT count(*) FROM t") == 0
        await healthy(pool)


async def test_unit_that_breaks_a_constraint_names_it(blank_database: str) -> None:
    async with a_pool(blank_database) as pool:
        await pool.execute(TABLE)
        with pytest.raises(ConstraintViolated) as caught:
            await pool.run(insert, 1, 2, 1)
        assert caught.value.constraint == "t_pkey"
        assert await pool.fetchval("SELECT count(*) FROM t") == 0


async def test_deferred_constraint_that_fails_at_commit_is_known_not_to_have_happened(blank_database: str) -> None:
    async def unit(connection: Any) -> None:
        await connection.execute("INSERT INTO u VALUES (7)")

    async with a_pool(blank_database) as pool:
        await pool.execute(TABLE)
        await pool.execute("CREATE TABLE u (i int REFERENCES t DEFERRABLE INITIALLY DEFERRED)")
        with pytest.raises(ConstraintViolated) as caught:
            await pool.run(unit)
        assert caught.value.constraint == "u_i_fkey"


async def test_statement_that_is_wrong_says_its_sqlstate(blank_database: str) -> None:
    async with a_pool(blank_database) as pool:
        with pytest.raises(StatementFailed) as caught:
            await pool.fetch("SELECT * FROM nowhere")
        assert caught.value.sqlstate == "42P01"
        await healthy(pool)


async def test_read_sees_one_moment_and_cannot_write(blank_database: str) -> None:
    async with a_pool(blank_database) as pool:
        await pool.execute(TABLE)
        between = trio.Event()

        async def unit(connection: Any) -> tuple[int, int]:
            before = await connection.fetchval("SELECT count(*) FROM t")
            await connection.execute("SELECT pg_sleep(0.1)")
            return before, await connection.fetchval("SELECT count(*) FROM t")

        async def writer() -> None:
            await trio.sleep(0.03)
            await pool.run(insert, 1)
            between.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer)
            assert await pool.read(unit) == (0, 0)
        assert between.is_set()
        with pytest.raises(StatementFailed):
            await pool.read(insert, 2)


async def test_deadlock_is_repeated_until_both_units_are_done(blank_database: str) -> None:
    async def swap(connection: Any, first: int, second: int) -> None:
        await connection.execute("SELECT * FROM t WHERE i = $1 FOR UPDATE", first)
        await connection.execute("SELECT pg_sleep(0.2)")
        await connection.execute("SELECT * FROM t WHERE i = $1 FOR UPDATE", second)

    async with a_pool(blank_database) as pool:
        await pool.execute(TABLE)
        await pool.run(insert, 1, 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.run, swap, 1, 2)
            nursery.start_soon(pool.run, swap, 2, 1)


# ---------------------------------------------------------------- cancellation


@pytest.mark.parametrize("unit", [True, False], ids=["unit", "statement"])
async def test_cancelled_query_leaves_a_healthy_pool(blank_database: str, batched: bool, unit: bool) -> None:
    async with a_pool(blank_database, batched=batched) as pool:
        await pool.execute(TABLE)
        with trio.move_on_after(0.1) as scope:
            await (pool.run(insert_and_sleep, 1) if unit else pool.execute("SELECT pg_sleep(20)"))
        assert scope.cancelled_caught
        assert await pool.fetchval("SELECT count(*) FROM t") == 0
        await healthy(pool)


async def test_cancel_during_commit_waits_for_its_outcome(blank_database: str) -> None:
    """*Unless COMMIT was already sent*: it is not torn, and the caller learns that it was cancelled."""
    async with a_pool(blank_database) as pool:
        await pool.execute(TABLE)
        with trio.CancelScope() as scope:

            @contextmanager
            def bracket() -> Iterator[None]:
                scope.cancel()
                yield

            await pool.run_bracketed(bracket, insert, 1)
        assert await pool.fetchval("SELECT count(*) FROM t") in (0, 1)
        await healthy(pool)


@pytest.mark.seconds(60)
async def test_random_cancels_never_tear_a_transaction(blank_database: str, batched: bool) -> None:
    """Twenty tasks on five connections, cancelled at random moments: whole transactions only, and no odd error."""
    seed = 20261130
    rng = random.Random(seed)

    async def pair(connection: Any, number: int) -> None:
        await insert(connection, number)
        await connection.execute("SELECT pg_sleep(0.001)")
        await insert(connection, -number)

    async with a_pool(blank_database, size=5, batched=batched) as pool:
        await pool.execute(TABLE)
        committed: list[int] = []

        async def worker(first: int) -> None:
            for number in range(first, first + 30):
                with trio.move_on_after(rng.random() * 0.05):
                    await pool.run(pair, number)
                    committed.append(number)

        async with trio.open_nursery() as nursery:
            for first in range(1, 2000, 100):
                nursery.start_soon(worker, first)
        assert await pool.fetchval("SELECT count(*) FROM t a WHERE NOT EXISTS (SELECT FROM t b WHERE b.i = -a.i)") == 0, seed
        kept = {row["i"] for row in await pool.fetch("SELECT i FROM t WHERE i > 0")}
        assert set(committed) <= kept, seed
        await healthy(pool, 5)


async def test_exhausted_pool_waits_as_long_as_the_callers_scope_allows(blank_database: str) -> None:
    async with a_pool(blank_database, size=1) as pool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.execute, "SELECT pg_sleep(0.5)")
            await trio.testing.wait_all_tasks_blocked(0.05)
            with pytest.raises(trio.TooSlowError):
                with trio.fail_after(0.1):
                    await pool.fetchval("SELECT 1")
            assert await pool.fetchval("SELECT 1") == 1  # in its turn


async def test_ended_backend_is_unavailable_once_and_then_replaced(blank_database: str) -> None:
    async with a_pool(blank_database) as pool:
        own = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep(20)'"
        async with trio.open_nursery() as nursery:

            async def victim() -> None:
                with pytest.raises(PostgresUnavailable):
                    await pool.execute("SELECT pg_sleep(20)")

            nursery.start_soon(victim)
            await eventually(lambda: pool.fetchval(own), "the victim's backend")
        await healthy(pool)


async def test_terminate_ends_what_is_in_flight(blank_database: str) -> None:
    async with a_pool(blank_database) as pool:
        async with trio.open_nursery() as nursery:

            async def victim() -> None:
                with pytest.raises(PostgresUnavailable):
                    await pool.run(insert_and_sleep, 1)

            await pool.execute(TABLE)
            nursery.start_soon(victim)
            await eventually(lambda: pool.fetchval(BUSY), "a busy connection")
            pool.terminate()


# ---------------------------------------------------------------- a server in trouble


async def test_pool_opens_while_the_server_is_away_and_serves_when_it_comes() -> None:
    with open_postgres() as server:
        server.stop()
        async with a_pool(server.dsn) as pool:
            with pytest.raises(PostgresUnavailable):
                await pool.fetchval("SELECT 1")
            await trio.to_thread.run_sync(server.start)
            assert await pool.fetchval("SELECT 1") == 1


@pytest.mark.seconds(90)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["restarted", "killed"])
async def test_server_restarted_under_load_is_recovered_from_without_help(how: signal.Signals, batched: bool) -> None:
    """In flight: PostgresUnavailable and nothing else; afterwards the same pool serves; no half transaction."""
    with open_postgres() as server:
        async with a_pool(server.dsn, size=5, batched=batched) as pool:
            await pool.execute(TABLE)
            done: list[int] = []
            lost = 0

            async def worker(first: int) -> None:
                nonlocal lost
                number = first
                while number - first < 60:
                    try:
                        await pool.run(insert, number, -number)
                        done.append(number)
                    except PostgresUnavailable:
                        lost += 1
                        await trio.sleep(0.02)
                        if await _is_there(pool, number):  # P-09: unknown means re-read
                            done.append(number)
                    if done and done[-1] == number:
                        number += 1

            async with trio.open_nursery() as nursery:
                for first in range(1, 1001, 100):
                    nursery.start_soon(worker, first)
                await eventually(lambda: len(done) >= 100, "a hundred commits")
                await trio.to_thread.run_sync(server.stop, how)
                await eventually(lambda: lost, "a lost unit")
                await trio.to_thread.run_sync(server.start)
            assert lost
            assert sorted(done) == [first + step for first in range(1, 1001, 100) for step in range(60)]
            assert await pool.fetchval("SELECT count(*) FROM t") == 1200
            await healthy(pool, 5)


async def _is_there(pool: Pool, number: int) -> bool:
    while True:
        try:
            return bool(await pool.fetchval("SELECT count(*) FROM t WHERE i = $1", number))
        except PostgresUnavailable:
            await trio.sleep(0.02)


@pytest.mark.seconds(60)
@pytest.mark.parametrize("unit", [True, False], ids=["unit", "statement"])
async def test_frozen_server_does_not_hold_a_cancelled_caller(unit: bool, batched: bool) -> None:
    """A backend under SIGSTOP answers neither the query nor the cancel request: the connection is cut, bounded."""
    with open_postgres() as server:
        async with a_pool(server.dsn, size=1, batched=batched) as pool:
            backend = await pool.fetchval("SELECT pg_backend_pid()")
            await pool.execute(TABLE)
            os.kill(backend, signal.SIGSTOP)
            try:
                began = trio.current_time()
                with trio.move_on_after(0.2) as scope:
                    await (pool.run(insert_and_sleep, 1) if unit else pool.fetchval("SELECT 1"))
                assert scope.cancelled_caught
                assert trio.current_time() - began < 0.2 + 2 * module.EXIT_SECONDS
                assert await pool.fetchval("SELECT 1") == 1  # on a new connection
            finally:
                os.kill(backend, signal.SIGCONT)


async def test_frozen_server_is_noticed_by_the_command_deadline() -> None:
    with open_postgres() as server:
        async with a_pool(server.dsn, size=1, command_seconds=0.5) as pool:
            backend = await pool.fetchval("SELECT pg_backend_pid()")
            os.kill(backend, signal.SIGSTOP)
            try:
                with pytest.raises(PostgresUnavailable):
                    await pool.fetchval("SELECT 1")
            finally:
                os.kill(backend, signal.SIGCONT)


async def test_leaving_the_pool_is_bounded_with_a_frozen_server() -> None:
    with open_postgres() as server:
        began = 0.0
        backend = 0
        async with a_pool(server.dsn, size=1) as pool:
            backend = await pool.fetchval("SELECT pg_backend_pid()")
            os.kill(backend, signal.SIGSTOP)
            began = trio.current_time()
        os.kill(backend, signal.SIGCONT)
        assert trio.current_time() - began < 1.0


# ---------------------------------------------------------------- fault points and private names


async def test_bracket_surrounds_the_commit_alone(blank_database: str, postgres: Postgres) -> None:
    """Before it nothing is durable, after it all is; an error after it means unknown (P-09)."""
    name = database_name(blank_database)
    seen: list[str] = []

    @contextmanager
    def bracket() -> Iterator[None]:
        seen.append(postgres.sql("SELECT count(*) FROM t", name))
        yield
        seen.append(postgres.sql("SELECT count(*) FROM t", name))
        raise OSError("the answer was lost")

    async with a_pool(blank_database) as pool:
        await pool.execute(TABLE)
        with pytest.raises(PostgresUnavailable, match="the answer was lost"):
            await pool.run_bracketed(bracket, insert, 1)
        assert seen == ["0", "1"]
        await healthy(pool)


async def test_private_names_of_triopg_are_there(blank_database: str) -> None:
    """Units run on triopg's pool below its proxy, and a statement's raw connection is cut after a cancellation."""
    async with a_pool(blank_database) as pool:
        assert callable(pool._proxy._asyncpg_pool.acquire)
        async with pool._proxy.acquire() as connection:
            assert callable(connection._asyncpg_conn.terminate)
