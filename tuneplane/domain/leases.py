"""Which ports a member leases on its Node: an exhaustive search from a starting point of its own (R-PLC-05, L-H3).

The planner's choice is a proposal, as everything it says: ``port_hold`` in the database decides. Where the search starts
follows from the attempt, so that workers that place different jobs on one Node at once rarely propose the same port, and
a retry (which is another attempt) proposes another one than the port that something foreign was found to listen on.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import chain

from .inventory import Budgets
from .jobspec import JobSpec, Orchestrator, cpu_millis
from .nodes import Node
from .ray import ray_ports

SINGLES = 128  # single ports are taken from the top of the range, so that they do not cut up the blocks at its bottom


def ports_needed(spec: JobSpec, rank: int) -> int:
    """How many adjacent ports the member with ``rank`` leases: a process group meets on one port of rank 0, and every
    member of a Ray gang needs a block."""
    if spec.spec.orchestrator is Orchestrator.RAY:
        return ray_ports(cpu_millis(spec.pool))
    return 1 if rank == 0 else 0


def port_count(budgets: Budgets) -> int:
    """How many ports the range has."""
    return budgets.port_last - budgets.port_first + 1


def lease_ports(node: Node, count: int, seed: str) -> tuple[int, ...] | None:
    """``count`` adjacent ports of the Node's declared range that nobody holds, or None when there are none.

    Deterministic. Every place is tried, so None is the truth about this ``node`` whatever the ``seed``.
    """
    if count == 0:
        return ()
    if node.inventory is None:
        return None
    first, last = node.inventory.budgets.port_first, node.inventory.budgets.port_last
    held = set(node.held_ports)
    for start in _starts(first, last, count, int.from_bytes(sha256(seed.encode()).digest()[:8])):
        block = range(start, start + count)
        if held.isdisjoint(block):
            return tuple(block)
    return None


def can_lease(node: Node, count: int) -> bool:
    """Whether :func:`lease_ports` finds some. Mostly at once: a held port stands in the way of ``count`` blocks at most."""
    if node.inventory is not None:
        budgets = node.inventory.budgets
        blocks = budgets.port_last - budgets.port_first + 2 - count
        if blocks > count * len(node.held_ports):
            return True
    return lease_ports(node, count, "") is not None


def most_adjacent(node: Node) -> int:
    """How many adjacent ports of its range nobody holds, at most."""
    if node.inventory is None:
        return 0
    budgets, longest, start = node.inventory.budgets, 0, node.inventory.budgets.port_first
    for port in (*sorted(node.held_ports), budgets.port_last + 1):
        if budgets.port_first <= port <= budgets.port_last + 1:
            longest, start = max(longest, port - start), port + 1
    return longest


def _starts(first: int, last: int, count: int, salt: int) -> Iterator[int]:
    """Every first port of a block, in the order of the search."""
    if count == 1:
        singles = range(last, max(first, last - SINGLES + 1) - 1, -1)
        return chain(_turned(singles, salt), range(last - SINGLES, first - 1, -1))
    return chain(_turned(range(first, last - count + 2, count), salt), range(first, last - count + 2))


def _turned(values: range, salt: int) -> Iterator[int]:
    at = salt % len(values) if values else 0
    return chain(values[at:], values[:at])
