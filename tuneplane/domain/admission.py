"""Choosing a Fleet while the submitter is looking: one table of rules per workload, and why a Fleet is none (R-PLC-01, R-PLC-02).

Inventory fit counts the budgets of all enrolled Nodes, also offline, busy or cordoned ones. It is a check, not a reservation
(R-PLC-03): it only keeps a request for hardware that a Fleet has never had from queueing for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from attrs import frozen

from .errors import Reason, Refused
from .fit import Shape, budget_amounts, needs, shape_of, spell_need, spell_unit, spell_unknown, why_no_series
from .fleets import Capability, Fleet, FleetKind, FleetState
from .hardware import only_series
from .jobspec import JobSpec, WorkKind
from .leases import port_count
from .nodes import Node
from .reach import why_no_interface

UNSEEN = "Fleets that you cannot see were not considered."  # R-PLC-02: no names, no numbers, whether there are any or not


class Workload(str, Enum):
    TRAINING_JOB = "training job"
    LIFECYCLE_JOB = "lifecycle job"
    MODEL_DEPLOYMENT = "model deployment"
    PLAYGROUND_SESSION = "playground session"
    ENVIRONMENT = "environment"
    VOLUME = "volume"
    DATASET = "dataset"


class Naming(str, Enum):
    """Who chooses the Fleet."""

    AUTOMATIC = "automatic"  # of those that fit one with room now, then the first by name; a named one is taken or refused
    NAMED_UNLESS_ALONE = "named unless there is one"  # the submitter: its address outlives the decision
    NAMED = "named"  # the submitter, always
    NONE = "none"  # nobody: storage reaches a job through its Fleet's delivery


@frozen
class Rule:
    """How one workload gets its Fleet: what the Fleet must declare, and of which kinds it may be."""

    naming: Naming
    capability: Capability | None = None
    kinds: tuple[FleetKind, ...] = tuple(FleetKind)
    inventory: bool = False  # whether it must fit the machines' budgets


RULES = {
    Workload.TRAINING_JOB: Rule(Naming.AUTOMATIC, Capability.TRAIN, inventory=True),
    Workload.LIFECYCLE_JOB: Rule(Naming.AUTOMATIC, Capability.TRAIN, inventory=True),
    Workload.MODEL_DEPLOYMENT: Rule(Naming.NAMED_UNLESS_ALONE, Capability.SERVE),
    Workload.PLAYGROUND_SESSION: Rule(Naming.AUTOMATIC, Capability.SERVE, (FleetKind.NODE, FleetKind.KUBERNETES)),
    Workload.ENVIRONMENT: Rule(Naming.NAMED, Capability.ENV),
    Workload.VOLUME: Rule(Naming.NONE),
    Workload.DATASET: Rule(Naming.NONE),
}
WORKLOAD_OF = {WorkKind.TRAINING_JOB: Workload.TRAINING_JOB, WorkKind.LIFECYCLE_JOB: Workload.LIFECYCLE_JOB}


@frozen
class Candidate:
    """A Fleet that the submitter may see, why it cannot take the work (() when it can), and whether it has room now."""

    fleet: Fleet
    refusals: tuple[Reason, ...] = ()
    has_room: bool = True


def choose(workload: Workload, candidates: Sequence[Candidate], *, named: bool) -> Fleet | None:
    """The Fleet that takes the work; with ``named``, ``candidates`` is that Fleet alone. None: this workload has none.

    Refused: ``fleet-refused`` for a named one, ``fleet-unnamed`` where the submitter has to name one, else ``no-fleet-fits``
    with a reason per Fleet that he can see. The answer does not depend on the order of ``candidates``.
    """
    rule = RULES[workload]
    if rule.naming is Naming.NONE:
        return None
    fitting = sorted((one for one in candidates if not one.refusals), key=lambda one: (not one.has_room, one.fleet.id))
    reasons = tuple(reason for one in sorted(candidates, key=lambda one: one.fleet.id) for reason in one.refusals)
    if named and not fitting:
        raise Refused("fleet-refused", reasons[0].detail, field="spec.fleet", reasons=reasons)
    _check_named(workload, rule, candidates, named=named)
    if not fitting:
        detail = f"no Fleet can hold this {workload.value}" if reasons else "there is no Fleet that you can submit to"
        raise Refused("no-fleet-fits", f"{detail}. {UNSEEN}", reasons=reasons)
    return fitting[0].fleet


def _check_named(workload: Workload, rule: Rule, candidates: Sequence[Candidate], *, named: bool) -> None:
    """The platform declines to answer a question that it cannot answer: whose machines, and what data may touch them."""
    can = sorted(one.fleet.id for one in candidates if rule.capability in one.fleet.capabilities and one.fleet.kind in rule.kinds)
    if named or rule.naming is Naming.AUTOMATIC or (rule.naming is Naming.NAMED_UNLESS_ALONE and len(can) < 2):
        return
    reasons = tuple(Reason("candidate", f"Fleet {name} could be named", name) for name in can)
    why = f"{len(can)} that you can see can serve it" if rule.naming is Naming.NAMED_UNLESS_ALONE else "its manifest must say which"
    raise Refused("fleet-unnamed", f"name a Fleet for this {workload.value}: {why}. {UNSEEN}", field="spec.fleet", reasons=reasons)


# ---------------------------------------------------------------- why a Fleet is none


def fleet_reasons(workload: Workload, fleet: Fleet) -> tuple[Reason, ...]:
    """What the Fleet's own record says against it: its capability, kind and state."""
    rule = RULES[workload]
    if rule.capability is not None and rule.capability not in fleet.capabilities:
        return (Reason("capability", f"Fleet {fleet.id} does not declare {rule.capability.value!r}", fleet.id),)
    if fleet.kind not in rule.kinds:
        return (Reason("fleet-kind", f"Fleet {fleet.id} is of kind {fleet.kind.value!r}, which takes no {workload.value}", fleet.id),)
    if fleet.state is not FleetState.ACTIVE:
        return (Reason("fleet-state", f"Fleet {fleet.id} is {fleet.state.value}: it takes no new work", fleet.id),)
    return ()


