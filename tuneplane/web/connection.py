"""Connections: hypercorn's HTTP/1.1 and HTTP/2 protocols on Trio, with the bounds that its own server lacks.

hypercorn's accept loop lets an error of one connection end the server, sends under a shield without a deadline (a
client that stops reading then holds its task for ever, also at shutdown), and answers malformed HTTP with an empty
body. Here a connection's error ends that connection, a send that makes no progress closes it, and malformed HTTP gets
a problem document.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from itertools import chain
from typing import Any

import h11
import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext

from .metrics import Metrics
from .problems import CODE_OF_STATUS, MEDIA_TYPE, Problem

log = structlog.get_logger("tuneplane.web.connection")

MOST_CONNECTIONS = 2000  # a tenth of the descriptors a service usually has; each costs some 100 KiB with TLS
SEND_SECONDS = 20.0  # a client that takes no byte for so long is gone
HANDSHAKE_SECONDS = 10.0
LINGER_SECONDS = 2.0  # for a peer to notice the answer and stop sending its body
RECEIVE_BYTES = 1 << 16
FEED_SECONDS = 120.0  # for the protocol to take what was read: longer than a request may take; then nobody will take it
IDLE_SECONDS = 30.0  # between requests, and for the first one's headers: a slow loris gets no longer
MOST_HEADER_BYTES = 16 * 1024  # per request: what browsers and proxies send is below half of it
MOST_PARALLEL = 64  # HTTP/2 streams of one connection
MALFORMED = "The request is not well-formed HTTP, or its headers are larger than this server takes."


def make_config(certificate: str, key: str) -> Config:
    """hypercorn's settings for our connections."""
    config = Config()
    config.certfile, config.keyfile = certificate, key
    config.accesslog = config.errorlog = None
    config.include_server_header = False
    config.keep_alive_timeout = IDLE_SECONDS
    config.ssl_handshake_timeout = HANDSHAKE_SECONDS
    config.h11_max_incomplete_size = MOST_HEADER_BYTES
    config.h2_max_header_list_size = MOST_HEADER_BYTES
    config.h2_max_concurrent_streams = MOST_PARALLEL
    return config


class Connections:
    """The open connections of one server. Not a task: :meth:`serve` is run by the accept loop's nursery."""

    def __init__(self, app: Any, config: Config, metrics: Metrics) -> None:
        self._app = ASGIWrapper(app)
        self._config = config
        self._context = WorkerContext(None)
        self._metrics = metrics
        self._open: set[trio.SSLStream[trio.SocketStream]] = set()

    async def serve(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        """One connection, from handshake to close. Raises nothing but Cancelled."""
        if len(self._open) >= MOST_CONNECTIONS:
            self._metrics.refused_connections.inc()
            stream.transport_stream.socket.close()
            return
        self._open.add(stream)
        self._metrics.connections.inc()
        try:
            await _Connection(self._app, self._config, self._context, {}, stream).run()
        except BaseExceptionGroup as group:
            errors, rest = group.split(Exception)
            if errors is not None:
                _note(errors)
            if rest is not None:
                raise rest from None
        except Exception as error:
            _note(error)
        finally:
            self._metrics.connections.dec()
            self._open.discard(stream)
            stream.transport_stream.socket.close()

    async def finish(self) -> None:
        """Idle connections close now; a busy one closes after its answer."""
        await self._context.terminated.set()

    def abandon(self) -> None:
        """Close all sockets at once: a send that is shielded from cancellation ends too."""
        for stream in self._open:
            stream.transport_stream.socket.close()


def _note(error: BaseException) -> None:
    """Broken peers are everyday; anything else is a fault worth a look."""
    expected = (OSError, ssl.SSLError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)
    strange = error.split(expected)[1] if isinstance(error, BaseExceptionGroup) else None if isinstance(error, expected) else error
    if strange is not None:
        log.error("a connection failed", exc_info=strange)


class _Connection(TCPServer):  # type: ignore[misc]  # its stubs are skipped
    """hypercorn's connection with a bounded send and problem documents for malformed HTTP."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._read_over = trio.Event()
        self._answered = False
        self._feeding = trio.CancelScope()

    async def protocol_send(self, event: Any) -> None:
        """Bytes go out whole or the connection is closed: half a TLS record cannot be taken back."""
        if isinstance(event, RawData):
            async with self.send_lock:
                if not await self._send_within(event.data):
                    self.stream.transport_stream.socket.close()
                    await self.protocol.handle(Closed())
        elif isinstance(event, Closed) and self._peer_still_sends():
            self._answered = True
            self._feeding.cancel()  # it may wait for an application that has already answered
            self._task_group.spawn(self._close_later)
        elif not (isinstance(event, Updated) and self._read_over.is_set()):
            await super().protocol_send(event)

    def _peer_still_sends(self) -> bool:
        protocol = self.protocol.protocol
        return isinstance(protocol, H11Protocol) and protocol.connection.their_state in (h11.SEND_BODY, h11.ERROR)

    async def _close_later(self) -> None:
        """Closing on a peer that still sends would reset the connection, and the answer would be lost with it."""
        with trio.move_on_after(LINGER_SECONDS):
            await self._read_over.wait()
        await super().protocol_send(Closed())

    async def _read_data(self) -> None:
        """Feed the protocol until the peer is done; once the answer is out, only discard."""
        while (data := await self._receive()) and not self._answered:
            with trio.move_on_after(FEED_SECONDS) as self._feeding:
                await self.protocol.handle(RawData(data))
            if self._feeding.cancelled_caught and not self._answered:
                break
        while data and self._answered:
            data = await self._receive()
        self._read_over.set()
        await self.protocol.handle(Closed())
        await self.idle_task.stop()  # else a connection that is over waits here for its idle time, with its descriptor

    async def _receive(self) -> bytes:
        try:
            return bytes(await self.stream.receive_some(RECEIVE_BYTES))
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return b""

    async def _send_within(self, data: bytes) -> bool:
        with trio.move_on_after(SEND_SECONDS, shield=True) as scope:
            try:
                await self.stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return False
        return not scope.cancelled_caught

    @property
    def protocol(self) -> Any:
        """hypercorn's protocol wrapper; its HTTP/1.1 side is amended as soon as it is made."""
        return self._protocol

    @protocol.setter
    def protocol(self, wrapper: Any) -> None:
        self._protocol = wrapper
        if isinstance(wrapper.protocol, H11Protocol):
            wrapper.protocol._send_error_response = _problem_sender(wrapper.protocol)
            wrapper.protocol._check_protocol = _no_upgrade
        else:
            wrapper.protocol.streams = _Streams()


class _Streams(dict[int, Any]):
    """HTTP/2 streams by id. Data of a stream that was answered and closed meanwhile is dropped; stock it ends the connection."""

    def __missing__(self, stream_id: int) -> _Answered:
        return _Answered()


class _Answered:
    async def handle(self, event: Any) -> None:
        """What comes after the answer is nobody's."""


async def _no_upgrade(request: h11.Request) -> None:
    """HTTP/2 is agreed on in the TLS handshake, never by an upgrade in clear."""


def _problem_sender(protocol: H11Protocol) -> Callable[[int], Any]:
    async def send(status: int) -> None:
        body = Problem(status=status, code=CODE_OF_STATUS.get(status, "bad-request"), detail=MALFORMED).body()
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await protocol._send_h11_event(
            h11.Response(status_code=status, headers=list(chain(headers, protocol.config.response_headers("h11"))))
        )
        await protocol._send_h11_event(h11.Data(data=body))
        await protocol._send_h11_event(h11.EndOfMessage())

    return send
