"""Fleets, Nodes, inventories and budgets as values (R-FLT-01, R-ENR-05, R-ENR-09)."""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum

from attrs import Factory, field, frozen

from .errors import InvalidInput
from .ids import SLUG, FleetId, GatewayId, NodeId, UserName


class FleetKind(str, Enum):
    NODE = "node"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"


class Delivery(str, Enum):
    SHARED_MOUNT = "shared-mount"
    OBJECT_PULL = "object-pull"


class Capability(str, Enum):
    TRAIN = "train"
    EVAL = "eval"
    SERVE = "serve"
    ENV = "env"


class Visibility(str, Enum):
    PUBLIC = "public"
    PROJECT = "project"


class FleetState(str, Enum):
    ACTIVE = "active"
    DRAINING = "draining"
    DISABLED = "disabled"


DEFAULT_DELIVERY = {  # R-FLT-02
    FleetKind.NODE: Delivery.SHARED_MOUNT,
    FleetKind.SLURM: Delivery.SHARED_MOUNT,
    FleetKind.KUBERNETES: Delivery.OBJECT_PULL,
}

FLEET_CONFIG_KEYS = frozenset(
    {  # the keys that a setting reads (R-FLT-10); others are kept and warned about (R-FLT-03)
        "slurm_rest_url",
        "slurm_partition",
        "slurm_user",
        "kubernetes_api_url",
        "kubernetes_namespace",
        "kuberay_namespace",
        "storage_root",
        "serving_port_range",
        "gang_deadline_seconds",
    }
)


SECONDS = re.compile(r"^[0-9]{1,6}(\.[0-9]{1,6})?\Z")  # float() reads '1_0' and ' 600 ' too, which say no number to people
MOST_GANG_DEADLINE_SECONDS = 86400.0  # reservations are held as long, and nobody else gets the machines meanwhile


def gang_deadline(config: dict[str, str]) -> float | None:
    """``gang_deadline_seconds`` of a Fleet: how long the members of a gang wait for one another. None: not (well) said."""
    text = config.get("gang_deadline_seconds", "")
    seconds = float(text) if SECONDS.match(text) else 0.0
    return seconds if 1 <= seconds <= MOST_GANG_DEADLINE_SECONDS else None


def check_fleet_config(config: dict[str, str]) -> None:
    """Raise InvalidInput for a key whose value its setting could not read."""
    if "gang_deadline_seconds" in config and gang_deadline(config) is None:
        raise InvalidInput("config.gang_deadline_seconds", f"must be a number of seconds from 1 to {MOST_GANG_DEADLINE_SECONDS:.0f}")


@frozen(kw_only=True)
class Fleet:
    """A named set of machines and the back end that runs work on them."""

    id: FleetId
    kind: FleetKind
    delivery: Delivery
    capabilities: tuple[Capability, ...]
    visibility: Visibility = Visibility.PUBLIC
    project: str | None = None
    state: FleetState = FleetState.ACTIVE
    config: dict[str, str] = Factory(dict)
    created_at: datetime


def check_slug(name: str, at: str) -> None:
    """Raise InvalidInput unless ``name`` is a slug."""
    if not SLUG.match(name):
        raise InvalidInput(at, "must be 1 to 63 of a-z, 0-9 and '-', starting and ending with a letter or digit")


def config_warnings(config: dict[str, str]) -> tuple[str, ...]:
    """One sentence a ``config`` key that no setting reads (R-FLT-03)."""
    return tuple(f"config key {key!r} is read by no setting; is it misspelled?" for key in sorted(set(config) - FLEET_CONFIG_KEYS))


# ---------------------------------------------------------------- machines


class NodeState(str, Enum):
    """What an operator wants of a Node; never changed by a heartbeat (R-LIV-03)."""

    ACTIVE = "active"
    DRAINING = "draining"
    CORDONED = "cordoned"


@frozen(kw_only=True)
class Gpu:
    """One card as the driver reports it. Work is bound by ``uuid``; ``index`` is for people (L-D1)."""

    index: int
    uuid: str
    name: str
    memory_bytes: int


@frozen(kw_only=True)
class Budgets:
    """What the operator grants to Tuneplane on this machine; ``None`` means not declared yet (R-ENR-09)."""

    cpu_millis: int | None = None  # thousandths of a CPU
    memory_bytes: int | None = None
    gpu_indexes: tuple[int, ...] | None = None  # () declares a CPU-only Node
    port_first: int = 20000
    port_last: int = 20999
    staging_bytes: int = 0


@frozen(kw_only=True)
class Interface:
    """A network interface as workloads see it, and its numeric addresses that peers could use, the best one first."""

    name: str
    addresses: tuple[str, ...] = ()


