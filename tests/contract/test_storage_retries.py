"""Retries, declared losses and whom a silence is held against, on every storage (LaunchStore, JobStore, NodeStore).

R-LCH-03, R-LCH-12, R-LCH-16, L-H1, P-11, P-16.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.contract.storage_world import FLEET, GATEWAY, USER, OpenWorld, World, a_member, a_spec
from tuneplane.domain.errors import Fenced, NotFound, Refused
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import JobId, MemberId, NodeId, UserName, attempt_id
from tuneplane.domain.jobs import Claim, Job
from tuneplane.domain.jobspec import Orchestrator, RuntimeRef
from tuneplane.domain.launch_table import AttemptEvent, AttemptState, JobState, MemberPhase
from tuneplane.domain.timings import PRODUCTION
from tuneplane.domain.verdict import decide

N1, N2 = NodeId("n1"), NodeId("n2")
JOB = JobId("job-a")
FIRST, SECOND = MemberId("job-a-1-0"), MemberId("job-a-2-0")
E, P, J = AttemptEvent, MemberPhase, JobState


async def job(world: World) -> Job:
    found = await world.storage.get_job(JOB)
    assert found is not None
    return found


async def kinds(world: World) -> list[str]:
    return [event.kind for event in await world.storage.timeline(JOB, 100)]


async def failing(world: World, *, retries: int = 1, code: int = 3) -> Claim:
    """A running job of one member on n1 (card GPU-a) that has just failed; nobody has concluded it."""
    await world.node(cards=("GPU-a",))
    await world.submit(spec=a_spec(retries=retries))
    claim = await world.launched(cards=("GPU-a",))
    await world.see(FIRST, P.TERMINATED, exit_code=code, ended_at=world.now)
    return claim


async def place(world: World, number: int, **more: object) -> bool:
    member = a_member(JOB, N1, number=number, cards=("GPU-a",), **more)
    return await world.storage.place(JOB, attempt_id(JOB, number), number, (member,), world.now)


# ---------------------------------------------------------------- back to the queue


async def test_conclude_puts_a_failed_job_back_with_its_backoff_and_its_former_cause(open_world: OpenWorld) -> None:
    """The back-off is waited for, and shown with the time and the reason; the first attempt keeps its own cause."""
    async with open_world() as world:
        claim = await failing(world)
        assert await world.step(claim, E.ALL_ENDED)
        found = await job(world)
        later = world.now + timedelta(seconds=PRODUCTION.retry_first)
        assert (found.state, found.ended_at, found.not_before, found.attempt_number) == (J.QUEUED, None, later, 1)
        assert (found.attempts[0].state, found.attempts[0].reason_code) == (AttemptState.ENDED, "exit-code")
        assert found.waiting is not None
        assert found.waiting.code == "retry-backoff"
        assert f"{later:%H:%M:%SZ}" in found.waiting.reasons[0].detail
        assert "exit code 3" in found.waiting.reasons[0].detail
        assert await world.storage.waiting_jobs(FLEET, 10, world.now) == []
        assert not await place(world, 2)
        world.later(PRODUCTION.retry_first)
        assert [one.attempt_number for one in await world.storage.waiting_jobs(FLEET, 10, world.now)] == [1]
        assert await kinds(world) == [
            "job.submitted", "attempt.placed", "attempt.claimed", "attempt.preparing", "member.prepared", "attempt.committed",
            "member.running", "attempt.running", "member.terminated", "attempt.ended", "job.queued-again",
        ]  # fmt: skip


async def test_retry_is_a_new_attempt_with_new_identities_and_the_last_cause_is_the_jobs(open_world: OpenWorld) -> None:
    """R-LCH-02: member and operation ids hold the attempt's number, so that nothing of the first is repeated."""
    async with open_world() as world:
        await world.step(await failing(world), E.ALL_ENDED)
        world.later(PRODUCTION.retry_first)
        assert not await place(world, 1)  # a planner that had not seen the first attempt end
        assert not await place(world, 3)
        assert await place(world, 2)
        assert (await job(world)).waiting is None
        claim = await world.claim()
        await world.step(claim, E.CLAIMED)
        (sent,) = await world.send_all()
        assert (sent.command.operation, sent.command.member) == (f"{SECOND}:prepare", SECOND)
        await world.see(SECOND, P.TERMINATED, exit_code=9)
        await world.step(claim, E.ALL_ENDED)
        found = await job(world)
        assert (found.state, found.reason_detail) == (J.FAILED, f"{SECOND} ended with exit code 9")
        assert [one.reason_detail for one in found.attempts] == [f"{FIRST} ended with exit code 3", f"{SECOND} ended with exit code 9"]


