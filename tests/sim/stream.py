"""The simulated network: in place of ``bridge.grpc.serve_calls`` and ``open_call``, under the production wire code.

A connection is two directions. Messages leave through lanes by priority, at most WIRE_MESSAGES are on the wire of a
direction, and they arrive in order, each after a latency of its own: as on TCP, so only what still waits in a lane can be
overtaken. A cut holds what is on the wire back and may deliver it much later; a crash or an abort resets.
"""

from __future__ import annotations

import ssl
import traceback
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import trio
from attrs import define, field

import tuneplane.wire.link.gateway
import tuneplane.wire.link.node
import tuneplane.wire.relay
from tuneplane.bridge.call import CallClosed, LaneFull
from tuneplane.bridge.grpc import FAREWELL_SECONDS, GRACE_SECONDS, CallSettings, DialFailed

from .clock import SimClock, sleep
from .fate import LIFE, Fate

WIRE_MESSAGES = 8  # what fits into socket buffers: these are past all priorities
TRY_AGAIN_SECONDS = 0.5  # a held-back message looks this often whether the cut is over
CONNECT_SECONDS = 10.0  # a connection attempt into a cut
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # nobody looks at it here


@define(eq=False)
class End:
    """One end of a call: stands for ``bridge.call.Call``."""

    network: Network
    owner: str  # the process
    peer: str  # the other one
    metadata: dict[str, str]
    settings: CallSettings
    other: End = field(init=False)
    when_gone: Callable[[], None] | None = None
    gone: tuple[str, str] | None = None
    _lanes: list[deque[bytes]] = field(init=False)
    _room: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)
    _wire: deque[Callable[[], bool]] = field(factory=deque)  # what is under way to the other end
    _wire_free_at: float = 0.0
    _inbound: deque[bytes] = field(factory=deque)
    _receiver: Any = None
    _held: bool = True
    _ended: tuple[str, str] | None = None
    _eof: bool = False
    _status: tuple[int, str] = (2, "the stream ended without a status")
    concluded: trio.Event = field(factory=trio.Event)  # the other end said its last word

    def __attrs_post_init__(self) -> None:
        self._lanes = [deque() for _ in self.settings.lanes]

    # ------------------------------------------------ receiving

    def attach(self, receiver: Any) -> None:
        self._receiver = receiver
        if self._ended is not None:
            receiver.broken(*self._ended)
            return
        self.resume_reading()

    def resume_reading(self) -> None:
        if self._held:
            self._held = False
            self._deliver()

    @property
    def reading_held(self) -> bool:
        return self._held

    def _deliver(self) -> None:
        while self._inbound and not self._held and self._ended is None:
            self._held = not self._receiver.message(self._inbound.popleft())
            self.other.flush()
        if self._eof and not self._held and self._ended is None:
            self._ended = ("", "")
            self._receiver.end_of_stream()

    # ------------------------------------------------ sending

    def send_nowait(self, lane: int, message: bytes) -> None:
        if self.gone is not None:
            raise CallClosed(*self.gone)
        if self.is_full(lane):
            raise LaneFull(f"lane {lane} is full")
        self._lanes[lane].append(message)
        self.flush()

    def is_full(self, lane: int) -> bool:
        queue, limit = self._lanes[lane], self.settings.lanes[lane]
        return bool(queue) and (len(queue) >= limit.messages or sum(map(len, queue)) >= limit.size)

    async def wait_room(self, lane: int) -> None:
        await trio.lowlevel.checkpoint()
        while self.gone is None and self.is_full(lane):
            await self._room.park()

    def discard_queued(self) -> None:
        for lane in self._lanes:
            lane.clear()
        self._room.unpark_all()

    async def drain(self) -> None:
        await trio.lowlevel.checkpoint()
        while self.gone is None and any(self._lanes):
            await self._room.park()

    def flush(self) -> None:
        while self.gone is None and len(self._wire) + len(self.other._inbound) < WIRE_MESSAGES:
            for lane in self._lanes:
                if lane:
                    break
            else:
                break
            message = lane.popleft()
            self._send_on(partial(self.other._arrived, message))
        self._room.unpark_all()

    def _send_on(self, arrival: Callable[[], bool]) -> None:
        """Put something on the wire; everything arrives in order."""
        self._wire.append(arrival)
        now = trio.current_time()
        self._wire_free_at = max(self._wire_free_at, now + self.network.latency())
        self.network.at(self._wire_free_at, self._arrive)

    def _arrive(self) -> None:
        if self.network.is_cut(self.owner, self.peer):
            self.network.at(trio.current_time() + TRY_AGAIN_SECONDS, self._arrive)
            return
        if self._wire:
            self._wire.popleft()()
            self.flush()

    def _arrived(self, message: bytes) -> bool:
        if self._ended is None:
            self._inbound.append(message)
            self._deliver()
        return True

    # ------------------------------------------------ ending

    def finish(self, status: object = 0, text: str = "") -> None:
        """Our half ends; the other end hears of it behind all that was written."""
        if self._stop("closed", text or "closed on this side"):
            number = int(getattr(status, "value", status))  # type: ignore[call-overload]
            self._send_on(lambda: self.other._other_finished(number, text))

    def _other_finished(self, status: int, text: str) -> bool:
        self._status, self._eof = (status, text), True
        self.concluded.set()
        if self._receiver is not None:
            self._deliver()
        return True

    def remote_status(self) -> tuple[int, str]:
        return self._status

    def note_gone(self, code: str, detail: str) -> None:
        stopped = self._stop(code, detail)
        self.concluded.set()
        if self._ended is None:
            self._ended = (code, detail)
            self._inbound.clear()
            if self._receiver is not None:
                self._receiver.broken(code, detail)
        if stopped and self.when_gone is not None:
            self.when_gone()

    def abort(self, code: str, detail: str) -> None:
        self.note_gone(code, detail)
        self.reset()

    def reset(self) -> None:
        """What is on the wire is lost; the other end hears of a lost connection, unless a cut keeps that from it."""
        self._wire.clear()
        self._stop("closed", "reset on this side")
        self._send_on(lambda: self.other._lost())

    def _lost(self) -> bool:
        self.note_gone("connection-lost", "the connection was lost")
        return True

    def _stop(self, code: str, detail: str) -> bool:
        if self.gone is not None:
            return False
        self.gone = (code, detail)
        self.discard_queued()
        self.network.ends.pop(self, None)
        return True


