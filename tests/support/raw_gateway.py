"""A gateway's front by hand: an HTTP/2 server that goes on acknowledging PING while its backend says nothing any more (L-B3)."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import h2.config
import h2.connection
import h2.events
import trio
from attrs import define, field

from tuneplane.domain.frames import WIRE_PROTOCOL, GatewayFrame, Heartbeat, HeartbeatReply, Hello, Welcome
from tuneplane.domain.ids import GatewayId
from tuneplane.domain.timings import Timings
from tuneplane.wire.gateway_codec import encode_gateway_frame
from tuneplane.wire.node_codec import decode_node_frame

from .sessions import Certificates, make_certificates, now


@define(eq=False)
class RawGateway:
    """Serves one session. ``backend`` answers Hello and heartbeats; ``stop_backend`` makes it silent, and HTTP/2 lives on."""

    port: int
    certificates: Certificates
    timings: Timings
    events: Counter[str] = field(factory=Counter)  # HTTP/2 events by name
    heard: Counter[str] = field(factory=Counter)  # frames of the Node by name
    backend_runs: bool = True
    changed: trio.Condition = field(factory=trio.Condition)
    _stream: trio.SSLStream[trio.SocketStream] | None = None
    _h2: h2.connection.H2Connection = field(init=False)
    _data: bytes = b""
    _sending: trio.Lock = field(factory=trio.Lock)

    def stop_backend(self) -> None:
        self.backend_runs = False

    async def ping(self) -> None:
        assert self._stream is not None
        self._h2.ping(b"a" * 8)
        await self._flush()

    async def wait(self, counter: Counter[str], what: str, count: int, seconds: float = 10.0) -> None:
        with trio.move_on_after(seconds):
            async with self.changed:
                while counter[what] < count:
                    await self.changed.wait()
        assert counter[what] >= count, f"waited {seconds:g} s for {count} {what}: {counter}"

    async def serve(self, raw: trio.SocketStream) -> None:
        self._stream = trio.SSLStream(raw, self.certificates.server(), server_side=True)
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self._h2.initiate_connection()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._flush()
            while data := await self._stream.receive_some(65536):
                for event in self._h2.receive_data(data):
                    self._take(event)
                await self._flush()  # acknowledgements of PING too: h2 makes them
                async with self.changed:
                    self.changed.notify_all()

    async def _flush(self) -> None:
        assert self._stream is not None
        async with self._sending:
            if data := self._h2.data_to_send():
                await self._stream.send_all(data)

    def _take(self, event: h2.events.Event) -> None:
        self.events[type(event).__name__] += 1
        if isinstance(event, h2.events.RequestReceived):
            self._h2.send_headers(event.stream_id, [(":status", "200"), ("content-type", "application/grpc")])
        elif isinstance(event, h2.events.DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self._data += event.data
            self._read_frames(event.stream_id)

    def _read_frames(self, stream: int) -> None:
        while len(self._data) >= 5 and len(self._data) >= 5 + (size := struct.unpack(">I", self._data[1:5])[0]):
            frame = decode_node_frame(self._data[5 : 5 + size])
            self._data = self._data[5 + size :]
            self.heard[type(frame).__name__] += 1
            if isinstance(frame, Hello):
                self._say(stream, self._welcome())
            elif isinstance(frame, Heartbeat) and self.backend_runs:
                self._say(stream, HeartbeatReply(sequence=frame.sequence))

    def _say(self, stream: int, frame: GatewayFrame) -> None:
        data = encode_gateway_frame(frame)
        self._h2.send_data(stream, struct.pack(">BI", 0, len(data)) + data)

    def _welcome(self) -> Welcome:
        return Welcome(
            protocol=WIRE_PROTOCOL,
            session_epoch=1,
            gateway=GatewayId("front"),
            heartbeat_seconds=self.timings.heartbeat,
            idle_seconds=self.timings.session_idle,
            sent_at=now(),
        )


@asynccontextmanager
async def open_raw_gateway(timings: Timings) -> AsyncIterator[RawGateway]:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with make_certificates() as certificates:
        front = RawGateway(listeners[0].socket.getsockname()[1], certificates, timings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, front.serve, listeners)
            try:
                yield front
            finally:
                nursery.cancel_scope.cancel()
