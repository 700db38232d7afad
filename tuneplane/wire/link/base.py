"""What both ends of a session share: sending through lanes, the inbox, the end of the session and its reason."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from ...bridge.call import Call, CallClosed, LaneFull, LaneLimit
from ...domain.frames import MAX_FRAME_BYTES, GatewayFrame, Lane, NodeFrame, lane_of
from ...domain.session_table import Role
from ..fields import FrameError
from ..machine import LocalProtocolError, RemoteProtocolError, SessionMachine

log = logging.getLogger("tuneplane.wire")

SESSION_PATH = "/tuneplane.v1.NodeGateway/Session"

# Outgoing lanes in the order of domain.frames.Lane. A control frame that finds no room closes the session: whoever reads
# so slowly would miss a stop. The others wait, or refuse at once.
LANES = (
    LaneLimit(messages=256, size=1 << 20),  # control: stops, credit, heartbeats, cancels; a Node has tens of members
    LaneLimit(messages=256, size=4 << 20),  # replies, and commands with a plan: four whole frames
    LaneLimit(messages=2, size=2 << 20),  # inventory: the newest report is the one that counts
    LaneLimit(messages=8, size=512 << 10),  # log chunks; the credit window is half of it
)
KEEPALIVE_SHARE = 0.75  # of the idle deadline: HTTP/2's ping and its answer take 1.5 of it, after ours and within R-SES-03's 45 s
INBOX_FRAMES = 256  # received, not yet taken; above it the peer's HTTP/2 window closes


class LinkFull(Exception):
    """The frame's lane has no room at the moment; nothing was sent. Try again later, or close."""


