"""The session under faults, on real sockets and processes, on the batched and on the stock loop (wire-notes, section 1).

Every test has a bystander: another Node's session on the same gateway that must not notice anything.
"""

from __future__ import annotations

import signal
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h2.events
import pytest
import trio
from attrs import evolve

from tests.support.peers import open_peer
from tests.support.raw_h2 import open_raw_peer
from tests.support.sessions import CALM, FAST, Gateway, ScriptedDoor, hello, observation, open_gateway, open_session, stop_command, wait_end
from tuneplane.bridge.fastloop import is_supported
from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.frames import ObservationAck
from tuneplane.domain.timings import Timings
from tuneplane.wire.link import NodeLink, SessionEnded

LOOPS = [
    pytest.param(
        True, id="batched", marks=pytest.mark.skipif(not is_supported(), reason="the batched loop is for the pinned versions only")
    ),
    pytest.param(False, id="stock"),
]
PROMPT_SECONDS = 1.0  # for what should take milliseconds, on a loaded machine
IDLE_SECONDS = FAST.session_idle * 2  # the deadline, an eighth for looking, and room

pytestmark = pytest.mark.parametrize("batched", LOOPS)


def acknowledge(link: Any, frame: Any) -> None:
    link.send_nowait(ObservationAck(member=frame.member, revision=frame.revision))


@asynccontextmanager
async def gateway_with_bystander(batched: bool, timings: Timings = CALM) -> AsyncIterator[Gateway]:
    """A gateway and a second Node, whose session must work before and after the block."""
    door = ScriptedDoor(timings=timings, answer=acknowledge)
    async with open_bridge(batched=batched) as bridge, open_gateway(door) as gateway:
        async with open_session(gateway, "bystander") as bystander:
            await check_alive(bystander, 1)
            yield gateway
            await check_alive(bystander, 2)
        assert bridge.stray == 0, "an exception reached the loop instead of an owner"


async def check_alive(link: NodeLink, revision: int) -> None:
    with trio.fail_after(PROMPT_SECONDS):
        await link.send(observation(revision))
        assert await link.receive() == ObservationAck(member=observation().member, revision=revision)


async def test_session_node_killed_ends_promptly(batched: bool) -> None:
    """R-SES-03: a kernel that resets the connection is noticed at once."""
    async with gateway_with_bystander(batched) as gateway:
        async with open_peer("node", str(gateway.port), _ca(gateway), "victim") as peer:
            await gateway.door.wait("victim", seconds=10)
            peer.signal(signal.SIGKILL)
            ended = await gateway.door.wait_ended("victim", PROMPT_SECONDS)
        assert ended.code in ("connection-lost", "left")


async def test_session_gateway_killed_ends_promptly(batched: bool) -> None:
    async with open_bridge(batched=batched), open_peer_gateway() as (gateway, peer):
        async with trio.open_nursery() as nursery:
            up = trio.Event()

            async def run() -> None:
                ended.append(await gateway.ended("node-1", lambda link: _report(link, up)))

            ended: list[SessionEnded] = []
            nursery.start_soon(run)
            await up.wait()
            peer.signal(signal.SIGKILL)
            with trio.fail_after(PROMPT_SECONDS):
                await peer.process.wait()
        assert ended[0].code == "connection-lost"


async def test_session_node_stopped_is_idle_in_time(batched: bool) -> None:
    """R-SES-03, P-16: a half-open connection: the peer's kernel answers, its process does not."""
    async with gateway_with_bystander(batched, FAST) as gateway:
        async with open_peer("node", str(gateway.port), _ca(gateway), "victim") as peer:
            await gateway.door.wait("victim", seconds=10)
            peer.signal(signal.SIGSTOP)
            ended = await gateway.door.wait_ended("victim", IDLE_SECONDS)
        assert ended.code == "idle"


async def test_session_gateway_stopped_is_idle_in_time(batched: bool) -> None:
    async with open_bridge(batched=batched), open_peer_gateway() as (gateway, peer):

        async def stop(link: NodeLink) -> None:
            peer.signal(signal.SIGSTOP)
            await wait_end(link)

        with trio.fail_after(IDLE_SECONDS + PROMPT_SECONDS):
            ended = await gateway.ended("node-1", stop)
        assert ended.code == "idle"


