"""No log volume delays a stop (R-SES-07): on a slow line the answer is late by the credit window at most."""

from __future__ import annotations

import trio

from tests.support.sessions import ScriptedDoor, Seen, open_gateway, stop_command
from tests.support.shaper import open_shaper
from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.frames import LOG_CHUNK_BYTES, LOG_CREDIT_BYTES, Command, CommandAnswer, LogChunk
from tuneplane.domain.timings import Timings
from tuneplane.wire.link import GatewayLink, NodeLink

BYTES_PER_SECOND = 4 << 20
STOPS = 15
SLACK_SECONDS = 0.25  # two shared cores, and the proxy's own buffers
SLOW = Timings().scaled(0.5)


async def node_body(link: NodeLink) -> None:
    """Streams a log as fast as it may and answers every command."""

    async def stream() -> None:
        offset = 0
        while True:
            await link.send(LogChunk(request=1, offset=offset, data=bytes(LOG_CHUNK_BYTES)))
            offset += LOG_CHUNK_BYTES

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream)
        while True:
            command = await link.receive()
            link.send_nowait(CommandAnswer(operation=command.operation, accepted=True))


async def wait_flowing(seen: Seen) -> None:
    """Wait until several windows of log have arrived: the line is then as full as it gets."""
    flowing = trio.Event()

    def arrived(chunk: LogChunk) -> None:
        seen.logs.append(chunk)
        if len(seen.logs) * LOG_CHUNK_BYTES >= 4 * LOG_CREDIT_BYTES:
            flowing.set()

    seen.link.log_sink = arrived
    await flowing.wait()


async def measure(link: GatewayLink, answers: trio.MemoryReceiveChannel[str]) -> list[float]:
    """Seconds from each stop to its answer."""
    took = []
    for number in range(STOPS):
        command: Command = stop_command(number)
        began = trio.current_time()
        await link.send(command)
        assert await answers.receive() == command.operation
        took.append(trio.current_time() - began)
    return took


async def test_stop_is_answered_within_the_credit_window_while_logs_flow() -> None:
    """wire-notes, section 3: p99 is the round trip plus credit / bandwidth; priority alone leaves seconds."""
    told, answers = trio.open_memory_channel[str](STOPS)
    door = ScriptedDoor(timings=SLOW, answer=lambda link, frame: told.send_nowait(frame.operation))
    async with open_bridge(), open_gateway(door) as gateway, open_shaper(gateway.port, BYTES_PER_SECOND) as port:
        async with trio.open_nursery() as nursery:

            async def session() -> None:
                await gateway.session("node-1", node_body, target=f"127.0.0.1:{port}")

            nursery.start_soon(session)
            seen = await door.wait("node-1")
            await wait_flowing(seen)
            began, bytes_before = trio.current_time(), len(seen.logs) * LOG_CHUNK_BYTES
            took = await measure(seen.link, answers)
            rate = (len(seen.logs) * LOG_CHUNK_BYTES - bytes_before) / (trio.current_time() - began)
            nursery.cancel_scope.cancel()
    assert max(took) < LOG_CREDIT_BYTES / BYTES_PER_SECOND + SLACK_SECONDS, took
    assert rate > BYTES_PER_SECOND / 2, f"the credit strangles the log: {rate / 1e6:.1f} MB/s"
