"""Jobs and what a stop does to them at every phase (JobStore): R-LCH-12, R-LCH-03, P-05."""

from __future__ import annotations

from datetime import timedelta

import pytest
from attrs import evolve

from tests.contract.storage_world import FLEET, GATEWAY, USER, OpenWorld, World, a_spec
from tuneplane.domain.errors import NotFound, Reason
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import FleetId, JobId, MemberId, NodeId, UserName
from tuneplane.domain.jobs import Job, MemberRecord, Occupant, Page, User, summary_of
from tuneplane.domain.jobspec import Metadata, StopPolicy
from tuneplane.domain.launch_table import (
    AttemptAction,
    AttemptEvent,
    AttemptState,
    Cause,
    JobState,
    MemberPhase,
)
from tuneplane.domain.waiting import NOT_LOOKED_AT

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


def looker(world: World, name: str = USER) -> User:
    return User(username=UserName(name), role="user", created_at=world.now)


async def test_list_jobs_filters_by_state_fleet_and_who_looks(open_world: OpenWorld) -> None:
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
        assert await names(seen_by=looker(world, "eve")) == []


async def test_list_jobs_is_without_what_is_long_and_has_the_first_reason(open_world: OpenWorld) -> None:
    """L-L2."""
    async with open_world() as world:
        await world.fleet()
        await world.submit(spec=a_spec(priority=3))
        reasons = [Reason("not-ready", f"n{number} is away", f"n{number}", "gpus", 2, 1) for number in range(3)]
        await world.storage.note_waiting([JOB], "no-ready-node", reasons, world.now)
        (listed,), _ = await world.storage.list_jobs(Page(), states=(JobState.QUEUED, JobState.RUNNING), seen_by=looker(world), fleet=FLEET)
        assert listed == summary_of(await job(world))
        assert listed.waiting is not None
        assert (listed.priority, listed.waiting.reasons) == (3, tuple(reasons[:1]))
        assert await world.storage.list_jobs(Page(), states=(JobState.RUNNING, JobState.STOPPED)) == ([], None)


async def test_waiting_by_reasons_counts_and_names_the_oldest(open_world: OpenWorld) -> None:
    """L-L4."""
    async with open_world() as world:
        await world.fleet()
        spec = evolve(a_spec(), metadata=Metadata(name="odd", labels={"a": "\0"}))
        jobs = [await world.submit(f"job-{number}", spec=spec) for number in range(5)]
        first, why = world.now, Reason("insufficient-gpus", "n1 has 0 GPUs free", "n1", "gpus", 1, 0)
        await world.storage.note_waiting(jobs[1:2], "no-free-capacity", [why], first)
        await world.storage.note_waiting(jobs[:1], "no-free-capacity", [why], world.later(5))
        await world.storage.note_waiting(jobs[2:3], "no-nodes", [], world.now)
        await world.storage.request_stop(jobs[4], USER, world.now)
        found = sorted(await world.storage.waiting_by_reasons(seen_by=looker(world)), key=lambda one: one.code)
        shown = [(one.fleet, one.code, one.reasons, one.jobs, one.since, one.oldest) for one in found]
        assert shown == [
            (FLEET, "in-line", (NOT_LOOKED_AT,), 1, first, jobs[3]),
            (FLEET, "no-free-capacity", (why,), 2, first, jobs[1]),
            (FLEET, "no-nodes", (), 1, world.now, jobs[2]),
        ]
        assert await world.storage.waiting_by_reasons(seen_by=looker(world, "eve")) == []
        assert await world.storage.waiting_by_reasons(fleet=FleetId("other")) == []


