"""Serving bidirectional gRPC calls from Trio. The calling side is :mod:`.dial`.

The asyncio half is out of sight: one asyncio task per call that waits for the call's end, because grpclib wants to be
awaited there. Everything that works on a call is a Trio task in the server's own nursery, so cancelling means what it
means everywhere else.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio
from attrs import define, field
from grpclib.const import Cardinality, Handler, Status
from grpclib.events import _DispatchServerEvents
from grpclib.exceptions import GRPCError
from grpclib.server import Handler as ServerHandler

from .call import Call
from .dial import DialFailed, open_call
from .listening import BACKLOG, Doorkeeper, ListenLimits
from .peers import FAREWELL_SECONDS, CallSettings, peer_name, wait_closed
from .repairs import PeerProtocol, RawCodec, configuration, h2_configuration, shrink_tls_buffers

__all__ = ["FAREWELL_SECONDS", "GRACE_SECONDS", "CallSettings", "DialFailed", "Server", "open_call", "serve_calls"]

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0  # how often overdue strangers are looked for
PENDING_CALLS = 256  # calls between the asyncio handler and their own task: one step of the loop
GRACE_SECONDS = 5.0  # a handler has this long to notice that its peer is gone before it is cancelled


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
        await wait_closed(protocols)

    async def _asyncio_handler(self, stream: Any) -> None:
        """grpclib's handler: hand the call over, then wait for its end. Cancelled when peer or connection goes."""
        await stream.send_initial_metadata()
        call = Call(stream._stream, self._settings.lanes, _text_metadata(stream.metadata), peer_name(stream.peer))
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
