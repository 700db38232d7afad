"""Nodes, gateways, sessions and inventories: R-SES-02, R-SES-05, R-CRD-04, R-LIV-03 to -06, P-02, P-15, L-F4."""

from __future__ import annotations

from datetime import timedelta

import pytest
from attrs import evolve

from tests.contract.storage_world import FLEET, GATEWAY, USER, OpenWorld, World, a_fleet, an_inventory
from tuneplane.domain.errors import Fenced, NotFound, Refused
from tuneplane.domain.fleets import Delivery
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import GatewayId, MemberId, NodeId
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.jobs import Page
from tuneplane.domain.launch_table import AttemptEvent, AttemptState, MemberPhase
from tuneplane.domain.nodes import Node, NodeState

N1 = NodeId("n1")


async def get(world: World, node: str = "n1") -> Node:
    found = await world.storage.get_node(NodeId(node), world.now)
    assert found is not None
    return found


async def test_node_connected_by_open_session_and_fresh_lease(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        link = (await get(world)).connection
        assert (link.state, link.gateway, link.epoch, link.since) == ("connected", GATEWAY, 1, world.now)
        assert link.clock_offset_seconds == 0.0
        world.later(3601)
        link = (await get(world)).connection
        assert (link.state, link.since) == ("disconnected", link.lease_expires_at)  # its gateway is silent
        assert await world.storage.renew_gateway(GATEWAY, world.now + timedelta(seconds=15))
        assert (await get(world)).connection.state == "connected"


async def test_close_session_of_an_old_epoch_changes_nothing(open_world: OpenWorld) -> None:
    """R-SES-02."""
    async with open_world() as world:
        await world.node()
        assert (await world.connect()).epoch == 2
        await world.storage.close_session(N1, 1, "late", world.now)
        assert await world.storage.live_epochs(GATEWAY) == {N1: 2}
        await world.storage.close_session(N1, 2, "bye", world.later(1))
        assert (await get(world)).connection.since == world.now
        assert await world.storage.live_epochs(GATEWAY) == {}


async def test_open_session_moves_the_node_to_the_new_gateway(open_world: OpenWorld) -> None:
    """R-SES-06."""
    async with open_world() as world:
        await world.node()
        other = GatewayId("gateway-2")
        await world.storage.register_gateway(other, "10.0.0.2", 9001, world.now, world.now + timedelta(seconds=15))
        await world.connect(gateway=other)
        assert await world.storage.live_epochs(GATEWAY) == {}
        address = await world.storage.gateway_of(N1, world.now)
        assert address is not None
        assert (address.gateway, address.host, address.port) == (other, "10.0.0.2", 9001)
        assert await world.storage.gateway_of(N1, world.now + timedelta(seconds=16)) is None


async def test_close_gateway_closes_its_sessions_and_is_gone(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        await world.storage.close_gateway(GATEWAY, world.now)
        assert (await get(world)).connection.state == "disconnected"
        assert not await world.storage.renew_gateway(GATEWAY, world.now + timedelta(seconds=15))


async def test_register_gateway_again_closes_what_the_former_process_left_open(open_world: OpenWorld) -> None:
    async with open_world() as world:
        opened = await world.node()
        await world.storage.register_gateway(GATEWAY, "127.0.0.1", 9000, world.now, world.now + timedelta(seconds=15))
        assert await world.storage.live_epochs(GATEWAY) == {}
        with pytest.raises(Fenced):
            await world.storage.record_inventory(N1, opened.epoch, an_inventory(), "d", world.now)


@pytest.mark.parametrize("changed", [{"boot": "b2"}, {"machine": "m2"}])
async def test_open_session_from_another_machine_or_boot_waits_for_the_lease(open_world: OpenWorld, changed: dict[str, str]) -> None:
    """P-15."""
    async with open_world() as world:
        await world.node()
        with pytest.raises(Refused) as caught:
            await world.connect(**changed)
        assert caught.value.code == "identity-in-use"
        assert (await get(world)).connection.epoch == 1
        world.later(3601)
        assert (await world.connect(**changed)).epoch == 2


async def test_reconnection_invalidates_capacity_until_a_fresh_inventory(open_world: OpenWorld) -> None:
    """R-SES-05; an inventory that was fine in the session before says nothing about this one."""
    async with open_world() as world:
        await world.node()
        assert (await get(world)).inventory_healthy
        opened = await world.connect()
        assert not (await get(world)).inventory_healthy
        with pytest.raises(Fenced):
            await world.storage.record_inventory(N1, 1, an_inventory(), "d", world.now)
        await world.storage.record_inventory(N1, opened.epoch, an_inventory(), "d", world.now)
        assert (await get(world)).inventory_healthy
        await world.storage.inventory_stale(N1, 1, world.now)
        assert (await get(world)).inventory_healthy
        await world.storage.inventory_stale(N1, opened.epoch, world.now)
        assert not (await get(world)).inventory_healthy


@pytest.mark.parametrize("state", [NodeState.CORDONED, NodeState.DRAINING])
async def test_what_an_operator_said_of_a_node_survives_its_reconnection(open_world: OpenWorld, state: NodeState) -> None:
    """R-SES-05."""
    async with open_world() as world:
        await world.node()
        await world.storage.set_node_state(N1, state, "disk swap", world.now)
        opened = await world.connect()
        await world.storage.record_inventory(N1, opened.epoch, an_inventory(), "d", world.now)
        node = await get(world)
        assert node.state is state
        assert [cordon.reason for cordon in node.cordons] == ["disk swap"]


async def test_inventory_with_problems_is_not_healthy(open_world: OpenWorld) -> None:
    async with open_world() as world:
        opened = await world.node()
        await world.storage.record_inventory(N1, opened.epoch, an_inventory(problems=("no container runtime answers",)), "d", world.now)
        assert not (await get(world)).inventory_healthy


async def test_shared_mount_node_is_cordoned_until_it_sees_the_root(open_world: OpenWorld) -> None:
    """R-ENR-05, R-LIV-03, L-F4: the storage cordon comes and goes; the operator's stays."""
    async with open_world() as world:
        await world.storage.create_fleet(evolve(a_fleet(), delivery=Delivery.SHARED_MOUNT))
        opened = await world.node()
        assert [cordon.owner for cordon in (await get(world)).cordons] == ["storage"]
        await world.storage.set_node_state(N1, NodeState.CORDONED, "disk swap", world.now)
        await world.storage.record_inventory(N1, opened.epoch, an_inventory(storage_root_seen=True), "d", world.later(9))
        (cordon,) = (await get(world)).cordons
        assert (cordon.owner, cordon.reason) == ("operator", "disk swap")
        assert (await world.storage.set_node_state(N1, NodeState.ACTIVE, "", world.now)).cordons == ()


async def test_changed_card_under_an_index_cordons_and_is_never_rebound(open_world: OpenWorld) -> None:
    """protocol.md, gpu_grant: a mismatch cordons, rebinding is an audited act; the old card back lifts it."""
    async with open_world() as world:
        opened = await world.node(cards=("GPU-a", "GPU-b"))
        await world.storage.record_inventory(N1, opened.epoch, an_inventory(("GPU-a", "GPU-c")), "d", world.now)
        node = await get(world)
        assert [cordon.owner for cordon in node.cordons] == ["cards"]
        assert node.free_gpu_uuids == ("GPU-a",)
        await world.storage.record_inventory(N1, opened.epoch, an_inventory(("GPU-b", "GPU-a")), "d", world.now)
        assert (await get(world)).free_gpu_uuids == ()
        await world.storage.record_inventory(N1, opened.epoch, an_inventory(("GPU-a", "GPU-b")), "d", world.now)
        node = await get(world)
        assert node.cordons == ()
        assert node.free_gpu_uuids == ("GPU-a", "GPU-b")


async def test_budget_without_an_index_takes_the_card_out_of_the_free_ones(open_world: OpenWorld) -> None:
    async with open_world() as world:
        opened = await world.node(cards=("GPU-a", "GPU-b"))
        fewer = an_inventory(("GPU-a", "GPU-b"), budgets=Budgets(cpu_millis=1000, memory_bytes=1, gpu_indexes=(1,)))
        await world.storage.record_inventory(N1, opened.epoch, fewer, "d", world.now)
        node = await get(world)
        assert node.free_gpu_uuids == ("GPU-b",)
        assert node.capacity is not None
        assert (node.capacity.gpus, node.capacity.cpu_millis) == (1, 1000)


async def test_shrunk_budget_does_not_wedge_an_inventory(open_world: OpenWorld) -> None:
    """protocol.md: the limit is checked where a hold is taken, not on the row."""
    async with open_world() as world:
        opened = await world.node(cpus=8)
        await world.submit()
        assert await world.place(cpus=8)
        await world.storage.record_inventory(N1, opened.epoch, an_inventory(cpus=2), "d", world.now)
        capacity = (await get(world)).capacity
        assert capacity is not None
        assert (capacity.cpu_millis, capacity.cpu_millis_used) == (2000, 8000)


async def test_set_node_state_of_no_node_is_not_found(open_world: OpenWorld) -> None:
    async with open_world() as world:
        with pytest.raises(NotFound):
            await world.storage.set_node_state(N1, NodeState.DRAINING, "", world.now)
        assert await world.storage.get_node(N1, world.now) is None


async def test_list_nodes_by_fleet_newest_first(open_world: OpenWorld) -> None:
    async with open_world() as world:
        for name in ("n1", "n2", "n3"):
            await world.node(name)
            world.later(1)
        nodes, cursor = await world.storage.list_nodes(FLEET, Page(limit=2), world.now)
        assert [node.id for node in nodes] == ["n3", "n2"]
        nodes, cursor = await world.storage.list_nodes(None, Page(limit=2, cursor=cursor), world.now)
        assert [node.id for node in nodes] == ["n1"]
        assert cursor is None
        assert [node.id for node in await world.storage.placement_nodes(FLEET, world.now)] == ["n1", "n2", "n3"]


# ---------------------------------------------------------------- removal


async def test_delete_node_that_is_active_or_holds_something_is_refused(open_world: OpenWorld) -> None:
    """R-LIV-05: the refusal names the members left."""
    async with open_world() as world:
        await world.node()
        await world.launched()
        with pytest.raises(Refused) as caught:
            await world.storage.delete_node(N1, False, USER, world.now)
        assert caught.value.code == "node-busy"
        assert "job-a-1-0" in caught.value.reasons[0].detail
        await world.storage.set_node_state(N1, NodeState.DRAINING, "", world.now)
        with pytest.raises(Refused):
            await world.storage.delete_node(N1, False, USER, world.now)


async def test_delete_node_drained_and_idle_ends_its_session_and_credential(open_world: OpenWorld) -> None:
    """R-CRD-04."""
    async with open_world() as world:
        await world.node()
        await world.storage.set_node_state(N1, NodeState.DRAINING, "", world.now)
        await world.storage.delete_node(N1, False, USER, world.now)
        assert await world.storage.live_epochs(GATEWAY) == {}
        assert await world.storage.get_node(N1, world.now) is None
        with pytest.raises(Refused) as caught:
            await world.connect()
        assert caught.value.code == "node-removed"
        with pytest.raises(NotFound):
            await world.storage.delete_node(N1, True, USER, world.now)


async def test_delete_node_by_force_ends_its_members_and_frees_its_cards_for_another(open_world: OpenWorld) -> None:
    """R-LIV-05, P-11; the same card under a new Node has one holder."""
    async with open_world() as world:
        await world.node(cards=("GPU-a",))
        claim = await world.launched(cards=("GPU-a",))
        await world.node("n2", cards=("GPU-a",))  # the machine was enrolled again
        assert (await get(world, "n2")).free_gpu_uuids == ()
        await world.storage.delete_node(N1, True, USER, world.now)
        assert (await get(world, "n2")).free_gpu_uuids == ("GPU-a",)
        (member,) = (await world.view(claim)).members
        assert (member.phase, member.reason_code) == (MemberPhase.TERMINATED, "node-removed")
        assert await world.step(claim, AttemptEvent.MEMBER_FAILED)
        assert await world.step(claim, AttemptEvent.ALL_ENDED)


# ---------------------------------------------------------------- P-02


@pytest.mark.parametrize("hello", [{"journal": "j2"}, {"sequence": 0}])
async def test_open_session_with_another_journal_cordons_and_doubts_members(open_world: OpenWorld, hello: dict[str, object]) -> None:
    """P-02, P-12: live members become unknown and are stopped; only a tombstone settles them, at revision 1 again."""
    async with open_world() as world:
        await world.node(cards=("GPU-a",))
        claim = await world.launched(cards=("GPU-a",))
        opened = await world.connect(**hello)
        assert [cordon.owner for cordon in (await get(world)).cordons] == ["journal"]
        assert (await world.view(claim)).members[0].phase is MemberPhase.UNKNOWN
        (stop,) = await world.send_all()
        assert stop.command.kind is CommandKind.STOP
        world._revisions.clear()
        assert (await get(world)).free_gpu_uuids == ()  # absence proves nothing
        assert await world.see(MemberId("job-a-1-0"), MemberPhase.ABORTED, epoch=opened.epoch, reason_code="lost")
        assert (await get(world)).free_gpu_uuids == ("GPU-a",)
        assert (await world.storage.set_node_state(N1, NodeState.ACTIVE, "", world.now)).cordons == ()


async def test_stop_answered_by_a_lost_journal_is_sent_again(open_world: OpenWorld) -> None:
    """P-02: the acknowledgement that counts is the journal's that exists."""
    async with open_world() as world:
        await world.node()
        await world.launched()
        await world.storage.request_stop("job-a", USER, world.now)
        (stop,) = await world.send_all()
        await world.answer(stop)
        assert await world.send_all() == []
        await world.connect(journal="j2")
        assert [sent.command.kind for sent in await world.send_all()] == [CommandKind.STOP]


async def test_open_session_with_another_journal_leaves_what_was_never_sent(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        await world.submit()
        await world.place()
        claim = await world.claim()
        await world.step(claim, AttemptEvent.CLAIMED)
        await world.connect(journal="j2")
        assert (await world.view(claim)).members[0].phase is MemberPhase.PENDING
        assert [sent.command.kind for sent in await world.send_all()] == [CommandKind.PREPARE]


async def test_open_session_with_the_same_journal_doubts_nothing(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        claim = await world.launched(until=AttemptState.COMMITTED)
        await world.connect(sequence=7)
        assert (await get(world)).cordons == ()
        assert (await world.view(claim)).members[0].phase is MemberPhase.PREPARED
