"""Sessions through middle boxes and long silences: what HTTP/2 says of a connection is not what the peer says (L-B3, L-B5)."""

from __future__ import annotations

import h2.events
import trio

from tests.support.raw_gateway import RawGateway, open_raw_gateway
from tests.support.raw_h2 import open_raw_peer
from tests.support.sessions import CALM, FAST, ScriptedDoor, hello, observation, open_gateway, wait_end
from tuneplane.bridge.loop import open_bridge
from tuneplane.bridge.repairs import configuration
from tuneplane.domain.frames import ObservationAck
from tuneplane.domain.timings import PRODUCTION, Timings
from tuneplane.wire.link import NodeLink, SessionEnded, run_node_session
from tuneplane.wire.link.base import KEEPALIVE_SHARE

PING_SECONDS = 0.1
IDLE_SECONDS = FAST.session_idle * 2  # the deadline, an eighth for looking, and room
IDLE_20_MINUTES = round(1200 / (PRODUCTION.session_idle * KEEPALIVE_SHARE))  # pings that a shipped pair exchanges meanwhile


async def _hold(front: RawGateway, timings: Timings, body: object) -> SessionEnded | None:
    try:
        await run_node_session(
            target=f"127.0.0.1:{front.port}",
            tls=front.certificates.client(),
            credential="good-node-1",
            hello=hello(),
            timings=timings,
            body=body,  # type: ignore[arg-type]
        )
    except SessionEnded as ended:
        return ended
    return None


async def test_node_notices_a_dead_backend_behind_a_proxy_that_answers_pings() -> None:
    """L-B3, P-16: PINGs acknowledged both ways do not count; only messages of the gateway's own do."""
    async with open_bridge(), open_raw_gateway(FAST) as front:
        stopped_at: list[float] = []

        async def body(link: NodeLink) -> None:
            await front.wait(front.heard, "Heartbeat", 2)  # the session lives
            front.stop_backend()
            stopped_at.append(trio.current_time())
            await wait_end(link)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_keep_pinging, front)
            ended = await _hold(front, FAST, body)
            nursery.cancel_scope.cancel()
        assert ended is not None
        assert ended.code == "idle"
        assert trio.current_time() - stopped_at[0] < IDLE_SECONDS + FAST.heartbeat
        assert front.events["PingAckReceived"] >= 3, "the Node's HTTP/2 was alive all the time"


async def _keep_pinging(front: RawGateway) -> None:
    await front.wait(front.heard, "Hello", 1)
    while True:
        await front.ping()
        await trio.sleep(PING_SECONDS)


async def test_gateway_notices_a_dead_node_behind_a_proxy_that_answers_pings() -> None:
    """L-B3, P-16: the same from the other side."""
    async with open_bridge(), open_gateway(ScriptedDoor(timings=FAST)) as gateway, open_raw_peer(gateway) as raw:
        await raw.open_session("victim")

        async def ping() -> None:
            while True:
                raw.h2.ping(b"b" * 8)
                await raw.flush()
                await trio.sleep(PING_SECONDS)

        async def answer() -> None:
            while await raw.read_some():
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ping)
            nursery.start_soon(answer)
            ended = await gateway.door.wait_ended("victim", IDLE_SECONDS)
            nursery.cancel_scope.cancel()
        assert ended.code == "idle"
        assert sum(isinstance(event, h2.events.PingAckReceived) for event in raw.events) >= 3


def test_keepalive_of_both_ends_is_one_pair_that_neither_finds_too_eager() -> None:
    """L-B5: one configuration for client and server; a ping in silence is always allowed, twice as often as they are sent."""
    pair = configuration(PRODUCTION.session_idle * KEEPALIVE_SHARE)
    assert pair._keepalive_permit_without_calls
    assert pair._http2_max_pings_without_data == 0, "0 is: any number"
    assert pair._http2_min_sent_ping_interval_without_data < pair._keepalive_time


async def test_gateway_sends_no_goaway_for_the_pings_of_a_long_idle_node() -> None:
    """L-B5: as many pings as the shipped pair exchanges in 20 idle minutes, all at once and without a byte of data."""
    door = ScriptedDoor(timings=CALM, answer=lambda link, frame: link.send_nowait(ObservationAck(frame.member, frame.revision)))
    async with open_bridge(), open_gateway(door) as gateway, open_raw_peer(gateway) as raw:
        stream = await raw.open_session("quiet")
        for _ in range(IDLE_20_MINUTES):
            raw.h2.ping(b"c" * 8)
            await raw.flush()
        await raw.read_until(lambda peer: _acknowledged(peer) >= IDLE_20_MINUTES)
        await raw.send(stream, observation(3))
        await raw.read_until(lambda peer: len(peer.frames) >= 2)
        assert not raw.saw(h2.events.ConnectionTerminated)


def _acknowledged(raw: object) -> int:
    return sum(isinstance(event, h2.events.PingAckReceived) for event in raw.events)  # type: ignore[attr-defined]


async def test_node_sends_no_goaway_for_the_pings_of_a_long_idle_gateway() -> None:
    """L-B5, the other way round: the session is still the same one afterwards."""
    async with open_bridge(), open_raw_gateway(CALM) as front:

        async def body(link: NodeLink) -> None:
            await front.wait(front.heard, "Heartbeat", 1)
            for _ in range(IDLE_20_MINUTES):
                await front.ping()
            await front.wait(front.events, "PingAckReceived", IDLE_20_MINUTES)
            await link.send(observation(4))
            await front.wait(front.heard, "Observation", 1)

        assert await _hold(front, CALM, body) is None
        assert front.heard["Hello"] == 1
        assert not front.events["ConnectionTerminated"]
