"""Jobs and launches (JobStore, LaunchStore): R-LCH-01 to -06, R-LCH-12, R-LCH-14, R-PLC-04, P-01, P-02, P-05, P-06, P-10."""

from __future__ import annotations

from datetime import timedelta

import pytest
from attrs import evolve

from tests.contract.storage_world import FLEET, GATEWAY, USER, WORKER, OpenWorld, World, a_member, a_spec
from tuneplane.domain.errors import Fenced, IllegalTransition, NotFound, Reason
from tuneplane.domain.fleets import FleetState, NodeState
from tuneplane.domain.frames import CommandKind, Progress
from tuneplane.domain.ids import AttemptId, JobId, MemberId, NodeId, UserName, WorkerId
from tuneplane.domain.jobs import Claim, Job, MemberRecord, Page
from tuneplane.domain.jobspec import Metadata, StopPolicy
from tuneplane.domain.launch_table import (
    AttemptAction,
    AttemptEvent,
    AttemptState,
    Cause,
    JobState,
    LaunchView,
    MemberPhase,
    cause_of,
    step,
)

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


# ---------------------------------------------------------------- jobs


async def test_submit_writes_a_queued_job(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.fleet()
        spec = evolve(a_spec(priority=3, env={"A": "é\ud800"}), metadata=Metadata(name="train", labels={"odd": "\0"}))
        await world.submit(spec=spec)
        found = await job(world)
        assert (found.state, found.spec, found.owner, found.fleet) == (JobState.QUEUED, spec, USER, FLEET)
        assert await kinds(world) == ["job.submitted"]


async def test_submit_twice_with_one_key_is_one_job(open_world: OpenWorld) -> None:
    """interfaces.md: a repeat returns the first answer; the key is the owner's own."""
    async with open_world() as world:
        await world.fleet()
        assert await world.submit("job-a", key="k") == "job-a"
        assert await world.submit("job-b", key="k", spec=a_spec(priority=9)) == "job-a"
        assert await world.storage.get_job(JobId("job-b")) is None
        found = await world.storage.find_submission(USER, "k")
        assert found is not None
        assert (found.id, found.spec.spec.priority) == ("job-a", 0)
        assert await world.storage.find_submission(UserName("eve"), "k") is None
        assert await world.submit("job-a") == "job-a"  # by its id, after a lost answer


async def test_submit_to_no_fleet_is_not_found(open_world: OpenWorld) -> None:
    async with open_world() as world:
        with pytest.raises(NotFound):
            await world.submit()


async def test_list_jobs_filters_by_state_fleet_and_owner(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.fleet()
        await world.fleet("other")
        for number, fleet in enumerate((FLEET, "other", FLEET)):
            await world.submit(f"job-{number}", fleet=fleet)
            world.later(1)
        await world.storage.request_stop(JobId("job-0"), USER, world.now)

        async def names(**filters: object) -> list[str]:
            return [one.id for one in (await world.storage.list_jobs(Page(), **filters))[0]]

        assert await names() == ["job-2", "job-1", "job-0"]
        assert await names(fleet=FLEET) == ["job-2", "job-0"]
        assert await names(states=(JobState.QUEUED,)) == ["job-2", "job-1"]
        assert await names(owner=UserName("eve")) == []


async def test_waiting_jobs_by_priority_then_age(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        for number, priority in enumerate((0, 5, 0, 5)):
            await world.submit(f"job-{number}", spec=a_spec(priority=priority))
            world.later(1)
        assert [one.id for one in await world.storage.waiting_jobs(10)] == ["job-1", "job-3", "job-0", "job-2"]
        await world.place("job-1")
        await world.storage.request_stop(JobId("job-3"), USER, world.now)
        assert [one.id for one in await world.storage.waiting_jobs(10)] == ["job-0", "job-2"]


async def test_note_waiting_keeps_since_while_the_reason_stays(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.fleet()
        await world.submit()
        first = world.now
        await world.storage.note_waiting(JOB, "no-ready-node", [Reason("not-ready", "n1 is away", "n1")], first)
        await world.storage.note_waiting(JOB, "no-ready-node", [Reason("not-ready", "n1 is draining", "n1")], world.later(5))
        waiting = (await job(world)).waiting
        assert waiting is not None
        assert (waiting.code, waiting.since, waiting.reasons[0].detail) == ("no-ready-node", first, "n1 is draining")
        await world.storage.note_waiting(JOB, "no-free-capacity", [], world.later(5))
        waiting = (await job(world)).waiting
        assert waiting is not None
        assert (waiting.code, waiting.since) == ("no-free-capacity", world.now)


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
        claim = await world.launched(cards=("GPU-a",))
        assert (await job(world)).state is JobState.RUNNING
        ended = {"exit_code": 0, "started_at": world.now, "ended_at": world.later(5), "container_id": "c1"}
        assert await world.see(MEMBER, MemberPhase.TERMINATED, **ended)
        assert not (await member(world)).cleaned
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert (node.members, node.free_gpu_uuids) == ((), ("GPU-a",))
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


# ---------------------------------------------------------------- observations


async def test_older_or_repeated_revision_is_acknowledged_and_ignored(open_world: OpenWorld) -> None:
    """R-LCH-05."""
    async with open_world() as world:
        await world.node()
        await world.launched()
        world._revisions[MEMBER] = 0
        assert await world.see(MEMBER, MemberPhase.PREPARED)
        assert await world.see(MEMBER, MemberPhase.ABORTED)
        assert (await member(world)).phase is MemberPhase.RUNNING


async def test_observation_of_an_old_epoch_is_fenced(open_world: OpenWorld) -> None:
    """P-06, R-SES-02."""
    async with open_world() as world:
        await world.node()
        await world.launched()
        await world.connect()
        with pytest.raises(Fenced):
            await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=0)
        assert (await member(world)).phase is MemberPhase.RUNNING
        with pytest.raises(Fenced):
            await world.see(MEMBER, MemberPhase.TERMINATED, epoch=9)


async def test_observation_backwards_is_illegal(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        await world.launched()
        with pytest.raises(IllegalTransition):
            await world.see(MEMBER, MemberPhase.PREPARED)
        with pytest.raises(IllegalTransition):
            await world.see(MEMBER, MemberPhase.ABORTED)
        assert await world.see(MEMBER, MemberPhase.STOPPING)


async def test_observation_of_a_stranger_is_not_ours(open_world: OpenWorld) -> None:
    """P-07: reported, never killed."""
    async with open_world() as world:
        await world.node()
        await world.node("n2")
        await world.launched()
        assert not await world.see(MemberId("nobody"), MemberPhase.RUNNING)
        assert not await world.see(MEMBER, MemberPhase.TERMINATED, node="n2", exit_code=0)
        assert not await world.see(MEMBER, MemberPhase.TERMINATED, plan_digest="sha256:other", exit_code=0)
        assert (await member(world)).phase is MemberPhase.RUNNING


async def test_observation_carries_progress_and_any_text(open_world: OpenWorld) -> None:
    """R-LCH-15."""
    async with open_world() as world:
        await world.node()
        await world.launched(until=AttemptState.PREPARING)
        progress = Progress(phase="pull", done=5, total=10)
        await world.see(MEMBER, MemberPhase.PREPARING, progress=progress)
        assert (await member(world)).progress == progress
        await world.see(MEMBER, MemberPhase.ABORTED, reason_code="image-unavailable", reason_detail="no\0such\ud800" + "x" * 10**6)
        seen = await member(world)
        assert seen.progress is None
        assert seen.reason_detail.startswith("no\ufffdsuch?xxx")
        assert seen.ended_at == world.now


async def test_member_on_a_silent_node_is_shown_as_such(open_world: OpenWorld) -> None:
    """P-11: a hold is shown as held by a named silent Node since a time."""
    async with open_world() as world:
        opened = await world.node()
        await world.launched()
        assert (await member(world)).node_silent_since is None
        await world.storage.close_session(N1, opened.epoch, "idle", world.now)
        assert (await member(world)).node_silent_since == world.now


# ---------------------------------------------------------------- stop


async def test_stop_of_a_queued_job_stops_it_at_once(open_world: OpenWorld) -> None:
    """R-LCH-12."""
    async with open_world() as world:
        await world.fleet()
        await world.submit()
        await world.storage.note_waiting(JOB, "no-nodes", [], world.now)
        stopped = await world.storage.request_stop(JOB, USER, world.now)
        assert (stopped.state, stopped.stop_asked_by, stopped.ended_at) == (JobState.STOPPED, USER, world.now)
        assert stopped.waiting is None
        assert await world.storage.request_stop(JOB, UserName("eve"), world.later(9)) == stopped


async def test_stop_before_prepare_was_sent_releases_in_the_same_transaction(open_world: OpenWorld) -> None:
    """R-LCH-12: withdrawn, so that it is never sent."""
    async with open_world() as world:
        await world.node(cards=("GPU-a",))
        await world.submit()
        await world.place(cards=("GPU-a",))
        claim = await world.claim()
        await world.step(claim, AttemptEvent.CLAIMED)
        (waiting,) = await world.storage.outgoing_commands(GATEWAY, 10)
        await world.storage.request_stop(JOB, USER, world.now)
        assert not await world.storage.mark_sent(waiting.command.operation, N1, 1, world.now)
        assert await world.storage.outgoing_commands(GATEWAY, 10) == []
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert node.free_gpu_uuids == ("GPU-a",)
        seen = await member(world)
        assert (seen.phase, seen.cleaned) == (MemberPhase.ABORTED, True)
        assert await world.step(claim, AttemptEvent.ALL_ENDED)
        assert (await job(world)).state is JobState.STOPPED
        assert await world.storage.forget_ended(world.now + timedelta(days=1), 10, world.now) == 0  # nobody remembers it


@pytest.mark.parametrize("until", [AttemptState.PREPARING, AttemptState.COMMITTED, AttemptState.RUNNING])
async def test_stop_after_prepare_was_sent_holds_until_the_evidence(open_world: OpenWorld, until: AttemptState) -> None:
    """R-LCH-12, R-LCH-03: at every phase, once and for ever, with the job's own signal and grace."""
    async with open_world() as world:
        await world.node(cards=("GPU-a",))
        await world.fleet("unused")
        await world.submit(spec=a_spec(stop=StopPolicy(signal="SIGINT", grace_seconds=3.0)))
        claim = await world.launched(until=until, cards=("GPU-a",))
        await world.storage.request_stop(JOB, USER, world.now)
        again = await world.storage.request_stop(JOB, UserName("eve"), world.later(1))
        assert (again.state, again.stop_asked_by) == (JobState.STOPPING, USER)
        sent = await world.send_all()
        assert [(one.command.kind, one.command.stop_signal, one.command.stop_grace_seconds) for one in sent] == [
            (CommandKind.STOP, "SIGINT", 3.0)
        ]
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert node.free_gpu_uuids == ()
        await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=130, reason_code="stopped")
        assert await world.step(claim, AttemptEvent.ALL_ENDED)
        found = await job(world)
        assert (found.state, found.reason_code, found.reason_detail) == (JobState.STOPPED, "stopped", f"stopped by {USER}")


async def test_stop_withdraws_an_unsent_commit(open_world: OpenWorld) -> None:
    """R-LCH-12: nothing starts after a stop was accepted."""
    async with open_world() as world:
        await world.node()
        claim = await world.launched(until=AttemptState.PREPARING)
        await world.see(MEMBER, MemberPhase.PREPARED)
        assert await world.step(claim, AttemptEvent.ALL_PREPARED)
        (commit,) = await world.storage.outgoing_commands(GATEWAY, 10)
        await world.storage.request_stop(JOB, USER, world.now)
        assert not await world.storage.mark_sent(commit.command.operation, N1, 1, world.now)
        assert [sent.command.kind for sent in await world.send_all()] == [CommandKind.STOP]


async def test_stop_seen_by_the_launch_wins_over_its_next_step(open_world: OpenWorld) -> None:
    """P-05: commit and stop both lock the attempt row."""
    async with open_world() as world:
        await world.node()
        claim = await world.launched(until=AttemptState.PREPARING)
        await world.see(MEMBER, MemberPhase.PREPARED)
        view = await world.view(claim)
        await world.storage.request_stop(JOB, USER, world.now)
        assert not await world.storage.advance(
            claim, view, AttemptState.COMMITTED, AttemptAction.SEND_COMMIT, Cause("", ""), None, world.now
        )
        view = await world.view(claim)
        assert (view.state, view.stop_asked_by, view.cause_code) == (AttemptState.STOPPING, USER, "stopped")


async def test_stop_of_a_finished_job_leaves_it_as_it_ended(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        claim = await world.launched()
        await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=0)
        await world.step(claim, AttemptEvent.ALL_ENDED)
        assert (await world.storage.request_stop(JOB, USER, world.now)).state is JobState.SUCCEEDED
        assert (await job(world)).stop_asked_at is None


async def test_stop_of_no_job_is_not_found(open_world: OpenWorld) -> None:
    async with open_world() as world:
        with pytest.raises(NotFound):
            await world.storage.request_stop(JOB, USER, world.now)
        assert await world.storage.get_job(JOB) is None