async def test_session_gateway_cancelled_says_goodbye(batched: bool) -> None:
    """Graceful shutdown: Goodbye, then trailers, then GOAWAY; the Node knows that it was not its fault."""
    async with open_bridge(batched=batched), open_gateway() as gateway:
        async with open_raw_peer(gateway) as raw:
            await raw.open_session("raw")

            async def leave(link: NodeLink) -> None:
                gateway.scope.cancel()
                await wait_end(link)

            with trio.CancelScope(shield=True), trio.fail_after(5):
                ended = await gateway.ended("node-1", leave)
                await raw.read_until(lambda peer: peer.saw(h2.events.ConnectionTerminated))
            assert ended.code == "gateway-leaving"
            kinds = [type(event) for event in raw.events]
            assert kinds.index(h2.events.TrailersReceived) < kinds.index(h2.events.ConnectionTerminated)


@pytest.mark.parametrize("how", ["reset", "end", "abort"])
async def test_session_peer_breaks_off_inside_a_message_ends_only_it(batched: bool, how: str) -> None:
    """A client cancelled in the middle of a message: half a frame is on the wire."""
    async with gateway_with_bystander(batched) as gateway, open_raw_peer(gateway) as raw:
        stream_id = await raw.open_session("victim")
        await raw.send_bytes(stream_id, struct.pack(">BI", 0, 100_000) + bytes(50_000))
        if how == "reset":
            raw.h2.reset_stream(stream_id)
            await raw.flush()
        elif how == "end":
            raw.h2.end_stream(stream_id)
            await raw.flush()
        else:
            raw.stream.transport_stream.socket.close()
        ended = await gateway.door.wait_ended("victim", PROMPT_SECONDS)
        assert ended.code == ("truncated" if how == "end" else "connection-lost")


async def test_node_session_cancelled_resets_its_stream(batched: bool) -> None:
    async with gateway_with_bystander(batched) as gateway:
        with trio.CancelScope() as scope:

            async def body(link: NodeLink) -> None:
                scope.cancel()
                await wait_end(link)

            await gateway.session("victim", body)
        assert scope.cancelled_caught
        await gateway.door.wait_ended("victim", PROMPT_SECONDS)


async def test_node_session_cancelled_at_any_moment_of_its_opening_leaves_nothing(batched: bool) -> None:
    """Every step of dialling, handshake, request and greeting, by deadlines that creep forward."""
    async with gateway_with_bystander(batched) as gateway:
        opened = 0
        for step in range(120):
            with trio.move_on_after(step * 0.00025) as scope:
                await gateway.session("victim", _leave_at_once)
            opened += not scope.cancelled_caught
        assert opened > 0, "the deadlines never reached the end"
        assert opened < 120
        with trio.fail_after(PROMPT_SECONDS):
            await gateway.session("victim", _leave_at_once)


@pytest.mark.parametrize("frame", [b"\x00\x00\x04\xfa\x00\x00\x00\x00\x00abcd", b"\x00\x00\x05\x0a\x00\x00\x00\x00\x00\x00\x01ab="])
async def test_gateway_ignores_an_unknown_http2_frame(batched: bool, frame: bytes) -> None:
    """RFC 9113, 4.1. Stock grpclib lets one such frame of a stranger end the whole process. The second is ALTSVC."""
    async with gateway_with_bystander(batched) as gateway, open_raw_peer(gateway) as raw:
        stream_id = await raw.open_session("odd")
        await raw.stream.send_all(frame)
        await raw.send(stream_id, observation(7))
        await raw.read_until(lambda peer: len(peer.frames) >= 2)
        assert raw.frames[1] == ObservationAck(member=observation().member, revision=7)


async def test_gateway_refuses_an_oversized_message_after_its_prefix(batched: bool) -> None:
    async with gateway_with_bystander(batched) as gateway, open_raw_peer(gateway) as raw:
        stream_id = await raw.open_session("victim")
        await raw.send_bytes(stream_id, struct.pack(">BI", 0, 2**31) + bytes(1000))
        await raw.read_until(lambda peer: len(peer.frames) >= 2)
        assert raw.frames[1].code == "message-too-large"  # type: ignore[union-attr]
        assert (await gateway.door.wait_ended("victim")).code == "message-too-large"


