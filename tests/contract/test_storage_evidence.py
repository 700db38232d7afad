"""Journals in doubt, and reports that no history explains: P-01, P-02, P-12, R-LCH-05, R-LCH-14."""

from __future__ import annotations

import pytest

from tests.contract.storage_world import GATEWAY, USER, OpenWorld, World, an_inventory, audit_lines
from tuneplane.domain.errors import Fenced, NotFound, Refused
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import JobId, MemberId, NodeId
from tuneplane.domain.inventory import EpochHold, Stranger
from tuneplane.domain.jobs import MemberRecord
from tuneplane.domain.launch_table import AttemptEvent, AttemptState, MemberPhase
from tuneplane.domain.node_member import PROGRESS_TICKS as T
from tuneplane.domain.nodes import NodeState

N1 = NodeId("n1")
JOB = JobId("job-a")
MEMBER = MemberId("job-a-1-0")


async def member(world: World, job: JobId = JOB) -> MemberRecord:
    found = await world.storage.get_job(job)
    assert found is not None
    return found.attempts[-1].members[0]


async def cordons(world: World) -> list[str]:
    node = await world.storage.get_node(N1, world.now)
    assert node is not None
    return [cordon.owner for cordon in node.cordons]


async def notes(world: World, kind: str) -> int:
    return [event.kind for event in await world.storage.timeline(JOB, 100)].count(kind)


async def running(world: World) -> None:
    """MEMBER was reported running, at journalled revision 5, in session 1."""
    await world.node()
    await world.launched(until=AttemptState.COMMITTED)
    await world.see(MEMBER, MemberPhase.RUNNING, revision=5 * T, container_id="c")


async def test_reverted_journal_is_noticed_by_a_lower_revision_in_a_newer_session(open_world: OpenWorld) -> None:
    """P-02, P-12: its sequence had caught up, so the Hello told nothing."""
    async with open_world() as world:
        await running(world)
        await world.connect(sequence=9)
        assert await world.see(MEMBER, MemberPhase.PREPARED, epoch=2, revision=2 * T)
        assert (await member(world)).phase is MemberPhase.UNKNOWN
        assert await cordons(world) == ["journal"]
        assert [sent.command.kind for sent in await world.send_all()] == [CommandKind.STOP]
        assert await notes(world, "member.unknown") == 1
        # only its end settles it; that it never ran is not believed, for its Commit was sent
        assert await world.see(MEMBER, MemberPhase.STOPPING, epoch=2, revision=3 * T)
        assert (await member(world)).phase is MemberPhase.UNKNOWN
        assert await world.see(MEMBER, MemberPhase.ABORTED, epoch=2, revision=4 * T)
        ended = await member(world)
        assert (ended.phase, ended.reason_code, ended.exit_code) == (MemberPhase.TERMINATED, "lost", None)


async def test_journal_on_another_machine_is_noticed(open_world: OpenWorld) -> None:
    """P-12, P-15: once the former session is over a clone gets in; what it says of the runtime is another runtime's word."""
    async with open_world() as world:
        await running(world)
        await world.storage.close_session(N1, 1, "cut", world.now)
        await world.connect(machine="m2")
        assert (await member(world)).phase is MemberPhase.UNKNOWN
        assert await cordons(world) == ["journal"]


async def test_reboot_of_the_same_machine_is_no_doubt(open_world: OpenWorld) -> None:
    """P-12: another boot id is what every reboot shows."""
    async with open_world() as world:
        await running(world)
        await world.storage.close_session(N1, 1, "cut", world.now)
        await world.connect(boot="b2")
        assert (await member(world)).phase is MemberPhase.RUNNING
        assert await cordons(world) == []


async def test_repeated_and_reordered_reports_are_harmless(open_world: OpenWorld) -> None:
    """P-12: a lost acknowledgement, a copy that comes late, and progress that begins again after a restart."""
    async with open_world() as world:
        await running(world)
        assert await world.see(MEMBER, MemberPhase.PREPARED, revision=2 * T)
        await world.connect()
        assert await world.see(MEMBER, MemberPhase.RUNNING, epoch=2, revision=5 * T)
        assert (await member(world)).phase is MemberPhase.RUNNING
        await world.launched("job-b", until=AttemptState.PREPARING)
        other = MemberId("job-b-1-0")
        await world.see(other, MemberPhase.PREPARING, epoch=2, revision=T + 9)
        await world.connect()
        assert await world.see(other, MemberPhase.PREPARING, epoch=3, revision=T)
        assert (await member(world, JobId("job-b"))).phase is MemberPhase.PREPARING
        assert await cordons(world) == []