def admission_reasons(spec: JobSpec, fleet: Fleet, nodes: Sequence[Node]) -> tuple[Reason, ...]:
    """Why ``fleet`` could never hold the job; () when it could."""
    workload = WORKLOAD_OF[spec.kind]
    reasons = fleet_reasons(workload, fleet)
    return reasons or (_inventory_reasons(shape_of(spec), fleet, nodes) if RULES[workload].inventory else ())


def _inventory_reasons(shape: Shape, fleet: Fleet, nodes: Sequence[Node]) -> tuple[Reason, ...]:
    declared = [_as_pinned(node, shape) for node in nodes if node.capacity is not None]
    if not declared:
        detail = f"Fleet {fleet.id} has no machine with declared budgets"
        return (Reason("no-inventory", detail, fleet.id, "machines", shape.machines, 0),)
    if all(why_no_series(shape, node) and not _is_mute(node) for node in declared):
        detail = f"no machine of Fleet {fleet.id} has cards of series {shape.series!r}{spell_unknown(declared)}"
        return (Reason("series", detail, fleet.id, "machines", shape.machines, 0),)
    fit = [node for node in declared if _is_large_enough(shape, node)]
    if not fit:
        return (_too_small(shape, fleet, declared),)
    if len(fit) < shape.machines:
        few = f"{len(fit)} of its machines are large enough: each {spell_need(shape)}"
        detail = f"the job needs {shape.machines} machines of Fleet {fleet.id}, {few}"
        return (Reason("too-few-machines", detail, fleet.id, "machines", shape.machines, len(fit)),)
    return _port_reasons(shape, fleet, fit) or _interface_reasons(shape, fleet, fit)


def _as_pinned(node: Node, shape: Shape) -> Node:
    """With the cards of the pinned series alone; with all that are granted while nobody can say of which series they are."""
    return node if _is_mute(node) else only_series(node, shape.series)


def _is_mute(node: Node) -> bool:
    """Its driver does not answer just now (L-D4), so it names no cards."""
    return node.inventory is not None and not node.inventory.cards_known


def _is_large_enough(shape: Shape, node: Node) -> bool:
    return all(need <= have for (_, need), have in zip(needs(shape), budget_amounts(node), strict=True))


def _too_small(shape: Shape, fleet: Fleet, declared: Sequence[Node]) -> Reason:
    """Names the amount that no machine has alone; where it is only all of them together, there are machines, and none fits."""
    detail = f"no machine of Fleet {fleet.id} is large enough: {spell_need(shape)}"
    most = [max(amounts) for amounts in zip(*map(budget_amounts, declared), strict=True)]
    for (unit, need), have in zip(needs(shape), most, strict=True):
        if need > have:
            return Reason("inventory-fit", f"{detail}, the largest has {have} {spell_unit(shape, unit)}", fleet.id, unit, need, have)
    return Reason("inventory-fit", detail, fleet.id, "machines", shape.machines, 0)


def _port_reasons(shape: Shape, fleet: Fleet, fit: Sequence[Node]) -> tuple[Reason, ...]:
    """A block that is longer than a machine's whole range is never free there; Ray's grows with the CPUs."""
    may = [node for node in fit if node.inventory is None or port_count(node.inventory.budgets) >= shape.ports]
    if len(may) >= shape.machines:
        return ()
    held = f"TUNEPLANE_NODE_PORT_RANGE holds the {shape.ports} ports of a member on {len(may)} machines of Fleet {fleet.id}"
    return (Reason("port-range", f"{held}, the job needs {shape.machines}", fleet.id, "machines", shape.machines, len(may)),)


def _interface_reasons(shape: Shape, fleet: Fleet, fit: Sequence[Node]) -> tuple[Reason, ...]:
    """A machine that tells no interfaces at all just now (its runtime is down, say) may have it."""
    name = shape.interface
    if name is None:
        return ()
    may = [node for node in fit if node.inventory is None or not node.inventory.interfaces or why_no_interface(node, name) is None]
    if len(may) >= shape.machines:
        return ()
    detail = f"the job needs {shape.machines} machines with interface {name}, Fleet {fleet.id} has {len(may)}"
    return (Reason("no-interface", detail, fleet.id, "machines", shape.machines, len(may)),)