@pytest.mark.parametrize(
    ("node", "changes", "code"),
    [
        ("stranger", {"credential": "bad"}, "credential-unknown"),
        ("old", {"hello": hello("old", protocol=99)}, "protocol-version"),
        ("liar", {"hello": hello("somebody-else")}, "wrong-node"),
        ("moved", {"hello": evolve(hello("moved"), fleet="other")}, "wrong-fleet"),
    ],
)
async def test_session_that_may_not_be_is_refused_with_its_reason(batched: bool, node: str, changes: dict[str, Any], code: str) -> None:
    """R-SES-04: closes that session with a reason and harms no other."""
    async with gateway_with_bystander(batched) as gateway:
        assert (await gateway.ended(node, **changes)).code == code


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\xff\xff\xff", "malformed-frame"),
        (b"", "malformed-frame"),
        (b"\x52\x00", "malformed-frame"),  # a body that this version does not know
        (b"\x2a\x04\x0a\x02\xff\xff", "malformed-frame"),  # an id that is not text
        (b"\x0a\x00", "malformed-frame"),  # a second Hello, empty
    ],
)
async def test_session_with_a_malformed_frame_is_closed_with_its_reason(batched: bool, data: bytes, code: str) -> None:
    """R-SES-04."""
    async with gateway_with_bystander(batched) as gateway, open_raw_peer(gateway) as raw:
        stream_id = await raw.open_session("victim")
        await raw.send_bytes(stream_id, struct.pack(">BI", 0, len(data)) + data)
        await raw.read_until(lambda peer: len(peer.frames) >= 2)
        assert raw.frames[1].code == code  # type: ignore[union-attr]


async def test_session_with_an_illegal_frame_is_closed_with_its_reason(batched: bool) -> None:
    async with gateway_with_bystander(batched) as gateway, open_raw_peer(gateway) as raw:
        stream_id = await raw.open_session("victim")
        await raw.send(stream_id, hello("victim"))
        await raw.read_until(lambda peer: peer.saw(h2.events.TrailersReceived))
        assert raw.frames[1].code == "illegal-frame"  # type: ignore[union-attr]


async def test_gateway_survives_peers_that_do_not_speak_its_language(batched: bool) -> None:
    """Plain HTTP, HTTP/1 in TLS, no ALPN, half a handshake, garbage instead of a preface, connections reset at once."""
    async with gateway_with_bystander(batched) as gateway:
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b""):
            stream = await trio.open_tcp_stream("127.0.0.1", gateway.port)
            if data:
                await stream.send_all(data)
            await stream.aclose()
        for alpn in (True, False):
            stream = await trio.open_tcp_stream("127.0.0.1", gateway.port)
            context = gateway.certificates.client()
            if not alpn:
                context.set_alpn_protocols(["http/1.1"])
            tls = trio.SSLStream(stream, context, server_hostname="127.0.0.1", https_compatible=True)
            try:
                await tls.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                while await tls.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass
            await trio.aclose_forcefully(tls)
        for _ in range(50):
            stream = await trio.open_tcp_stream("127.0.0.1", gateway.port)
            stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.socket.close()


async def test_gateway_survives_rapid_resets(batched: bool) -> None:
    async with gateway_with_bystander(batched) as gateway, open_raw_peer(gateway) as raw:
        try:
            for _ in range(500):
                stream_id = await raw.open_call("rapid")
                raw.h2.reset_stream(stream_id)
                await raw.flush()
        except trio.BrokenResourceError:
            pass  # cut off: fine too


async def test_gateway_cuts_off_a_peer_that_floods_pings_and_does_not_read(batched: bool) -> None:
    """Answers that nobody reads must not grow in our memory."""
    async with gateway_with_bystander(batched) as gateway, open_raw_peer(gateway) as raw:
        ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8)

        async def flood() -> None:
            while True:
                await raw.stream.send_all(ping * 4096)

        with pytest.raises(trio.BrokenResourceError), trio.fail_after(20):
            await flood()


async def test_session_whose_handler_crashes_ends_alone(batched: bool, caplog: pytest.LogCaptureFixture) -> None:
    def crash(link: Any, frame: Any) -> None:
        if link.identity.node == "victim":
            raise RuntimeError("a bug of ours")
        acknowledge(link, frame)

    async with gateway_with_bystander(batched) as gateway:
        gateway.door.answer = crash

        async def body(link: NodeLink) -> None:
            await link.send(observation())
            await wait_end(link)

        assert (await gateway.ended("victim", body)).code == "internal-error"
    assert "a bug of ours" in caplog.text


