"""Gangs over real networks: two machines, each a network namespace with eth0, ib0 and the docker0 that every host has (L-H5).

What the planner says of real inventories is run by two Nodes on real Podman, each inside its own namespace: only containers
that were given addresses by which they truly reach each other meet.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from attrs import evolve, frozen

from tests.nodeside.harness import TestNode, commit, open_node, prepare
from tests.support.meeting import MEET
from tests.support.podman import Podman, open_podman
from tuneplane.control.plans import plan_attempt
from tuneplane.domain.fleets import Capability, Delivery, Fleet, FleetKind
from tuneplane.domain.ids import FleetId, JobId, NodeId, TraceId, UserName
from tuneplane.domain.inventory import Budgets, Inventory
from tuneplane.domain.jobs import Job
from tuneplane.domain.jobspec import JobBody, JobSpec, Metadata, Network, Pool, Resources, RuntimeRef, WorkKind
from tuneplane.domain.launch_table import JobState
from tuneplane.domain.member_table import NodePhase
from tuneplane.domain.nodes import Capacity, Connection, Node, NodeState
from tuneplane.domain.placement import MustWait, Placed, place
from tuneplane.domain.plan import MemberPlan, read_plan
from tuneplane.nodeside.address import Reach, route_address
from tuneplane.nodeside.network import LinuxNetwork

pytestmark = [pytest.mark.container, pytest.mark.seconds(120)]

NOW = datetime.now(UTC)
DOCKER0 = "172.17.0.1"
GATEWAY_HOST = "10.83.0.254"  # nobody is there: a route is asked for, nothing is sent
LAB = Fleet(id=FleetId("lab"), kind=FleetKind.NODE, delivery=Delivery.SHARED_MOUNT, capabilities=(Capability.TRAIN,), created_at=NOW)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@frozen
class Host:
    """One machine: its Podman runs in its namespace, and so do the containers."""

    id: NodeId
    podman: Podman

    async def record(self) -> Node:
        """As the control plane knows it from what the machine tells."""
        looked = LinuxNetwork(self.podman.socket)
        inventory = Inventory(
            hostname="h",
            node_version="1",
            cpu_count=8,
            memory_bytes=1 << 34,
            interfaces=tuple(one for one in await looked.interfaces() if one.addresses),
            route_address=await route_address(Reach("", GATEWAY_HOST), looked),
        )
        return Node(
            id=self.id,
            fleet=LAB.id,
            address="host",
            state=NodeState.ACTIVE,
            connection=Connection(state="connected", lease_expires_at=NOW + timedelta(hours=1)),
            inventory=inventory,
            inventory_healthy=True,
            capacity=Capacity(cpu_millis=8000, cpu_millis_used=0, memory_bytes=1 << 34, memory_bytes_used=0, gpus=0, gpus_used=0),
            created_at=NOW,
        )


@pytest.fixture(scope="module")
def hosts(short_tmp: Path, image: str) -> Iterator[list[Host]]:
    """Two machines on two separate wires: eth0 on 10.83.0.0/24, ib0 on 10.84.0.0/24."""
    with ExitStack() as stack:
        switch = f"tpw{os.getpid()}"
        ip("netns", "add", switch)
        stack.callback(ip, "netns", "del", switch)
        for wire in ("eth", "ib"):
            ip("-n", switch, "link", "add", wire, "type", "bridge")
            ip("-n", switch, "link", "set", wire, "up")
        yield [_plug_in(stack, short_tmp, image, switch, number) for number in (1, 2)]


def _plug_in(stack: ExitStack, tmp: Path, image: str, switch: str, number: int) -> Host:
    space = f"tpw{os.getpid()}h{number}"
    ip("netns", "add", space)
    stack.callback(ip, "netns", "del", space)
    ip("-n", space, "link", "set", "lo", "up")
    for wire, card, network in (("eth", "eth0", "10.83.0"), ("ib", "ib0", "10.84.0")):
        ip("-n", switch, "link", "add", f"{wire}{number}", "type", "veth", "peer", "name", card, "netns", space)
        ip("-n", switch, "link", "set", f"{wire}{number}", "master", wire, "up")
        ip("-n", space, "addr", "add", f"{network}.{number}/24", "dev", card)
        ip("-n", space, "link", "set", card, "up")
    ip("-n", space, "link", "add", "docker0", "type", "bridge")
    ip("-n", space, "addr", "add", f"{DOCKER0}/16", "dev", "docker0")
    ip("-n", space, "link", "set", "docker0", "up")
    podman = stack.enter_context(open_podman(tmp, netns=space))
    podman.run("pull", "-q", "--tls-verify=false", image)  # the command runs out here, where the registry is
    return Host(NodeId(f"n{number}"), podman)


def a_job(name: str, image: str, interface: str | None) -> Job:
    resources = Resources(pools=(Pool(nodes=2, cpus=0.2, memory_gb=0.064),), network=Network(interface=interface) if interface else None)
    body = JobBody(command=("sh", "-c", MEET), runtime=RuntimeRef(image=image), resources=resources)
    return Job(
        id=JobId(name),
        name=name,
        project="default",
        owner=UserName("ada"),
        fleet=LAB.id,
        spec=JobSpec(apiVersion="tuneplane/v1", kind=WorkKind.TRAINING_JOB, metadata=Metadata(name="g"), spec=body),
        image=image,
        state=JobState.QUEUED,
        trace=TraceId("trace"),
        created_at=NOW,
    )


def plans_of(job: Job, placed: Placed) -> list[MemberPlan]:
    """Without a storage root: nothing of this test is written to one."""
    members = plan_attempt(job, LAB, placed, "").members
    return [evolve(read_plan(member.plan, member.plan_digest), output_dir="") for member in members]


async def run_member(node: TestNode, plan: MemberPlan, prepared: list[trio.Event]) -> None:
    """As in a launch: nobody starts before all are prepared."""
    assert (await node.send(prepare(plan))).accepted
    await node.until(plan.member, lambda record: record.phase is not NodePhase.PREPARING)
    prepared[plan.rank].set()
    for event in prepared:
        await event.wait()
    await node.send(commit(plan))
    record = await node.until_clean(plan.member)
    assert (record.phase, record.exit_code, record.reason_detail) == (NodePhase.TERMINATED, 0, "")


@pytest.mark.parametrize(("interface", "network"), [(None, "10.83.0"), ("ib0", "10.84.0")])
async def test_gang_on_two_machines_meets_over_the_route_or_the_named_interface(
    tmp_path: Path, hosts: list[Host], image: str, interface: str | None, network: str
) -> None:
    """R-LCH-09, R-LCH-11, L-H5: real containers in two namespaces find rank 0 by the address in the plan."""
    job = a_job(f"job-net-{interface or 'route'}", image, interface)
    placed = place(job.spec, LAB, [await host.record() for host in hosts], NOW, seed=job.id)
    assert isinstance(placed, Placed)
    plans = plans_of(job, placed)
    assert [plan.address for plan in plans] == [f"{network}.1", f"{network}.2"]
    prepared = [trio.Event() for _ in plans]
    async with trio.open_nursery() as nursery:
        for host, plan in zip(hosts, plans, strict=True):
            nursery.start_soon(_run_on, host, plan, tmp_path, prepared)


async def _run_on(host: Host, plan: MemberPlan, tmp_path: Path, prepared: list[trio.Event]) -> None:
    budgets = Budgets(cpu_millis=8000, memory_bytes=1 << 34, gpu_indexes=())
    network = LinuxNetwork(host.podman.socket)
    async with open_node(tmp_path / host.id, host.podman, node=host.id, network=network, budgets=budgets) as node:
        await run_member(node, plan, prepared)


async def test_gang_that_names_docker0_gets_no_address_at_all(hosts: list[Host], image: str) -> None:
    """L-H5: it is there on both, with the same address: each would only find itself."""
    answer = place(a_job("job-net-docker0", image, "docker0").spec, LAB, [await host.record() for host in hosts], NOW)
    assert isinstance(answer, MustWait)
    assert {reason.code for reason in answer.reasons} == {"too-few-machines", "shared-address"}
