"""The Node's end: dial, greet, and keep the session alive while ``body`` works on it."""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable
from datetime import datetime

import trio

from ...bridge.call import Call
from ...bridge.grpc import CallSettings, DialFailed, open_call
from ...domain.clocks import ClockMeter
from ...domain.frames import (
    LOG_CHUNK_BYTES,
    WIRE_PROTOCOL,
    GatewayFrame,
    Goodbye,
    Heartbeat,
    HeartbeatReply,
    Hello,
    LogChunk,
    LogCredit,
    NodeFrame,
    Welcome,
)
from ...domain.session_table import Role
from ...domain.timings import Timings
from ..gateway_codec import decode_gateway_frame
from ..machine import LocalProtocolError
from ..node_codec import encode_node_frame
from .base import KEEPALIVE_SHARE, LANES, SESSION_PATH, Link, LinkClosed, LinkFull
from .gateway import BEARER, GRACE_SECONDS, utc_now

DEFAULT_PORT = 8443  # R-SES-08
GREETING_SHARE = 1.5  # of the idle deadline, for connecting, TLS, Hello and Welcome: the gateway's own limit ends first, with a reason
_CODES = {0: "closed", 8: "refused", 12: "not-a-gateway", 14: "unavailable"}  # gRPC status of an end without a Goodbye