async def test_stranger_that_never_finishes_its_handshake_is_dropped(batched: bool) -> None:
    """An idle connection costs memory: it has the idle deadline to become a session."""
    async with gateway_with_bystander(batched, FAST) as gateway:
        silent = await trio.open_tcp_stream("127.0.0.1", gateway.port)
        async with open_raw_peer(gateway) as greeted:
            with trio.fail_after(IDLE_SECONDS + 2):
                assert await silent.receive_some() == b""
                while await greeted.read_some():
                    pass
        await silent.aclose()


async def test_call_that_never_says_hello_is_ended_with_a_reason(batched: bool) -> None:
    async with gateway_with_bystander(batched, FAST) as gateway, open_raw_peer(gateway) as raw:
        await raw.open_call("mute")
        await raw.read_until(lambda peer: bool(peer.frames), IDLE_SECONDS)
        assert raw.frames[0].code == "greeting-overdue"  # type: ignore[union-attr]


@pytest.mark.seconds(60)
async def test_flood_to_the_descriptor_limit_costs_nobody_else(batched: bool) -> None:
    """A gateway with 160 descriptors and 240 idle connections: the session lives, and another Node still gets in."""
    async with open_bridge(batched=batched), open_peer_gateway("160", loop="batched" if batched else "stock") as (gateway, peer):
        async with open_session(gateway, "first") as first, trio.open_nursery() as nursery:
            flood = [await _connect_or_none(gateway.port) for _ in range(240)]

            async def late() -> None:
                async with open_session(gateway, "late") as link:
                    await link.send(observation())

            with trio.fail_after(15):
                await late()
            assert first.closed is None
            nursery.cancel_scope.cancel()
        for stream in flood:
            if stream is not None:
                await trio.aclose_forcefully(stream)
        await peer.ask("status")
        status = await peer.wait("status")
        assert status["descriptors"] < 160
        assert status["stray"] == 0


async def test_stop_overtakes_what_is_queued_before_it(batched: bool) -> None:
    """R-SES-07: control first. The stop is sent last and, since the Node does not read yet, arrives first."""
    async with open_bridge(batched=batched), open_gateway() as gateway, open_raw_peer(gateway) as raw:
        await raw.open_session("slow")
        link = (await gateway.door.wait("slow")).link
        big = evolve(stop_command(1), kind="prepare", plan=bytes(800_000))
        for number in range(4):
            link.send_nowait(evolve(big, operation=f"job-a-1-0:prepare-{number}", kind=type(stop_command().kind)("prepare")))
        link.send_nowait(stop_command(9))
        await raw.read_until(lambda peer: len(peer.frames) >= 6, seconds=10)
        operations = [frame.operation for frame in raw.frames[1:]]  # type: ignore[union-attr]
        assert operations.index("job-a-1-0:stop-9") <= 2  # behind what was already in the buffers


def _ca(gateway: Gateway) -> str:
    path = gateway.certificates.certificate.with_name("ca.crt")
    path.write_text(gateway.certificates.trust_pem)
    return str(path)


async def _leave_at_once(link: NodeLink) -> None:
    await trio.lowlevel.checkpoint()


async def _report(link: NodeLink, up: trio.Event) -> None:
    up.set()
    await wait_end(link)


async def _connect_or_none(port: int) -> trio.SocketStream | None:
    with trio.move_on_after(0.05):
        try:
            return await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            return None
    return None


@asynccontextmanager
async def open_peer_gateway(descriptors: str = "", loop: str = "") -> AsyncIterator[Any]:
    """A gateway in a process of its own, and the handle to dial it."""
    from tests.support.sessions import make_certificates

    with make_certificates() as certificates:
        arguments = ("gateway", str(certificates.certificate), str(certificates.key), *([descriptors] if descriptors else []))
        async with open_peer(*arguments, loop=loop) as peer:
            port = (await peer.wait("listening", 20))["port"]
            yield Gateway(port, ScriptedDoor(timings=FAST), certificates, trio.CancelScope()), peer