async def test_reverted_journal_that_reports_an_ended_member_alive_is_doubted_and_stopped(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await running(world)
        await world.see(MEMBER, MemberPhase.TERMINATED, revision=6 * T, exit_code=0)
        await world.connect()
        assert await world.see(MEMBER, MemberPhase.RUNNING, epoch=2, revision=5 * T, container_id="c")
        assert (await member(world)).phase is MemberPhase.TERMINATED
        assert await cordons(world) == ["journal"]
        assert [sent.command.kind for sent in await world.send_all()] == [CommandKind.STOP]


async def test_absence_from_a_complete_report_is_doubt_and_a_stop(open_world: OpenWorld) -> None:
    """P-02: nothing is concluded but that the journal cannot be trusted."""
    async with open_world() as world:
        await running(world)
        await world.connect()
        await world.storage.reconcile(N1, 2, {MEMBER}, world.now)
        assert (await member(world)).phase is MemberPhase.RUNNING
        with pytest.raises(Fenced):
            await world.storage.reconcile(N1, 1, (), world.now)
        await world.storage.reconcile(N1, 2, (), world.now)
        assert (await member(world)).phase is MemberPhase.UNKNOWN
        assert await cordons(world) == ["journal"]
        assert [sent.command.kind for sent in await world.send_all()] == [CommandKind.STOP]
        await world.storage.reconcile(N1, 2, (), world.now)  # a repeat finds the Stop under way
        assert await notes(world, "member.unknown") == 1


async def test_absence_of_a_member_whose_prepare_may_be_in_flight_means_nothing(open_world: OpenWorld) -> None:
    """P-02: sent, not answered, never reported: it comes again in this session."""
    async with open_world() as world:
        await world.node()
        await world.submit()
        assert await world.place()
        claim = await world.claim()
        assert await world.step(claim, AttemptEvent.CLAIMED)
        assert await world.send_all()
        await world.connect()
        await world.storage.reconcile(N1, 2, (), world.now)
        assert (await member(world)).phase is MemberPhase.PENDING
        assert [sent.command.kind for sent in await world.send_all()] == [CommandKind.PREPARE]
        assert await cordons(world) == []


async def test_absence_of_an_accepted_member_that_was_never_reported_is_doubt(open_world: OpenWorld) -> None:
    """P-02: its Prepare was answered, so the journal had it."""
    async with open_world() as world:
        await world.node()
        await world.launched(until=AttemptState.PREPARING)
        await world.connect()
        await world.storage.reconcile(N1, 2, (), world.now)
        assert (await member(world)).phase is MemberPhase.UNKNOWN


async def test_absence_of_a_member_whose_stop_is_under_way_is_settled_by_its_tombstone(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await running(world)
        await world.storage.request_stop(JOB, USER, world.now)
        await world.connect()
        [stop] = await world.send_all()
        await world.storage.reconcile(N1, 2, (), world.now)
        await world.answer(stop)
        await world.storage.reconcile(N1, 2, (), world.now)
        assert await cordons(world) == []
        assert (await member(world)).phase is MemberPhase.RUNNING


async def test_step_that_no_history_makes_leaves_the_member_unknown_with_a_reason(open_world: OpenWorld) -> None:
    """P-02: and the session lives."""
    async with open_world() as world:
        await running(world)
        assert await world.see(MEMBER, MemberPhase.PREPARED, revision=6 * T)
        doubted = await member(world)
        assert (doubted.phase, doubted.reason_code) == (MemberPhase.UNKNOWN, "illegal-observation")
        assert "was running" in doubted.reason_detail
        assert [sent.command.kind for sent in await world.send_all()] == [CommandKind.STOP]
        assert await world.see(MEMBER, MemberPhase.TERMINATED, revision=7 * T, exit_code=137, reason_code="stopped")
        assert (await member(world)).phase is MemberPhase.TERMINATED
        assert await cordons(world) == []


async def test_ended_member_that_is_reported_alive_gets_one_stop_and_shows_as_a_violation(open_world: OpenWorld) -> None:
    """R-LCH-05: not accepted back, whatever it was."""
    async with open_world() as world:
        await running(world)
        await world.see(MEMBER, MemberPhase.TERMINATED, revision=6 * T, exit_code=0, cleaned=True)
        for revision in (7, 8):
            assert await world.see(MEMBER, MemberPhase.RUNNING, revision=revision * T, container_id="c")
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert node.violations == (f"{MEMBER} had ended, and its Node reports it running",)
        assert (await member(world)).phase is MemberPhase.TERMINATED
        assert await notes(world, "member.violation") == 1
        [stop] = await world.send_all()
        assert stop.command.kind is CommandKind.STOP
        assert await world.see(MEMBER, MemberPhase.TERMINATED, revision=9 * T, exit_code=137, cleaned=True)
        assert (await member(world)).exit_code == 0  # how it ended is settled
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert node.violations == ()


async def test_a_node_on_which_runs_what_had_ended_is_not_removed_but_by_force(open_world: OpenWorld) -> None:
    """R-LIV-05, R-LCH-05: the container would be left with nobody to stop it; what is left all the same is in the audit log."""
    async with open_world() as world:
        await running(world)
        await world.see(MEMBER, MemberPhase.TERMINATED, revision=6 * T, exit_code=0, cleaned=True)
        await world.see(MEMBER, MemberPhase.RUNNING, revision=7 * T, container_id="c")
        await world.storage.set_node_state(N1, NodeState.DRAINING, "", world.now)
        alive = f"{MEMBER} had ended, and its Node reports it running"
        with pytest.raises(Refused) as refused:
            await world.storage.delete_node(N1, False, USER, world.now)
        assert (refused.value.code, [one.detail for one in refused.value.reasons]) == ("node-busy", [alive])
        await world.storage.delete_node(N1, True, USER, world.now)
        assert (await audit_lines(world.storage))[-1][1:] == ("node.delete", N1, f"left behind: {alive}", True)


async def test_member_that_came_alive_after_its_forget_is_forgotten_once_more(open_world: OpenWorld) -> None:
    """P-06: an older copy of the journal has it again; the record that its end leaves there is dropped by our word alone."""
    async with open_world() as world:
        await world.node()
        claim = await world.launched(until=AttemptState.COMMITTED)
        await world.see(MEMBER, MemberPhase.TERMINATED, revision=T, exit_code=0, cleaned=True)
        await world.step(claim, AttemptEvent.ALL_ENDED)
        for revision in (2, 4):
            assert await world.storage.forget_ended(world.later(1), 10, world.now) == 1
            assert await world.storage.forget_ended(world.later(1), 10, world.now) == 0
            [forget] = await world.send_all()
            assert forget.command.kind is CommandKind.FORGET
            await world.answer(forget)
            if revision == 2:
                assert await world.see(MEMBER, MemberPhase.RUNNING, revision=revision * T, container_id="c")
                [stop] = await world.send_all()
                assert stop.command.kind is CommandKind.STOP
                await world.answer(stop)
                assert await world.see(MEMBER, MemberPhase.TERMINATED, revision=3 * T, exit_code=137, cleaned=True)


async def test_clean_up_that_a_lost_journal_owed_is_asked_of_the_new_one(open_world: OpenWorld) -> None:
    """R-LCH-14: its end was reported, its clean-up was not."""
    async with open_world() as world:
        await running(world)
        await world.see(MEMBER, MemberPhase.TERMINATED, revision=6 * T, exit_code=0)
        await world.connect(journal="j2")
        [stop] = await world.send_all()
        assert stop.command.kind is CommandKind.STOP
        assert await world.see(MEMBER, MemberPhase.STOPPING, epoch=2, revision=T)
        assert await world.see(MEMBER, MemberPhase.ABORTED, epoch=2, revision=2 * T)
        assert await world.see(MEMBER, MemberPhase.ABORTED, epoch=2, revision=3 * T, cleaned=True)
        ended = await member(world)
        assert (ended.phase, ended.exit_code, ended.cleaned) == (MemberPhase.TERMINATED, 0, True)
        assert await notes(world, "member.violation") == 0


async def test_stop_that_was_never_answered_is_settled_by_the_end(open_world: OpenWorld) -> None:
    """It must not come after a Forget, and make a tombstone that nobody forgets."""
    async with open_world() as world:
        await running(world)
        await world.storage.request_stop(JOB, USER, world.now)
        await world.send_all()
        await world.see(MEMBER, MemberPhase.TERMINATED, revision=6 * T, reason_code="stopped")
        await world.connect()
        assert await world.send_all() == []


async def test_accepted_hold_raises_the_epoch_above_what_the_node_has_seen_and_is_told_in_the_next_session(open_world: OpenWorld) -> None:
    """P-07: an operator's act for this one hold; a database from before it knows nothing of it."""
    async with open_world() as world:
        opened = await world.node()
        assert opened.accepted_hold == ""
        with pytest.raises(Refused, match="does not report"):
            await world.storage.accept_epoch(N1, "hold-1", USER, world.now)
        hold = EpochHold(id="hold-1", known_epoch=9, told_epoch=1, since=world.now)
        await world.storage.record_inventory(N1, 1, an_inventory(hold=hold, problems=("held",)), "d", world.now)
        with pytest.raises(Refused):
            await world.storage.accept_epoch(N1, "hold-2", USER, world.now)
        node = await world.storage.accept_epoch(N1, "hold-1", USER, world.now)
        assert (node.connection.state, node.inventory_healthy) == ("disconnected", False)
        assert await world.storage.live_epochs(GATEWAY) == {}
        again = await world.connect()
        assert (again.epoch, again.accepted_hold) == (10, "hold-1")
        with pytest.raises(NotFound):
            await world.storage.accept_epoch(NodeId("none"), "hold-1", USER, world.now)


async def test_stops_go_first_over_members_and_strangers(open_world: OpenWorld) -> None:
    """P-07: what is forgotten, however old, waits for every Stop; of two Stops the older goes first, whosever they are."""
    async with open_world() as world:
        await running(world)
        told = [Stranger(container=f"c{number}", name=f"x{number}", member=f"x-{number}-0") for number in (1, 2)]
        await world.storage.record_inventory(N1, 1, an_inventory(strangers=tuple(told)), "d", world.now)
        await world.storage.stop_stranger(N1, "c1", MemberId("x-1-0"), USER, world.now)
        for sent in await world.send_all():
            await world.answer(sent)
        assert await world.see(MemberId("x-1-0"), MemberPhase.TERMINATED, revision=T, cleaned=True)  # a Forget waits
        world.later(1)
        await world.storage.request_stop(JOB, USER, world.now)
        world.later(1)
        await world.storage.stop_stranger(N1, "c2", MemberId("x-2-0"), USER, world.now)
        order = [MEMBER, "x-2-0", "x-1-0"]
        for limit in (1, 2, 3, 100):
            found = await world.storage.outgoing_commands(GATEWAY, limit)
            assert [one.command.member for one in found] == order[:limit]


async def test_stop_of_what_had_ended_says_so(open_world: OpenWorld) -> None:
    """P-07: a Node that holds obeys that one."""
    async with open_world() as world:
        await running(world)
        await world.see(MEMBER, MemberPhase.TERMINATED, revision=6 * T, exit_code=0)
        await world.launched("job-b", until=AttemptState.PREPARING)
        await world.see(MEMBER, MemberPhase.RUNNING, revision=7 * T, container_id="c")
        await world.storage.request_stop(JobId("job-b"), USER, world.now)
        told = {sent.command.member: sent.command.ended for sent in await world.send_all()}
        assert told == {MEMBER: True, MemberId("job-b-1-0"): False}


async def test_card_of_a_stranger_is_occupied_until_it_is_gone(open_world: OpenWorld) -> None:
    """P-07: neither offered nor held; the other cards of the Node are."""
    async with open_world() as world:
        await world.node(cards=("A", "B"))
        stranger = Stranger(container="c1", name="tuneplane-job-x", member="job-x-1-0", gpu_uuids=("A",), cpu_millis=1000, memory_bytes=5)
        await world.storage.record_inventory(N1, 1, an_inventory(("A", "B"), strangers=(stranger,)), "d", world.now)
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert (node.free_gpu_uuids, node.strangers, node.inventory_healthy) == (("B",), (stranger,), True)
        await world.submit()
        assert not await world.place(cards=("A",))
        assert await world.place(cards=("B",))
        await world.storage.record_inventory(N1, 1, an_inventory(("A", "B")), "d", world.now)
        await world.submit("job-b")
        assert await world.place("job-b", cards=("A",))


async def test_stranger_is_stopped_by_an_operators_word_and_forgotten_when_it_is_clean(open_world: OpenWorld) -> None:
    """P-07: by container and member label, and only one that the Node reports."""
    async with open_world() as world:
        await world.node()
        name = MemberId("job-x-1-0")
        with pytest.raises(Refused, match="does not report"):
            await world.storage.stop_stranger(N1, "c1", name, USER, world.now)
        stranger = Stranger(container="c1", name="tuneplane-job-x", member=name, gpu_uuids=(), cpu_millis=1, memory_bytes=1)
        await world.storage.record_inventory(N1, 1, an_inventory(strangers=(stranger,)), "d", world.now)
        await world.storage.stop_stranger(N1, "c1", name, USER, world.now)
        [refused] = await world.send_all()
        assert (refused.command.kind, refused.command.stranger, refused.command.container) == (CommandKind.STOP, True, "c1")
        await world.storage.stop_stranger(N1, "c1", name, USER, world.now)  # a repeat is no second command
        assert await world.send_all() == []
        await world.answer(refused, accepted=False, code="runtime-silent")
        await world.storage.stop_stranger(N1, "c1", name, USER, world.now)
        [stop] = await world.send_all()
        await world.answer(stop)
        assert not await world.see(name, MemberPhase.STOPPING, revision=T)  # still none of ours
        assert not await world.see(name, MemberPhase.TERMINATED, revision=2 * T)
        assert await world.see(name, MemberPhase.TERMINATED, revision=3 * T, cleaned=True)
        assert await world.see(name, MemberPhase.TERMINATED, revision=3 * T, cleaned=True)
        [forget] = await world.send_all()
        assert (forget.command.kind, forget.command.member) == (CommandKind.FORGET, name)
        await world.answer(forget)
        assert not await world.see(name, MemberPhase.TERMINATED, revision=3 * T, cleaned=True)