class LinkClosed(Exception):
    """The session has ended. ``code`` is stable; ``retry_after_seconds`` > 0 is the gateway's wish."""

    def __init__(self, code: str, detail: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.retry_after_seconds = retry_after_seconds


class Link:
    """One end of a live session, on a call of the bridge. Not thread-safe; any number of Trio tasks may send.

    Frames that arrived before the end are still given out by :meth:`receive`; then it raises the reason.
    """

    def __init__(self, call: Call, role: Role) -> None:
        self.peer = call.peer
        self._call = call
        self._machine = SessionMachine(role)
        self._closed: LinkClosed | None = None
        self._inbox: deque[Any] = deque()
        self._reader: trio.lowlevel.Task | None = None
        self._heard_at = trio.current_time()
        self.when_ended: Callable[[], None] | None = None  # told once, synchronously

    # ---------------------------------------------------------------- sending

    async def send(self, frame: Any) -> None:
        """Send, waiting for room in the frame's lane. Raises LinkClosed. Cancelled while waiting: nothing was sent."""
        lane = lane_of(frame)
        if lane is Lane.CONTROL:
            await trio.lowlevel.checkpoint()
            self.send_nowait(frame)
            return
        while self._closed is None:
            await self._call.wait_room(lane)
            try:
                self.send_nowait(frame)
            except LinkFull:
                continue  # another sender was quicker
            return
        raise self._closed_error()

    def send_nowait(self, frame: Any) -> None:
        """Send at once. LinkFull when the lane has no room (for a control frame: the session is closed); LinkClosed."""
        if self._closed is not None:
            raise self._closed_error()
        lane = lane_of(frame)
        if self._call.is_full(lane):
            self._refuse_full(frame, lane)
        data = self._encode(frame)
        if len(data) > MAX_FRAME_BYTES:
            raise LocalProtocolError(f"a {type(frame).__name__} of {len(data)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
        self._machine.sent(frame)
        try:
            self._call.send_nowait(lane, data)
        except LaneFull as error:
            raise AssertionError("room was there a moment ago") from error
        except CallClosed as error:
            self._end(error.code, error.detail)
            raise self._closed_error() from error

    def _refuse_full(self, frame: Any, lane: Lane) -> None:
        if lane is Lane.CONTROL:
            self._fail("outbox-overflow", f"the peer reads too slowly: no room for {type(frame).__name__}")
            raise self._closed_error()
        raise LinkFull(f"no room for {type(frame).__name__} in lane {lane.name.lower()}")

    # ---------------------------------------------------------------- receiving

    async def receive(self) -> Any:
        """The next frame of the peer, in its order. Raises LinkClosed after the last one. Cancelled: no frame is lost."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._inbox:
            await trio.lowlevel.cancel_shielded_checkpoint()
        while not self._inbox:
            if self._closed is not None:
                raise self._closed_error()
            await self._wait_frame()
        frame = self._inbox.popleft()
        if len(self._inbox) == INBOX_FRAMES // 2:
            self._call.resume_reading()
        return frame

    async def _wait_frame(self) -> None:
        if self._reader is not None:
            raise trio.BusyResourceError("another task already receives from this link")
        self._reader = trio.lowlevel.current_task()

        def abort(_: Any) -> trio.lowlevel.Abort:
            self._reader = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            trio.lowlevel.reschedule(reader)

    def message(self, data: bytes) -> bool:
        """Bridge's receiver: one message has arrived. Runs in the loop's step; must not raise or wait."""
        self._heard_at = trio.current_time()
        if self._closed is not None:
            return True
        try:
            frame = self._decode(data)
            if self._machine.received(frame):
                self._take(frame)
        except FrameError as error:
            self._fail("malformed-frame", str(error))
        except RemoteProtocolError as error:
            self._fail(error.code, error.detail)
        except LinkClosed:
            pass  # our answer found no room: the session has just been closed, with its reason
        except Exception:  # synchronous: a sink of ours failed; it must not be mistaken for the peer's fault
            log.exception("a frame of %s could not be taken in", self.peer)
            self._fail("internal-error", "this end failed on a frame")
        return len(self._inbox) < INBOX_FRAMES

    def end_of_stream(self) -> None:
        """Bridge's receiver: the peer has ended its half of the stream."""
        raise NotImplementedError

    def broken(self, code: str, detail: str) -> None:
        """Bridge's receiver: framing or connection are broken."""
        if code == "connection-lost":
            self._end(code, detail)
        elif code:
            self._fail(code, detail)

    def _put(self, frame: NodeFrame | GatewayFrame) -> None:
        self._inbox.append(frame)
        self._wake_reader()

    # ---------------------------------------------------------------- ending

    @property
    def closed(self) -> LinkClosed | None:
        """Why the session has ended; None while it lives."""
        return self._closed

    def close(self, code: str, detail: str, retry_after_seconds: float = 0.0) -> None:
        """End the session from this side, telling the peer why as far as it listens. Idempotent; never waits."""
        raise NotImplementedError

    def _end(self, code: str, detail: str, retry_after_seconds: float = 0.0) -> None:
        """The session is over: remember why, wake who waits. First reason wins."""
        if self._closed is None:
            self._closed = LinkClosed(code, detail, retry_after_seconds)
            self._wake_reader()
            if self.when_ended is not None:
                self.when_ended()

    def _closed_error(self) -> LinkClosed:
        """A fresh exception: one instance raised in several tasks would mix their tracebacks."""
        assert self._closed is not None
        return LinkClosed(self._closed.code, self._closed.detail, self._closed.retry_after_seconds)

    def _fail(self, code: str, detail: str) -> None:
        """The peer broke a rule, or we cannot go on with it."""
        raise NotImplementedError

    def is_idle(self, now: float, idle_seconds: float) -> bool:
        """Whether the peer has been silent too long. While our own inbox is full its silence is our doing."""
        if self._call.reading_held:
            self._heard_at = now
        return now - self._heard_at >= idle_seconds

    # ---------------------------------------------------------------- of the two ends

    def _encode(self, frame: Any) -> bytes:
        raise NotImplementedError

    def _decode(self, data: bytes) -> Any:
        raise NotImplementedError

    def _take(self, frame: Any) -> None:
        """A legal frame has arrived: keep what is the link's business, put the rest into the inbox."""
        raise NotImplementedError
