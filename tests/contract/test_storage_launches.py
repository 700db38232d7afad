"""Placements, claims and the steps of a launch (LaunchStore): R-LCH-01 to -06, R-LCH-10, R-LIV-04, P-02, P-05, P-08, P-10."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.contract.storage_world import FLEET, GATEWAY, USER, WORKER, OpenWorld, World, a_member
from tuneplane.domain.fleets import FleetState
from tuneplane.domain.frames import CommandKind, Progress
from tuneplane.domain.ids import AttemptId, JobId, MemberId, NodeId, WorkerId
from tuneplane.domain.jobs import Claim, Job, MemberRecord
from tuneplane.domain.launch_table import (
    AttemptAction,
    AttemptEvent,
    AttemptState,
    Cause,
    JobState,
    LaunchView,
    MemberPhase,
    step,
)
from tuneplane.domain.nodes import NodeState
from tuneplane.domain.verdict import cause_of

N1 = NodeId("n1")
JOB = JobId("job-a")
MEMBER = MemberId("job-a-1-0")


async def job(world: World, name: JobId = JOB) -> Job:
    found = await world.storage.get_job(name)
    assert found is not None
    return found


async def member(world: World) -> MemberRecord:
    return (await job(world)).attempts[-1].members[0]


async def kinds(world: World) -> list[str]:
    return [event.kind for event in await world.storage.timeline(JOB, 100)]


# ---------------------------------------------------------------- placing


async def test_place_holds_and_the_node_shows_it(open_world: OpenWorld) -> None:
    """R-LCH-01: attempt, plans and holds in one transaction."""
    async with open_world() as world:
        await world.node(cards=("GPU-a", "GPU-b"))
        await world.submit()
        assert await world.place(cards=("GPU-b",), cpus=4, ports=(20000, 20001))
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert node.capacity is not None
        assert (node.capacity.cpu_millis_used, node.capacity.gpus_used) == (4000, 1)
        assert node.free_gpu_uuids == ("GPU-a",)
        assert node.held_ports == (20000, 20001)
        assert node.members == (MEMBER,)
        found = await job(world)
        assert found.state is JobState.PREPARING
        assert found.attempts[0].members[0].gpu_uuids == ("GPU-b",)
        assert not await world.place()  # the same again


@pytest.mark.parametrize(
    "second", [{"cards": ("GPU-a",)}, {"cpus": 14}, {"ports": (20000,)}, {"memory_bytes": 10**15}, {"cards": ("GPU-z",)}]
)
async def test_place_of_what_is_held_is_false_and_changes_nothing(open_world: OpenWorld, second: dict[str, object]) -> None:
    async with open_world() as world:
        await world.node(cards=("GPU-a", "GPU-b"))
        await world.submit("job-a")
        await world.submit("job-b")
        assert await world.place("job-a", cards=("GPU-a",), cpus=4, ports=(20000,))
        assert not await world.place("job-b", **second)
        assert (await job(world, JobId("job-b"))).attempts == ()
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert node.members == (MEMBER,)
        assert await world.place("job-b", cards=("GPU-b",), cpus=12, ports=(20001,))


async def test_place_two_members_where_one_does_not_fit_holds_nothing(open_world: OpenWorld) -> None:
    """R-LCH-10: all or nothing."""
    async with open_world() as world:
        await world.node("n1")
        await world.node("n2", cpus=1)
        await world.submit()
        members = (a_member(JOB, N1, cpus=2), a_member(JOB, NodeId("n2"), rank=1, cpus=2))
        assert not await world.storage.place(JOB, AttemptId("job-a-1"), 1, members, world.now)
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert node.members == ()


async def test_place_on_a_node_that_takes_no_work_is_false(open_world: OpenWorld) -> None:
    """R-LIV-04: an operator's act between look and placement counts."""
    async with open_world() as world:
        await world.node()
        await world.submit()
        for state in (NodeState.DRAINING, NodeState.CORDONED):
            await world.storage.set_node_state(N1, state, "", world.now)
            assert not await world.place()
        await world.storage.set_node_state(N1, NodeState.ACTIVE, "", world.now)
        keep = {"capabilities": None, "visibility": None, "project": None, "config": None}
        await world.storage.update_fleet(FLEET, state=FleetState.DRAINING, **keep)
        assert not await world.place()
        await world.storage.update_fleet(FLEET, state=FleetState.ACTIVE, **keep)
        assert await world.place()


async def test_place_after_a_stop_is_false(open_world: OpenWorld) -> None:
    """R-LCH-12."""
    async with open_world() as world:
        await world.node()
        await world.submit()
        await world.storage.request_stop(JOB, USER, world.now)
        assert not await world.place()


# ---------------------------------------------------------------- claims


