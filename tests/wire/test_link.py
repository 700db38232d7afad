"""The link over loopback: what each end sees, credit, lanes, ends. Faults are in tests/contract/test_session_faults.py."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import trio
import trio.lowlevel
from attrs import evolve

from tests.support.sessions import (
    FAST,
    ScriptedDoor,
    hello,
    make_certificates,
    now,
    observation,
    open_gateway,
    open_session,
    stop_command,
    wait_end,
)
from tuneplane.bridge.listening import TLS_FAREWELL_SECONDS
from tuneplane.bridge.loop import open_bridge
from tuneplane.bridge.repairs import USER_TIMEOUT_MS
from tuneplane.domain.frames import LOG_CHUNK_BYTES, LOG_CREDIT_BYTES, CommandKind, Heartbeat, LogChunk, ReconcileDone
from tuneplane.domain.timings import PRODUCTION
from tuneplane.wire.link import GatewayLink, LinkClosed, LinkFull, NodeLink
from tuneplane.wire.link.base import INBOX_FRAMES, KEEPALIVE_SHARE, LANES
from tuneplane.wire.link.gateway import WATCHES_PER_IDLE
from tuneplane.wire.link.node import split_target
from tuneplane.wire.machine import LocalProtocolError
from tuneplane.wire.tls import client_context


def chunk(number: int, size: int = LOG_CHUNK_BYTES) -> LogChunk:
    return LogChunk(request=1, offset=number * size, data=bytes([number % 256]) * size)


async def test_session_frames_arrive_in_order_and_whole() -> None:
    async with open_bridge(), open_gateway() as gateway, open_session(gateway) as link:
        for revision in range(1, 1001):
            await link.send(observation(revision))
        seen = await gateway.door.wait("node-1", lambda seen: len(seen.frames) == 1000)
        assert [frame.revision for frame in seen.frames] == list(range(1, 1001))


async def test_session_logs_and_control_interleave_intact() -> None:
    """One writer per stream: two tasks that wrote one stream corrupted it at once (wire-notes, section 1)."""
    async with open_bridge(), open_gateway() as gateway, open_session(gateway) as link, trio.open_nursery() as nursery:

        async def logs() -> None:
            for number in range(100):
                await link.send(chunk(number))

        async def control() -> None:
            for revision in range(1, 1001):
                await link.send(observation(revision))

        nursery.start_soon(logs)
        nursery.start_soon(control)
        seen = await gateway.door.wait("node-1", lambda seen: len(seen.frames) == 1000 and len(seen.logs) == 100, seconds=10)
        assert seen.logs == [chunk(number) for number in range(100)]


async def test_heartbeats_confirm_the_inventory_and_keep_both_ends_alive() -> None:
    """P-16: three idle deadlines pass without a frame of anybody else."""
    heard: list[Heartbeat] = []
    async with open_bridge(), open_gateway(ScriptedDoor(timings=FAST)) as gateway, open_session(gateway) as link:
        seen = await gateway.door.wait("node-1")
        seen.link.on_heartbeat = heard.append
        link.inventory_digest = "sha256:" + "a" * 64
        await trio.sleep(FAST.session_idle * 3)
        assert seen.ended is None
        assert link.closed is None
        assert len(heard) >= 6
        assert heard[-1].inventory_digest == link.inventory_digest
        assert [beat.sequence for beat in heard] == sorted({beat.sequence for beat in heard})


async def test_log_without_credit_waits_and_control_does_not() -> None:
    """R-SES-07: no log volume delays anything else. Here the gateway returns no credit at all."""
    async with open_bridge(), open_gateway() as gateway, open_session(gateway) as link:
        seen = await gateway.door.wait("node-1")
        seen.link._return_credit = lambda size: None  # type: ignore[method-assign]
        for number in range(LOG_CREDIT_BYTES // LOG_CHUNK_BYTES):
            await link.send(chunk(number))
        with pytest.raises(LinkFull):
            link.send_nowait(chunk(9))
        with trio.move_on_after(0.1) as waiting:
            await link.send(chunk(9))
        assert waiting.cancelled_caught
        await link.send(observation(5))
        await gateway.door.wait("node-1", lambda seen: len(seen.frames) == 1)
        assert len(seen.logs) == LOG_CREDIT_BYTES // LOG_CHUNK_BYTES


async def test_log_send_waiting_for_credit_ends_with_the_session() -> None:
    async with open_bridge(), open_gateway() as gateway:

        async def body(link: NodeLink) -> None:
            seen = await gateway.door.wait("node-1")
            seen.link._return_credit = lambda size: None  # type: ignore[method-assign]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_end, link)
                for number in range(LOG_CREDIT_BYTES // LOG_CHUNK_BYTES):
                    await link.send(chunk(number))
                seen.link.close("evicted", "enough")
                await link.send(chunk(99))

        assert (await gateway.ended("node-1", body)).code == "evicted"


async def test_log_chunk_beyond_its_limit_is_our_own_error() -> None:
    async with open_bridge(), open_gateway() as gateway, open_session(gateway) as link:
        with pytest.raises(LocalProtocolError):
            await link.send(chunk(1, LOG_CHUNK_BYTES + 1))
        assert link.closed is None


async def test_close_by_the_gateway_reaches_the_node_with_its_reason() -> None:
    async with open_bridge(), open_gateway() as gateway:

        async def body(link: NodeLink) -> None:
            seen = await gateway.door.wait("node-1")
            seen.link.close("draining", "come back later", retry_after_seconds=7.5)
            await wait_end(link)

        ended = await gateway.ended("node-1", body)
        assert (ended.code, ended.detail, ended.retry_after_seconds) == ("draining", "come back later", 7.5)


async def test_close_twice_keeps_the_first_reason_and_sending_fails() -> None:
    async with open_bridge(), open_gateway() as gateway:

        async def body(link: NodeLink) -> None:
            seen = await gateway.door.wait("node-1")
            seen.link.close("first", "x")
            seen.link.close("second", "y")
            with pytest.raises(LinkClosed, match="first"):
                seen.link.send_nowait(stop_command())
            with pytest.raises(LinkClosed, match="first"):
                await seen.link.send(stop_command())
            await wait_end(link)

        assert (await gateway.ended("node-1", body)).code == "first"


async def test_frames_before_the_end_are_still_received() -> None:
    async with open_bridge(), open_gateway() as gateway:

        async def body(link: NodeLink) -> None:
            seen = await gateway.door.wait("node-1")
            for number in range(5):
                seen.link.send_nowait(stop_command(number))
            seen.link.close("closed", "done")
            ended = trio.Event()
            link.when_ended = ended.set
            if link.closed is None:
                await ended.wait()
            received = [await link.receive() for _ in range(5)]
            assert [frame.operation for frame in received] == [stop_command(number).operation for number in range(5)]
            await link.receive()

        assert (await gateway.ended("node-1", body)).code == "closed"


async def test_body_that_returns_leaves_after_its_frames() -> None:
    """The Node's own leaving is no error, and nothing that it sent is lost."""

    async def body(link: NodeLink) -> None:
        for revision in range(1, 101):
            await link.send(observation(revision))

    async with open_bridge(), open_gateway() as gateway:
        await gateway.session("node-1", body)
        ended = await gateway.door.wait_ended("node-1")
        assert ended.code == "left"
        assert len(gateway.door.sessions["node-1"].frames) == 100


