"""Serving and making bidirectional gRPC calls from Trio.

:func:`serve_calls` and :func:`open_call` keep their asyncio halves out of sight: one asyncio task per call that waits for
the call's end, because grpclib wants to be awaited there. Everything that works on a call is a Trio task in the server's
or the caller's own nursery, so cancelling means what it means everywhere else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import trio
from attrs import define, field, frozen
from grpclib.client import Channel
from grpclib.client import Handler as ClientHandler
from grpclib.const import Cardinality, Handler, Status
from grpclib.events import _DispatchServerEvents
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.exceptions import ProtocolError as GrpcProtocolError
from grpclib.server import Handler as ServerHandler
from h2.exceptions import H2Error
from trio_asyncio import run_aio_future

from .call import Call, LaneLimit
from .listening import BACKLOG, HANDSHAKE_SECONDS, TLS_FAREWELL_SECONDS, Doorkeeper, ListenLimits
from .loop import asyncio_connection, from_trio
from .repairs import KEEPALIVE_SECONDS, PeerProtocol, RawCodec, configuration, h2_configuration, shrink_tls_buffers

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0  # how often overdue strangers are looked for
FAREWELL_SECONDS = 2.0  # for trailers and GOAWAY to leave the buffers of an ending server or client
PENDING_CALLS = 256  # calls between the asyncio handler and their own task: one step of the loop
GRACE_SECONDS = 5.0  # a handler has this long to notice that its peer is gone before it is cancelled


class DialFailed(Exception):
    """No call could be opened. ``code`` is ``unreachable``, ``tls-failed`` or ``refused``; ``detail`` is for a person."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@frozen(kw_only=True)
class CallSettings:
    """What both ends must know of a method, and the pace of its second net."""

    path: str  # /package.Service/Method
    lanes: tuple[LaneLimit, ...]  # outgoing, most urgent first
    keepalive_seconds: float = KEEPALIVE_SECONDS


@define(eq=False)
class Server:
    """A running server, given to ``task_status``. ``crashed`` counts handlers that ended with an error of their own."""

    port: int
    calls: set[Call] = field(factory=set)
    crashed: int = 0


CallHandler = Callable[[Call], Awaitable[None]]


