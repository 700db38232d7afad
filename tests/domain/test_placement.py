"""Placement is pure, deterministic and honest (R-PLC-02, R-PLC-04, R-PLC-05, L-L1)."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.strategies import EPOCH, fleets, job_specs, node_lists
from tuneplane.domain.fleets import Fleet, FleetState, Node, readiness
from tuneplane.domain.jobspec import JobSpec, cpu_millis, memory_bytes
from tuneplane.domain.placement import MustWait, Placed, admission_reasons, place


@given(job_specs(), fleets(), node_lists())
def test_place_the_chosen_node_is_ready_and_holds_the_job(spec: JobSpec, fleet: Fleet, nodes: list[Node]) -> None:
    answer = place(spec, fleet, nodes, EPOCH)
    if isinstance(answer, Placed):
        (allocation,) = answer.members
        node = next(node for node in nodes if node.id == allocation.node)
        assert readiness(node, fleet, EPOCH).value
        assert node.capacity is not None
        assert node.capacity.cpu_millis - node.capacity.cpu_millis_used >= cpu_millis(spec.pool)
        assert node.capacity.memory_bytes - node.capacity.memory_bytes_used >= memory_bytes(spec.pool)
        assert len(allocation.gpu_uuids) == spec.pool.gpus_per_node
        assert set(allocation.gpu_uuids) <= set(node.free_gpu_uuids)
        assert len(allocation.ports) == 1
        assert not set(allocation.ports) & set(node.held_ports)


@given(job_specs(), fleets(), node_lists())
def test_place_a_wait_gives_one_reason_a_node(spec: JobSpec, fleet: Fleet, nodes: list[Node]) -> None:
    answer = place(spec, fleet, nodes, EPOCH)
    if isinstance(answer, MustWait):
        assert answer.reasons
        assert [reason.subject for reason in answer.reasons] == [node.id for node in nodes] or not nodes
        assert (answer.code == "no-nodes") == (not nodes)


@given(job_specs(), fleets(), node_lists(), st.randoms(use_true_random=False))
def test_place_does_not_depend_on_the_order_of_nodes(spec: JobSpec, fleet: Fleet, nodes: list[Node], random: object) -> None:
    shuffled = list(nodes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert place(spec, fleet, shuffled, EPOCH) == place(spec, fleet, nodes, EPOCH)


@given(job_specs(), fleets(), node_lists())
def test_place_nothing_goes_to_a_fleet_that_is_not_active(spec: JobSpec, fleet: Fleet, nodes: list[Node]) -> None:
    """R-LIV-04: a draining Fleet takes no new work."""
    draining = attrs.evolve(fleet, state=FleetState.DRAINING)
    assert isinstance(place(spec, draining, nodes, EPOCH), MustWait)


@given(job_specs(), fleets(), node_lists())
def test_admission_never_refuses_what_could_be_placed_now(spec: JobSpec, fleet: Fleet, nodes: list[Node]) -> None:
    """R-PLC-02: inventory fit counts all budgets, so it is never stricter than placement but for the capability."""
    codes = {reason.code for reason in admission_reasons(spec, fleet, nodes)}
    if isinstance(place(spec, fleet, nodes, EPOCH), Placed):
        assert codes <= {"capability"}
