"""A peer that says what it likes: HTTP/2 by hand on a real TLS connection."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import h2.config
import h2.connection
import h2.events
import trio
from attrs import define, field

from tuneplane.domain.frames import GatewayFrame, NodeFrame
from tuneplane.wire.gateway_codec import decode_gateway_frame
from tuneplane.wire.node_codec import encode_node_frame

from .sessions import Gateway, hello

HEADERS = [
    (":method", "POST"),
    (":scheme", "https"),
    (":path", "/tuneplane.v1.NodeGateway/Session"),
    (":authority", "127.0.0.1"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


@define(eq=False)
class RawPeer:
    """``events`` are all that came. Nothing is read but in ``read_until``."""

    stream: trio.SSLStream[trio.SocketStream]
    h2: h2.connection.H2Connection
    events: list[h2.events.Event] = field(factory=list)
    _received: bytes = b""
    _sending: trio.Lock = field(factory=trio.Lock)

    async def flush(self) -> None:
        async with self._sending:
            await self.stream.send_all(self.h2.data_to_send())

    async def open_call(self, node: str, **headers: str) -> int:
        """Headers of a session call with a good credential."""
        stream_id = self.h2.get_next_available_stream_id()
        extra = {"authorization": f"Bearer good-{node}", **{name.replace("_", "-"): value for name, value in headers.items()}}
        self.h2.send_headers(stream_id, HEADERS + list(extra.items()))
        await self.flush()
        return stream_id

    async def send(self, stream_id: int, frame: NodeFrame) -> None:
        data = encode_node_frame(frame)
        await self.send_bytes(stream_id, struct.pack(">BI", 0, len(data)) + data)

    async def send_bytes(self, stream_id: int, data: bytes) -> None:
        """DATA as it is, within the peer's window."""
        while data:
            size = min(len(data), self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size)
            if size <= 0:
                await self.read_some()
                continue
            self.h2.send_data(stream_id, data[:size])
            await self.flush()
            data = data[size:]

    async def read_some(self) -> bool:
        """Read once. False at the end of the connection."""
        try:
            data = await self.stream.receive_some(65536)
        except trio.BrokenResourceError:
            data = b""
        if not data:
            return False
        for event in self.h2.receive_data(data):
            self.events.append(event)
            if isinstance(event, h2.events.DataReceived):
                self._received += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        try:
            await self.flush()
        except trio.BrokenResourceError:
            return False
        return True

    async def read_until(self, condition: Callable[[RawPeer], bool], seconds: float = 5.0) -> None:
        """Read until ``condition`` or the end of the connection."""
        with trio.move_on_after(seconds):
            while not condition(self) and await self.read_some():
                pass
        assert condition(self), f"last events: {self.events[-5:]}"

    def saw(self, kind: type[h2.events.Event]) -> bool:
        return any(isinstance(event, kind) for event in self.events)

    @property
    def frames(self) -> list[GatewayFrame]:
        """The gateway's frames so far."""
        found, data = [], self._received
        while len(data) >= 5 and len(data) >= 5 + (size := struct.unpack(">I", data[1:5])[0]):
            found.append(decode_gateway_frame(data[5 : 5 + size]))
            data = data[5 + size :]
        return found

    async def open_session(self, node: str) -> int:
        """A whole greeting, to the Welcome."""
        stream_id = await self.open_call(node)
        await self.send(stream_id, hello(node))
        await self.read_until(lambda peer: bool(peer.frames))
        return stream_id


@asynccontextmanager
async def open_raw_peer(gateway: Gateway, *, alpn: bool = True) -> AsyncIterator[RawPeer]:
    """Connected, preface and settings exchanged; closed abruptly."""
    context: Any = gateway.certificates.client()
    if not alpn:
        context = __import__("ssl").create_default_context(cadata=gateway.certificates.trust_pem)
    raw = await trio.open_tcp_stream("127.0.0.1", gateway.port)
    try:
        stream = trio.SSLStream(raw, context, server_hostname="127.0.0.1")
        await stream.do_handshake()
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, validate_outbound_headers=False))
        connection.initiate_connection()
        peer = RawPeer(stream, connection)
        await peer.flush()
        yield peer
    finally:
        raw.socket.close()