async def test_body_that_fails_raises_its_own_error() -> None:
    async def body(link: NodeLink) -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError("mine")

    async with open_bridge(), open_gateway() as gateway:
        with pytest.raises(KeyError, match="mine"):
            await gateway.session("node-1", body)
        assert (await gateway.door.wait_ended("node-1")).code == "connection-lost"


async def test_body_that_ignores_the_end_is_cancelled() -> None:
    async def body(link: NodeLink) -> None:
        (await gateway.door.wait("node-1")).link.close("evicted", "x")
        await trio.sleep_forever()

    async with open_bridge(), open_gateway() as gateway:
        with trio.fail_after(4):
            assert (await gateway.ended("node-1", body)).code == "evicted"


async def test_command_is_stamped_with_the_epoch_of_its_session() -> None:
    """P-05: session_epoch is stamped when a frame is sent."""
    async with open_bridge(), open_gateway() as gateway, open_session(gateway) as link:
        seen = await gateway.door.wait("node-1")
        await seen.link.send(stop_command())
        assert (await link.receive()).session_epoch == seen.link.epoch == link.welcome.session_epoch


async def test_frame_that_the_state_forbids_is_our_own_error() -> None:
    async with open_bridge(), open_gateway() as gateway, open_session(gateway) as link:
        with pytest.raises(LocalProtocolError):
            link.send_nowait(hello())
        await link.send(ReconcileDone(members=0))
        await gateway.door.wait("node-1", lambda seen: len(seen.frames) == 1)