@define(eq=False)
class Listener:
    owner: str
    settings: CallSettings
    accept: trio.MemorySendChannel[End]


@define(eq=False)
class Network:
    """Who listens where, what is under way, and what is cut."""

    fate: Fate
    clock: SimClock
    gateways: tuple[str, ...] = ()
    ends: dict[End, None] = field(factory=dict)
    cuts: set[frozenset[str]] = field(factory=set)
    listeners: dict[tuple[str, int], Listener] = field(factory=dict)

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Something arrives then, between two turns of the scheduler."""
        self.clock.call_at(when, partial(self._arrive, what))

    def _arrive(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as error:
            self.fate.note_violation(f"a receiver raised: {''.join(traceback.format_exception(error))}")

    def latency(self) -> float:
        return self.fate.soon(2.0) if self.fate.strikes("control-delay", 0.05) else 0.001 + self.fate.random.random() * 0.02

    def is_cut(self, one: str, other: str) -> bool:
        return bool(self.cuts) and frozenset((one, other)) in self.cuts

    def drop_process(self, name: str) -> None:
        """It was killed: its sockets are reset by its kernel."""
        for address in [address for address, listener in self.listeners.items() if listener.owner == name]:
            del self.listeners[address]
        for end in [end for end in self.ends if end.owner == name]:
            end.note_gone("connection-lost", "the process is gone")
            end.reset()

    # ------------------------------------------------ in place of bridge.grpc

    async def serve_calls(
        self,
        handler: Callable[[End], Awaitable[None]],
        *,
        host: str | None,
        port: int,
        settings: CallSettings,
        on_stopping: Callable[[End], None] = lambda end: end.finish(14, "the server is leaving"),
        drain_seconds: float = FAREWELL_SECONDS,
        task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
        **ignored: object,
    ) -> None:
        send, accepted = trio.open_memory_channel[End](256)
        address, listener = (host or "", port), Listener(host or "", settings, send)
        live: dict[End, None] = {}
        async with trio.open_nursery() as outer:
            try:
                with trio.CancelScope(shield=True) as shield, send:
                    async with trio.open_nursery() as calls:
                        outer.start_soon(_sleep_until_cancelled, calls.cancel_scope, live, on_stopping, drain_seconds)
                        self.listeners[address] = listener
                        task_status.started(_Served(port))
                        async for end in accepted:
                            calls.start_soon(self._serve_call, handler, end, live)
                    shield.shield = False
            finally:
                if self.listeners.get(address) is listener:
                    del self.listeners[address]

    async def _serve_call(self, handler: Callable[[End], Awaitable[None]], end: End, live: dict[End, None]) -> None:
        live[end] = None
        try:
            with trio.CancelScope() as scope:
                end.when_gone = lambda: _set_deadline(scope)
                if end.gone is not None:
                    end.when_gone()
                await handler(end)
                with trio.move_on_after(FAREWELL_SECONDS):
                    await end.drain()
        finally:
            del live[end]
            end.finish()

    @asynccontextmanager
    async def open_call(
        self, *, host: str, port: int, settings: CallSettings, metadata: dict[str, str], **ignored: object
    ) -> AsyncIterator[End]:
        life = LIFE.get()
        await life.gate()
        await sleep(self.latency())
        gateway = host if host in self.gateways else self.fate.random.choice(self.gateways)  # Nodes dial one name for all
        if self.is_cut(life.process, gateway):
            await sleep(CONNECT_SECONDS)
            raise DialFailed("unreachable", f"no answer from {gateway}")
        listener = self.listeners.get((gateway, port))
        if listener is None:
            raise DialFailed("unreachable", f"{gateway} refuses connections")
        here = self._connect(life.process, gateway, settings, metadata, listener)
        normally = False
        try:
            yield here
            normally = True
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + FAREWELL_SECONDS):
                await self._leave(here, normally)

    async def _leave(self, end: End, normally: bool) -> None:
        if normally:
            await end.drain()
            end.finish()
            await end.concluded.wait()
        elif end.gone is None:
            end.note_gone("closed", "cancelled on this side")
            end.reset()

    def _connect(self, process: str, gateway: str, settings: CallSettings, metadata: dict[str, str], listener: Listener) -> End:
        here = End(self, process, gateway, {}, settings)
        there = End(self, gateway, process, metadata, listener.settings)
        here.other, there.other = there, here
        self.ends |= {here: None, there: None}
        try:
            listener.accept.send_nowait(there)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            here.note_gone("connection-lost", "the gateway is leaving")
        return here


@define
class _Served:
    port: int


async def _sleep_until_cancelled(
    calls: trio.CancelScope, live: dict[End, None], on_stopping: Callable[[End], None], drain_seconds: float
) -> None:
    """The server leaves: say goodbye, give the handlers a while, then cancel what is left."""
    try:
        await trio.sleep_forever()
    finally:
        for end in tuple(live):
            on_stopping(end)
        calls.deadline = trio.current_time() + (drain_seconds if live else 0.0)


def _set_deadline(scope: trio.CancelScope) -> None:
    scope.deadline = min(scope.deadline, trio.current_time() + GRACE_SECONDS)


@contextmanager
def installed(network: Network) -> Iterator[None]:
    """While the block runs, wire's calls go over ``network``."""
    places = (
        (tuneplane.wire.link.gateway, "serve_calls", network.serve_calls),
        (tuneplane.wire.relay, "serve_calls", network.serve_calls),
        (tuneplane.wire.relay, "open_call", network.open_call),
        (tuneplane.wire.link.node, "open_call", network.open_call),
    )
    former = [getattr(module, name) for module, name, _ in places]
    for module, name, substitute in places:
        setattr(module, name, substitute)
    try:
        yield
    finally:
        for (module, name, _), real in zip(places, former, strict=True):
            setattr(module, name, real)
