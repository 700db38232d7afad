"""The session protocol as a table: which end may send which frame in which state.

    opened --Hello (node)--> greeted --Welcome (gateway)--> live --Goodbye (gateway)--> ended
       |                        |
       +------------------------+------------- Goodbye (gateway) ------------------------> ended

Both ends run the same table (``wire.machine``) and feed it every frame, sent or received.
"""

from __future__ import annotations

from enum import Enum

from .frames import (
    Command,
    CommandAnswer,
    DrainState,
    DrainWish,
    Goodbye,
    Heartbeat,
    HeartbeatReply,
    Hello,
    InventoryReport,
    LogCancel,
    LogChunk,
    LogCredit,
    LogRead,
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


S, N, G = SessionState, Role.NODE, Role.GATEWAY

_NODE_TALK = (Heartbeat, InventoryReport, CommandAnswer, Observation, ReconcileDone, LogChunk, DrainWish)
_GATEWAY_TALK = (HeartbeatReply, Command, ObservationAck, LogRead, LogCancel, LogCredit, DrainState)

# (state, sender) -> frame -> next state. What is not here is illegal.
SESSION_TABLE: dict[tuple[SessionState, Role], dict[type, SessionState]] = {
    (S.OPENED, N): {Hello: S.GREETED},
    (S.OPENED, G): {Goodbye: S.ENDED},
    (S.GREETED, N): {},
    (S.GREETED, G): {Welcome: S.LIVE, Goodbye: S.ENDED},
    (S.LIVE, N): dict.fromkeys(_NODE_TALK, S.LIVE),
    (S.LIVE, G): {**dict.fromkeys(_GATEWAY_TALK, S.LIVE), Goodbye: S.ENDED},
    (S.ENDED, N): {},
    (S.ENDED, G): {},
}


def step_session(state: SessionState, sender: Role, kind: type) -> SessionState | None:
    """The state after ``sender`` has sent a frame of ``kind``; None when that is illegal."""
    return SESSION_TABLE[state, sender].get(kind)
