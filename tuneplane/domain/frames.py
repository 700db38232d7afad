"""What a Node and a gateway say to each other, as values. ``wire`` turns them into protobuf and back.

Lanes (house.md, "The session protocol"): control and stop first, then replies, then inventory, then logs.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum, IntEnum
from typing import Union

from attrs import frozen

from .ids import FleetId, GatewayId, JournalId, MemberId, NodeId, OperationId, TraceId
from .inventory import Inventory
from .launch_table import MemberPhase
from .nodes import Left, NodeState

WIRE_PROTOCOL = 1
MAX_FRAME_BYTES = 1 << 20  # wire-notes: the receiver refuses a longer message after its prefix
LOG_CHUNK_BYTES = 64 * 1024  # a quarter of the credit: larger chunks halve throughput (wire-notes, section 3)
LOG_CREDIT_BYTES = 256 * 1024  # per Node: bounds how many log bytes can be ahead of a stop
MAX_LOG_FOLLOWS = 256  # of one Node at once; each holds a ring at the gateway and one chunk at the Node
MAX_LOG_READS = 32  # bounded reads of one Node at once: a capacity of their own, so that followers do not use it up (R-SES-07)


class Lane(IntEnum):
    """Order in which the one writer of a session takes frames; a lower lane goes first."""

    CONTROL = 0
    REPLY = 1
    INVENTORY = 2
    LOG = 3


@frozen(kw_only=True)
class Hello:
    """First frame of a Node. A clone or a moved journal shows in machine, boot and journal ids (P-12, P-15)."""

    protocol: int
    node: NodeId
    fleet: FleetId
    boot_id: str
    machine_id: str
    journal_id: JournalId
    journal_sequence: int
    node_version: str
    address: str
    sent_at: datetime


@frozen(kw_only=True)
class Heartbeat:
    sequence: int
    inventory_digest: str  # confirms an unchanged inventory without sending it ("At 10,000 Nodes")
    sent_at: datetime
    inventory_age_seconds: float = 0.0  # since the look that the digest is of
    clock_offset_seconds: float | None = None  # this clock minus the gateway's, by the best recent round trip; None: not measured yet
    clock_error_seconds: float = 0.0  # half of that round trip


@frozen(kw_only=True)
class InventoryReport:
    inventory: Inventory
    digest: str


@frozen(kw_only=True)
class CommandAnswer:
    """The command is journalled (``accepted``) or refused for ever with a reason. Effects follow as observations."""

    operation: OperationId
    accepted: bool
    code: str = ""
    detail: str = ""


@frozen(kw_only=True)
class Progress:
    """Where long work stands: ``phase`` such as ``pull``; amounts in ``unit`` (``bytes``); total 0 = unknown."""

    phase: str
    done: int = 0
    total: int = 0
    unit: str = "bytes"


@frozen(kw_only=True)
class Observation:
    """What a Node knows of one member. ``revision`` rises with every change; older ones are ignored (R-LCH-05)."""

    member: MemberId
    revision: int
    phase: MemberPhase
    plan_digest: str
    boot_id: str
    hold_seconds_left: float | None = None  # of an uncommitted reservation, on the Node's boot-relative clock (P-08)
    container_id: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    oom_killed: bool = False
    reason_code: str = ""  # "" for an end by itself; else lost, stopped, image-unavailable, start-failed, hold-expired …
    reason_detail: str = ""
    cleaned: bool = False  # container, reservation and staging are gone, confirmed (R-LCH-14)
    progress: Progress | None = None


@frozen(kw_only=True)
class ReconcileDone:
    """The Node has reported every member that its journal knows."""

    members: int


@frozen(kw_only=True)
class LogChunk:
    """Bytes of a log read. ``gap`` bytes before ``offset`` are lost (dropped or rotated away). ``end``: no more follow."""

    request: int
    offset: int
    data: bytes
    gap: int = 0
    end: bool = False
    error: str = ""  # why the read ended early; "" when it ended by itself


@frozen(kw_only=True)
class DrainWish:
    """What was asked on the machine itself: finish this and take no more, or (not ``wanted``) take work again (L-E15)."""

    revision: int  # rises with every change of the wish
    wanted: bool
    reason: str = ""


NodeFrame = Union[Hello, Heartbeat, InventoryReport, CommandAnswer, Observation, ReconcileDone, LogChunk, DrainWish]


class CommandKind(str, Enum):
    PREPARE = "prepare"
    COMMIT = "commit"
    STOP = "stop"
    FORGET = "forget"


@frozen(kw_only=True)
class Welcome:
    protocol: int
    session_epoch: int
    gateway: GatewayId
    heartbeat_seconds: float
    idle_seconds: float
    sent_at: datetime
    accepted_hold: str = ""  # id of the EpochHold that an operator has accepted (P-07)
    accepted_cards: str = ""  # id of the change of cards that an operator has accepted (L-D1)


@frozen(kw_only=True)
class HeartbeatReply:
    sequence: int
    received_at: datetime | None = None  # on the gateway's clock


@frozen(kw_only=True)
class DrainState:
    """How the Node stands in the database after the COMMIT of its wish, whoever drains it."""

    revision: int
    state: NodeState
    drained: bool
    left: tuple[Left, ...] = ()  # the first MOST_LEFT


@frozen(kw_only=True)
class Command:
    """One durable instruction. Sent again with the same ``operation`` until answered; a Node acts on it once."""

    operation: OperationId
    kind: CommandKind
    member: MemberId
    session_epoch: int
    claim_epoch: int
    plan: bytes = b""  # prepare only
    plan_digest: str = ""  # prepare and commit
    hold_seconds: float = 0.0  # prepare only
    stop_signal: str = ""  # stop only
    stop_grace_seconds: float = 0.0
    reason: str = ""
    trace: TraceId = TraceId("")
    ended: bool = False  # the database records the member as ended: the one stop that a Node obeys while it holds (P-07)
    stranger: bool = False  # an operator's audited stop of what the control plane does not know (P-07)
    container: str = ""  # the stranger's id; "" for a reservation without a container
    cause: str = ""  # id of the letter that caused it, so that a trace crosses the stream


@frozen(kw_only=True)
class ObservationAck:
    """Sent after COMMIT of the observation (P-06)."""

    member: MemberId
    revision: int


@frozen(kw_only=True)
class LogRead:
    """Read a member's log: from ``offset``, or the last ``tail_lines``; at most ``max_bytes``; ``follow`` goes on."""

    request: int
    member: MemberId
    offset: int | None = None
    tail_lines: int | None = None
    max_bytes: int = 1 << 20
    follow: bool = False


