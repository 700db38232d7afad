"""The gateway's end: the door, the sessions behind it, their heartbeats, credit and idle deadline."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import trio
from attrs import define, evolve, field

from ...bridge.call import Call, CallClosed, LaneFull
from ...bridge.grpc import CallSettings, Server, serve_calls
from ...bridge.listening import ListenLimits
from ...domain.errors import Refused
from ...domain.frames import (
    LOG_CREDIT_BYTES,
    WIRE_PROTOCOL,
    Command,
    GatewayFrame,
    Goodbye,
    Heartbeat,
    HeartbeatReply,
    Hello,
    Lane,
    LogChunk,
    LogCredit,
    NodeFrame,
    Welcome,
)
from ...domain.jobs import NodeIdentity
from ...domain.session_table import Role, SessionState
from ...domain.timings import Timings
from ..gateway_codec import encode_gateway_frame
from ..node_codec import decode_node_frame
from .base import KEEPALIVE_SHARE, LANES, SESSION_PATH, Link, LinkClosed

log = logging.getLogger("tuneplane.wire")

REFILL_BYTES = LOG_CREDIT_BYTES // 4  # credit goes back in quarters: one small frame per log chunk at most
GRACE_SECONDS = 2.0  # a session task has this long to notice the end of its link before it is cancelled
WATCHES_PER_IDLE = 8  # the idle deadline is checked this often within itself: it is late by an eighth at most
PATIENCE_SHARE = 0.1  # of the idle deadline: what a connection without a call may stay in a flood before it makes room
BEARER = "Bearer "


class Door(Protocol):
    """Who may come in. Implemented by ``control``; called from the task of each connection, in this order."""

    async def authenticate(self, credential: str, peer: str) -> NodeIdentity:
        """The identity that the credential proves. Raises Refused."""
        ...

    async def welcome(self, identity: NodeIdentity, hello: Hello) -> Welcome:
        """Open the session: its Welcome carries the epoch. Raises Refused."""
        ...

    async def session(self, link: GatewayLink) -> None:
        """Own the live session until it ends. Returning ends it; LinkClosed may escape. Cancelled a little after the link's end."""
        ...


class GatewayLink(Link):
    """A session with one Node. ``log_sink`` and ``on_heartbeat`` are called on arrival; they must not block or raise."""

    identity: NodeIdentity
    hello: Hello
    epoch: int

    def __init__(self, call: Call, clock: Callable[[], datetime] | None = None) -> None:
        super().__init__(call, Role.GATEWAY)
        self._clock = clock or utc_now
        self.log_sink: Callable[[LogChunk], None] = lambda chunk: None
        self.on_heartbeat: Callable[[Heartbeat], None] = lambda heartbeat: None
        self._heartbeat = 0  # sequence of the last one
        self._heartbeat_at: datetime | None = None
        self._replied_at = trio.current_time()
        self._credit_due = 0

    def close(self, code: str, detail: str, retry_after_seconds: float = 0.0) -> None:
        """Say Goodbye ahead of everything that is queued, and end. The Node's ``SessionEnded`` carries the arguments."""
        if self._closed is not None:
            return
        self._call.discard_queued()
        goodbye = Goodbye(code=code, detail=detail, retry_after_seconds=retry_after_seconds)
        self._machine.sent(goodbye)
        try:
            self._call.send_nowait(Lane.CONTROL, encode_gateway_frame(goodbye))
        except (CallClosed, LaneFull):
            log.debug("the peer %s was gone before our goodbye", self.peer)
        self._end(code, detail, retry_after_seconds)

    def _fail(self, code: str, detail: str) -> None:
        log.warning("session with %s closed: %s: %s", self.peer, code, detail)
        self.close(code, detail)

    def end_of_stream(self) -> None:
        self._end("left", "the Node ended the session")

    def _encode(self, frame: GatewayFrame) -> bytes:
        if isinstance(frame, Command) and frame.session_epoch != self.epoch:
            frame = evolve(frame, session_epoch=self.epoch)  # P-05: stamped when it is sent
        return encode_gateway_frame(frame)

    def _decode(self, data: bytes) -> NodeFrame:
        return decode_node_frame(data)

    def _take(self, frame: NodeFrame) -> None:
        if isinstance(frame, Heartbeat):
            self._heartbeat, self._heartbeat_at = frame.sequence, self._clock()
            self.send_reply()
            self.on_heartbeat(frame)
        elif isinstance(frame, LogChunk):
            self.log_sink(frame)
            self._return_credit(len(frame.data))
        else:
            self._put(frame)

    def send_reply(self) -> None:
        """Answer the last heartbeat; again, when our own inbox keeps us from reading the next one."""
        self._replied_at = trio.current_time()
        self.send_nowait(HeartbeatReply(sequence=self._heartbeat, received_at=self._heartbeat_at))

    def _return_credit(self, size: int) -> None:
        self._credit_due += size
        if self._credit_due >= REFILL_BYTES and self._closed is None:
            due, self._credit_due = self._credit_due, 0
            self.send_nowait(LogCredit(size=due))

    def watch(self, now: float, timings: Timings) -> None:
        """Idle deadline; and a sign of life while a full inbox keeps us from reading (P-17)."""
        if self._closed is not None or self._machine.state is not SessionState.LIVE:
            return
        if self.is_idle(now, timings.session_idle):
            self._end("idle", f"nothing was heard for {timings.session_idle:g} s")
            self._call.abort("idle", "the peer is silent")
        elif self._call.reading_held and now - self._replied_at >= timings.heartbeat:
            self.send_reply()


