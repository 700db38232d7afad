"""The session protocol as a table: which end may send which frame in which state. No I/O, no clock, no Trio.

    opened --Hello (node)--> greeted --Welcome (gateway)--> live --Goodbye (gateway)--> ended
       |                        |
       +------------------------+------------- Goodbye (gateway) ------------------------> ended

Both ends run the same machine and feed it every frame, sent or received. What they see differs only by what is in
flight: a Node may still be sending while the gateway has already said Goodbye, so a gateway ignores what comes after.

An illegal frame that we were about to send is a :class:`LocalProtocolError`, our bug; one that arrived is a
:class:`RemoteProtocolError`, theirs: it ends this session with its ``code``, and no other (R-SES-04).
"""

from __future__ import annotations

from enum import Enum

from attrs import define, field

from ..domain.frames import (
    LOG_CREDIT_BYTES,
    Command,
    CommandAnswer,
    GatewayFrame,
    Goodbye,
    Heartbeat,
    HeartbeatReply,
    Hello,
    InventoryReport,
    LogCancel,
    LogChunk,
    LogCredit,
    LogRead,
    NodeFrame,
    Observation,
    ObservationAck,
    ReconcileDone,
    Welcome,
)


class Role(str, Enum):
    NODE = "node"
    GATEWAY = "gateway"

    @property
    def peer(self) -> Role:
        """The other end."""
        return Role.GATEWAY if self is Role.NODE else Role.NODE


class SessionState(str, Enum):
    OPENED = "opened"  # the call is there, nothing was said
    GREETED = "greeted"  # the Node has said who it is; it sends nothing more until it is welcome
    LIVE = "live"
    ENDED = "ended"


class LocalProtocolError(Exception):
    """We were about to break the protocol: a bug at this end. Nothing was sent."""


class RemoteProtocolError(Exception):
    """The peer broke the protocol. ``code`` and ``detail`` go into the Goodbye or the log."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


S, N, G = SessionState, Role.NODE, Role.GATEWAY

_NODE_TALK = (Heartbeat, InventoryReport, CommandAnswer, Observation, ReconcileDone, LogChunk)
_GATEWAY_TALK = (HeartbeatReply, Command, ObservationAck, LogRead, LogCancel, LogCredit)

# (state, sender) -> frame -> next state. What is not here is illegal.
TABLE: dict[tuple[SessionState, Role], dict[type, SessionState]] = {
    (S.OPENED, N): {Hello: S.GREETED},
    (S.OPENED, G): {Goodbye: S.ENDED},
    (S.GREETED, N): {},
    (S.GREETED, G): {Welcome: S.LIVE, Goodbye: S.ENDED},
    (S.LIVE, N): dict.fromkeys(_NODE_TALK, S.LIVE),
    (S.LIVE, G): {**dict.fromkeys(_GATEWAY_TALK, S.LIVE), Goodbye: S.ENDED},
    (S.ENDED, N): {},
    (S.ENDED, G): {},
}


def step(state: SessionState, sender: Role, kind: type) -> SessionState | None:
    """The state after ``sender`` has sent a frame of ``kind``; None when that is illegal."""
    return TABLE[state, sender].get(kind)


@define
class SessionMachine:
    """One end's view of one session. Feed it every frame with :meth:`sent` and :meth:`received`."""

    role: Role
    state: SessionState = S.OPENED
    log_credit: int = LOG_CREDIT_BYTES  # log bytes that the Node may send before it gets more credit
    _last_heartbeat: int = field(default=0, init=False)  # as sent (Node) or received (gateway)
    _last_reply: int = field(default=0, init=False)

    def sent(self, frame: NodeFrame | GatewayFrame) -> None:
        """Account for a frame that is about to leave. Raises LocalProtocolError; the state is then unchanged."""
        state = step(self.state, self.role, type(frame))
        if state is None:
            raise LocalProtocolError(f"a {self.role.value} must not send {type(frame).__name__} when the session is {self.state.value}")
        problem = self._account(frame)
        if problem is not None:
            raise LocalProtocolError(f"{problem[0]}: {problem[1]}")
        self.state = state

    def received(self, frame: NodeFrame | GatewayFrame) -> bool:
        """Account for a frame that has arrived. Raises RemoteProtocolError. False: ignore it, the session has ended."""
        if self.state is S.ENDED:
            return False
        state = step(self.state, self.role.peer, type(frame))
        if state is None:
            raise RemoteProtocolError("illegal-frame", f"{type(frame).__name__} is not allowed when the session is {self.state.value}")
        problem = self._account(frame)
        if problem is not None:
            raise RemoteProtocolError(*problem)
        self.state = state
        return True

    def _account(self, frame: NodeFrame | GatewayFrame) -> tuple[str, str] | None:
        """Keep the counters that both ends know; what breaks them, as code and detail."""
        if isinstance(frame, LogChunk):
            if len(frame.data) > self.log_credit:
                return "credit-overrun", f"{len(frame.data)} log bytes exceed the credit of {self.log_credit}"
            self.log_credit -= len(frame.data)
        elif isinstance(frame, LogCredit):
            if self.log_credit + frame.size > LOG_CREDIT_BYTES:
                return "credit-overrun", f"{frame.size} bytes of new credit exceed the window of {LOG_CREDIT_BYTES}"
            self.log_credit += frame.size
        elif isinstance(frame, Heartbeat):
            if frame.sequence <= self._last_heartbeat:
                return "stale-heartbeat", f"sequence {frame.sequence} follows {self._last_heartbeat}"
            self._last_heartbeat = frame.sequence
        elif isinstance(frame, HeartbeatReply):
            if not self._last_reply <= frame.sequence <= self._last_heartbeat:
                return "stale-heartbeat", f"reply {frame.sequence} answers no heartbeat up to {self._last_heartbeat}"
            self._last_reply = frame.sequence
        return None
