"""Nodes as values: record, control connection, scheduling state and inventory (R-LIV-06)."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from attrs import Factory, frozen

from .ids import FleetId, GatewayId, MemberId, NodeId, SeriesId, UserName
from .inventory import Inventory, Stranger
from .launch_table import MemberPhase


class NodeState(str, Enum):
    """What an operator wants of a Node; never changed by a heartbeat (R-LIV-03)."""

    ACTIVE = "active"
    DRAINING = "draining"
    CORDONED = "cordoned"


@frozen(kw_only=True)
class Cordon:
    """Why no new work comes here. Each owner lifts only its own (L-F4)."""

    owner: str  # "operator", "machine" (`tuneplane-node drain`), "storage", "journal", "cards", "health", "updater"
    reason: str
    since: datetime


@frozen(kw_only=True)
class Connection:
    """The control session as the control plane sees it, one of the three separate things of R-LIV-06."""

    state: str  # "connected", "disconnected", "never"
    since: datetime | None = None
    gateway: GatewayId | None = None
    epoch: int = 0
    lease_expires_at: datetime | None = None
    clock_offset_seconds: float | None = None  # of the Node's clock to ours
    clock_error_seconds: float | None = (
        None  # the offset is wrong by so much at most; None: by the Hello alone, whose way took unknown time
    )


@frozen(kw_only=True)
class Capacity:
    """Granted and held amounts of one Node."""

    cpu_millis: int
    cpu_millis_used: int
    memory_bytes: int
    memory_bytes_used: int
    gpus: int
    gpus_used: int


@frozen(kw_only=True)
class Card:
    """A granted card, or one that was: who has it, and what keeps new work off it. Its cordons end no work (L-D13)."""

    uuid: str
    index: int | None  # of the budget; None for one that is granted by UUID, or whose index is another card's now
    granted: bool  # by the declared budget, and seen in the newest inventory that knew the cards
    occupied: bool = False  # by a stranger (P-07)
    member: MemberId | None = None  # that holds it
    cordons: tuple[Cordon, ...] = ()  # owners "operator" and "health"


@frozen(kw_only=True)
class Left:
    """A member that keeps its Node from being drained: its end is not confirmed."""

    member: MemberId
    phase: MemberPhase


def state_under(state: NodeState, cordons: tuple[Cordon, ...]) -> NodeState:
    """What an operator wants, unless the machine itself asks to be drained: that is a wish of its own, with its own end (L-F4)."""
    drained_there = any(cordon.owner == "machine" for cordon in cordons)
    return NodeState.DRAINING if state is NodeState.ACTIVE and drained_there else state


MOST_LEFT = 256  # told of one Node; a machine has tens of members
MOST_VIOLATIONS = 20  # shown of one Node: more of them say nothing new


@frozen(kw_only=True)
class Node:
    """An enrolled machine: record, connection, scheduling state and inventory."""

    id: NodeId
    fleet: FleetId
    address: str
    state: NodeState
    connection: Connection
    cordons: tuple[Cordon, ...] = ()
    inventory: Inventory | None = None
    inventory_observed_at: datetime | None = None
    inventory_healthy: bool = False  # fresh in this very session and without problems (R-SES-05)
    capacity: Capacity | None = None
    free_gpu_uuids: tuple[str, ...] = ()  # granted, seen, held by nobody, neither occupied nor cordoned
    cards: tuple[Card, ...] = ()  # for people: those of the budget, by index
    card_series: dict[str, SeriesId] = Factory(dict)  # by UUID; only of cards that the hardware registry knows (R-ENR-06)
    held_ports: tuple[int, ...] = ()  # leased to members
    members: tuple[str, ...] = ()  # members that still hold something here
    left: tuple[Left, ...] = ()  # members without a confirmed end, by id; a drain waits for them
    violations: tuple[str, ...] = ()  # what had ended and is reported alive all the same (R-LCH-05), a few of them
    created_at: datetime
    enrolled_by: UserName | None = None

    @property
    def is_drained(self) -> bool:
        """Nothing comes any more, and of nothing that came the end is unconfirmed (L-F1). What nobody claims is not nothing."""
        return self.state is NodeState.DRAINING and not (self.left or self.members or self.violations or self.strangers)

    @property
    def strangers(self) -> tuple[Stranger, ...]:
        """By the newest inventory, however old: what ran then is not gone because nobody has looked since."""
        return self.inventory.strangers if self.inventory is not None else ()
