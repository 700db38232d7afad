"""The planner: pure and deterministic. Which Node gets a job, or why none does (R-PLC-02 to R-PLC-04)."""

from __future__ import annotations

from datetime import datetime
from typing import Union

from attrs import frozen

from .cards import choose_cards
from .errors import Reason
from .fleets import Capability, Fleet, FleetState
from .hardware import only_series, unknown_cards_of
from .jobs import Allocation
from .jobspec import JobSpec, WorkKind, cpu_millis, memory_bytes
from .leases import can_lease, lease_ports, port_count, ports_needed
from .liveness import readiness
from .nodes import Node
from .plan import LOOPBACK
from .reach import Peers, address_of, look_at_peers, why_no_interface, why_unreachable

MOST_UNKNOWN = 3  # names of cards in one sentence
CAPABILITY_OF = {WorkKind.TRAINING_JOB: Capability.TRAIN, WorkKind.LIFECYCLE_JOB: Capability.TRAIN}


@frozen
class Placed:
    members: tuple[Allocation, ...]


@frozen
class MustWait:
    """No Node can take it now; each reason is about one Node, with numbers."""

    code: str
    reasons: tuple[Reason, ...]


def admission_reasons(spec: JobSpec, fleet: Fleet, nodes: list[Node]) -> tuple[Reason, ...]:
    """Why ``fleet`` could never hold the job; () when it could. Counts the budgets of all enrolled Nodes (R-PLC-02)."""
    need = CAPABILITY_OF[spec.kind]
    if need not in fleet.capabilities:
        return (Reason("capability", f"Fleet {fleet.id} does not declare {need.value!r}", fleet.id),)
    if fleet.state is not FleetState.ACTIVE:
        return (Reason("fleet-state", f"Fleet {fleet.id} is {fleet.state.value}", fleet.id),)
    declared = [only_series(node, spec.pool.series) for node in nodes if node.capacity is not None]
    if not declared:
        return (Reason("no-inventory", f"Fleet {fleet.id} has no machine with declared budgets", fleet.id),)
    if all(_why_no_series(spec, node) for node in declared):
        return (Reason("series", f"no machine of Fleet {fleet.id} has cards of series {spec.pool.series!r}{_unknown(declared)}", fleet.id),)
    fit = [node for node in declared if _shortfall(spec, node, free=False) is None]
    if not fit:
        return (Reason("inventory-fit", f"no machine of Fleet {fleet.id} is large enough: {_need(spec)}", fleet.id),)
    if len(fit) < spec.pool.nodes:
        few = f"{len(fit)} of its machines are large enough: each {_need(spec)}"
        return (Reason("inventory-fit", f"the job needs {spec.pool.nodes} machines of Fleet {fleet.id}, {few}", fleet.id),)
    return _port_reasons(spec, fleet, fit) or _interface_reasons(spec, fleet, fit)


def _port_reasons(spec: JobSpec, fleet: Fleet, fit: list[Node]) -> tuple[Reason, ...]:
    """A block that is longer than a machine's whole range is never free there; Ray's grows with the CPUs."""
    need = ports_needed(spec, rank=0)
    may = [node for node in fit if node.inventory is None or port_count(node.inventory.budgets) >= need]
    if len(may) >= spec.pool.nodes:
        return ()
    detail = f"TUNEPLANE_NODE_PORT_RANGE holds the {need} ports of a member on {len(may)} machines of Fleet {fleet.id}"
    return (Reason("port-range", f"{detail}, the job needs {spec.pool.nodes}", fleet.id),)


def _interface_reasons(spec: JobSpec, fleet: Fleet, fit: list[Node]) -> tuple[Reason, ...]:
    """A machine that tells no interfaces at all just now (its runtime is down, say) may have it."""
    name = _interface(spec)
    if name is None:
        return ()
    may = [node for node in fit if node.inventory is None or not node.inventory.interfaces or why_no_interface(node, name) is None]
    if len(may) >= spec.pool.nodes:
        return ()
    detail = f"the job needs {spec.pool.nodes} machines with interface {name}, Fleet {fleet.id} has {len(may)}"
    return (Reason("no-interface", detail, fleet.id),)


def place(spec: JobSpec, fleet: Fleet, nodes: list[Node], now: datetime, seed: str = "") -> Union[Placed, MustWait]:
    """Allocate as many machines as the job asks for: of the ready ones that fit, those that leave the least behind.

    Ranks follow the ids of the machines. ``seed`` only turns the search for free ports (see leases.py).
    """
    reasons: list[Reason] = []
    fitting: list[Node] = []
    peers = look_at_peers(nodes, _interface(spec)) if spec.pool.nodes > 1 else None
    for node in sorted((only_series(node, spec.pool.series) for node in nodes), key=lambda n: n.id):
        reason = _why_not(spec, fleet, node, now) or _why_apart(spec, node, peers)
        if reason is None:
            fitting.append(node)
        else:
            reasons.append(reason)
    if len(fitting) < spec.pool.nodes:
        return _must_wait(spec, fleet, len(fitting), reasons)
    best = sorted(fitting, key=_left_over)[: spec.pool.nodes]
    return Placed(tuple(_allocate(spec, node, rank, seed) for rank, node in enumerate(sorted(best, key=lambda n: n.id))))


