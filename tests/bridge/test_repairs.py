"""One test for each private name that the repairs rely on, and for what each repair repairs.

When a new grpclib, h2 or trio-asyncio breaks one of these, look here first.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import inspect
import socket
from importlib.metadata import version
from typing import Any

import grpclib.client
import grpclib.protocol
import grpclib.server
import h2.connection
import pytest
import trio_asyncio._base
import trio_asyncio._handles
import trio_asyncio._loop
from grpclib.config import Configuration

from tests.support.raw_h2 import open_raw_peer
from tests.support.sessions import open_gateway, open_session, wait_end
from tuneplane.bridge import repairs
from tuneplane.bridge.loop import open_bridge
from tuneplane.bridge.repairs import PeerProtocol, TolerantProcessor, configuration
from tuneplane.wire.link import NodeLink


def test_versions_are_the_ones_that_were_tested() -> None:
    """pyproject pins them; these tests prove what the pin promises."""
    assert version("grpclib") == "0.4.9"
    assert version("trio-asyncio") == "0.16.0"


def test_keepalive_sets_all_five_private_fields() -> None:
    """With two of them only, a frozen peer is never noticed (wire-notes, section 1)."""
    names = {name for name in Configuration.__dataclass_fields__ if name.startswith(("_keepalive", "_http2"))}
    assert names == {
        "_keepalive_time",
        "_keepalive_timeout",
        "_keepalive_permit_without_calls",
        "_http2_max_pings_without_data",
        "_http2_min_sent_ping_interval_without_data",
    }
    ours, stock = configuration(3.0), Configuration()
    assert all(getattr(ours, name) != getattr(stock, name) for name in names)


def test_tls_buffer_is_a_class_attribute_of_asyncio() -> None:
    repairs.shrink_tls_buffers()
    assert asyncio.sslproto.SSLProtocol.max_size == repairs.TLS_BUFFER_BYTES
    assert "bytearray(self.max_size)" in inspect.getsource(asyncio.sslproto.SSLProtocol.__init__)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (grpclib.protocol.H2Protocol.connection_made, "self.processor = EventsProcessor(self.handler, self.connection)"),
        (grpclib.protocol.EventsProcessor.process, "raise NotImplementedError(event)"),
        (grpclib.protocol.EventsProcessor.process_data_received, "stream.buffer.add("),
        (grpclib.protocol.Stream.__ended__, "self.buffer.eof()"),
        (grpclib.protocol.EventsProcessor.register, "_stream.buffer.unacked_size()"),
        (grpclib.protocol.Stream.init_stream, "Buffer(partial(connection.ack, self.id))"),
        (grpclib.protocol.EventsProcessor.process_window_updated, "stream.window_updated.set()"),
        (grpclib.protocol.EventsProcessor.process_remote_settings_changed, "stream.window_updated.set()"),
        (grpclib.protocol.Stream.__terminated__, "self.wrapper.cancel(StreamTerminatedError(reason))"),
        (grpclib.server.request_handler, "await method_func(stream)"),
        (grpclib.client.Channel.__connect__, "self._protocol = await self._create_connection()"),
        (trio_asyncio._loop.open_loop, "loop = TrioEventLoop(queue_len=queue_len)"),
        (trio_asyncio._base.BaseTrioEventLoop._io_task, "await self.synchronize()"),
        (trio_asyncio._base.BaseTrioEventLoop._main_loop_one, "obj._context.run(self._nursery.start_soon, obj._run"),
        (trio_asyncio._handles.AsyncHandle._run, "self._started.set()"),
    ],
)
def test_private_code_that_a_repair_relies_on_is_still_there(source: Any, expected: str) -> None:
    assert expected in " ".join(inspect.getsource(source).split())


@pytest.mark.parametrize(
    "name", ["data_to_send", "send_data", "local_flow_control_window", "max_outbound_frame_size", "highest_inbound_stream_id"]
)
def test_h2_name_that_the_writer_relies_on_is_still_there(name: str) -> None:
    connection = h2.connection.H2Connection()
    assert hasattr(connection, name)


def test_processor_ignores_events_that_it_does_not_know() -> None:
    class Novel:
        """An event of a later h2."""

    processor = TolerantProcessor.__new__(TolerantProcessor)
    processor.processors = {}
    processor.process(Novel())


async def test_connection_limits_streams_and_answers_a_second_call() -> None:
    """A Node needs one; grpclib allows 100."""
    async with open_bridge(), open_gateway() as gateway, open_raw_peer(gateway) as raw:
        await raw.open_session("node-1")
        limit = raw.h2.remote_settings.max_concurrent_streams
        assert limit == repairs.STREAMS_PER_CONNECTION


async def test_connection_is_tuned_when_it_is_made() -> None:
    async with open_bridge(), open_gateway() as gateway, open_session(gateway):
        owner: PeerProtocol = (await gateway.door.wait("node-1")).link._call.owner
        raw = owner.transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == repairs.USER_TIMEOUT_MS
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert owner.transport.get_write_buffer_limits()[1] == repairs.WRITE_HIGH_WATER_BYTES
        assert isinstance(owner.processor, TolerantProcessor)


async def test_connection_closed_twice_is_closed_once() -> None:
    """A second close of asyncio's TLS transport forgets its protocol, and every later call on it fails."""

    async def body(link: NodeLink) -> None:
        owner: PeerProtocol = link._call.owner
        owner.close()
        owner.close()
        owner.goaway()
        owner.abort()
        await wait_end(link)

    async with open_bridge(), open_gateway() as gateway:
        assert (await gateway.ended("node-1", body)).code == "connection-lost"