@define(eq=False)
class _Gateway:
    door: Door
    timings: Timings
    clock: Callable[[], datetime]
    links: dict[Call, GatewayLink] = field(factory=dict)

    async def serve(self, call: Call) -> None:
        link = self.links[call] = GatewayLink(call, self.clock)
        try:
            with trio.CancelScope() as scope:
                link.when_ended = lambda: _cancel_soon(scope)
                await self._converse(call, link)
        except LinkClosed:
            pass  # how sessions end
        except BaseExceptionGroup as group:
            _, rest = group.split(LinkClosed)
            if rest is not None:
                link.close("internal-error", "the gateway failed on this session")
                raise rest from None
        except Exception:
            link.close("internal-error", "the gateway failed on this session")
            raise
        finally:
            link.close("closed", "the gateway ended the session")
            del self.links[call]

    async def _converse(self, call: Call, link: GatewayLink) -> None:
        try:
            with trio.fail_after(self.timings.session_idle):
                await self._greet(call, link)
        except Refused as refusal:
            log.info("refused %s: %s: %s", call.peer, refusal.code, refusal)
            link.close(refusal.code, str(refusal), getattr(refusal, "retry_after_seconds", 0.0))
            return
        except trio.TooSlowError:
            link.close("greeting-overdue", f"no session was opened within {self.timings.session_idle:g} s")
            return
        await self.door.session(link)

    async def _greet(self, call: Call, link: GatewayLink) -> None:
        header = call.metadata.get("authorization", "")
        if not header.startswith(BEARER):
            raise Refused("credential-missing", "the call carries no credential")
        link.identity = await self.door.authenticate(header.removeprefix(BEARER), call.peer)
        call.attach(link)
        hello = await link.receive()
        _check_hello(link.identity, hello)
        link.hello = hello
        welcome = await self.door.welcome(link.identity, hello)
        link.epoch = welcome.session_epoch
        link.send_nowait(welcome)

    async def watch(self) -> None:
        """The one task that watches every session of this gateway."""
        while True:
            await trio.sleep(self.timings.session_idle / WATCHES_PER_IDLE)
            now = trio.current_time()
            for link in tuple(self.links.values()):
                try:
                    link.watch(now, self.timings)
                except LinkClosed:
                    continue

    def say_goodbye(self, call: Call) -> None:
        link = self.links.get(call)
        if link is None:
            call.finish()
        else:
            link.close("gateway-leaving", "the gateway is shutting down; another one, or the next, takes over")


def _cancel_soon(scope: trio.CancelScope) -> None:
    scope.deadline = min(scope.deadline, trio.current_time() + GRACE_SECONDS)


def _check_hello(identity: NodeIdentity, hello: Hello) -> None:
    """R-SES-04: what the Hello says must be what the credential proves, in a protocol that we speak."""
    if hello.protocol != WIRE_PROTOCOL:
        raise Refused("protocol-version", f"the Node speaks wire protocol {hello.protocol}, this gateway {WIRE_PROTOCOL}")
    if hello.node != identity.node:
        raise Refused("wrong-node", f"the credential belongs to Node {identity.node}, not to {hello.node}")
    if hello.fleet != identity.fleet:
        raise Refused("wrong-fleet", f"Node {identity.node} belongs to Fleet {identity.fleet}, not to {hello.fleet}")


async def serve_gateway(
    *,
    host: str | None,
    port: int,
    tls: ssl.SSLContext,
    door: Door,
    timings: Timings,
    clock: Callable[[], datetime] | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve Nodes on ``host:port`` until cancelled; ``task_status`` gets the bound port.

    Nothing that one peer does ends another's session or this function; what it raises is OSError (the port is taken) or
    a cancellation. On cancellation every session gets a Goodbye ``gateway-leaving`` and ``shutdown_grace`` seconds to end,
    then its task is cancelled; connections are closed last.
    """
    gateway = _Gateway(door, timings, clock or utc_now)
    settings = CallSettings(path=SESSION_PATH, lanes=LANES, keepalive_seconds=timings.session_idle * KEEPALIVE_SHARE)
    idle = timings.session_idle
    limits = ListenLimits(stranger_seconds=idle, patience_seconds=idle * PATIENCE_SHARE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gateway.watch)
        server: Server = await nursery.start(_serve, gateway, host, port, tls, settings, limits, timings.shutdown_grace)
        task_status.started(server.port)


async def _serve(
    gateway: _Gateway,
    host: str | None,
    port: int,
    tls: ssl.SSLContext,
    settings: CallSettings,
    limits: ListenLimits,
    drain_seconds: float,
    *,
    task_status: trio.TaskStatus[Server],
) -> None:
    await serve_calls(
        gateway.serve,
        host=host,
        port=port,
        tls=tls,
        settings=settings,
        limits=limits,
        on_stopping=gateway.say_goodbye,
        drain_seconds=drain_seconds,
        task_status=task_status,
    )


def utc_now() -> datetime:
    """The wall clock, for the times that frames carry."""
    return datetime.now(UTC)
