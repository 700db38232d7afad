"""The loop inside Trio: both classes behave alike, errors come out as raised, strays are counted and not fatal."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress

import pytest
import trio
import trio.lowlevel
from trio_asyncio import trio_as_aio

from tuneplane.bridge import fastloop
from tuneplane.bridge.loop import LOGGED_PER_MINUTE, from_trio, open_bridge

LOOPS = [pytest.param(True, id="batched"), pytest.param(False, id="stock")]
both_loops = pytest.mark.parametrize("batched", LOOPS)


@both_loops
async def test_bridge_runs_asyncio_functions_from_trio(batched: bool) -> None:
    async def add(left: int, right: int) -> int:
        await asyncio.sleep(0.001)
        return left + right

    async with open_bridge(batched=batched) as bridge:
        assert bridge.batched is batched
        assert await from_trio(add, 1, right=2) == 3


async def test_bridge_chooses_the_batched_loop_for_the_pinned_versions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_bridge() as bridge:
        assert bridge.batched is fastloop.is_supported()
    monkeypatch.setitem(fastloop.TESTED, "trio-asyncio", "0.0.1")
    assert not fastloop.is_supported()
    async with open_bridge() as bridge:
        assert not bridge.batched
        assert type(bridge.loop).__name__ == "TrioEventLoop"


@both_loops
async def test_bridge_error_of_the_body_comes_out_as_raised(batched: bool) -> None:
    """trio-asyncio wraps it twice."""
    with pytest.raises(KeyError):
        async with open_bridge(batched=batched):
            raise KeyError("x")


@both_loops
async def test_bridge_error_group_of_the_body_keeps_its_own_shape(batched: bool) -> None:
    group = ExceptionGroup("both", [KeyError("a"), ValueError("b")])
    with pytest.raises(ExceptionGroup) as raised:
        async with open_bridge(batched=batched):
            raise group
    assert [type(error) for error in raised.value.exceptions] == [KeyError, ValueError]


@both_loops
async def test_bridge_cancelled_cancels_the_asyncio_task_once(batched: bool) -> None:
    seen: list[str] = []

    async def wait() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        seen.append("cancelled")
        await asyncio.sleep(0.01)  # clean-up is not interrupted
        seen.append("clean")
        raise asyncio.CancelledError

    async with open_bridge(batched=batched):
        with trio.move_on_after(0.05) as scope:
            await from_trio(wait)
    assert scope.cancelled_caught
    assert seen == ["cancelled", "clean"]


@both_loops
async def test_stray_exceptions_are_counted_and_logged_at_a_limited_rate(batched: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Stock trio-asyncio re-raises them into the loop's nursery: the end of the process."""

    def fail() -> None:
        raise RuntimeError("nobody's")

    done = trio.Event()
    async with open_bridge(batched=batched) as bridge:
        for _ in range(LOGGED_PER_MINUTE * 3):
            bridge.loop.call_soon(fail)
        bridge.loop.call_soon(done.set)
        await done.wait()
        assert bridge.stray == LOGGED_PER_MINUTE * 3
        assert await from_trio(asyncio.sleep, 0, "alive") == "alive"
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == LOGGED_PER_MINUTE + 1


@both_loops
async def test_loop_runs_callbacks_in_order_and_later_ones_in_a_later_turn(batched: bool) -> None:
    order: list[int] = []
    done = trio.Event()

    def first(loop: asyncio.AbstractEventLoop) -> None:
        order.append(1)
        loop.call_soon(order.append, 3)
        loop.call_soon(done.set)

    async with open_bridge(batched=batched) as bridge:
        bridge.loop.call_soon(first, bridge.loop)
        bridge.loop.call_soon(order.append, 2)
        await done.wait()
    assert order == [1, 2, 3]


@both_loops
async def test_loop_timers_fire_in_time_order_and_cancelled_ones_never(batched: bool) -> None:
    order: list[int] = []
    done = trio.Event()
    async with open_bridge(batched=batched) as bridge:
        bridge.loop.call_later(0.04, done.set)
        bridge.loop.call_later(0.03, order.append, 3)
        bridge.loop.call_later(0.01, order.append, 1)
        bridge.loop.call_later(0.02, order.append, 99).cancel()
        bridge.loop.call_later(0.02, order.append, 2)
        with trio.fail_after(5):
            await done.wait()
    assert order == [1, 2, 3]


@both_loops
async def test_loop_takes_callbacks_of_other_threads(batched: bool) -> None:
    done = trio.Event()
    async with open_bridge(batched=batched) as bridge:
        thread = threading.Thread(target=bridge.loop.call_soon_threadsafe, args=(done.set,))
        thread.start()
        with trio.fail_after(5):
            await done.wait()
        thread.join()


@both_loops
async def test_loop_does_not_starve_trio(batched: bool) -> None:
    """A callback that always queues the next one leaves the other Trio tasks their turns."""
    running = True

    def again(loop: asyncio.AbstractEventLoop) -> None:
        if running:
            loop.call_soon(again, loop)

    async with open_bridge(batched=batched) as bridge:
        bridge.loop.call_soon(again, bridge.loop)
        with trio.fail_after(5):
            for _ in range(100):
                await trio.lowlevel.checkpoint()
        running = False


@both_loops
async def test_trio_function_called_from_asyncio_keeps_its_place(batched: bool) -> None:
    order: list[str] = []

    async def in_trio() -> str:
        order.append("trio")
        await trio.lowlevel.checkpoint()
        return "value"

    async def in_asyncio() -> str:
        order.append("before")
        value: str = await trio_as_aio(in_trio)()
        order.append("after")
        return value

    async with open_bridge(batched=batched):
        assert await from_trio(in_asyncio) == "value"
    assert order == ["before", "trio", "after"]


@both_loops
async def test_loop_reads_and_writes_sockets(batched: bool) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(200_000))
        await writer.drain()
        writer.close()

    async def round_trip() -> bytes:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(bytes(200_000))
        data = await reader.readexactly(200_000)
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        return data

    async with open_bridge(batched=batched) as bridge:
        assert await from_trio(round_trip) == bytes(200_000)
        assert bridge.stray == 0


@both_loops
@pytest.mark.parametrize("depth", [1, 2])
async def test_bridges_one_after_another_and_nested_stay_apart(batched: bool, depth: int) -> None:
    async def name() -> int:
        await asyncio.sleep(0)
        return id(asyncio.get_running_loop())

    async with open_bridge(batched=batched) as outer:
        assert await from_trio(name) == id(outer.loop)
        if depth == 2:
            async with open_bridge(batched=batched) as inner:
                assert await from_trio(name) == id(inner.loop) != id(outer.loop)
        assert await from_trio(name) == id(outer.loop)
