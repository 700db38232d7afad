"""Placement is pure, deterministic and honest (R-PLC-02, R-PLC-04, R-PLC-05, L-L1)."""

from __future__ import annotations

from datetime import timedelta

import attrs
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.strategies import EPOCH, fleets, job_specs, node_lists
from tuneplane.domain.addresses import is_numeric
from tuneplane.domain.admission import admission_reasons
from tuneplane.domain.fleets import Capability, Delivery, Fleet, FleetKind, FleetState
from tuneplane.domain.ids import FleetId, NodeId
from tuneplane.domain.inventory import Budgets, Interface, Inventory, Stranger
from tuneplane.domain.jobs import Allocation
from tuneplane.domain.jobspec import (
    JobBody,
    JobSpec,
    Metadata,
    Network,
    Orchestrator,
    Pool,
    Resources,
    RuntimeRef,
    WorkKind,
    cpu_millis,
    memory_bytes,
)
from tuneplane.domain.leases import ports_needed
from tuneplane.domain.liveness import readiness
from tuneplane.domain.nodes import Capacity, Connection, Node, NodeState
from tuneplane.domain.placement import MustWait, Placed, place


@given(job_specs(), fleets(), node_lists())
def test_place_every_chosen_node_is_ready_and_holds_its_member(spec: JobSpec, fleet: Fleet, nodes: list[Node]) -> None:
    """R-LCH-08: a gang is on as many machines as it asks for, all different, ranked by their ids."""
    answer = place(spec, fleet, nodes, EPOCH)
    if isinstance(answer, Placed):
        assert len({one.node for one in answer.members}) == len(answer.members) == spec.pool.nodes
        assert [one.rank for one in answer.members] == list(range(spec.pool.nodes))
        assert [one.node for one in answer.members] == sorted(one.node for one in answer.members)
        for allocation in answer.members:
            _check_allocation(spec, fleet, allocation, next(node for node in nodes if node.id == allocation.node))


def _check_allocation(spec: JobSpec, fleet: Fleet, allocation: Allocation, node: Node) -> None:
    assert readiness(node, fleet, EPOCH).value
    assert node.capacity is not None
    assert node.capacity.cpu_millis - node.capacity.cpu_millis_used >= cpu_millis(spec.pool)
    assert node.capacity.memory_bytes - node.capacity.memory_bytes_used >= memory_bytes(spec.pool)
    assert len(allocation.gpu_uuids) == spec.pool.gpus_per_node
    assert set(allocation.gpu_uuids) <= set(node.free_gpu_uuids)
    assert len(allocation.ports) == ports_needed(spec, allocation.rank)
    assert len(set(allocation.ports)) == len(allocation.ports)
    assert not set(allocation.ports) & set(node.held_ports)


@given(job_specs(), fleets(), node_lists())
def test_place_the_members_of_a_gang_have_addresses_of_their_own(spec: JobSpec, fleet: Fleet, nodes: list[Node]) -> None:
    """R-LCH-11, L-H5: numeric, on the named interface, and never one that two machines have."""
    answer = place(spec, fleet, nodes, EPOCH)
    if isinstance(answer, Placed) and spec.pool.nodes > 1:
        addresses = [one.address for one in answer.members]
        assert all(map(is_numeric, addresses))
        assert len(set(addresses)) == len(addresses) or set(addresses) == {"127.0.0.1"}
        assert "172.17.0.1" not in addresses
        if spec.spec.resources.network == Network(interface="bond0"):
            assert all(address.startswith("10.1.0.") for address in addresses)


@given(job_specs(), fleets(), node_lists())
def test_place_a_wait_gives_one_reason_a_node_that_does_not_fit(spec: JobSpec, fleet: Fleet, nodes: list[Node]) -> None:
    answer = place(spec, fleet, nodes, EPOCH)
    if isinstance(answer, MustWait):
        gang = [reason for reason in answer.reasons if reason.code == "too-few-machines"]
        subjects = [reason.subject for reason in answer.reasons if reason not in gang]
        fit = len(nodes) - len(subjects)
        assert (answer.code == "no-nodes") == (not nodes)
        if nodes:
            assert subjects == [node.id for node in nodes if node.id in subjects]
            assert 0 <= fit < spec.pool.nodes
            assert [reason.detail for reason in gang] == ([f"needs {spec.pool.nodes} machines, {fit} fit"] if spec.pool.nodes > 1 else [])


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


# ---------------------------------------------------------------- gangs, by example

LAB = Fleet(id=FleetId("lab"), kind=FleetKind.NODE, delivery=Delivery.SHARED_MOUNT, capabilities=(Capability.TRAIN,), created_at=EPOCH)
DOCKER0 = Interface(name="docker0", addresses=("172.17.0.1",))