@frozen(kw_only=True)
class LogCancel:
    request: int


@frozen(kw_only=True)
class LogCredit:
    """``size`` more log bytes may be sent by this Node."""

    size: int


@frozen(kw_only=True)
class Goodbye:
    """The gateway ends the session and says why; ``retry_after_seconds`` > 0 asks the Node to wait that long."""

    code: str
    detail: str
    retry_after_seconds: float = 0.0


GatewayFrame = Union[Welcome, HeartbeatReply, Command, ObservationAck, LogRead, LogCancel, LogCredit, Goodbye, DrainState]


def lane_of(frame: NodeFrame | GatewayFrame) -> Lane:
    """The lane a frame travels in."""
    if isinstance(frame, LogChunk):
        return Lane.LOG
    if isinstance(frame, InventoryReport):
        return Lane.INVENTORY
    if isinstance(frame, Command):
        return Lane.CONTROL if frame.kind is CommandKind.STOP else Lane.REPLY
    if isinstance(frame, (Observation, CommandAnswer, ObservationAck, LogRead, ReconcileDone, DrainWish, DrainState)):
        return Lane.REPLY
    return Lane.CONTROL


# ---------------------------------------------------------------- between control-plane processes (P-23)


@frozen(kw_only=True)
class LogQuery:
    """An API asks the gateway that holds a Node's session for a member's log."""

    node: NodeId
    member: MemberId
    offset: int | None = None
    tail_lines: int | None = None
    max_bytes: int = 1 << 20
    follow: bool = False


@frozen(kw_only=True)
class LogPiece:
    """A piece of the answer, in order. ``end`` closes it; ``error`` says why it ended early."""

    offset: int
    data: bytes
    gap: int = 0
    end: bool = False
    error: str = ""
