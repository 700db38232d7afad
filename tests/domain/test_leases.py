"""Leased ports: in the Node's range, held by nobody, and found whenever there are any (R-PLC-05, L-H3)."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.strategies import EPOCH
from tuneplane.domain.ids import FleetId, NodeId
from tuneplane.domain.inventory import Budgets, Inventory
from tuneplane.domain.leases import can_lease, lease_ports, most_adjacent
from tuneplane.domain.nodes import Connection, Node, NodeState

FIRST, LAST = 20000, 20039


def node(held: set[int] = frozenset(), first: int = FIRST, last: int = LAST) -> Node:  # type: ignore[assignment]
    budgets = Budgets(port_first=first, port_last=last)
    return Node(
        id=NodeId("n1"),
        fleet=FleetId("lab"),
        address="",
        state=NodeState.ACTIVE,
        connection=Connection(state="never"),
        inventory=Inventory(hostname="h", node_version="1", cpu_count=1, memory_bytes=1, budgets=budgets),
        held_ports=tuple(sorted(held)),
        created_at=EPOCH,
    )


PORTS = st.sets(st.integers(FIRST, LAST))


@given(PORTS, st.integers(1, 45), st.text(max_size=8))
def test_lease_finds_adjacent_free_ports_exactly_when_there_are_some(held: set[int], count: int, seed: str) -> None:
    leased = lease_ports(node(held), count, seed)
    free = [start for start in range(FIRST, LAST - count + 2) if held.isdisjoint(range(start, start + count))]
    assert (leased is not None) == bool(free)
    if leased is not None:
        assert leased[0] in free
        assert leased == tuple(range(leased[0], leased[0] + count))
    assert lease_ports(node(held), count, seed) == leased
    assert can_lease(node(held), count) == bool(free)


@given(st.integers(1, 5))
def test_lease_of_nothing_needs_nothing(size: int) -> None:
    full = node(set(range(FIRST, FIRST + size)), last=FIRST + size - 1)
    assert lease_ports(full, 0, "") == ()
    assert lease_ports(full, 1, "") is None
    assert lease_ports(attrs.evolve(full, inventory=None), 1, "") is None


def test_lease_different_attempts_begin_at_different_ports() -> None:
    """Workers that place at once rarely propose the same, and a retry does not propose the port that was found taken."""
    wide = node(last=FIRST + 999)
    leased = {lease_ports(wide, 1, f"job-{number}-1") for number in range(50)}
    assert len(leased) > 35
    assert lease_ports(wide, 1, "job-a-1") != lease_ports(wide, 1, "job-a-2")


def test_lease_single_ports_leave_the_bottom_of_the_range_to_blocks() -> None:
    singles = {port for number in range(200) for port in lease_ports(node(last=FIRST + 999), 1, f"job-{number}-1") or ()}
    assert min(singles) >= FIRST + 999 - 127


@given(st.sets(st.integers(FIRST - 2, LAST + 2)))
def test_most_adjacent_is_the_longest_block_that_can_be_leased(held: set[int]) -> None:
    """L-L1: the number in a refusal is true."""
    most = most_adjacent(node(held))
    assert most == 0 or lease_ports(node(held), most, "") is not None
    assert lease_ports(node(held), most + 1, "") is None
