"""Draining, and what is asked on the machine itself, on every storage (R-LIV-04, R-LIV-05, L-E15, L-F1, L-F2, L-F4, L-F5, L-F11)."""

from __future__ import annotations

import pytest

from tests.contract.storage_world import GATEWAY, USER, OpenWorld, World, an_inventory, audit_lines
from tuneplane.domain.clocks import Offset
from tuneplane.domain.errors import Fenced, Refused
from tuneplane.domain.ids import MemberId, NodeId
from tuneplane.domain.inventory import Stranger
from tuneplane.domain.launch_table import AttemptEvent, JobState, MemberPhase
from tuneplane.domain.nodes import Left, Node, NodeState

N1 = NodeId("n1")
MEMBER = MemberId("job-a-1-0")


async def get(world: World) -> Node:
    found = await world.storage.get_node(N1, world.now)
    assert found is not None
    return found


async def test_drained_only_when_every_end_is_confirmed(open_world: OpenWorld) -> None:
    """L-F1: a slow stop keeps it draining, by name and phase, however long it takes."""
    async with open_world() as world:
        await world.node()
        await world.launched()
        assert not (await get(world)).is_drained
        await world.storage.set_node_state(N1, NodeState.DRAINING, "new disks", world.later(1))
        for phase in (MemberPhase.RUNNING, MemberPhase.STOPPING):
            await world.see(MEMBER, phase)
            node = await get(world)
            assert (node.left, node.is_drained) == ((Left(member=MEMBER, phase=phase),), False)
            world.later(120)
        await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=0)
        node = await get(world)
        assert (node.left, node.is_drained, node.state) == ((), True, NodeState.DRAINING)


async def test_a_silent_node_is_not_drained_while_it_may_still_work(open_world: OpenWorld) -> None:
    """L-F1, L-F8: an hour without a connection confirms nothing; it resumes by itself."""
    async with open_world() as world:
        await world.node()
        await world.launched()
        await world.storage.set_node_state(N1, NodeState.DRAINING, "", world.later(1))
        await world.storage.close_session(N1, 1, "cut", world.later(1))
        world.later(3500)
        assert not (await get(world)).is_drained
        epoch = (await world.connect()).epoch
        await world.see(MEMBER, MemberPhase.TERMINATED, epoch=epoch, exit_code=0)
        assert (await get(world)).is_drained


async def test_what_nobody_claims_is_not_nothing(open_world: OpenWorld) -> None:
    """L-F1, P-07: a machine on which a stranger runs is not drained."""
    async with open_world() as world:
        opened = await world.node()
        await world.storage.set_node_state(N1, NodeState.DRAINING, "", world.now)
        strange = an_inventory(strangers=(Stranger(container="c1", name="old", member="old-1-0"),))
        await world.storage.record_inventory(N1, opened.epoch, strange, "d", world.now)
        assert not (await get(world)).is_drained
        await world.storage.record_inventory(N1, opened.epoch, an_inventory(), "d", world.now)
        assert (await get(world)).is_drained


async def test_draining_can_be_cancelled_and_repeated_and_counts_the_same(open_world: OpenWorld) -> None:
    """L-F11: drain, undrain, drain within a second."""
    async with open_world() as world:
        await world.node()
        await world.launched()
        for state in (NodeState.DRAINING, NodeState.ACTIVE, NodeState.DRAINING, NodeState.DRAINING):
            node = await world.storage.set_node_state(N1, state, "", world.later(0.25))
            assert (node.state, node.left) == (state, (Left(member=MEMBER, phase=MemberPhase.RUNNING),))
        await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=0)
        assert (await get(world)).is_drained


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.CORDONED])
async def test_no_state_of_a_node_ends_work_or_takes_new(open_world: OpenWorld, state: NodeState) -> None:
    """R-LIV-04: new work stops, running work continues; nothing is commanded."""
    async with open_world() as world:
        await world.node()
        claim = await world.launched()
        before = await world.view(claim)
        await world.storage.set_node_state(N1, state, "", world.later(1))
        assert (await world.view(claim)).members == before.members
        assert await world.storage.outgoing_commands(GATEWAY, 100) == []
        await world.submit("job-b")
        assert not await world.place("job-b")