async def test_claim_is_exclusive_until_its_lease_ends_and_the_epoch_rises(open_world: OpenWorld) -> None:
    """P-05."""
    async with open_world() as world:
        await world.node()
        await world.submit()
        await world.place()
        first = await world.claim()
        assert first.epoch == 1
        assert await world.storage.claim_attempts(WorkerId("w2"), 10, world.now, world.now) == []
        world.later(16)
        second = await world.claim(WorkerId("w2"))
        assert second.epoch == 2
        assert await world.storage.load_launch(first) is None
        assert await world.storage.renew_claims(WORKER, [first], world.now + timedelta(seconds=15)) == []
        assert await world.storage.renew_claims(WorkerId("w2"), [second], world.now + timedelta(seconds=15)) == [second]


async def test_renewed_claim_is_not_taken_over(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        await world.submit()
        await world.place()
        claim = await world.claim()
        world.later(14)
        assert await world.storage.renew_claims(WORKER, [claim], world.now + timedelta(seconds=15)) == [claim]
        world.later(10)
        assert await world.storage.claim_attempts(WorkerId("w2"), 10, world.now, world.now) == []


async def test_advance_with_an_old_claim_changes_nothing(open_world: OpenWorld) -> None:
    """P-05: every launch write is WHERE claim_epoch and state."""
    async with open_world() as world:
        await world.node()
        await world.submit()
        await world.place()
        old = await world.claim()
        view = await world.view(old)
        world.later(16)
        new = await world.claim(WorkerId("w2"))
        assert not await _advance(world, old, view)
        assert await world.send_all() == []
        assert await world.step(new, AttemptEvent.CLAIMED)
        assert [sent.command.claim_epoch for sent in await world.send_all()] == [new.epoch]


async def _advance(world: World, claim: Claim, view: LaunchView) -> bool:
    target, action = step(view.state, AttemptEvent.CLAIMED)
    return await world.storage.advance(claim, view, target, action, cause_of(view, AttemptEvent.CLAIMED), None, world.now)


# ---------------------------------------------------------------- the launch


async def test_launch_from_placement_to_success(open_world: OpenWorld) -> None:
    """R-LCH-02, R-LCH-04, R-LCH-14: every step once, the holds until the evidence, the events in order."""
    async with open_world() as world:
        await world.node(cards=("GPU-a",))
        claim = await world.launched(cards=("GPU-a",), ports=(20999,))
        assert (await job(world)).state is JobState.RUNNING
        ended = {"exit_code": 0, "started_at": world.now, "ended_at": world.later(5), "container_id": "c1"}
        assert await world.see(MEMBER, MemberPhase.TERMINATED, **ended)
        assert not (await member(world)).cleaned
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert (node.members, node.free_gpu_uuids, node.held_ports) == ((), ("GPU-a",), ())
        assert await world.step(claim, AttemptEvent.ALL_ENDED)
        assert await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=None, cleaned=True, reason_code="lost")
        found = await job(world)
        assert (found.state, found.ended_at, found.reason_code) == (JobState.SUCCEEDED, world.now, "")
        seen = await member(world)
        assert (seen.exit_code, seen.reason_code, seen.cleaned) == (0, "", True)  # how it ended is settled
        assert await kinds(world) == [
            "job.submitted", "attempt.placed", "attempt.claimed", "attempt.preparing", "member.prepared", "attempt.committed",
            "member.running", "attempt.running", "member.terminated", "attempt.ended", "job.succeeded", "member.cleaned",
        ]  # fmt: skip
        assert await world.storage.load_launch(claim) is None
        assert await world.storage.claim_attempts(WORKER, 10, world.later(99), world.now) == []


async def test_failed_member_gives_the_job_its_reason(open_world: OpenWorld) -> None:
    """L-H1: the first cause is kept."""
    async with open_world() as world:
        await world.node()
        claim = await world.launched()
        await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=7)
        assert await world.step(claim, AttemptEvent.MEMBER_FAILED)
        assert (await job(world)).state is JobState.STOPPING
        assert await world.step(claim, AttemptEvent.ALL_ENDED)
        found = await job(world)
        assert (found.state, found.reason_code) == (JobState.FAILED, "exit-code")
        assert "7" in found.reason_detail
        assert found.attempts[0].reason_code == "exit-code"


async def test_commit_is_not_decided_when_a_member_is_no_longer_prepared(open_world: OpenWorld) -> None:
    """P-08: the world moved between the look and the step."""
    async with open_world() as world:
        await world.node()
        claim = await world.launched(until=AttemptState.PREPARING)
        await world.see(MEMBER, MemberPhase.PREPARED, hold_seconds_left=900.0)
        view = await world.view(claim)
        assert view.members[0].hold_expires_at == world.now + timedelta(seconds=900)
        await world.see(MEMBER, MemberPhase.ABORTED, reason_code="hold-expired")
        decided = (AttemptState.COMMITTED, AttemptAction.SEND_COMMIT, Cause("", ""), None, world.now)
        assert not await world.storage.advance(claim, view, *decided)
        assert await world.send_all() == []