async def test_waiting_jobs_by_priority_then_age(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        for number, priority in enumerate((0, 5, 0, 5)):
            await world.submit(f"job-{number}", spec=a_spec(priority=priority))
            world.later(1)
        assert [one.id for one in await world.storage.waiting_jobs(FLEET, 10, world.now)] == ["job-1", "job-3", "job-0", "job-2"]
        await world.place("job-1")
        await world.storage.request_stop(JobId("job-3"), USER, world.now)
        assert [one.id for one in await world.storage.waiting_jobs(FLEET, 10, world.now)] == ["job-0", "job-2"]


async def test_waiting_jobs_of_one_fleet_do_not_hide_anothers(open_world: OpenWorld) -> None:
    """R-PLC-06: the limit is each Fleet's own."""
    async with open_world() as world:
        for fleet in (FLEET, "idle", "other"):
            await world.fleet(fleet)
        for number in range(5):
            await world.submit(f"job-{number}", spec=a_spec(priority=9))
        await world.submit("job-late", fleet="other")
        assert await world.storage.waiting_fleets(world.now) == sorted((FLEET, "other"))
        assert [one.id for one in await world.storage.waiting_jobs(FleetId("other"), 3, world.now)] == ["job-late"]
        assert len(await world.storage.waiting_jobs(FLEET, 3, world.now)) == 3
        assert await world.storage.waiting_jobs(FleetId("idle"), 3, world.now) == []
        await world.storage.request_stop(JobId("job-late"), USER, world.now)
        assert await world.storage.waiting_fleets(world.now) == [FLEET]


async def test_occupants_are_whoever_holds_something(open_world: OpenWorld) -> None:
    """R-PLC-06: what bounds the end of each member, as far as anybody can know."""
    async with open_world() as world:
        await world.node()
        await world.submit(spec=a_spec(max_runtime_seconds=60.0, stop=StopPolicy(grace_seconds=5.0)))
        assert await world.storage.occupants(FLEET) == []
        await world.place()
        placed = Occupant(node=N1, placed_at=world.now, running_at=None, max_runtime_seconds=60.0, grace_seconds=5.0)
        assert await world.storage.occupants(FLEET) == [placed]
        assert await world.storage.occupants(FleetId("other")) == []
        await world.storage.request_stop(JOB, USER, world.now)  # nothing was sent: it holds nothing any more
        assert await world.storage.occupants(FLEET) == []


async def test_note_waiting_of_many_is_kept_by_those_that_still_wait(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.fleet()
        jobs = [await world.submit(f"job-{number}") for number in range(4)]
        await world.storage.request_stop(jobs[3], USER, world.now)
        await world.storage.note_waiting(jobs[:1], "no-free-capacity", [], world.now)
        first = world.now
        await world.storage.note_waiting([*reversed(jobs), JobId("job-none")], "no-free-capacity", [], world.later(5))
        found = [(await job(world, one)).waiting for one in jobs]
        assert [one and (one.code, one.since) for one in found] == [
            ("no-free-capacity", first), ("no-free-capacity", world.now), ("no-free-capacity", world.now), None,
        ]  # fmt: skip


async def test_note_waiting_keeps_since_while_the_reason_stays(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.fleet()
        await world.submit()
        first = world.now
        await world.storage.note_waiting([JOB], "no-ready-node", [Reason("not-ready", "n1 is away", "n1")], first)
        await world.storage.note_waiting([JOB], "no-ready-node", [Reason("not-ready", "n1 is draining", "n1")], world.later(5))
        waiting = (await job(world)).waiting
        assert waiting is not None
        assert (waiting.code, waiting.since, waiting.reasons[0].detail) == ("no-ready-node", first, "n1 is draining")
        await world.storage.note_waiting([JOB], "no-free-capacity", [], world.later(5))
        waiting = (await job(world)).waiting
        assert waiting is not None
        assert (waiting.code, waiting.since) == ("no-free-capacity", world.now)


# ---------------------------------------------------------------- stop


async def test_stop_of_a_queued_job_stops_it_at_once(open_world: OpenWorld) -> None:
    """R-LCH-12."""
    async with open_world() as world:
        await world.fleet()
        await world.submit()
        await world.storage.note_waiting([JOB], "no-nodes", [], world.now)
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