async def test_work_that_a_stop_ends_on_a_draining_node_is_not_a_success(open_world: OpenWorld) -> None:
    """L-F2: exit 0 on SIGTERM is what the stop made of it."""
    async with open_world() as world:
        await world.node()
        claim = await world.launched()
        await world.storage.set_node_state(N1, NodeState.DRAINING, "", world.later(1))
        await world.storage.request_stop(claim.job, USER, world.later(1))
        await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=0, reason_code="stopped")
        assert await world.step(claim, AttemptEvent.ALL_ENDED)
        job = await world.storage.get_job(claim.job)
        assert job is not None
        assert job.state is JobState.STOPPED
        assert (await get(world)).is_drained


# ---------------------------------------------------------------- asked on the machine


async def wish(world: World, wanted: bool, *, epoch: int = 1, reason: str = "") -> Node:
    return await world.storage.set_machine_drain(N1, epoch, wanted, reason, world.later(1))


async def test_a_machine_asks_for_no_more_work_and_takes_it_back(open_world: OpenWorld) -> None:
    """L-E15, L-F5: it is kept, a repeat changes nothing, and it survives sessions and gateways."""
    async with open_world() as world:
        await world.node()
        await world.launched()
        node = await wish(world, True, reason="new disks")
        assert (node.state, [cordon.owner for cordon in node.cordons], node.is_drained) == (NodeState.DRAINING, ["machine"], False)
        assert "new disks" in node.cordons[0].reason
        assert await wish(world, True, reason="again") == node
        lines = [line for line in await audit_lines(world.storage) if "machine" in line[1]]
        assert lines == [("(tuneplane-node)", "node.machine-drain", N1, "new disks", False)]
        epoch = (await world.connect()).epoch
        await world.storage.record_inventory(N1, epoch, an_inventory(), "d", world.now)
        assert [cordon.owner for cordon in (await get(world)).cordons] == ["machine"]
        await world.submit("job-b")
        assert not await world.place("job-b")
        assert (await wish(world, False, epoch=epoch)).state is NodeState.ACTIVE
        assert await world.place("job-b")


async def test_a_wish_of_an_old_session_is_fenced(open_world: OpenWorld) -> None:
    """P-06."""
    async with open_world() as world:
        await world.node()
        await world.connect()
        with pytest.raises(Fenced):
            await wish(world, True)


async def test_machine_and_operator_lift_only_their_own(open_world: OpenWorld) -> None:
    """L-F4: whichever comes first, and whichever goes first."""
    async with open_world() as world:
        await world.node()
        await wish(world, True)
        await world.storage.set_node_state(N1, NodeState.CORDONED, "disk swap", world.now)
        assert (await wish(world, False)).state is NodeState.CORDONED
        await wish(world, True)
        node = await world.storage.set_node_state(N1, NodeState.ACTIVE, "", world.now)
        assert (node.state, [cordon.owner for cordon in node.cordons]) == (NodeState.DRAINING, ["machine"])
        assert (await wish(world, False)).cordons == ()


async def test_a_machine_that_drained_itself_can_be_removed(open_world: OpenWorld) -> None:
    """R-LIV-05: what was drained is no longer active, whoever drained it; members left are named all the same."""
    async with open_world() as world:
        await world.node()
        await world.launched()
        await wish(world, True)
        with pytest.raises(Refused) as caught:
            await world.storage.delete_node(N1, False, USER, world.now)
        assert MEMBER in caught.value.reasons[0].detail
        await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=0)
        await world.storage.delete_node(N1, False, USER, world.now)
        assert await world.storage.get_node(N1, world.now) is None


# ---------------------------------------------------------------- clocks


async def test_clock_is_noted_in_its_session_and_told_by_the_next_hello_again(open_world: OpenWorld) -> None:
    """R-LIV-06."""
    async with open_world() as world:
        await world.node()
        link = (await get(world)).connection
        assert (link.clock_offset_seconds, link.clock_error_seconds) == (0.0, None)
        await world.storage.note_clock(N1, 1, Offset(seconds=7.5, error_seconds=0.02), world.now)
        link = (await get(world)).connection
        assert (link.clock_offset_seconds, link.clock_error_seconds) == (7.5, 0.02)
        await world.connect()
        await world.storage.note_clock(N1, 1, Offset(seconds=9.0, error_seconds=0.02), world.now)
        link = (await get(world)).connection
        assert (link.clock_offset_seconds, link.clock_error_seconds) == (0.0, None)