def machine(number: int, *, cpus: int = 8, route: str | None = None, interfaces: tuple[Interface, ...] = (), **changes: object) -> Node:
    own = (Interface(name="eth0", addresses=(f"10.0.0.{number}",)), DOCKER0)
    inventory = Inventory(
        hostname="h",
        node_version="1",
        cpu_count=8,
        memory_bytes=1 << 40,
        budgets=Budgets(port_first=20000, port_last=20003),
        interfaces=(*own, *interfaces),
        route_address=f"10.0.0.{number}" if route is None else route,
    )
    capacity = Capacity(cpu_millis=8000, cpu_millis_used=8000 - cpus * 1000, memory_bytes=1 << 40, memory_bytes_used=0, gpus=0, gpus_used=0)
    made = Node(
        id=NodeId(f"n{number}"),
        fleet=LAB.id,
        address=f"host-{number}",
        state=NodeState.ACTIVE,
        connection=Connection(state="connected", lease_expires_at=EPOCH + timedelta(seconds=9)),
        inventory=inventory,
        inventory_healthy=True,
        capacity=capacity,
        created_at=EPOCH,
    )
    return attrs.evolve(made, **changes)


def gang(nodes: int, *, interface: str | None = None, cpus: float = 1.0) -> JobSpec:
    resources = Resources(pools=(Pool(nodes=nodes, cpus=cpus),), network=Network(interface=interface) if interface else None)
    body = JobBody(command=("train",), runtime=RuntimeRef(image="i"), resources=resources)
    return JobSpec(apiVersion="tuneplane/v1", kind=WorkKind.TRAINING_JOB, metadata=Metadata(name="g"), spec=body)


def codes_of(answer: Placed | MustWait) -> dict[str, str]:
    assert isinstance(answer, MustWait)
    return {reason.subject: reason.code for reason in answer.reasons}


def test_place_a_gang_takes_the_machines_that_leave_the_least_behind() -> None:
    answer = place(gang(2), LAB, [machine(1), machine(2, cpus=2), machine(3, cpus=3)], EPOCH)
    assert isinstance(answer, Placed)
    assert [(one.rank, one.node, one.address, len(one.ports)) for one in answer.members] == [
        (0, "n2", "10.0.0.2", 1),
        (1, "n3", "10.0.0.3", 0),
    ]


def test_place_a_gang_that_does_not_fit_says_how_many_would_and_why_the_others_do_not() -> None:
    """R-PLC-03."""
    full = attrs.evolve(machine(3), held_ports=(20000, 20001, 20002, 20003))
    answer = place(gang(4), LAB, [machine(1), machine(2, cpus=0), full, machine(4)], EPOCH)
    assert codes_of(answer) == {"lab": "too-few-machines", "n2": "insufficient-cpus", "n3": "no-free-port"}
    assert isinstance(answer, MustWait)
    assert (answer.code, answer.reasons[0].detail) == ("too-few-machines", "needs 4 machines, 2 fit")


def test_admission_refuses_a_ray_member_whose_ports_no_range_holds() -> None:
    """R-PLC-02, R-PLC-05."""
    spec = gang(2)
    ray = attrs.evolve(
        spec, spec=attrs.evolve(spec.spec, orchestrator=Orchestrator.RAY, runtime=RuntimeRef(image="i", ray_version="2.60.0"))
    )
    wide = [evolved(number, Budgets()) for number in (1, 2)]
    assert admission_reasons(ray, LAB, wide) == ()
    (reason,) = admission_reasons(ray, LAB, [wide[0], machine(2), machine(3)])
    assert (reason.code, reason.subject) == ("port-range", "lab")
    assert reason.detail == "TUNEPLANE_NODE_PORT_RANGE holds the 64 ports of a member on 1 machines of Fleet lab, the job needs 2"


def evolved(number: int, budgets: Budgets) -> Node:
    made = machine(number)
    assert made.inventory is not None
    return attrs.evolve(made, inventory=attrs.evolve(made.inventory, budgets=budgets))


def test_place_the_named_interface_decides_the_address_and_one_without_it_is_named() -> None:
    """R-LCH-11."""
    bond = [Interface(name="bond0", addresses=(f"10.1.0.{number}",)) for number in (1, 2)]
    nodes = [
        machine(1, interfaces=(bond[0],)),
        machine(2, interfaces=(bond[1],)),
        machine(3),
        machine(4, interfaces=(Interface(name="bond0"),)),
    ]
    answer = place(gang(2, interface="bond0"), LAB, nodes, EPOCH)
    assert isinstance(answer, Placed)
    assert [one.address for one in answer.members] == ["10.1.0.1", "10.1.0.2"]
    assert codes_of(place(gang(3, interface="bond0"), LAB, nodes, EPOCH)) == {
        "lab": "too-few-machines",
        "n3": "no-interface",
        "n4": "no-interface",
    }
    alone = place(gang(1, interface="bond0"), LAB, nodes[2:], EPOCH)
    assert codes_of(alone) == {"n3": "no-interface", "n4": "no-interface"}


