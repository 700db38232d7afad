"""The session protocol at one end, sans I/O: the table of ``domain.session_table`` and the counters that both ends keep.

What the two ends see differs only by what is in flight: a Node may still be sending while the gateway has already said
Goodbye, so a gateway ignores what comes after.

An illegal frame that we were about to send is a :class:`LocalProtocolError`, our bug; one that arrived is a
:class:`RemoteProtocolError`, theirs: it ends this session with its ``code``, and no other (R-SES-04).
"""

from __future__ import annotations

from attrs import define, field

from ..domain.frames import LOG_CREDIT_BYTES, GatewayFrame, Heartbeat, HeartbeatReply, LogChunk, LogCredit, NodeFrame
from ..domain.session_table import Role, SessionState, step_session


class LocalProtocolError(Exception):
    """We were about to break the protocol: a bug at this end. Nothing was sent."""


class RemoteProtocolError(Exception):
    """The peer broke the protocol. ``code`` and ``detail`` go into the Goodbye or the log."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@define
class SessionMachine:
    """One end's view of one session. Feed it every frame with :meth:`sent` and :meth:`received`."""

    role: Role
    state: SessionState = SessionState.OPENED
    log_credit: int = LOG_CREDIT_BYTES  # log bytes that the Node may send before it gets more credit
    _last_heartbeat: int = field(default=0, init=False)  # as sent (Node) or received (gateway)
    _last_reply: int = field(default=0, init=False)

    def sent(self, frame: NodeFrame | GatewayFrame) -> None:
        """Account for a frame that is about to leave. Raises LocalProtocolError; the state is then unchanged."""
        state = step_session(self.state, self.role, type(frame))
        if state is None:
            raise LocalProtocolError(f"a {self.role.value} must not send {type(frame).__name__} when the session is {self.state.value}")
        problem = self._account(frame)
        if problem is not None:
            raise LocalProtocolError(f"{problem[0]}: {problem[1]}")
        self.state = state

    def received(self, frame: NodeFrame | GatewayFrame) -> bool:
        """Account for a frame that has arrived. Raises RemoteProtocolError. False: ignore it, the session has ended."""
        if self.state is SessionState.ENDED:
            return False
        state = step_session(self.state, self.role.peer, type(frame))
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