async def test_gateway_that_does_not_take_frames_holds_the_peer_and_keeps_the_session() -> None:
    """P-17: a session actor that waits for PostgreSQL fills its inbox; the Node's silence is then our doing."""
    hold = trio.Event()

    class Busy(ScriptedDoor):
        async def session(self, link: GatewayLink) -> None:
            await hold.wait()
            await super().session(link)

    async with open_bridge(), open_gateway(Busy(timings=FAST)) as gateway, open_session(gateway) as link:
        count = INBOX_FRAMES * 40
        sent = 0
        with trio.move_on_after(FAST.session_idle * 3):
            while sent < count:
                await link.send(observation(sent + 1, reason_detail="x" * 4000))
                sent += 1
            await trio.sleep_forever()
        assert INBOX_FRAMES < sent < count, "nothing was held back"
        assert link.closed is None
        hold.set()
        seen = await gateway.door.wait("node-1", lambda seen: len(seen.frames) == sent, seconds=10)
        assert seen.ended is None


async def test_control_lane_that_overflows_closes_the_session() -> None:
    """Who reads so slowly would miss a stop."""
    async with open_bridge(), open_gateway() as gateway, open_session(gateway):
        link = (await gateway.door.wait("node-1")).link
        link._call._connection.write_ready.clear()  # as a peer that does not read
        for number in range(LANES[0].messages):
            link.send_nowait(stop_command(number))
        with pytest.raises(LinkClosed, match="outbox-overflow"):
            link.send_nowait(stop_command(0))


async def test_full_reply_lane_refuses_at_once_and_send_waits_for_room() -> None:
    async with open_bridge(), open_gateway() as gateway, open_session(gateway) as node:
        link = (await gateway.door.wait("node-1")).link
        link._call._connection.write_ready.clear()
        prepare = evolve(stop_command(), kind=CommandKind.PREPARE)
        for _ in range(LANES[1].messages):
            link.send_nowait(prepare)
        with pytest.raises(LinkFull):
            link.send_nowait(prepare)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.send, prepare)
            await trio.testing.wait_all_tasks_blocked()
            link._call.owner.resume_writing()
            for _ in range(LANES[1].messages + 1):
                await node.receive()


async def test_sink_that_fails_ends_its_session_as_our_fault(caplog: pytest.LogCaptureFixture) -> None:
    def fail(chunk: LogChunk) -> None:
        raise RuntimeError("a bug in a sink")

    async with open_bridge(), open_gateway() as gateway:

        async def body(link: NodeLink) -> None:
            (await gateway.door.wait("node-1")).link.log_sink = fail
            await link.send(chunk(1))
            await wait_end(link)

        assert (await gateway.ended("node-1", body)).code == "internal-error"
    assert "a bug in a sink" in caplog.text


async def test_second_receiver_is_refused() -> None:
    async with open_bridge(), open_gateway() as gateway, open_session(gateway) as link, trio.open_nursery() as nursery:
        nursery.start_soon(link.receive)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await link.receive()
        nursery.cancel_scope.cancel()


async def test_receive_cancelled_loses_no_frame() -> None:
    async with open_bridge(), open_gateway() as gateway, open_session(gateway) as link:
        seen = await gateway.door.wait("node-1")
        with trio.move_on_after(0.05):
            await link.receive()
        seen.link.send_nowait(stop_command(1))
        seen.link.send_nowait(stop_command(2))
        assert (await link.receive()).operation.endswith("1")
        assert (await link.receive()).operation.endswith("2")


def test_half_open_connection_is_noticed_within_45_seconds_by_each_net() -> None:
    """R-SES-03, at production's durations: our deadline, HTTP/2's ping, the kernel's. And two heartbeats may be lost (P-16)."""
    by_us = PRODUCTION.session_idle * (1 + 1 / WATCHES_PER_IDLE)
    by_ping = 2 * PRODUCTION.session_idle * KEEPALIVE_SHARE + TLS_FAREWELL_SECONDS
    by_kernel = USER_TIMEOUT_MS / 1000 + PRODUCTION.heartbeat
    assert by_us < by_ping < 45
    assert by_kernel < 45
    assert 2 * PRODUCTION.heartbeat < PRODUCTION.session_idle < 3 * PRODUCTION.heartbeat