@pytest.mark.parametrize("stopping", [False, True])
async def test_stop_between_the_look_and_the_conclusion_keeps_the_job_from_being_queued(open_world: OpenWorld, stopping: bool) -> None:
    """R-LCH-12, L-H1: the stop wins over the retry, the failure before it stays the cause; also where the state is the same."""
    async with open_world() as world:
        claim = await failing(world)
        if stopping:
            assert await world.step(claim, E.MEMBER_FAILED)
        view = await world.view(claim)
        asked = await world.storage.request_stop(JOB, USER, world.now)
        assert (asked.state, asked.reason_code, asked.attempts[0].reason_code) == (J.STOPPING, "exit-code", "exit-code")
        late = decide(view, E.ALL_ENDED)
        assert late.verdict is not None
        assert late.verdict.state is J.QUEUED
        assert not await world.storage.advance(claim, view, late.target, late.action, late.cause, late.verdict, world.now)
        assert await world.step(claim, E.ALL_ENDED)
        found = await job(world)
        assert (found.state, found.reason_code, found.stop_asked_by) == (J.FAILED, "exit-code", USER)
        with pytest.raises(Refused) as caught:
            await world.storage.retry(JOB, USER, world.now)
        assert caught.value.code == "job-stopped"


async def test_stop_during_the_backoff_stops_at_once(open_world: OpenWorld) -> None:
    """R-LCH-12: between the conclusion and the next placement."""
    async with open_world() as world:
        await world.step(await failing(world), E.ALL_ENDED)
        stopped = await world.storage.request_stop(JOB, USER, world.now)
        assert (stopped.state, stopped.not_before, stopped.waiting, stopped.reason_code) == (J.STOPPED, None, None, "stopped")
        assert stopped.reason_detail == f"stopped by ada; attempt 1 ended (exit-code: {FIRST} ended with exit code 3)"  # L-H1
        world.later(PRODUCTION.retry_most)
        assert await world.storage.waiting_jobs(FLEET, 10, world.now) == []
        assert not await place(world, 2)


