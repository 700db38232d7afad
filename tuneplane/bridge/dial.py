"""Making a bidirectional gRPC call from Trio: connect, TLS, one call, and everything closed when the block is left."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio
from grpclib.client import Channel
from grpclib.client import Handler as ClientHandler
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.exceptions import ProtocolError as GrpcProtocolError
from h2.exceptions import H2Error
from trio_asyncio import run_aio_future

from .call import Call
from .listening import HANDSHAKE_SECONDS, TLS_FAREWELL_SECONDS
from .loop import asyncio_connection
from .peers import FAREWELL_SECONDS, CallSettings, peer_name, wait_closed
from .repairs import PeerProtocol, RawCodec, configuration, h2_configuration, shrink_tls_buffers

log = logging.getLogger(__name__)


class DialFailed(Exception):
    """No call could be opened. ``code`` is ``unreachable``, ``tls-failed`` or ``refused``; ``detail`` is for a person."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class _Channel(Channel):  # type: ignore[misc]
    """A channel over one connection that is already there; it never makes another."""

    def __init__(self, protocol: PeerProtocol, host: str, port: int) -> None:
        super().__init__(host, port, codec=RawCodec(), ssl=None)
        self._protocol: PeerProtocol | None = protocol
        self._scheme = "https"

    async def _create_connection(self) -> PeerProtocol:
        raise StreamTerminatedError("the connection was lost")


@asynccontextmanager
async def open_call(
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext,
    settings: CallSettings,
    metadata: dict[str, str],
    server_name: str | None = None,
) -> AsyncIterator[Call]:
    """Connect to ``host:port`` and open one call; leaving the block ends call and connection.

    The server's certificate must be for ``server_name``, or ``host`` when that is None.
    Raises DialFailed; the caller's scope bounds how long connecting may take (the TLS handshake has its own limit).
    Left normally: queued messages leave first, our end of the stream is closed and the server's answer is waited for, all
    within FAREWELL_SECONDS. Left by an error or a cancellation: the stream is reset at once.
    """
    shrink_tls_buffers()
    protocol = await _dial(host, port, tls, settings.keepalive_seconds, server_name or host)
    ready = asyncio.get_running_loop().create_future()
    half = asyncio.get_running_loop().create_task(_client_half(_Channel(protocol, host, port), settings, metadata, ready))
    call: Call | None = None
    left_normally = False
    try:
        call = await run_aio_future(ready)
        yield call
        left_normally = True
    finally:
        with trio.CancelScope(shield=True):
            await _leave(call, half, left_normally)
            protocol.close()
            await wait_closed([protocol])


async def _dial(host: str, port: int, tls: ssl.SSLContext, keepalive_seconds: float, server_name: str) -> PeerProtocol:
    try:
        stream = await trio.open_tcp_stream(host, port)
    except OSError as error:
        raise DialFailed("unreachable", f"cannot connect to {host}:{port}: {_reason(error)}") from error
    raw = socket.socket(fileno=stream.socket.detach())
    config = configuration(keepalive_seconds).__for_client__()
    try:
        protocol = await asyncio_connection(
            lambda: PeerProtocol(ClientHandler(), config, h2_configuration(client_side=True)),
            raw,
            tls,
            server_hostname=server_name,
            handshake=HANDSHAKE_SECONDS,
            farewell=TLS_FAREWELL_SECONDS,
        )
    except OSError as error:
        raise DialFailed("tls-failed", f"TLS with {host}:{port} failed: {_reason(error)}") from error
    if protocol.transport.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
        protocol.abort()
        raise DialFailed("tls-failed", f"{host}:{port} does not speak HTTP/2 (no ALPN protocol h2): not a gateway?")
    return protocol


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_reason(inner) for inner in error.exceptions)
    if isinstance(error, ConnectionError) and not str(error):
        return "the peer closed the connection"
    if error.__cause__ is not None and isinstance(error.__cause__, (OSError, BaseExceptionGroup)):
        return _reason(error.__cause__)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


async def _client_half(channel: _Channel, settings: CallSettings, metadata: dict[str, str], ready: asyncio.Future[Call]) -> None:
    """The asyncio task of one outgoing call."""
    try:
        async with channel.request(settings.path, Cardinality.STREAM_STREAM, bytes, bytes, metadata=metadata) as stream:
            await stream.send_request()
            if ready.done():  # the caller was cancelled in this very step
                return
            call = Call(stream._stream, settings.lanes, {}, peer_name(stream.peer))
            ready.set_result(call)
            try:
                with stream._wrapper:
                    status, _ = await call.ended
            except StreamTerminatedError as error:
                call.note_gone("connection-lost", str(error))
                raise
            if status is not Status.OK:
                await stream.cancel()
                return
            await stream.end()
            await stream._stream.buffer.ended.wait()
    except (GRPCError, GrpcProtocolError, StreamTerminatedError, H2Error, OSError) as error:
        log.debug("an outgoing call ended: %r", error)
        if not ready.done():
            ready.set_exception(DialFailed("unreachable", f"no call could be opened: {error}"))
    except Exception as error:
        if ready.done():
            raise
        ready.set_exception(error)  # ours: metadata that no header can carry, say
    finally:
        channel._protocol = None  # its owner closes it; grpclib would warn of an unclosed channel


async def _leave(call: Call | None, half: asyncio.Future[None], normally: bool) -> None:
    with trio.move_on_after(FAREWELL_SECONDS):
        if call is not None and normally:
            await call.drain()
        if call is not None:
            call.finish(Status.OK if normally else Status.CANCELLED)
        else:
            half.cancel()
        with suppress(asyncio.CancelledError):
            await run_aio_future(half)