def _allocate(spec: JobSpec, node: Node, rank: int, seed: str) -> Allocation:
    ports = lease_ports(node, ports_needed(spec, rank), seed)
    cards = choose_cards(node, spec.pool.gpus_per_node)
    assert ports is not None  # place() keeps only Nodes with ports for any rank
    assert cards is not None  # and with cards enough
    address = address_of(node, _interface(spec)) if spec.pool.nodes > 1 else LOOPBACK
    return Allocation(node=node.id, rank=rank, gpu_uuids=cards, ports=ports, address=address)


def _why_no_series(spec: JobSpec, node: Node) -> Reason | None:
    """R-ENR-06: a card that the registry does not know belongs to no series."""
    series = spec.pool.series
    if series is None or series in node.card_series.values():
        return None
    return Reason("series", f"Node {node.id} has no card of series {series!r}{_unknown([node])}", node.id)


def _unknown(nodes: list[Node]) -> str:
    names = sorted({name for node in nodes for name in unknown_cards_of(node)})
    some = ", ".join(map(repr, names[:MOST_UNKNOWN])) + (" and others" if len(names) > MOST_UNKNOWN else "")
    return f" (the hardware registry does not know {some})" if names else ""


def _interface(spec: JobSpec) -> str | None:
    network = spec.spec.resources.network
    return network.interface if network is not None else None


def _why_apart(spec: JobSpec, node: Node, peers: Peers | None) -> Reason | None:
    """Why a member on ``node`` would not find its network, or its peers not find it."""
    name = _interface(spec)
    reason = why_no_interface(node, name) if name is not None else None
    return reason or (why_unreachable(node, peers) if peers is not None else None)


def _must_wait(spec: JobSpec, fleet: Fleet, fit: int, reasons: list[Reason]) -> MustWait:
    if not fit and not reasons:
        return MustWait("no-nodes", (Reason("no-nodes", f"Fleet {fleet.id} has no Nodes", fleet.id),))
    if fit:
        code = "too-few-machines"
    else:
        code = "no-ready-node" if all(r.code == "not-ready" for r in reasons) else "no-free-capacity"
    gang = (Reason("too-few-machines", f"needs {spec.pool.nodes} machines, {fit} fit", fleet.id),) if spec.pool.nodes > 1 else ()
    return MustWait(code, (*gang, *reasons))


def _why_not(spec: JobSpec, fleet: Fleet, node: Node, now: datetime) -> Reason | None:
    """The first reason why ``node`` cannot take a member now; None when it can take one of any rank."""
    ready = readiness(node, fleet, now)
    if not ready.value:
        return Reason("not-ready", f"Node {node.id} is not ready: {'; '.join(ready.reasons)}", node.id)
    if node.capacity is None:
        return Reason("no-budgets", f"Node {node.id} declares no budgets", node.id)
    short = _why_no_series(spec, node) or _shortfall(spec, node, free=True)
    if short is not None:
        return short
    ports = ports_needed(spec, rank=0)
    if not can_lease(node, ports):
        return Reason("no-free-port", f"Node {node.id} has no {ports} adjacent ports free in TUNEPLANE_NODE_PORT_RANGE", node.id)
    return None


def _left_over(node: Node) -> tuple[int, int, str]:
    capacity = node.capacity
    assert capacity is not None  # place() keeps only Nodes with budgets
    return (len(node.free_gpu_uuids), capacity.cpu_millis - capacity.cpu_millis_used, node.id)


def _need(spec: JobSpec) -> str:
    amounts = f"{cpu_millis(spec.pool) / 1000:g} CPUs, {memory_bytes(spec.pool)} bytes of memory"
    return f"needs {amounts} and {spec.pool.gpus_per_node} {_gpus(spec)}"


def _gpus(spec: JobSpec) -> str:
    return "GPUs" if spec.pool.series is None else f"GPUs of series {spec.pool.series}"


def _shortfall(spec: JobSpec, node: Node, *, free: bool) -> Reason | None:
    """The first amount that ``node`` lacks, of its free (or all its granted) amounts."""
    capacity = node.capacity
    assert capacity is not None
    used_cpu, used_memory = _used(node) if free else (0, 0)
    gpus = len(node.free_gpu_uuids) if free else capacity.gpus
    amounts = (
        ("cpus", cpu_millis(spec.pool), capacity.cpu_millis - used_cpu),
        ("memory", memory_bytes(spec.pool), capacity.memory_bytes - used_memory),
        ("gpus", spec.pool.gpus_per_node, gpus),
    )
    for name, need, have in amounts:
        if need > have:
            unit = {"cpus": "thousandths of a CPU", "memory": "bytes of memory", "gpus": _gpus(spec)}[name]
            strange = f" ({len(node.strangers)} strangers use some of it)" if free and node.strangers else ""
            return Reason(
                f"insufficient-{name}",
                f"Node {node.id} has {max(have, 0)} {unit} {'free' if free else 'in all'}{strange}, the job needs {need}",
                node.id,
            )
    return None


def _used(node: Node) -> tuple[int, int]:
    """CPU and memory that members hold, and what strangers use beside them (P-07)."""
    assert node.capacity is not None
    cpu = sum(one.cpu_millis or 0 for one in node.strangers)
    memory = sum(one.memory_bytes or 0 for one in node.strangers)
    return node.capacity.cpu_millis_used + cpu, node.capacity.memory_bytes_used + memory