class SessionEnded(Exception):
    """Why a session ended or never began.

    ``code``: ``unreachable``, ``tls-failed``, ``greeting-overdue``, ``idle``, ``connection-lost``, a code of the protocol
    (``malformed-frame``, ``illegal-frame``, …), or the gateway's: ``credential-unknown``, ``protocol-version``, ``fenced`` …
    """

    def __init__(self, code: str, detail: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.retry_after_seconds = retry_after_seconds


class NodeLink(Link):
    """A session with the gateway. ``inventory_digest`` is what the next heartbeats confirm, of a look at ``inventory_seen_at``
    (Trio's clock)."""

    welcome: Welcome

    def __init__(self, call: Call, clock: Callable[[], datetime]) -> None:
        super().__init__(call, Role.NODE)
        self.inventory_digest = ""
        self.inventory_seen_at: float | None = None  # None: just now, whenever it is asked
        self._meter = ClockMeter()
        self._beat_at: tuple[int, datetime, float] | None = None  # the last heartbeat while it is unanswered: here, and on Trio's clock
        self._clock = clock
        self._sequence = 0
        self._log_turn = trio.Lock()  # fair: several followed logs share the credit
        self._credit_came = trio.lowlevel.ParkingLot()

    async def send(self, frame: NodeFrame) -> None:
        """As Link.send; a log chunk also waits for credit, in turn with other logs, and holds up no other lane."""
        if not isinstance(frame, LogChunk):
            await super().send(frame)
            return
        async with self._log_turn:
            while self._closed is None and self._machine.log_credit < len(frame.data):
                _check_chunk(frame)
                await self._credit_came.park()
            await super().send(frame)

    def send_nowait(self, frame: NodeFrame) -> None:
        """As Link.send_nowait; a log chunk without credit is LinkFull."""
        if isinstance(frame, LogChunk):
            _check_chunk(frame)
            if self._closed is None and self._machine.log_credit < len(frame.data):
                raise LinkFull("no log credit")
        super().send_nowait(frame)

    def close(self, code: str, detail: str, retry_after_seconds: float = 0.0) -> None:
        """End the session from this side; the gateway sees the stream end."""
        self._end(code, detail, retry_after_seconds)

    def _end(self, code: str, detail: str, retry_after_seconds: float = 0.0) -> None:
        super()._end(code, detail, retry_after_seconds)
        self._credit_came.unpark_all()

    def _fail(self, code: str, detail: str) -> None:
        self._end(code, detail)

    def end_of_stream(self) -> None:
        status, text = self._call.remote_status()
        self._end(_CODES.get(status, "refused"), text or "the gateway ended the session")

    def _encode(self, frame: NodeFrame) -> bytes:
        return encode_node_frame(frame)

    def _decode(self, data: bytes) -> GatewayFrame:
        return decode_gateway_frame(data)

    def _take(self, frame: GatewayFrame) -> None:
        if isinstance(frame, LogCredit):
            self._credit_came.unpark_all()
        elif isinstance(frame, Goodbye):
            self._end(frame.code, frame.detail, frame.retry_after_seconds)
        elif isinstance(frame, HeartbeatReply):
            self._measure(frame)
        else:
            self._put(frame)

    def _measure(self, reply: HeartbeatReply) -> None:
        """A reply has done its work by arriving, and tells the gateway's clock."""
        if self._beat_at is None or self._beat_at[0] != reply.sequence:
            return
        _, sent_at, began = self._beat_at
        self._beat_at = None
        if reply.received_at is not None:
            self._meter.answered(sent_at, reply.received_at, trio.current_time() - began)

    async def pulse(self) -> None:
        """Send heartbeats and watch the idle deadline. Returns when the session has ended."""
        next_heartbeat = trio.current_time()
        while self._closed is None:
            now = trio.current_time()
            if now >= next_heartbeat:
                self._beat()
                next_heartbeat = now + self.welcome.heartbeat_seconds
            if self.is_idle(now, self.welcome.idle_seconds):
                self._end("idle", f"the gateway was silent for {self.welcome.idle_seconds:g} s")
                self._call.abort("idle", "the peer is silent")
                return
            await trio.sleep(min(next_heartbeat - now, self.welcome.idle_seconds / 8))

    def _beat(self) -> None:
        self._sequence += 1
        sent_at, now, offset = self._clock(), trio.current_time(), self._meter.best
        seen_at = self.inventory_seen_at if self.inventory_digest and self.inventory_seen_at is not None else now
        self._beat_at = (self._sequence, sent_at, now)
        beat = Heartbeat(
            sequence=self._sequence,
            inventory_digest=self.inventory_digest,
            sent_at=sent_at,
            inventory_age_seconds=max(now - seen_at, 0.0),
            clock_offset_seconds=offset.seconds if offset is not None else None,
            clock_error_seconds=offset.error_seconds if offset is not None else 0.0,
        )
        try:
            self.send_nowait(beat)
        except LinkClosed:
            return


def _check_chunk(frame: LogChunk) -> None:
    if len(frame.data) > LOG_CHUNK_BYTES:
        raise LocalProtocolError(f"a log chunk of {len(frame.data)} bytes exceeds the limit of {LOG_CHUNK_BYTES}")


def split_target(target: str) -> tuple[str, int]:
    """``host``, ``host:port`` or ``[v6]:port`` as host and port (8443 when absent). Raises ValueError."""
    host, separator, port = target.rpartition(":")
    if target.endswith("]") or not separator or (":" in host and not host.endswith("]")):
        host, port = target, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{target!r} is not HOST:PORT")
    return host, int(port)


async def run_node_session(
    *,
    target: str,
    tls: ssl.SSLContext,
    credential: str,
    hello: Hello,
    timings: Timings,
    body: Callable[[NodeLink], Awaitable[None]],
    clock: Callable[[], datetime] = utc_now,
) -> None:
    """Hold one session with the gateway at ``target`` and run ``body(link)`` in it.

    Returns when ``body`` returns: what it sent has then left, or the connection was too slow for two seconds. Raises
    SessionEnded when the session could not be opened or ended first: ``body`` sees LinkClosed, and is cancelled if it goes
    on for more than GRACE_SECONDS. Errors of ``body`` come out unchanged. Cancelling resets the stream at once.
    """
    host, port = split_target(target)
    settings = CallSettings(path=SESSION_PATH, lanes=LANES, keepalive_seconds=timings.session_idle * KEEPALIVE_SHARE)
    metadata = {"authorization": BEARER + credential}
    greeting_seconds = timings.session_idle * GREETING_SHARE
    try:
        with trio.CancelScope(deadline=trio.current_time() + greeting_seconds) as greeting:
            async with open_call(host=host, port=port, tls=tls, settings=settings, metadata=metadata) as call:
                link = NodeLink(call, clock)
                call.attach(link)
                await _greet(link, hello)
                greeting.deadline = math.inf
                await _run_body(link, body)
                if link.closed is not None:  # the body has noticed and returned
                    raise LinkClosed(link.closed.code, link.closed.detail, link.closed.retry_after_seconds)
        if greeting.cancelled_caught:
            raise SessionEnded("greeting-overdue", f"{target} did not open a session within {greeting_seconds:g} s")
    except DialFailed as failed:
        raise SessionEnded(failed.code, failed.detail) from failed
    except LinkClosed as closed:
        raise SessionEnded(closed.code, closed.detail, closed.retry_after_seconds) from None


async def _greet(link: NodeLink, hello: Hello) -> None:
    link.send_nowait(hello)
    welcome = await link.receive()
    assert isinstance(welcome, Welcome)  # the machine lets nothing else through
    if welcome.protocol != WIRE_PROTOCOL:
        link.close("protocol-version", f"the gateway speaks wire protocol {welcome.protocol}, this Node {WIRE_PROTOCOL}")
        raise LinkClosed("protocol-version", f"the gateway speaks wire protocol {welcome.protocol}, this Node {WIRE_PROTOCOL}")
    link.welcome = welcome


async def _run_body(link: NodeLink, body: Callable[[NodeLink], Awaitable[None]]) -> None:
    try:
        async with trio.open_nursery() as nursery:
            link.when_ended = lambda: _cancel_soon(nursery.cancel_scope)
            nursery.start_soon(link.pulse)
            await body(link)
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        closed, rest = group.split(LinkClosed)
        if rest is not None:
            raise (rest.exceptions[0] if len(rest.exceptions) == 1 else rest) from None
        if closed is not None and link.closed is not None:
            raise LinkClosed(link.closed.code, link.closed.detail, link.closed.retry_after_seconds) from None
        raise


def _cancel_soon(scope: trio.CancelScope) -> None:
    scope.deadline = min(scope.deadline, trio.current_time() + GRACE_SECONDS)