async def test_stop_before_the_first_attempt_names_the_stop_alone(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        await world.submit()
        stopped = await world.storage.request_stop(JOB, USER, world.now)
        assert (stopped.state, stopped.reason_code, stopped.reason_detail) == (J.STOPPED, "stopped", "stopped by ada")


async def test_a_failure_after_an_accepted_stop_is_the_stop(open_world: OpenWorld) -> None:
    """L-H1: what the signal made of it is not why it ended; no retry."""
    async with open_world() as world:
        await world.node()
        await world.submit(spec=a_spec(retries=3))
        claim = await world.launched()
        await world.storage.request_stop(JOB, USER, world.now)
        await world.see(FIRST, P.TERMINATED, exit_code=143)
        await world.step(claim, E.ALL_ENDED)
        assert ((await job(world)).state, (await job(world)).reason_code) == (J.STOPPED, "stopped")


# ---------------------------------------------------------------- by hand


async def test_retry_by_hand_queues_a_failed_job_once(open_world: OpenWorld) -> None:
    """interfaces.md: one more attempt; a repeat before it is placed changes nothing."""
    async with open_world() as world:
        await world.step(await failing(world, retries=0), E.ALL_ENDED)
        assert (await job(world)).state is J.FAILED
        for _ in range(2):
            queued = await world.storage.retry(JOB, USER, world.now)
            assert (queued.state, queued.ended_at, queued.reason_code, queued.attempt_number) == (J.QUEUED, None, "", 1)
        assert (await kinds(world)).count("job.retry-asked") == 1
        assert await place(world, 2)
        with pytest.raises(Refused) as caught:
            await world.storage.retry(JOB, USER, world.now)
        assert caught.value.code == "job-live"


async def test_retry_repeated_after_its_attempt_has_failed_is_not_another(open_world: OpenWorld) -> None:
    """P-09: the answer was lost, and the second attempt was quicker than the repeat."""
    async with open_world() as world:
        await world.step(await failing(world, retries=0), E.ALL_ENDED)
        await world.storage.retry(JOB, USER, world.now, after=1)
        assert await place(world, 2)
        claim = await world.claim()
        await world.step(claim, E.CLAIMED)
        await world.send_all()
        await world.see(SECOND, P.TERMINATED, exit_code=9)
        await world.step(claim, E.ALL_ENDED)
        again = await world.storage.retry(JOB, USER, world.now, after=1)
        assert (again.state, again.attempt_number) == (J.FAILED, 2)
        assert (await world.storage.retry(JOB, USER, world.now, after=2)).state is J.QUEUED


async def test_retry_by_hand_cuts_a_backoff_short(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.step(await failing(world), E.ALL_ENDED)
        assert (await world.storage.retry(JOB, USER, world.now)).not_before is None
        assert [one.id for one in await world.storage.waiting_jobs(FLEET, 10, world.now)] == [JOB]


async def test_retry_of_what_did_not_fail_is_refused(open_world: OpenWorld) -> None:
    async with open_world() as world:
        with pytest.raises(NotFound):
            await world.storage.retry(JOB, USER, world.now)
        claim = await failing(world, code=0)
        await world.step(claim, E.ALL_ENDED)
        with pytest.raises(Refused) as caught:
            await world.storage.retry(JOB, USER, world.now)
        assert caught.value.code == "job-succeeded"


# ---------------------------------------------------------------- Ray


async def test_view_of_a_ray_job_ends_with_its_leader(open_world: OpenWorld) -> None:
    """R-LCH-09: rank 0 has ended, the workers are stopped, and its outcome is the verdict."""
    async with open_world() as world:
        await world.node("n1")
        await world.node("n2")
        spec = a_spec(orchestrator=Orchestrator.RAY, runtime=RuntimeRef(image="registry/ray:1", ray_version="2.9.0"))
        claim = await gang(world, spec=spec)
        assert (await world.view(claim)).orchestrator is Orchestrator.RAY
        await world.see(FIRST, P.TERMINATED, exit_code=0)
        assert await world.step(claim, E.LEADER_DONE)
        assert [sent.node for sent in await world.send_all()] == [N2]
        await world.see(MemberId("job-a-1-1"), P.TERMINATED, node="n2", exit_code=143, reason_code="stopped")
        assert await world.step(claim, E.ALL_ENDED)
        assert ((await job(world)).state, (await job(world)).reason_code) == (J.SUCCEEDED, "")


async def gang(world: World, *, spec: object = None) -> Claim:
    """Two members, running on n1 and n2."""
    await world.submit(spec=spec)  # type: ignore[arg-type]
    members = (a_member(JOB, N1), a_member(JOB, N2, rank=1))
    assert await world.storage.place(JOB, attempt_id(JOB, 1), 1, members, world.now)
    claim = await world.claim()
    for event, phase in ((E.CLAIMED, P.PREPARED), (E.ALL_PREPARED, P.RUNNING), (E.ALL_RUNNING, None)):
        assert await world.step(claim, event)
        for sent in await world.send_all():
            await world.answer(sent)
        for member in members if phase is not None else ():
            await world.see(member.member, phase, node=member.node)
    return claim


# ---------------------------------------------------------------- silence


async def gateways_since(world: World, claim: Claim) -> datetime | None:
    seen = (await world.view(claim)).sight
    assert seen is not None
    return seen.gateways_since


async def test_view_tells_silence_and_since_when_gateways_could_see(open_world: OpenWorld) -> None:
    """R-LCH-16, P-16, L-B8: a lease that had run out begins its life anew; without one nobody is judged."""
    async with open_world() as world:
        await world.node("n1")
        await world.node("n2")
        claim = await gang(world)
        began = world.now
        assert (await world.view(claim)).sight is None  # nobody has looked
        await world.storage.look_around(False, world.now)
        assert (await gateways_since(world, claim)) == began
        world.later(5)
        await world.storage.close_session(N2, 1, "cut", world.now)
        first, second = (await world.view(claim)).members
        assert (first.silent_since, first.connected_since) == (None, began)
        assert (second.silent_since, second.connected_since) == (world.now, None)
        lease = timedelta(seconds=PRODUCTION.gateway_lease)
        await world.storage.renew_gateway(GATEWAY, world.now + timedelta(hours=1))  # in time: nothing is missed
        assert (await gateways_since(world, claim)) == began
        await world.storage.renew_gateway(GATEWAY, world.now - timedelta(seconds=1000))  # and now its lease has run out
        gone = await world.view(claim)
        assert (await gateways_since(world, claim)) is None
        assert [member.silent_since for member in gone.members] == [world.now - timedelta(seconds=1000), world.now]
        assert await world.storage.renew_gateway(GATEWAY, world.later(600) + lease)
        assert (await gateways_since(world, claim)) == world.now


@pytest.mark.parametrize(("said", "seconds"), [("30", 30.0), ("7200", 7200.0), ("soon", None), ("-1", None), ("nan", None)])
async def test_view_and_hold_know_the_fleets_own_gang_deadline(open_world: OpenWorld, said: str, seconds: float | None) -> None:
    """R-LCH-10, R-LCH-16, P-08: a reservation outlasts the deadline by which its gang is prepared; junk is as if unsaid."""
    async with open_world() as world:
        await world.node()
        config = {"gang_deadline_seconds": said}
        await world.storage.update_fleet(FLEET, capabilities=None, visibility=None, project=None, state=None, config=config)
        await world.submit()
        await world.place()
        claim = await world.claim()
        assert (await world.view(claim)).gang_deadline_seconds == seconds
        await world.step(claim, E.CLAIMED)
        (sent,) = await world.send_all()
        deadline = seconds or PRODUCTION.prepare_deadline
        assert sent.command.hold_seconds == max(PRODUCTION.hold, deadline + PRODUCTION.hold - PRODUCTION.prepare_deadline)


async def test_job_shows_what_a_stopping_attempt_waits_for(open_world: OpenWorld) -> None:
    """P-11: held by a named silent Node since a time; a connected one has not confirmed yet."""
    async with open_world() as world:
        await world.node("n1")
        await world.node("n2")
        await gang(world)
        await world.storage.close_session(N2, 1, "cut", world.now)
        await world.storage.request_stop(JOB, USER, world.now)
        waits = (await job(world)).attempts[0].waits_for
        assert [(reason.code, reason.subject) for reason in waits] == [("stopping", N1), ("silent-node", N2)]
        assert waits[1].detail == f"job-a-1-1 is held by Node n2, silent since {world.now:%Y-%m-%d %H:%M:%SZ}"


# ---------------------------------------------------------------- declared lost


async def test_declare_lost_ends_a_member_of_a_silent_node_and_frees_what_it_holds(open_world: OpenWorld) -> None:
    """P-11: an operator's word instead of evidence; no retry by itself; a Stop waits for the machine."""
    async with open_world() as world:
        await world.node(cards=("GPU-a",))
        await world.submit(spec=a_spec(retries=5))
        claim = await world.launched(cards=("GPU-a",))
        await world.storage.close_session(N1, 1, "cut", world.now)
        await world.storage.declare_lost(N1, FIRST, USER, "burnt down", world.now)
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert (node.members, node.free_gpu_uuids) == ((), ("GPU-a",))
        member = (await job(world)).attempts[0].members[0]
        assert (member.phase, member.reason_code, member.cleaned) == (P.TERMINATED, "declared-lost", False)
        assert "ada" in member.reason_detail
        assert "burnt down" in member.reason_detail
        assert await world.step(claim, E.ALL_ENDED)
        assert ((await job(world)).state, (await job(world)).reason_code) == (J.FAILED, "declared-lost")
        assert "member.declared-lost" in await kinds(world)
        opened = await world.connect()
        assert opened.epoch == 2
        (stop,) = await world.send_all()
        assert (stop.command.kind, stop.command.member) == (CommandKind.STOP, FIRST)
        assert (await world.storage.retry(JOB, USER, world.now)).state is J.QUEUED  # by hand it may be tried again


async def test_declare_lost_of_a_member_that_no_machine_heard_of_is_aborted_without_a_stop(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        await world.submit()
        await world.place()
        await world.step(await world.claim(), E.CLAIMED)
        await world.storage.close_session(N1, 1, "cut", world.now)
        await world.storage.declare_lost(N1, FIRST, USER, "gone", world.now)
        member = (await job(world)).attempts[0].members[0]
        assert (member.phase, member.cleaned) == (P.ABORTED, True)  # nobody is left to confirm that there is nothing to clean
        await world.connect()
        assert await world.send_all() == []


async def test_declare_lost_is_refused_while_the_node_can_be_asked(open_world: OpenWorld) -> None:
    """P-11: evidence is better than a word; a word about nothing is none."""
    async with open_world() as world:
        await world.node("n1")
        await world.node("n2")
        await world.launched()
        told = ((N1, FIRST, "node-live"), (NodeId("n9"), FIRST, "not-found"), (N1, MemberId("x"), "not-found"), (N2, FIRST, "not-found"))
        for node, member, code in told:
            with pytest.raises((Refused, NotFound)) as caught:
                await world.storage.declare_lost(node, member, USER, "gone", world.now)
            assert caught.value.code == code
        for node in (N1, N2):
            await world.storage.close_session(node, 1, "cut", world.now)
        with pytest.raises(NotFound):
            await world.storage.declare_lost(N2, FIRST, USER, "gone", world.now)
        await world.storage.declare_lost(N1, FIRST, USER, "gone", world.now)
        with pytest.raises(Refused) as again:
            await world.storage.declare_lost(N1, FIRST, UserName("eve"), "gone", world.now)
        assert again.value.code == "member-ended"


async def test_declare_lost_closes_the_session_whose_lease_had_run_out(open_world: OpenWorld) -> None:
    """P-06, P-11: only the gateway was cut off from PostgreSQL. When it renews its lease, the Node must report anew."""
    async with open_world() as world:
        await world.node()
        await world.launched()
        silent_since = world.now + timedelta(hours=1)
        world.later(3700)
        await world.storage.declare_lost(N1, FIRST, USER, "gone", world.now)
        assert await world.storage.renew_gateway(GATEWAY, world.now + timedelta(hours=1))
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert (node.connection.state, node.connection.since) == ("disconnected", silent_since)  # it is not heard since then
        assert await world.storage.live_epochs(GATEWAY) == {}
        with pytest.raises(Fenced):
            await world.see(FIRST, P.RUNNING)
        assert (await world.connect()).epoch == 2
        (stop,) = await world.send_all()
        assert (stop.command.kind, stop.command.member) == (CommandKind.STOP, FIRST)


async def test_declare_lost_of_a_whole_gang_member_lets_the_gang_conclude(open_world: OpenWorld) -> None:
    """R-LCH-16: the silence is the cause, the word ends the waiting; nothing is retried by itself."""
    async with open_world() as world:
        await world.node("n1")
        await world.node("n2")
        claim = await gang(world, spec=a_spec(retries=5))
        await world.storage.close_session(N2, 1, "cut", world.now)
        assert await world.step(claim, E.MEMBER_SILENT)
        found = await job(world)
        assert (found.state, found.attempts[0].reason_code) == (J.STOPPING, "member-silent")
        assert "n2" in found.attempts[0].reason_detail
        await world.see(FIRST, P.TERMINATED, exit_code=143, reason_code="stopped")
        await world.storage.declare_lost(N2, MemberId("job-a-1-1"), USER, "sold", world.now)
        assert await world.step(claim, E.ALL_ENDED)
        assert ((await job(world)).state, (await job(world)).reason_code) == (J.FAILED, "member-silent")


async def test_retry_when_the_fleet_is_gone_is_refused(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.step(await failing(world, retries=0), E.ALL_ENDED)
        await world.storage.delete_node(N1, True, USER, world.now)
        await world.storage.delete_fleet(FLEET)
        with pytest.raises(Refused) as caught:
            await world.storage.retry(JOB, USER, world.now)
        assert caught.value.code == "fleet-gone"