# ---------------------------------------------------------------- opening


@pytest.mark.parametrize(
    ("validity", "reason"),
    [
        ({"not_before": now() + timedelta(days=1), "not_after": now() + timedelta(days=2)}, "not yet valid"),
        ({"not_before": now() - timedelta(days=2), "not_after": now() - timedelta(days=1)}, "expired"),
    ],
)
async def test_session_with_a_certificate_out_of_its_time_says_so(validity: dict[str, datetime], reason: str) -> None:
    """L-A3: the TLS reason is not hidden."""
    async with open_bridge(), open_gateway(**validity) as gateway:
        ended = await gateway.ended("node-1")
        assert ended.code == "tls-failed"
        assert reason in ended.detail


async def test_session_with_an_untrusted_certificate_says_so() -> None:
    async with open_bridge(), open_gateway() as gateway:
        with make_certificates() as other:
            ended = await gateway.ended("node-1", tls=client_context(trust_pem=other.trust_pem))
        assert ended.code == "tls-failed"
        assert "certificate verify failed" in ended.detail


async def test_session_with_a_certificate_of_another_name_says_so() -> None:
    """R-SES-08: the Node verifies the gateway's host name."""
    async with open_bridge(), open_gateway(names=("gateway.example",)) as gateway:
        ended = await gateway.ended("node-1")
        assert ended.code == "tls-failed"
        assert "mismatch" in ended.detail


async def test_session_with_nobody_there_is_unreachable() -> None:
    async with open_bridge(), open_gateway() as gateway:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        port = listener.socket.getsockname()[1]
        await listener.aclose()
        ended = await gateway.ended("node-1", target=f"127.0.0.1:{port}")
        assert ended.code == "unreachable"
        assert "refused" in ended.detail.lower()


async def test_session_with_a_server_that_is_no_gateway_is_refused() -> None:
    """A TLS server that knows no HTTP/2."""
    import ssl

    with make_certificates() as certificates:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)

        async def serve(stream: trio.SocketStream) -> None:
            tls = trio.SSLStream(stream, context, server_side=True)
            with trio.move_on_after(2):
                try:
                    await tls.do_handshake()
                    await tls.receive_some()
                except trio.BrokenResourceError:
                    pass
            await trio.aclose_forcefully(tls)

        async with open_bridge(), trio.open_nursery() as nursery, open_gateway() as gateway:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, serve, listeners)
            port = listeners[0].socket.getsockname()[1]
            ended = await gateway.ended("node-1", target=f"127.0.0.1:{port}", tls=certificates.client())
            nursery.cancel_scope.cancel()
        assert ended.code == "tls-failed"
        assert "HTTP/2" in ended.detail


async def test_session_with_a_credential_that_no_header_can_carry_is_a_value_error() -> None:
    async with open_bridge(), open_gateway() as gateway:
        with pytest.raises(ValueError, match="metadata"):
            await gateway.session("node-1", wait_end, credential="späce\n")


async def test_welcome_of_another_protocol_ends_the_session() -> None:
    class Newer(ScriptedDoor):
        async def welcome(self, identity: Any, hello: Any) -> Any:
            return evolve(await super().welcome(identity, hello), protocol=99)

    async with open_bridge(), open_gateway(Newer()) as gateway:
        assert (await gateway.ended("node-1")).code == "protocol-version"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("gw.example", ("gw.example", 8443)),
        ("gw.example:9000", ("gw.example", 9000)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[fe80::1]:443", ("fe80::1", 443)),
        ("[fe80::1]", ("fe80::1", 8443)),
        ("fe80::1", ("fe80::1", 8443)),
    ],
)
def test_target_is_split_into_host_and_port(target: str, expected: tuple[str, int]) -> None:
    """R-SES-08: 8443 by default."""
    assert split_target(target) == expected


@pytest.mark.parametrize("target", ["", ":80", "a:", "a:b", "a:0", "a:70000"])
def test_target_that_is_none_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        split_target(target)
