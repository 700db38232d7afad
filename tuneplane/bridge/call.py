"""One bidirectional gRPC stream of byte messages, the same on both ends, used from Trio.

Both directions cross the border synchronously: what arrives goes from the HTTP/2 parser straight to the receiver
(:mod:`.messages`), and what is sent goes from the lanes to the socket in the sender's own step when the peer's window
and the write buffer allow it. There is exactly ONE writer, :meth:`Call.flush`: two tasks that write to one HTTP/2 stream
corrupt it at once. When it cannot go on it keeps the rest of the message in hand and is called again by the window
update or the drained buffer; only then do the lanes fill up and priorities matter.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import trio
from attrs import define, field, frozen
from grpclib.const import Status
from grpclib.metadata import decode_grpc_message
from grpclib.protocol import Stream
from h2.exceptions import ProtocolError

from .messages import MessageBuffer, Receiver, frame_message
from .repairs import PeerProtocol

COALESCED_BYTES = 64 * 1024  # written at once when several messages wait: one TLS flush, yet the high-water mark still holds


class LaneFull(Exception):
    """The lane has no room at the moment. Nothing was queued."""


class CallClosed(Exception):
    """The call has ended, at this or the other end. ``code`` and ``detail`` say why."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@frozen(kw_only=True)
class LaneLimit:
    """Full when either is reached; a message above ``size`` still enters an empty lane."""

    messages: int
    size: int


@define(eq=False)
class _Lane:
    limit: LaneLimit
    messages: deque[bytes] = field(factory=deque)
    size: int = 0
    waiting: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    def is_full(self) -> bool:
        return bool(self.messages) and (len(self.messages) >= self.limit.messages or self.size >= self.limit.size)