@frozen(kw_only=True)
class EpochHold:
    """A control plane whose session epochs went back (P-07): its commands are held until an operator accepts this ``id``.

    The id is the Node's own random word, so a database that was restored cannot already hold its acceptance.
    """

    id: str
    known_epoch: int  # the newest that the Node has seen
    told_epoch: int
    since: datetime

    def __str__(self) -> str:
        return (
            f"the control plane went back in time (session epoch {self.told_epoch}, this Node has seen {self.known_epoch}): its"
            f" commands are held since {self.since:%Y-%m-%d %H:%M:%SZ}, until an operator accepts hold {self.id}"
        )


@frozen(kw_only=True)
class Stranger:
    """Something of ours that runs here and that the Node's journal, or the control plane, does not know (P-07).

    Its cards are occupied and its amounts count against what is free; ``None`` where the machine cannot tell them. It is
    stopped only by an operator's audited act.
    """

    container: str  # the engine's id; "" for a reservation without a container
    name: str
    member: str  # as its label says
    image: str = ""
    since: datetime | None = None
    gpu_uuids: tuple[str, ...] | None = None
    cpu_millis: int | None = None
    memory_bytes: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether all that it uses is known, so that the rest of its Node can be used."""
        return None not in (self.gpu_uuids, self.cpu_millis, self.memory_bytes)


MOST_STRANGERS = 32  # shown of one Node; with more of them it is not used at all


@frozen(kw_only=True)
class Inventory:
    """What the machine says about itself. ``problems`` are the Node's own reasons for not being ready."""

    hostname: str
    node_version: str
    cpu_count: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    runtime: str = ""  # "podman 4.3.1", "docker 20.10.24", or "" when none answers
    gpu_runtime: bool = False  # NVIDIA Container Toolkit or CDI is there (R-ENR-12)
    storage_root: str = ""  # the path this Node was told, "" when none
    storage_root_seen: bool = False
    budgets: Budgets = Budgets()
    problems: tuple[str, ...] = ()
    interfaces: tuple[Interface, ...] = ()  # of the network that workloads get; only those with an address
    route_address: str = ""  # numeric: by which peers reach this machine; "" when it cannot be told
    hold: EpochHold | None = None  # P-07
    strangers: tuple[Stranger, ...] = ()


@frozen(kw_only=True)
class Cordon:
    """Why no new work comes here. Each owner lifts only its own (L-F4)."""

    owner: str  # "operator", "storage", "journal", "cards"
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
    clock_offset_seconds: float | None = None


@frozen(kw_only=True)
class Capacity:
    """Granted and held amounts of one Node."""

    cpu_millis: int
    cpu_millis_used: int
    memory_bytes: int
    memory_bytes_used: int
    gpus: int
    gpus_used: int


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
    free_gpu_uuids: tuple[str, ...] = ()
    held_ports: tuple[int, ...] = ()  # leased to members
    members: tuple[str, ...] = ()  # members that still hold something here
    violations: tuple[str, ...] = ()  # what had ended and is reported alive all the same (R-LCH-05), a few of them
    created_at: datetime
    enrolled_by: UserName | None = None

    @property
    def strangers(self) -> tuple[Stranger, ...]:
        """By the newest inventory, however old: what ran then is not gone because nobody has looked since."""
        return self.inventory.strangers if self.inventory is not None else ()


@frozen(kw_only=True)
class Readiness:
    """Derived from all of the above, with every reason (R-LIV-06)."""

    value: bool
    reasons: tuple[str, ...] = field(default=())


STRANGE = "it is Tuneplane's, and unknown here; only an operator may stop it"


def readiness(node: Node, fleet: Fleet, now: datetime) -> Readiness:
    """Whether ``node`` may take new work at ``now`` (R-PLC-04), and every reason why not."""
    reasons: list[str] = []
    if fleet.state is not FleetState.ACTIVE:
        reasons.append(f"its Fleet is {fleet.state.value}")
    if node.state is not NodeState.ACTIVE:
        reasons.append(f"an operator set it to {node.state.value}")
    reasons += [f"cordoned by {cordon.owner}: {cordon.reason}" for cordon in node.cordons]
    lease = node.connection.lease_expires_at
    if node.connection.state != "connected" or lease is None or lease <= now:
        reasons.append("no live control session")
    elif node.inventory is None or not node.inventory_healthy:
        problems = node.inventory.problems if node.inventory else ()
        reasons += problems or ("no fresh inventory in this session",)
    reasons += [f"what {one.name or one.container} uses cannot be told: {STRANGE}" for one in node.strangers if not one.is_known]
    return Readiness(value=not reasons, reasons=tuple(reasons))
