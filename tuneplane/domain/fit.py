"""Whether one Node holds one member of a job, and the first reason why not, with numbers (R-PLC-02, R-PLC-04, L-L1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from attrs import frozen

from .errors import Reason
from .fleets import Fleet
from .hardware import unknown_cards_of
from .jobspec import JobSpec, cpu_millis, memory_bytes
from .leases import can_lease, most_adjacent, ports_needed
from .liveness import readiness
from .nodes import Node
from .reach import Peers, why_no_interface, why_unreachable

MOST_UNKNOWN = 3  # names of cards in one sentence
UNIT_NAMES = {"cpu_millis": "thousandths of a CPU", "memory_bytes": "bytes of memory", "gpus": "GPUs"}
SHORTFALL_CODES = {"cpu_millis": "insufficient-cpus", "memory_bytes": "insufficient-memory", "gpus": "insufficient-gpus"}


@frozen
class Shape:
    """All that decides which Nodes hold a job: jobs of one shape get one answer. Amounts are per machine."""

    machines: int
    cpu_millis: int
    memory_bytes: int
    gpus: int
    ports: int  # adjacent, of rank 0: no member needs more
    interface: str | None
    series: str | None  # only cards of this one count (R-ENR-06)


def shape_of(spec: JobSpec) -> Shape:
    pool, network = spec.pool, spec.spec.resources.network
    amounts = (cpu_millis(pool), memory_bytes(pool), pool.gpus_per_node)
    interface = network.interface if network is not None else None
    return Shape(pool.nodes, *amounts, ports_needed(spec, rank=0), interface, pool.series)


def spell_need(shape: Shape) -> str:
    amounts = f"{shape.cpu_millis / 1000:g} CPUs, {shape.memory_bytes} bytes of memory"
    return f"needs {amounts} and {shape.gpus} {spell_unit(shape, 'gpus')}"


def spell_unit(shape: Shape, unit: str) -> str:
    return f"GPUs of series {shape.series}" if unit == "gpus" and shape.series is not None else UNIT_NAMES[unit]


def why_closed(node: Node, fleet: Fleet, now: datetime) -> Reason | None:
    """Why ``node`` takes no work at all now."""
    ready = readiness(node, fleet, now)
    if not ready.value:
        return Reason("not-ready", f"Node {node.id} is not ready: {'; '.join(ready.reasons)}", node.id)
    if node.capacity is None:
        return Reason("no-budgets", f"Node {node.id} declares no budgets", node.id)
    return None


def why_not(shape: Shape, node: Node, peers: Peers | None) -> Reason | None:
    """The first reason why ``node``, which is open to work, cannot take a member now; None when it takes one of any rank.

    ``node`` is as the job sees it (see ``only_series``).
    """
    return why_no_series(shape, node) or shortfall(shape, node) or _why_no_port(shape, node) or why_apart(shape, node, peers)


def why_no_series(shape: Shape, node: Node) -> Reason | None:
    """R-ENR-06: a card that the registry does not know belongs to no series."""
    if shape.series is None or shape.series in node.card_series.values():
        return None
    return Reason("series", f"Node {node.id} has no card of series {shape.series!r}{spell_unknown([node])}", node.id)


def spell_unknown(nodes: Iterable[Node]) -> str:
    names = sorted({name for node in nodes for name in unknown_cards_of(node)})
    some = ", ".join(map(repr, names[:MOST_UNKNOWN])) + (" and others" if len(names) > MOST_UNKNOWN else "")
    return f" (the hardware registry does not know {some})" if names else ""


def why_apart(shape: Shape, node: Node, peers: Peers | None) -> Reason | None:
    """Why a member on ``node`` would not find its network, or its peers not find it."""
    reason = why_no_interface(node, shape.interface) if shape.interface is not None else None
    return reason or (why_unreachable(node, peers) if peers is not None else None)


def _why_no_port(shape: Shape, node: Node) -> Reason | None:
    if can_lease(node, shape.ports):
        return None
    have = most_adjacent(node)
    detail = f"Node {node.id} has {have} adjacent ports free in TUNEPLANE_NODE_PORT_RANGE, the job needs {shape.ports}"
    return Reason("no-free-port", detail, node.id, "ports", shape.ports, have)


def needs(shape: Shape) -> Iterator[tuple[str, int]]:
    """Unit and amount of what a Node has budgets for."""
    return zip(UNIT_NAMES, (shape.cpu_millis, shape.memory_bytes, shape.gpus), strict=True)


def free_amounts(node: Node) -> tuple[int, int, int]:
    """CPU, memory and cards that members do not hold and strangers do not use (P-07)."""
    assert node.capacity is not None  # of a Node that is open to work
    cpu = node.capacity.cpu_millis - node.capacity.cpu_millis_used
    memory = node.capacity.memory_bytes - node.capacity.memory_bytes_used
    if node.strangers:
        cpu -= sum(one.cpu_millis or 0 for one in node.strangers)
        memory -= sum(one.memory_bytes or 0 for one in node.strangers)
    return cpu, memory, len(node.free_gpu_uuids)


def budget_amounts(node: Node) -> tuple[int, int, int]:
    """All that the operator granted, whoever uses it."""
    assert node.capacity is not None
    return node.capacity.cpu_millis, node.capacity.memory_bytes, node.capacity.gpus


def holds_when_empty(shape: Shape, node: Node) -> bool:
    """Whether ``node`` would hold a member once all members that are on it have ended. Cards that nobody holds and that are
    not free (occupied, cordoned) do not come back by that."""
    assert node.capacity is not None
    cpu, memory, gpus = free_amounts(node)
    amounts = (cpu + node.capacity.cpu_millis_used, memory + node.capacity.memory_bytes_used, gpus + node.capacity.gpus_used)
    return all(need <= have for (_, need), have in zip(needs(shape), amounts, strict=True))


def shortfall(shape: Shape, node: Node) -> Reason | None:
    """The first amount of which ``node`` has too little free."""
    cpu, memory, gpus = free_amounts(node)
    if shape.cpu_millis > cpu:
        unit, need, have = "cpu_millis", shape.cpu_millis, cpu
    elif shape.memory_bytes > memory:
        unit, need, have = "memory_bytes", shape.memory_bytes, memory
    elif shape.gpus > gpus:
        unit, need, have = "gpus", shape.gpus, gpus
    else:
        return None
    have = max(have, 0)
    strange = f" ({len(node.strangers)} strangers use some of it)" if node.strangers else ""
    detail = f"Node {node.id} has {have} {spell_unit(shape, unit)} free{strange}, the job needs {need}"
    return Reason(SHORTFALL_CODES[unit], detail, node.id, unit, need, have)