class Call:
    """A live call. Created by ``serve_calls`` and ``open_call``; used from the Trio side of the border.

    ``metadata`` are the request's headers (server side), ``peer`` is the remote address as text.
    """

    def __init__(self, stream: Stream, lanes: Sequence[LaneLimit], metadata: dict[str, str], peer: str) -> None:
        self.metadata = metadata
        self.peer = peer
        self.ended: asyncio.Future[tuple[Status, str]] = asyncio.get_event_loop().create_future()  # by our side
        self._stream = stream
        self._connection = stream.connection
        self.owner: PeerProtocol = stream.connection.owner
        self.concluded = trio.Event()  # server side: the trailers are written, or never will be
        self.when_gone: Callable[[], None] | None = None  # told once, when the peer or the connection goes
        self._lanes = [_Lane(limit) for limit in lanes]
        self._rest: memoryview | None = None  # of the message in hand
        self._gone: tuple[str, str] | None = None
        self._drained = trio.lowlevel.ParkingLot()
        self._buffer = MessageBuffer(stream.buffer._ack_callback)
        self._take_over(stream)

    def _take_over(self, stream: Stream) -> None:
        former, stream.buffer = stream.buffer, self._buffer
        while not former._unacked.empty():
            data, _, ack_size = former._unacked.get_nowait()
            if ack_size:
                self._buffer.add(data, ack_size)
        if former._eof:
            self._buffer.eof()
        stream.window_updated = _Signal(self.flush)
        self.owner.calls.add(self)

    # ---------------------------------------------------------------- receiving

    def attach(self, receiver: Receiver) -> None:
        """Deliver messages to ``receiver`` from now on, those that have waited at once."""
        self._buffer.attach(receiver)

    def resume_reading(self) -> None:
        """The receiver that answered False has room again."""
        self._buffer.resume()

    @property
    def reading_held(self) -> bool:
        """Whether messages wait for the receiver: then silence says nothing about the peer."""
        return self._buffer.held

    # ---------------------------------------------------------------- sending

    def send_nowait(self, lane: int, message: bytes) -> None:
        """Queue ``message`` and write what can be written. LaneFull; CallClosed when the call is gone."""
        self._check_open()
        chosen = self._lanes[lane]
        if chosen.is_full():
            raise LaneFull(f"lane {lane} holds {len(chosen.messages)} messages of {chosen.size} bytes")
        framed = frame_message(message)
        chosen.messages.append(framed)
        chosen.size += len(framed)
        self.flush()

    def is_full(self, lane: int) -> bool:
        """Whether ``send_nowait`` on ``lane`` would raise LaneFull."""
        return self._lanes[lane].is_full()

    async def wait_room(self, lane: int) -> None:
        """Wait until ``lane`` has room or the call is gone. A sender that was quicker may have taken it: try, and wait again."""
        await trio.lowlevel.checkpoint()
        while self._gone is None and self._lanes[lane].is_full():
            await self._lanes[lane].waiting.park()

    def discard_queued(self) -> None:
        """Forget queued messages, except the one whose first bytes are written."""
        for lane in self._lanes:
            lane.messages.clear()
            lane.size = 0
            lane.waiting.unpark_all()

    async def drain(self) -> None:
        """Wait until all that was queued is written to the transport, or the call is gone."""
        await trio.lowlevel.checkpoint()
        while self._gone is None and (self._rest is not None or any(lane.messages for lane in self._lanes)):
            await self._drained.park()

    def flush(self) -> None:
        """Write as much as window and buffer allow. The one writer; synchronous, safe to call at any time."""
        if self._gone is not None:
            return
        if self._stream._transport.is_closing():
            self.note_gone("connection-lost", "the connection is closing")
            return
        try:
            while self._write_batch():
                pass
        except ProtocolError as error:  # h2: the peer has closed the stream meanwhile; its end is about to arrive
            self.note_gone("connection-lost", f"the stream is closed ({error})")
        if self._rest is None:
            self._drained.unpark_all()

    def _write_batch(self) -> bool:
        """One transport write. True when there may be more to write."""
        h2, stream_id = self._stream._h2_connection, self._stream.id
        budget = COALESCED_BYTES
        while budget > 0 and self._connection.write_ready.is_set() and self._take_next():
            assert self._rest is not None
            size = min(h2.local_flow_control_window(stream_id), h2.max_outbound_frame_size, len(self._rest))
            if size <= 0:
                break
            h2.send_data(stream_id, self._rest[:size])
            self._rest = self._rest[size:] if size < len(self._rest) else None
            budget -= size
        if budget == COALESCED_BYTES:
            return False
        self._stream._transport.write(h2.data_to_send())
        self._connection.data_send_process()
        return budget <= 0

    def _take_next(self) -> bool:
        if self._rest is not None:
            return True
        for lane in self._lanes:
            if lane.messages:
                message = lane.messages.popleft()
                lane.size -= len(message)
                self._rest = memoryview(message)
                if lane.waiting:
                    lane.waiting.unpark_all()  # one alone may be cancelled just now, and the room be seen by nobody
                return True
        return False

    # ---------------------------------------------------------------- ending

    def _check_open(self) -> None:
        if self._gone is not None:
            raise CallClosed(*self._gone)

    @property
    def gone(self) -> tuple[str, str] | None:
        """Why nothing can be sent any more, as code and detail; None while the call is open."""
        return self._gone

    def finish(self, status: Status = Status.OK, text: str = "") -> None:
        """End our side: nothing more is sent; the server's trailers carry ``status``. Idempotent."""
        if not self.ended.done():
            self.ended.set_result((status, text))
        self._stop("closed", text or "closed on this side")

    def note_gone(self, code: str, detail: str) -> None:
        """The border saw the peer, or the connection, go."""
        if self._stop(code, detail):
            self._buffer.interrupt(code, detail)
            if self.when_gone is not None:
                self.when_gone()

    def forget(self) -> None:
        """Let go of the receiver: the call is over on both sides and nothing more will be delivered."""
        self._buffer.detach()

    def remote_status(self) -> tuple[int, str]:
        """Client side, after the end of the stream: gRPC status and message of the server; (2, …) when it sent none."""
        headers = dict(self._stream.trailers or self._stream.headers or ())
        if headers.get(":status", "200") != "200":
            return Status.UNAVAILABLE.value, f"HTTP status {headers[':status']}"
        number = headers.get("grpc-status", "")
        text = decode_grpc_message(headers.get("grpc-message", ""))
        return (int(number), text) if number.isdigit() else (Status.UNKNOWN.value, "the stream ended without a status")

    def abort(self, code: str, detail: str) -> None:
        """Drop the whole connection at once: for a peer that has gone silent or breaks the protocol."""
        self.note_gone(code, detail)
        self.owner.abort()

    def _stop(self, code: str, detail: str) -> bool:
        if self._gone is not None:
            return False
        self._gone = (code, detail)
        self.owner.calls.discard(self)
        self._stream.window_updated = asyncio.Event()  # no cycle through us
        self.discard_queued()
        self._rest = None
        self._drained.unpark_all()
        return True


class _Signal(asyncio.Event):
    """grpclib's ``window_updated``: setting it lets the writer go on."""

    def __init__(self, resume: Callable[[], None]) -> None:
        super().__init__()
        self._resume = resume

    def set(self) -> None:
        super().set()
        self._resume()
