"""LISTEN on a real PostgreSQL: coalesced, re-established when lost, and re-read after every reconnect."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.support.postgres import open_postgres
from tests.support.waiting import eventually
from tuneplane.bridge import postgres as module
from tuneplane.bridge.loop import open_bridge
from tuneplane.bridge.postgres import Listener, Pool, open_pool

BOTH = frozenset({"a", "b"})
END_LISTENER = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tuneplane-listen'"


@asynccontextmanager
async def listening(dsn: str) -> AsyncIterator[tuple[Pool, Listener]]:
    """A listener on ``BOTH`` that has had its first turn."""
    async with open_bridge(), open_pool(dsn, size=2) as pool, pool.open_listener(("a", "b")) as listener:
        assert await anext(listener) == BOTH
        yield pool, listener


async def notify(pool: Pool, channel: str) -> None:
    await pool.execute("SELECT pg_notify($1, '')", channel)


async def test_listener_yields_the_channel_that_was_notified(blank_database: str) -> None:
    async with listening(blank_database) as (pool, listener):
        await notify(pool, "a")
        with trio.fail_after(5):
            assert await anext(listener) == {"a"}
        await notify(pool, "c")  # not asked for
        await notify(pool, "b")
        with trio.fail_after(5):
            assert await anext(listener) == {"b"}


async def test_thousand_notifications_are_one_turn(blank_database: str) -> None:
    """Bounded: what is not read yet is a set of the channels asked for, never a queue."""
    async with listening(blank_database) as (pool, listener):
        await pool.execute("SELECT pg_notify('a', n::text) FROM generate_series(1, 1000) n")
        await notify(pool, "b")
        await eventually(lambda: listener._pending >= BOTH, "both channels")
        assert await anext(listener) == BOTH
        assert not listener._pending


async def test_cancelled_turn_takes_nothing(blank_database: str) -> None:
    async with listening(blank_database) as (_, listener):
        with trio.move_on_after(0.02):
            await anext(listener)
        listener.mark(frozenset({"a"}))
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(listener)
        assert await anext(listener) == {"a"}


async def test_lost_connection_is_noticed_at_once_and_everything_read_again(blank_database: str) -> None:
    """What was notified while nobody listened is unknown, so all channels are yielded."""
    async with listening(blank_database) as (pool, listener):
        await pool.execute(END_LISTENER)
        await notify(pool, "a")
        with trio.fail_after(5):
            assert await anext(listener) == BOTH
        assert listener.connected == 2
        await notify(pool, "b")
        with trio.fail_after(5):
            assert await anext(listener) == {"b"}


@pytest.mark.seconds(60)
async def test_server_killed_and_started_again_is_listened_to_again() -> None:
    with open_postgres() as server:
        async with listening(server.dsn) as (pool, listener):
            await trio.to_thread.run_sync(server.kill)
            await trio.to_thread.run_sync(server.start)
            with trio.fail_after(20):
                assert await anext(listener) == BOTH
            await notify(pool, "b")
            with trio.fail_after(5):
                assert await anext(listener) == {"b"}


async def test_half_open_connection_is_found_by_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that never answers again closes nothing: only asking it tells."""
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(module, "PROBE_ANSWER_SECONDS", 0.5)
    with open_postgres() as server:
        async with listening(server.dsn) as (_, listener):
            backend = int(server.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'tuneplane-listen'"))
            os.kill(backend, signal.SIGSTOP)
            try:
                with trio.fail_after(10):
                    assert await anext(listener) == BOTH
                assert listener.connected == 2
            finally:
                os.kill(backend, signal.SIGCONT)


async def test_listener_opens_while_the_server_is_away() -> None:
    with open_postgres() as server:
        server.stop()
        async with open_bridge(), open_pool(server.dsn, size=2) as pool, pool.open_listener(("a",)) as listener:
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not listener._pending
            await trio.to_thread.run_sync(server.start)
            with trio.fail_after(10):
                assert await anext(listener) == {"a"}


async def test_error_in_the_block_comes_out_as_it_was_raised(blank_database: str) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with listening(blank_database):
            raise LookupError("mine")


async def test_cancelled_block_ends_at_once(blank_database: str) -> None:
    began = 0.0
    with trio.CancelScope() as scope:
        async with listening(blank_database) as (_, listener):
            began = trio.current_time()
            scope.cancel()
            await anext(listener)
    assert scope.cancelled_caught
    assert trio.current_time() - began < 1.0
