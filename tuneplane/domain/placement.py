"""The planner's room: pure and deterministic. Which Nodes get a job, or why none does (R-PLC-03, R-PLC-04).

A :class:`Room` is what one look at a Fleet has found, less what the same look has given away since. It answers for
thousands of jobs: Nodes are judged once a shape, and after that only where something was taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Union

from attrs import define, evolve, field, frozen

from .cards import choose_cards
from .errors import Reason
from .fit import Shape, shape_of, why_closed, why_not
from .fleets import Fleet
from .hardware import only_series
from .ids import NodeId
from .jobs import Allocation
from .jobspec import JobSpec
from .leases import lease_ports, ports_needed
from .nodes import Node
from .plan import LOOPBACK
from .reach import Peers, address_of, look_at_peers

NONE: frozenset[NodeId] = frozenset()


@frozen
class Placed:
    members: tuple[Allocation, ...]


@frozen
class MustWait:
    """No Node can take it now; each reason is about one Node, with numbers."""

    code: str
    reasons: tuple[Reason, ...]


Key = tuple[int, int, NodeId]


@define
class _Fit:
    """The Nodes that take a member of one shape, those with the least left over first, and why the others do not."""

    heap: list[tuple[Key, NodeId]]  # also what has changed since: an entry counts while its key is the Node's
    why: dict[NodeId, Reason]
    seen: int  # of the room's changes


@define
class Room:
    """Free room of one Fleet at one moment. ``take`` makes it less; nothing makes it more."""

    fleet: Fleet
    now: datetime
    nodes: dict[NodeId, Node]
    closed: dict[NodeId, Reason] = field(factory=dict, init=False)  # take no work at all
    _keys: dict[NodeId, Key] = field(factory=dict, init=False)
    _fits: dict[Shape, _Fit] = field(factory=dict, init=False)
    _peers: dict[str | None, Peers] = field(factory=dict, init=False)
    _changes: list[NodeId] = field(factory=list, init=False)  # in the order of the takings

    def __attrs_post_init__(self) -> None:
        for node in self.nodes.values():
            reason = why_closed(node, self.fleet, self.now)
            if reason is not None:
                self.closed[node.id] = reason
            else:
                self._keys[node.id] = _left_over(node)

    def place(self, spec: JobSpec, seed: str = "", without: frozenset[NodeId] = NONE) -> Placed | None:
        """Of the Nodes that fit, those that leave the least behind; None when there are too few. Takes nothing.

        Ranks follow the ids of the machines. ``seed`` only turns the search for free ports (see leases.py).
        """
        shape = shape_of(spec)
        best = self.best(shape, without)
        if len(best) < shape.machines:
            return None
        return Placed(tuple(_allocate(spec, shape, self.nodes[node], rank, seed) for rank, node in enumerate(sorted(best))))

    def best(self, shape: Shape, without: frozenset[NodeId] = NONE) -> list[NodeId]:
        """As many Nodes as the shape needs, or all that fit when there are not so many."""
        fit = self._fit(shape)
        kept: list[tuple[Key, NodeId]] = []
        found: list[NodeId] = []
        while fit.heap and len(found) < shape.machines:
            key, node = heappop(fit.heap)
            if self._keys[node] != key or node in fit.why:
                continue  # it was changed since; its entry of then is there as well, if it still fits
            kept.append((key, node))
            if node not in without:
                found.append(node)
        for entry in kept:
            heappush(fit.heap, entry)
        return found

    def take(self, spec: JobSpec, placed: Placed) -> None:
        """The room that ``placed`` uses is gone."""
        shape = shape_of(spec)
        for one in placed.members:
            node = _less(self.nodes[one.node], shape, one)
            self.nodes[node.id], self._keys[node.id] = node, _left_over(node)
            self._changes.append(node.id)

    def why(self, spec: JobSpec, without: frozenset[NodeId] = NONE) -> MustWait:
        """Why :meth:`place` finds too few Nodes, with a reason for each one that does not fit."""
        shape = shape_of(spec)
        refused = {**self.closed, **self._fit(shape).why}
        fitting = [node for node in self.nodes if node not in refused and node not in without]
        return _must_wait(shape, self.fleet, len(fitting), [refused[node] for node in sorted(refused)], empty=not self.nodes)

    def refused(self, shape: Shape) -> Mapping[NodeId, Reason]:
        """The Nodes that are open to work and do not take a member, and why."""
        return self._fit(shape).why

    def open_nodes(self) -> Iterator[Node]:
        return (self.nodes[node] for node in self._keys)

    @property
    def changed(self) -> frozenset[NodeId]:
        """Where something was taken."""
        return frozenset(self._changes)

    def peers(self, shape: Shape) -> Peers | None:
        """How the members of a gang would reach one another; None for a job on one machine."""
        if shape.machines < 2:
            return None
        if shape.interface not in self._peers:
            self._peers[shape.interface] = look_at_peers(list(self.nodes.values()), shape.interface)
        return self._peers[shape.interface]

    def _fit(self, shape: Shape) -> _Fit:
        """Up to date with all that was taken."""
        fit = self._fits.get(shape)
        if fit is None:
            fit = self._fits[shape] = _Fit([], {}, len(self._changes))
            self._judge(fit, shape, self._keys)
            heapify(fit.heap)
        elif fit.seen < len(self._changes):
            self._judge(fit, shape, dict.fromkeys(self._changes[fit.seen :]), heap=True)
            fit.seen = len(self._changes)
        return fit

    def _judge(self, fit: _Fit, shape: Shape, nodes: Iterable[NodeId], *, heap: bool = False) -> None:
        peers = self.peers(shape)
        for node in nodes:
            reason = why_not(shape, only_series(self.nodes[node], shape.series), peers)
            if reason is not None:
                fit.why[node] = reason
            elif heap:
                heappush(fit.heap, (self._keys[node], node))
            else:
                fit.heap.append((self._keys[node], node))


def open_room(fleet: Fleet, nodes: Iterable[Node], now: datetime) -> Room:
    return Room(fleet, now, {node.id: node for node in sorted(nodes, key=lambda node: node.id)})


def place(spec: JobSpec, fleet: Fleet, nodes: Sequence[Node], now: datetime, seed: str = "") -> Union[Placed, MustWait]:
    """The answer for one job that nobody is before."""
    room = open_room(fleet, nodes, now)
    return room.place(spec, seed) or room.why(spec)


def _allocate(spec: JobSpec, shape: Shape, node: Node, rank: int, seed: str) -> Allocation:
    ports = lease_ports(node, ports_needed(spec, rank), seed)
    cards = choose_cards(only_series(node, shape.series), shape.gpus)
    assert ports is not None  # best() gives only Nodes with ports for any rank
    assert cards is not None  # and with cards enough
    address = address_of(node, shape.interface) if shape.machines > 1 else LOOPBACK
    return Allocation(node=node.id, rank=rank, gpu_uuids=cards, ports=ports, address=address)


def _less(node: Node, shape: Shape, taken: Allocation) -> Node:
    assert node.capacity is not None
    gone = frozenset(taken.gpu_uuids)
    capacity = evolve(
        node.capacity,
        cpu_millis_used=node.capacity.cpu_millis_used + shape.cpu_millis,
        memory_bytes_used=node.capacity.memory_bytes_used + shape.memory_bytes,
        gpus_used=node.capacity.gpus_used + len(gone),
    )
    free = tuple(card for card in node.free_gpu_uuids if card not in gone)
    return evolve(node, capacity=capacity, free_gpu_uuids=free, held_ports=(*node.held_ports, *taken.ports))


def _left_over(node: Node) -> Key:
    capacity = node.capacity
    assert capacity is not None  # of a Node that is open to work
    return (len(node.free_gpu_uuids), capacity.cpu_millis - capacity.cpu_millis_used, node.id)


def _must_wait(shape: Shape, fleet: Fleet, fit: int, reasons: list[Reason], *, empty: bool) -> MustWait:
    if empty:
        return MustWait("no-nodes", (Reason("no-nodes", f"Fleet {fleet.id} has no Nodes", fleet.id, "machines", shape.machines, 0),))
    if fit:
        code = "too-few-machines"
    else:
        code = "no-ready-node" if all(one.code == "not-ready" for one in reasons) else "no-free-capacity"
    few = Reason("too-few-machines", f"needs {shape.machines} machines, {fit} fit", fleet.id, "machines", shape.machines, fit)
    return MustWait(code, (few, *reasons) if shape.machines > 1 else tuple(reasons))
