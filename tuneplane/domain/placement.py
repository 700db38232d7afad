"""The planner: pure and deterministic. Which Node gets a job, or why none does (R-PLC-02 to R-PLC-04)."""

from __future__ import annotations

from datetime import datetime
from typing import Union

from attrs import frozen

from .errors import Reason
from .fleets import Capability, Fleet, FleetState, Node, readiness
from .jobs import Allocation
from .jobspec import JobSpec, WorkKind, cpu_millis, memory_bytes

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
    declared = [node for node in nodes if node.capacity is not None]
    if not declared:
        return (Reason("no-inventory", f"Fleet {fleet.id} has no machine with declared budgets", fleet.id),)
    if not any(_shortfall(spec, node, free=False) is None for node in declared):
        return (Reason("inventory-fit", f"no machine of Fleet {fleet.id} is large enough: {_need(spec)}", fleet.id),)
    return ()


def place(spec: JobSpec, fleet: Fleet, nodes: list[Node], now: datetime) -> Union[Placed, MustWait]:
    """Allocate one machine: of the ready ones that fit, the one that leaves the least behind (then the lowest id)."""
    reasons: list[Reason] = []
    fitting: list[Node] = []
    for node in sorted(nodes, key=lambda n: n.id):
        ready = readiness(node, fleet, now)
        short = _shortfall(spec, node, free=True) if node.capacity else Reason("no-budgets", "declares no budgets", node.id)
        if not ready.value:
            reasons.append(Reason("not-ready", f"Node {node.id} is not ready: {'; '.join(ready.reasons)}", node.id))
        elif short is not None:
            reasons.append(short)
        else:
            fitting.append(node)
    if not fitting:
        code = "no-nodes" if not nodes else "no-ready-node" if all(r.code == "not-ready" for r in reasons) else "no-free-capacity"
        return MustWait(code, tuple(reasons) or (Reason("no-nodes", f"Fleet {fleet.id} has no Nodes", fleet.id),))
    best = min(fitting, key=_left_over)
    uuids = best.free_gpu_uuids[: spec.pool.gpus_per_node]
    return Placed((Allocation(node=best.id, rank=0, gpu_uuids=uuids),))


def _left_over(node: Node) -> tuple[int, int, str]:
    capacity = node.capacity
    assert capacity is not None  # place() keeps only Nodes with budgets
    return (len(node.free_gpu_uuids), capacity.cpu_millis - capacity.cpu_millis_used, node.id)


def _need(spec: JobSpec) -> str:
    return f"needs {cpu_millis(spec.pool) / 1000:g} CPUs, {memory_bytes(spec.pool)} bytes of memory and {spec.pool.gpus_per_node} GPUs"


def _shortfall(spec: JobSpec, node: Node, *, free: bool) -> Reason | None:
    """The first amount that ``node`` lacks, of its free (or all its granted) amounts."""
    capacity = node.capacity
    assert capacity is not None
    used_cpu, used_memory = (capacity.cpu_millis_used, capacity.memory_bytes_used) if free else (0, 0)
    gpus = len(node.free_gpu_uuids) if free else capacity.gpus
    amounts = (
        ("cpus", cpu_millis(spec.pool), capacity.cpu_millis - used_cpu),
        ("memory", memory_bytes(spec.pool), capacity.memory_bytes - used_memory),
        ("gpus", spec.pool.gpus_per_node, gpus),
    )
    for name, need, have in amounts:
        if need > have:
            unit = {"cpus": "thousandths of a CPU", "memory": "bytes of memory", "gpus": "GPUs"}[name]
            return Reason(
                f"insufficient-{name}",
                f"Node {node.id} has {max(have, 0)} {unit} {'free' if free else 'in all'}, the job needs {need}",
                node.id,
            )
    return None