async def serve_calls(
    handler: CallHandler,
    *,
    host: str | None,
    port: int,
    tls: ssl.SSLContext,
    settings: CallSettings,
    limits: ListenLimits = ListenLimits(),  # noqa: B008  (frozen)
    on_stopping: Callable[[Call], None] = lambda call: call.finish(Status.UNAVAILABLE, "the server is leaving"),
    drain_seconds: float = FAREWELL_SECONDS,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run ``handler`` for every call, each in its own task; report a :class:`Server` when the port is bound.

    A handler that returns ends its call with status OK (after its queued messages have left); one that raises is logged
    and ends its call with INTERNAL; neither touches another call. When the peer goes, the call's receiver is told, and
    the handler is cancelled if it has not ended ``GRACE_SECONDS`` later. Raises OSError when the port cannot be bound.

    On cancellation: no more accepts, ``on_stopping`` for each live call, at most ``drain_seconds`` for the handlers, then
    they are cancelled; GOAWAY; connections are closed. That takes at most ``drain_seconds + FAREWELL_SECONDS``.
    """
    shrink_tls_buffers()
    listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    server = Server(listeners[0].socket.getsockname()[1])
    await _Serving(handler, server, settings, tls, limits, on_stopping, drain_seconds).run(listeners, task_status)


class _Serving:
    def __init__(
        self,
        handler: CallHandler,
        server: Server,
        settings: CallSettings,
        tls: ssl.SSLContext,
        limits: ListenLimits,
        on_stopping: Callable[[Call], None],
        drain_seconds: float,
    ) -> None:
        self._handler = handler
        self._server = server
        self._settings = settings
        self._on_stopping = on_stopping
        self._drain_seconds = drain_seconds
        self._mapping = {settings.path: Handler(self._asyncio_handler, Cardinality.STREAM_STREAM, bytes, bytes)}
        self._config = configuration(settings.keepalive_seconds).__for_server__()
        self._doorkeeper = Doorkeeper(self._make_protocol, tls, limits)
        self._incoming, self._calls = trio.open_memory_channel[Call](PENDING_CALLS)

    def _make_protocol(self) -> PeerProtocol:
        handler = ServerHandler(self._mapping, RawCodec(), None, _DispatchServerEvents())
        return PeerProtocol(handler, self._config, h2_configuration(client_side=False))

    async def run(self, listeners: list[trio.SocketListener], task_status: trio.TaskStatus[Server]) -> None:
        async with trio.open_nursery() as outer:
            await outer.start(self._run_calls)
            try:
                async with trio.open_nursery() as accepting:
                    for listener in listeners:
                        accepting.start_soon(self._doorkeeper.accept_from, listener)
                    task_status.started(self._server)
                    await self._sweep()
            finally:
                for listener in listeners:
                    listener.socket.close()
                self._incoming.close()

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_SECONDS)
            self._doorkeeper.expire()

    async def _run_calls(self, *, task_status: trio.TaskStatus[None]) -> None:
        """The calls' own nursery: shielded, so that they can say goodbye when the server is cancelled."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as calls:
                task_status.started()
                async for call in self._calls:
                    calls.start_soon(self._run_handler, call)
                for call in tuple(self._server.calls):
                    self._on_stopping(call)
                calls.cancel_scope.deadline = trio.current_time() + self._drain_seconds
            await self._close_connections()

    async def _close_connections(self) -> None:
        protocols = self._doorkeeper.protocols
        for protocol in protocols:
            _say_farewell(protocol)
        await _wait_closed(protocols)

    async def _asyncio_handler(self, stream: Any) -> None:
        """grpclib's handler: hand the call over, then wait for its end. Cancelled when peer or connection goes."""
        await stream.send_initial_metadata()
        call = Call(stream._stream, self._settings.lanes, _text_metadata(stream.metadata), _peer_name(stream.peer))
        if call.owner.on_call is not None:
            call.owner.on_call(call.owner)
        try:
            self._incoming.send_nowait(call)
        except (trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            raise GRPCError(Status.UNAVAILABLE, "the server is busy or leaving") from None
        try:
            status, text = await call.ended
        except BaseException:
            call.note_gone("connection-lost", "the connection was lost")
            raise
        finally:
            # one call per connection: close it once the trailers, which grpclib writes next, are in the buffer
            asyncio.get_running_loop().call_soon(_conclude, call)
        if status is not Status.OK:
            raise GRPCError(status, text)

    async def _run_handler(self, call: Call) -> None:
        self._server.calls.add(call)
        try:
            with trio.CancelScope() as scope:
                call.when_gone = partial(_set_deadline, scope, GRACE_SECONDS)
                if call.gone is not None:
                    call.when_gone()
                await self._handler(call)
                with trio.move_on_after(FAREWELL_SECONDS):
                    await call.drain()
        except Exception:
            self._note_crash(call)
        except BaseExceptionGroup as group:
            cancelled, errors = group.split(trio.Cancelled)
            if errors is not None:
                self._note_crash(call)
            if cancelled is not None:
                raise cancelled from None
        finally:
            self._server.calls.discard(call)
            call.finish()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + FAREWELL_SECONDS):
                await call.concluded.wait()  # else a server that ends closes the connection before the trailers

    def _note_crash(self, call: Call) -> None:
        self._server.crashed += 1
        log.exception("the call of %s ended with an error of ours", call.peer)
        call.finish(Status.INTERNAL, "the call failed")


def _conclude(call: Call) -> None:
    """The asyncio half of a served call has written its trailers."""
    _say_farewell(call.owner)
    call.forget()
    call.concluded.set()


def _say_farewell(protocol: PeerProtocol) -> None:
    protocol.goaway()
    protocol.close()


def _set_deadline(scope: trio.CancelScope, seconds: float) -> None:
    scope.deadline = min(scope.deadline, trio.current_time() + seconds)


def _text_metadata(metadata: Any) -> dict[str, str]:
    return {key: value for key, value in (metadata or {}).items() if isinstance(value, str)}


def _peer_name(peer: Any) -> str:
    address = peer.addr()
    return f"{address[0]}:{address[1]}" if address else "unknown"


async def _wait_closed(protocols: Sequence[PeerProtocol]) -> None:
    """Let closing connections finish; abort what has not after FAREWELL_SECONDS, and wait for that."""

    async def all_closed() -> None:
        await asyncio.gather(*(protocol.closed.wait() for protocol in protocols))

    with trio.CancelScope(shield=True):
        with trio.move_on_after(FAREWELL_SECONDS):
            await from_trio(all_closed)
            return
        for protocol in protocols:
            protocol.abort()
        with trio.move_on_after(FAREWELL_SECONDS):
            await from_trio(all_closed)


# ---------------------------------------------------------------- the calling side


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
            await _wait_closed([protocol])


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
            call = Call(stream._stream, settings.lanes, {}, _peer_name(stream.peer))
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
