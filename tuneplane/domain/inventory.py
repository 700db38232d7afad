"""What a machine says about itself, and what its operator grants of it (R-ENR-05, R-ENR-09)."""

from __future__ import annotations

from datetime import datetime

from attrs import frozen

MOST_CARDS = 64  # in one machine; the JobSpec's own bound for gpus_per_node
FARTHEST = 50  # NVML's "across sockets"; also of two cards of which nothing is known


@frozen(kw_only=True)
class CardLink:
    """How near another card of the same machine is (L-D14)."""

    peer: str  # its UUID
    nvlinks: int = 0  # NVLink connections between the two, through a switch or not
    distance: int = FARTHEST  # over PCIe, as NVML counts: 0 one board … 30 one host bridge, 40 one NUMA node, 50 across


@frozen(kw_only=True)
class MigInstance:
    """A part of a card in MIG mode, under the id that the driver reports: opaque, its form has changed between drivers (L-D6)."""

    uuid: str
    name: str
    memory_bytes: int


@frozen(kw_only=True)
class Gpu:
    """One card as the driver reports it. Work is bound by ``uuid``; ``index`` is for people (L-D1)."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    bus: str = ""  # PCI address such as 0000:3b:00, by which the kernel names it; "" when it cannot be told
    mig: bool = False  # in MIG mode: no whole card (L-D7)
    instances: tuple[MigInstance, ...] = ()
    links: tuple[CardLink, ...] = ()  # to the other cards, as far as the driver knows them


@frozen(kw_only=True)
class CardBinding:
    """Which card an index of the budget was when the Node first saw it (L-D1)."""

    index: int
    uuid: str


@frozen(kw_only=True)
class CardFault:
    """Why the Node's health table puts a card (or the whole machine) aside, until the same table sees it mended (L-D12)."""

    card: str  # UUID; "" when the kernel named a card that nobody knows
    code: str  # such as xid-48, ecc, row-remap
    detail: str
    whole_node: bool = False
    since: datetime


@frozen(kw_only=True)
class Budgets:
    """What the operator grants to Tuneplane on this machine; ``None`` means not declared yet (R-ENR-09)."""

    cpu_millis: int | None = None  # thousandths of a CPU
    memory_bytes: int | None = None
    gpu_indexes: tuple[int, ...] | None = None  # () declares a CPU-only Node, unless cards are granted by UUID
    gpu_uuids: tuple[str, ...] = ()  # cards, or MIG instances, granted by UUID instead
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
    cards_known: bool = True  # False: the driver did not answer, so ``gpus`` says nothing (L-D4)
    card_bindings: tuple[CardBinding, ...] = ()  # by index; () from a Node that keeps none
    card_faults: tuple[CardFault, ...] | None = None  # None: the Node does not tell, which clears nothing (L-D12)