async def test_commands_are_sent_again_in_a_new_session_until_answered(open_world: OpenWorld) -> None:
    """P-05, P-10: session_epoch is stamped when a frame is sent; stops go first."""
    async with open_world() as world:
        await world.node()
        await world.submit()
        await world.place()
        claim = await world.claim()
        await world.step(claim, AttemptEvent.CLAIMED)
        (sent,) = await world.send_all()
        assert (sent.command.kind, sent.command.session_epoch, sent.command.plan_digest) == (CommandKind.PREPARE, 1, "sha256:plan")
        assert sent.command.plan
        assert sent.command.hold_seconds > 0
        assert await world.storage.outgoing_commands(GATEWAY, 10) == []
        await world.connect()
        assert not await world.storage.mark_sent(sent.command.operation, N1, 1, world.now)  # fenced
        (again,) = await world.send_all()
        assert (again.command.operation, again.command.session_epoch) == (sent.command.operation, 2)
        await world.answer(again)
        await world.connect()
        assert await world.send_all() == []
        assert not await world.storage.mark_sent(sent.command.operation, N1, 3, world.now)  # answered


async def test_refused_prepare_is_settled_by_a_stop_and_gives_the_reason(open_world: OpenWorld) -> None:
    """P-02: only a tombstone counts; the refusal explains it."""
    async with open_world() as world:
        await world.node(cards=("GPU-a",))
        await world.submit()
        await world.place(cards=("GPU-a",))
        claim = await world.claim()
        await world.step(claim, AttemptEvent.CLAIMED)
        (sent,) = await world.send_all()
        await world.answer(sent, accepted=False, code="plan-digest", detail="the bytes do not match")
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert node.free_gpu_uuids == ()
        (stop,) = await world.send_all()
        assert stop.command.kind is CommandKind.STOP
        await world.see(MEMBER, MemberPhase.ABORTED, reason_code="stopped")
        assert (await member(world)).reason_code == "plan-digest"
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert node.free_gpu_uuids == ("GPU-a",)


async def test_forget_goes_to_cleaned_members_of_old_attempts_once(open_world: OpenWorld) -> None:
    """P-06: tombstones are dropped only on an explicit Forget."""
    async with open_world() as world:
        await world.node()
        claim = await world.launched()
        await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=0)
        await world.step(claim, AttemptEvent.ALL_ENDED)
        assert await world.storage.forget_ended(world.now + timedelta(days=1), 10, world.now) == 0  # not cleaned yet
        await world.see(MEMBER, MemberPhase.TERMINATED, cleaned=True)
        assert await world.storage.forget_ended(world.now, 10, world.now) == 0  # not old enough
        assert await world.storage.forget_ended(world.now + timedelta(days=1), 10, world.now) == 1
        assert await world.storage.forget_ended(world.now + timedelta(days=1), 10, world.now) == 0
        assert [sent.command.kind for sent in await world.send_all()] == [CommandKind.FORGET]


async def test_gang_shows_where_it_meets_and_who_waits_for_whom(open_world: OpenWorld) -> None:
    """R-LCH-09, R-LCH-15, L-H5: the addresses of the plan, on attempt, members and timeline; a prepared member counts its peers."""
    async with open_world() as world:
        for name in ("n1", "n2"):
            await world.node(name)
        await world.submit()
        said = {"main_address": "10.0.0.1", "main_port": 20999, "interface": "bond0"}
        plans = [json.dumps({**said, "address": f"10.0.0.{rank + 1}", "ports": [20999][rank:]}).encode() for rank in (0, 1)]
        ports = ((20999,), ())
        members = tuple(a_member(JOB, NodeId(f"n{rank + 1}"), rank=rank, plan=plans[rank], ports=ports[rank]) for rank in (0, 1))
        assert await world.storage.place(JOB, AttemptId("job-a-1"), 1, members, world.now)
        (attempt,) = (await job(world)).attempts
        assert (attempt.main_address, attempt.main_port) == ("10.0.0.1", 20999)
        assert [(one.address, one.ports, one.interface) for one in attempt.members] == [
            ("10.0.0.1", (20999,), "bond0"),
            ("10.0.0.2", (), "bond0"),
        ]
        placed = next(event for event in await world.storage.timeline(JOB, 10) if event.kind == "attempt.placed")
        assert placed.detail == "on n1, n2; they meet at 10.0.0.1 port 20999"
        claim = await world.claim()
        assert await world.step(claim, AttemptEvent.CLAIMED)
        for sent in await world.send_all():
            await world.answer(sent)
        await world.see(members[0].member, MemberPhase.PREPARED)
        waits = Progress(phase="wait-for-peers", done=1, total=2, unit="members")
        assert [one.progress for one in (await job(world)).attempts[0].members] == [waits, None]
        await world.see(members[1].member, MemberPhase.PREPARED, node="n2")
        assert await world.step(claim, AttemptEvent.ALL_PREPARED)
        assert [one.progress for one in (await job(world)).attempts[0].members] == [None, None]