def test_place_an_address_that_two_machines_have_is_none() -> None:
    """L-H5: every Docker host's docker0 has 172.17.0.1, whether it is named or was told as the machine's address."""
    nodes = [machine(1), machine(2), machine(3)]
    assert set(codes_of(place(gang(2, interface="docker0"), LAB, nodes, EPOCH)).values()) == {"too-few-machines", "shared-address"}
    told = [machine(1, route="172.17.0.1"), machine(2, route="172.17.0.1"), machine(3), machine(4)]
    answer = place(gang(2), LAB, told, EPOCH)
    assert isinstance(answer, Placed)
    assert [one.address for one in answer.members] == ["10.0.0.3", "10.0.0.4"]


def test_place_the_record_of_a_machine_that_was_enrolled_again_stands_in_nobodys_way() -> None:
    former = attrs.evolve(machine(1), id=NodeId("n0"), connection=Connection(state="disconnected"))
    assert isinstance(place(gang(2), LAB, [former, machine(1), machine(2)], EPOCH), Placed)


def test_place_loopback_is_an_address_only_where_all_nodes_are_on_one_machine() -> None:
    trial = [machine(1, route="127.0.0.1"), machine(2, route="127.0.0.1")]
    assert isinstance(place(gang(2), LAB, trial, EPOCH), Placed)
    assert codes_of(place(gang(3), LAB, [*trial, machine(3)], EPOCH)) == {
        "lab": "too-few-machines",
        "n1": "loopback-address",
        "n2": "loopback-address",
    }


def test_place_a_node_from_before_addresses_is_reached_by_a_numeric_enrolled_one() -> None:
    old = [attrs.evolve(machine(1, route=""), address="10.9.0.1"), machine(2, route=""), machine(3)]
    answer = place(gang(2), LAB, old, EPOCH)
    assert isinstance(answer, Placed)
    assert [one.address for one in answer.members] == ["10.9.0.1", "10.0.0.3"]
    assert codes_of(place(gang(3), LAB, old, EPOCH))["n2"] == "no-address"


def test_place_gangs_lease_different_ports_of_one_pair_of_machines() -> None:
    """L-H3, R-PLC-05."""
    nodes, ports = [machine(1), machine(2)], set()
    for number in range(4):
        answer = place(gang(2, cpus=1.0), LAB, nodes, EPOCH, seed=f"job-{number}-1")
        assert isinstance(answer, Placed)
        assert [one.node for one in answer.members] == ["n1", "n2"]
        ports |= set(answer.members[0].ports)
        nodes[0] = attrs.evolve(nodes[0], held_ports=tuple(ports))
    assert ports == {20000, 20001, 20002, 20003}
    assert codes_of(place(gang(2), LAB, nodes, EPOCH))["n1"] == "no-free-port"


def test_admission_counts_the_machines_that_a_gang_needs() -> None:
    """R-PLC-02: busy and offline ones too; an interface that too few have is told while the submitter is looking."""
    bond = Interface(name="bond0", addresses=("10.1.0.1",))
    nodes = [machine(1, cpus=0, interfaces=(bond,)), attrs.evolve(machine(2), connection=Connection(state="never"))]
    assert admission_reasons(gang(2), LAB, nodes) == ()
    (few,) = admission_reasons(gang(3), LAB, nodes)
    assert (few.code, "needs 3 machines" in few.detail, "2 of its machines" in few.detail) == ("too-few-machines", True, True)
    (without,) = admission_reasons(gang(2, interface="bond0"), LAB, nodes)
    assert (without.code, without.detail) == ("no-interface", "the job needs 2 machines with interface bond0, Fleet lab has 1")
    assert admission_reasons(gang(1, interface="bond0"), LAB, nodes) == ()
    silent = attrs.evolve(nodes[1], inventory=attrs.evolve(nodes[1].inventory, interfaces=()))  # type: ignore[arg-type]
    assert admission_reasons(gang(2, interface="bond0"), LAB, [nodes[0], silent]) == ()


def _with_strangers(node: Node, *strangers: Stranger) -> Node:
    assert node.inventory is not None
    return attrs.evolve(node, inventory=attrs.evolve(node.inventory, strangers=strangers))


def test_place_counts_what_strangers_use_and_says_so() -> None:
    """P-07: the rest of the machine stays usable."""
    spec, fleet, node = gang(1), LAB, machine(1)
    known = Stranger(container="c", name="tuneplane-x", member="x", gpu_uuids=(), cpu_millis=1000, memory_bytes=1)
    assert isinstance(place(spec, fleet, [_with_strangers(node, known)], EPOCH), Placed)
    greedy = attrs.evolve(known, cpu_millis=8000)
    answer = place(spec, fleet, [_with_strangers(node, greedy)], EPOCH)
    assert isinstance(answer, MustWait)
    assert "1 strangers use some of it" in answer.reasons[0].detail


def test_readiness_of_a_machine_with_a_stranger_of_unknown_size_says_which() -> None:
    """P-07: what nobody can tell is not zero."""
    unknown = Stranger(container="c", name="tuneplane-x", member="x", gpu_uuids=(), cpu_millis=None, memory_bytes=1)
    ready = readiness(_with_strangers(machine(1), unknown), LAB, EPOCH)
    assert not ready.value
    assert "tuneplane-x" in ready.reasons[0]
