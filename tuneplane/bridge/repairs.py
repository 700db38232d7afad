"""What stock grpclib 0.4.9 lacks on a hostile network. Every private name used here has a test (tests/bridge/test_repairs.py).

* An unknown HTTP/2 frame is ignored (RFC 9113, 4.1); stock grpclib raises out of ``data_received``.
* Keepalive works: all five private fields are set; with only two of them a frozen peer is never noticed.
* A dead peer is dropped at once: ``abort`` instead of the 30 s that asyncio waits for a TLS close.
* GOAWAY can be sent by a server (h2's own ``close_connection`` forbids all further sends).
* A peer that makes us write and does not read is cut off; TLS and socket buffers are small.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol

import h2.config
from grpclib.config import Configuration
from grpclib.encoding.base import CodecBase
from grpclib.protocol import EventsProcessor, H2Protocol
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame

log = logging.getLogger(__name__)

TLS_BUFFER_BYTES = 17 * 1024  # asyncio zeroes 256 KiB per connection at accept, before the handshake; one TLS record is 16 KiB and 22 bytes
FULL_RECORD_BYTES = 16 * 1024  # a read that gave this much has probably left more in the socket
WINDOW_BYTES = 1 << 20  # HTTP/2, per stream and connection: more than the log credit and its control slack
WRITE_HIGH_WATER_BYTES = 64 * 1024  # stock: 512 KiB of bytes that no later stop can overtake
NOT_SENT_LOW_WATER_BYTES = 128 * 1024  # the same for the kernel's send buffer, which grows to 4 MiB
WRITE_LIMIT_BYTES = 4 << 20  # unread answers (pings, settings) of one connection; above it the peer is cut off
USER_TIMEOUT_MS = 20_000  # unacknowledged bytes: the kernel's own half-open detection, a third net
STREAMS_PER_CONNECTION = 4  # a Node needs one; the others answer a mistaken second call with a status
KEEPALIVE_SECONDS = 10.0  # ping interval, and again the time for its answer: second net behind the application's deadline


def shrink_tls_buffers() -> None:
    """Set the size of every later TLS connection's read buffer in this process (once; asyncio offers no parameter)."""
    asyncio.sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


def configuration(keepalive_seconds: float = KEEPALIVE_SECONDS) -> Configuration:
    """Windows and a keepalive that notices a frozen peer within twice ``keepalive_seconds``."""
    return Configuration(
        _keepalive_time=keepalive_seconds,
        _keepalive_timeout=keepalive_seconds,
        _keepalive_permit_without_calls=True,
        _http2_max_pings_without_data=0,
        _http2_min_sent_ping_interval_without_data=keepalive_seconds / 2,
        http2_stream_window_size=WINDOW_BYTES,
        http2_connection_window_size=WINDOW_BYTES,
    )


def h2_configuration(client_side: bool) -> h2.config.H2Configuration:
    """As grpclib's own: headers are checked by the call, not by h2 (validation costs a third of a set-up)."""
    return h2.config.H2Configuration(
        client_side=client_side,
        header_encoding="ascii",
        validate_inbound_headers=False,
        validate_outbound_headers=False,
        normalize_inbound_headers=False,
        normalize_outbound_headers=False,
    )


class RawCodec(CodecBase):  # type: ignore[misc]
    """Messages are bytes on this side of the border: ``wire`` decodes them, and answers for what is wrong with them."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: Any) -> bytes:
        return message

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


class TolerantProcessor(EventsProcessor):  # type: ignore[misc]
    """Ignores events that grpclib does not know."""

    def process(self, event: Any) -> None:
        try:
            super().process(event)
        except NotImplementedError:
            log.debug("ignored %s of a peer", type(event).__name__)


class CallOnConnection(Protocol):
    """What a connection tells its calls (:class:`.call.Call`)."""

    def flush(self) -> None: ...

    def note_gone(self, code: str, detail: str) -> None: ...


class PeerProtocol(H2Protocol):  # type: ignore[misc]
    """One HTTP/2 connection, either side. ``closed`` is set when the transport is gone; it holds no task of its own."""

    def __init__(self, handler: Any, config: Configuration, h2_config: h2.config.H2Configuration) -> None:
        super().__init__(handler, config, h2_config)
        self.closed = asyncio.Event()
        self._loop: Any = asyncio.get_event_loop()
        self.transport: Any = None
        self.calls: set[CallOnConnection] = set()  # live ones; at most STREAMS_PER_CONNECTION
        self.on_closed: Callable[[PeerProtocol], None] | None = None
        self.on_call: Callable[[PeerProtocol], None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        super().connection_made(transport)
        self.connection.owner = self  # the way from a stream back to us
        self.processor = TolerantProcessor(self.handler, self.connection)
        self.connection._connection.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_PER_CONNECTION})
        self.connection.flush()
        _tune(transport)

    def data_received(self, data: bytes) -> None:
        """Never raises: what a peer sends may end its connection, and nothing else."""
        if len(data) >= FULL_RECORD_BYTES:
            self._loop.read_more = True
        try:
            super().data_received(data)
        except Exception:  # synchronous; h2 and grpclib raise many kinds on hostile input
            log.debug("a peer sent what HTTP/2 does not allow", exc_info=True)
            self.abort()
        if not self.connection.write_ready.is_set() and self.transport.get_write_buffer_size() > WRITE_LIMIT_BYTES:
            log.warning("cut a peer off: it does not read what it makes us send")
            self.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        for call in tuple(self.calls):
            call.flush()

    def connection_lost(self, exc: BaseException | None) -> None:
        for call in tuple(self.calls):
            call.note_gone("connection-lost", f"the connection was lost ({exc})" if exc else "the connection was lost")
        try:
            super().connection_lost(exc)
        finally:
            self.transport = self.connection.owner = None  # no cycles: 40 KiB a connection that only the collector would free
            self.closed.set()
            if self.on_closed is not None:
                self.on_closed(self)

    def goaway(self) -> None:
        """Announce that no further call is accepted. A grpclib client ends its calls at once: end them before."""
        if self.transport is None or self.transport.is_closing():
            return
        last = self.connection._connection.highest_inbound_stream_id
        self.transport.write(GoAwayFrame(0, last_stream_id=last, error_code=0).serialize())

    def close(self) -> None:
        """Close after what is written has left. A second ``close`` of asyncio's TLS transport breaks it: once only."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def abort(self) -> None:
        """Drop the connection now, without the TLS farewell that a dead peer would never answer."""
        if self.transport is not None:
            self.transport.abort()


def _tune(transport: Any) -> None:
    transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
    raw = transport.get_extra_info("socket")
    if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_NOTSENT_LOWAT", 25), NOT_SENT_LOW_WATER_BYTES)
