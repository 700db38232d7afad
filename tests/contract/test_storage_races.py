"""The same storage from many tasks at once: the units are as if one after the other (protocol.md, "enforces")."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
import trio

from tests.contract.storage_world import FLEET, GATEWAY, USER, OpenWorld, World, a_member, a_spec
from tuneplane.control.plans import plan_attempt
from tuneplane.domain.errors import Fenced, IllegalTransition, Refused
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import JobId, MemberId, NodeId, UserName, WorkerId, attempt_id
from tuneplane.domain.jobs import EncryptedIdentity
from tuneplane.domain.jobspec import Pool, Resources
from tuneplane.domain.launch_table import AttemptEvent, AttemptState, JobState, MemberPhase
from tuneplane.domain.nodes import NodeState
from tuneplane.domain.placement import MustWait, place

N1 = NodeId("n1")
JOB = JobId("job-a")
MEMBER = MemberId("job-a-1-0")
Crowd = Callable[[OpenWorld], Awaitable[None]]
CARDS = tuple(f"GPU-{number}" for number in range(8))


async def at_once(*acts: Callable[[], Awaitable[object]]) -> list[object]:
    """Run all, each in a task of its own; their results in order."""
    results: list[object] = [None] * len(acts)

    async def one(number: int, act: Callable[[], Awaitable[object]]) -> None:
        results[number] = await act()

    async with trio.open_nursery() as nursery:
        for number, act in enumerate(acts):
            nursery.start_soon(one, number, act)
    return results


@pytest.mark.seconds(60)
async def test_twenty_placements_on_eight_cards_never_double(open_world: OpenWorld) -> None:
    """R-LCH-06: all planners saw the same eight free cards; a card has one holder."""
    async with open_world() as world:
        await world.node(cards=CARDS, cpus=64)
        jobs = [JobId(f"job-{number}") for number in range(20)]
        for job in jobs:
            await world.submit(job)

        def act(number: int, job: JobId) -> Callable[[], Awaitable[object]]:
            return lambda: world.place(job, cards=(CARDS[number % 8],))

        placed = await at_once(*(act(number, job) for number, job in enumerate(jobs)))
        assert placed.count(True) == 8
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        assert node.free_gpu_uuids == ()
        assert len(node.members) == 8
        held = [(await world.storage.get_job(job)).attempts for job in jobs]
        cards = [card for attempts in held if attempts for card in attempts[0].members[0].gpu_uuids]
        assert sorted(cards) == sorted(CARDS)


async def test_gangs_over_the_same_two_nodes_in_both_orders_do_not_deadlock(open_world: OpenWorld) -> None:
    """R-LCH-10: Nodes are locked in id order whatever order the plan names them in."""
    async with open_world() as world:
        await world.node("n1", cpus=8)
        await world.node("n2", cpus=8)
        jobs = [JobId(f"job-{number}") for number in range(10)]
        for job in jobs:
            await world.submit(job)

        def act(number: int, job: JobId) -> Callable[[], Awaitable[object]]:
            nodes = [NodeId("n1"), NodeId("n2")] if number % 2 else [NodeId("n2"), NodeId("n1")]
            members = tuple(a_member(job, node, rank=rank, cpus=2) for rank, node in enumerate(nodes))
            return lambda: world.storage.place(job, attempt_id(job, 1), 1, members, world.now)

        placed = await at_once(*(act(number, job) for number, job in enumerate(jobs)))
        assert placed.count(True) == 4
        for name in ("n1", "n2"):
            node = await world.storage.get_node(NodeId(name), world.now)
            assert node is not None
            assert node.capacity is not None
            assert node.capacity.cpu_millis_used == 8000


@pytest.mark.seconds(120)
async def test_eight_allocators_with_gangs_never_book_anything_twice_and_never_deadlock(open_world: OpenWorld) -> None:
    """R-PLC-05, L-H3: each plans from what it has read; whatever was booked meanwhile, the database says no to."""
    async with open_world() as world:
        names = [f"n{number}" for number in range(1, 7)]
        for name in names:
            await world.node(name, cpus=8, ports=(20000, 20002), route=f"10.0.0.{name[1:]}")
        fleet = await world.storage.get_fleet(FLEET)
        assert fleet is not None
        jobs = []
        for number in range(24):
            pool = Pool(nodes=(1, 2, 3)[number % 3], cpus=3.0, memory_gb=1.0)
            jobs.append(await world.submit(f"job-{number}", spec=a_spec(resources=Resources(pools=(pool,)))))
        refused: list[JobId] = []

        async def allocate(worker: int) -> None:
            """What the Allocator does, without its waits; every worker begins with another job."""
            for name in [*jobs[worker * 3 :], *jobs[: worker * 3]]:
                while True:
                    job = await world.storage.get_job(name)
                    assert job is not None
                    answer = place(job.spec, fleet, await world.storage.placement_nodes(FLEET, world.now), world.now, seed=f"{name}-1")
                    if job.attempts or isinstance(answer, MustWait):
                        break
                    planned = plan_attempt(job, fleet, answer, "/srv")
                    if await world.storage.place(name, planned.id, planned.number, planned.members, world.now):
                        break
                    refused.append(name)

        async with trio.open_nursery() as nursery:
            for worker in range(8):
                nursery.start_soon(allocate, worker)
        await _check_bookings(world, names, jobs)


async def _check_bookings(world: World, names: list[str], jobs: list[JobId]) -> None:
    """The sums of what is held are the sums of what the plans say, and nothing is left that a further look could place."""
    placed = [attempt for job in jobs if (found := await world.storage.get_job(job)) is not None for attempt in found.attempts]
    assert len({attempt.id for attempt in placed}) == len(placed)
    for name in names:
        node = await world.storage.get_node(NodeId(name), world.now)
        assert node is not None
        assert node.capacity is not None
        members = [member for attempt in placed for member in attempt.members if member.node == name]
        assert node.capacity.cpu_millis_used == 3000 * len(members) <= 8000
        assert len(node.held_ports) == sum(member.rank == 0 for member in members) <= 3
        assert set(node.members) == {member.id for member in members}
    fleet, nodes = await world.storage.get_fleet(FLEET), await world.storage.placement_nodes(FLEET, world.now)
    assert fleet is not None
    for job in jobs:
        found = await world.storage.get_job(job)
        assert found is not None
        assert found.attempts or isinstance(place(found.spec, fleet, nodes, world.now), MustWait)


async def test_one_job_placed_by_ten_workers_has_one_attempt(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        await world.submit()
        assert (await at_once(*[world.place] * 10)).count(True) == 1
        found = await world.storage.get_job(JOB)
        assert found is not None
        assert len(found.attempts) == 1


async def test_ten_claimers_share_the_attempts_without_doubles(open_world: OpenWorld) -> None:
    """P-05: SKIP LOCKED; nobody waits for anybody."""
    async with open_world() as world:
        await world.node(cpus=64)
        for number in range(20):
            await world.submit(f"job-{number}")
            assert await world.place(f"job-{number}")
        until = world.now + timedelta(seconds=15)

        def act(number: int) -> Callable[[], Awaitable[object]]:
            return lambda: world.storage.claim_attempts(WorkerId(f"w{number}"), 5, world.now, until)

        claims = [claim.attempt for claims in await at_once(*map(act, range(10))) for claim in claims]
        claims += [claim.attempt for claim in await world.storage.claim_attempts(WorkerId("last"), 20, world.now, until)]
        assert len(claims) == 20
        assert len(set(claims)) == 20


@pytest.mark.parametrize("first", ["stop", "commit", "both"])
async def test_stop_against_commit_in_every_order(open_world: OpenWorld, first: str) -> None:
    """P-05, R-LCH-12: whichever locks the attempt first, a Commit never follows a Stop."""
    async with open_world() as world:
        await world.node()
        claim = await world.launched(until=AttemptState.PREPARING)
        await world.see(MEMBER, MemberPhase.PREPARED)

        async def stop() -> object:
            return await world.storage.request_stop(JOB, USER, world.now)

        async def commit() -> object:
            try:
                return await world.step(claim, AttemptEvent.ALL_PREPARED)
            except IllegalTransition:  # the look already shows the stop
                return False

        if first == "both":
            await at_once(stop, commit)
        elif first == "stop":
            await stop()
            assert not await commit()
        else:
            assert await commit()
            await stop()
        view = await world.view(claim)
        assert view.state is AttemptState.STOPPING
        assert [sent.command.kind for sent in await world.send_all()] == [CommandKind.STOP]


async def test_stop_against_the_sending_of_prepare_is_one_or_the_other(open_world: OpenWorld) -> None:
    """R-LCH-12: sent and then stopped, or withdrawn and never sent; twenty times each way at once."""
    async with open_world() as world:
        await world.node(cpus=64)
        outcomes = set()
        for number in range(20):
            job = JobId(f"job-{number}")
            await world.submit(job)
            await world.place(job)
            claim = await world.claim()
            await world.step(claim, AttemptEvent.CLAIMED)
            outgoing = await world.storage.outgoing_commands(GATEWAY, 100)
            waiting = [one for one in outgoing if one.command.kind is CommandKind.PREPARE and one.command.member.startswith(f"{job}-")]
            operation = waiting[0].command.operation

            async def stop(job: JobId = job) -> object:
                return await world.storage.request_stop(job, USER, world.now)

            async def send(operation: str = operation) -> object:
                return await world.storage.mark_sent(operation, N1, 1, world.now)

            results = await at_once(*((stop, send) if number % 2 else (send, stop)))
            sent = True in results
            found = await world.storage.get_job(job)
            assert found is not None
            phase = found.attempts[0].members[0].phase
            assert phase is (MemberPhase.PENDING if sent else MemberPhase.ABORTED)
            outcomes.add(sent)
        assert outcomes  # which of them win is the machine's affair; never both


async def test_ten_stops_are_one(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        await world.launched()

        def act(number: int) -> Callable[[], Awaitable[object]]:
            return lambda: world.storage.request_stop(JOB, UserName(f"u{number}"), world.now)

        stopped = await at_once(*map(act, range(10)))
        assert len({job.stop_asked_by for job in stopped}) == 1
        assert len(await world.send_all()) == 1
        assert [event.kind for event in await world.storage.timeline(JOB, 100)].count("job.stop-asked") == 1


async def test_sessions_opened_at_once_get_different_epochs_and_one_is_live(open_world: OpenWorld) -> None:
    """R-SES-02."""
    async with open_world() as world:
        await world.node()
        opened = await at_once(*[world.connect] * 8)
        epochs = sorted(session.epoch for session in opened)
        assert epochs == list(range(2, 10))
        assert await world.storage.live_epochs(GATEWAY) == {N1: 9}
        with pytest.raises(Fenced):
            await world.see(MEMBER, MemberPhase.RUNNING, epoch=8)


async def test_observation_against_a_new_session_is_stored_before_it_or_fenced(open_world: OpenWorld) -> None:
    """P-06: a late observation of an old epoch changes nothing."""
    async with open_world() as world:
        await world.node()
        claim = await world.launched()

        async def end() -> object:
            try:
                return await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=0)
            except Fenced:
                return None

        stored, _ = await at_once(end, world.connect)
        phase = (await world.view(claim)).members[0].phase
        assert phase is (MemberPhase.TERMINATED if stored else MemberPhase.RUNNING)


async def test_replayed_revisions_at_once_apply_once(open_world: OpenWorld) -> None:
    """R-LCH-05."""
    async with open_world() as world:
        await world.node()
        await world.launched()

        async def end() -> object:
            world._revisions[MEMBER] = 7
            return await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=0)

        assert await at_once(*[end] * 10) == [True] * 10
        events = [event.kind for event in await world.storage.timeline(JOB, 100)]
        assert events.count("member.terminated") == 1


async def test_a_card_released_while_another_waits_for_it_goes_to_the_other(open_world: OpenWorld) -> None:
    """The placement waits for the release in one order of locks, and neither is lost."""
    async with open_world() as world:
        await world.node(cards=("GPU-a",))
        for number in range(10):
            first, second = JobId(f"job-{number}-a"), JobId(f"job-{number}-b")
            await world.launched(first, cards=("GPU-a",))
            await world.submit(second)

            async def end(first: JobId = first) -> object:
                return await world.see(MemberId(f"{first}-1-0"), MemberPhase.TERMINATED, exit_code=0)

            async def place(second: JobId = second) -> object:
                return await world.place(second, cards=("GPU-a",))

            _, placed = await at_once(end, place)
            node = await world.storage.get_node(N1, world.now)
            assert node is not None
            assert node.members == ((f"{second}-1-0",) if placed else ())
            await world.storage.request_stop(second, USER, world.now)


async def test_drain_against_placement_is_before_or_after(open_world: OpenWorld) -> None:
    """R-LIV-04: no work arrives on a Node after its drain was answered."""
    async with open_world() as world:
        await world.node()
        await world.submit()

        async def drain() -> object:
            await world.storage.set_node_state(N1, NodeState.DRAINING, "", world.now)
            found = await world.storage.get_job(JOB)
            assert found is not None
            return found.state

        state, placed = await at_once(drain, world.place)
        assert placed is (state is JobState.PREPARING)


async def test_join_against_deletion_of_the_fleet_leaves_no_orphan(open_world: OpenWorld) -> None:
    """R-FLT-06."""
    async with open_world() as world:
        await world.fleet()
        await world.token()

        async def delete() -> object:
            try:
                return await world.storage.delete_fleet(FLEET)
            except Refused as error:
                return error.code

        async def join() -> object:
            try:
                return (await world.join()).id
            except Refused as error:
                return error.code

        deleted, joined = await at_once(delete, join)
        assert (deleted, joined) in [("fleet-in-use", "n1"), (None, "token-unknown")]


async def test_submissions_with_one_key_at_once_are_one_job(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.fleet()

        def act(number: int) -> Callable[[], Awaitable[object]]:
            return lambda: world.submit(f"job-{number}", key="k")

        assert len(set(await at_once(*map(act, range(10))))) == 1


async def test_identity_published_by_ten_replicas_is_the_same_for_all(open_world: OpenWorld) -> None:
    """R-TLS-02."""
    async with open_world() as world:

        def act(number: int) -> Callable[[], Awaitable[object]]:
            made = EncryptedIdentity(name="gateway", certificate_pem=f"pem-{number}", key_ciphertext=b"\0\1", version=1, key_id="k")
            return lambda: world.storage.publish_identity(made)

        counted = await at_once(*map(act, range(10)))
        assert len({identity.certificate_pem for identity in counted}) == 1
        assert await world.storage.load_identity("gateway") == counted[0]
        assert await world.storage.load_identity("internal") is None


@pytest.mark.seconds(90)
async def test_everything_at_once_ends_with_nothing_held(open_world: OpenWorld) -> None:
    """Launches, stops, reconnects, drains and inventories together: no deadlock, no leak (R-LCH-10)."""
    async with open_world() as world:
        await world.node("n1", cards=CARDS[:4], cpus=32)
        await world.node("n2", cards=CARDS[4:], cpus=32)

        async def one(number: int) -> None:
            job, node = JobId(f"job-{number}"), NodeId(f"n{1 + number % 2}")
            card = CARDS[(number // 2) % 4 + (4 if number % 2 else 0)]
            await world.submit(job)
            if not await world.place(job, node, cards=(card,)):
                await world.storage.request_stop(job, USER, world.now)
                return
            claims = await world.storage.claim_attempts(WorkerId(f"w{number}"), 1, world.now, world.now + timedelta(seconds=99))
            for claim in claims:
                await world.step(claim, AttemptEvent.CLAIMED)
            await world.send_all()
            await world.storage.request_stop(job, USER, world.now)
            member = MemberId(f"{job}-1-0")
            while True:
                epoch = (await world.storage.live_epochs(GATEWAY))[node]
                try:
                    await world.see(member, MemberPhase.ABORTED, node=node, epoch=epoch, reason_code="stopped")
                except Fenced:
                    continue
                return

        async def reconnect(node: str) -> None:
            for _ in range(10):
                await world.connect(node)

        async with trio.open_nursery() as nursery:
            for number in range(24):
                nursery.start_soon(one, number)
            nursery.start_soon(reconnect, "n1")
            nursery.start_soon(reconnect, "n2")
        for name in ("n1", "n2"):
            node = await world.storage.get_node(NodeId(name), world.now)
            assert node is not None
            assert node.members == ()
            assert len(node.free_gpu_uuids) == 4
            assert node.capacity is not None
            assert node.capacity.cpu_millis_used == 0


async def test_renewal_keeps_only_the_live_one_of_two_claims_of_an_attempt(open_world: OpenWorld) -> None:
    """P-05: a worker that took its own attempt over again asks for both; PostgreSQL once kept the old one, too."""
    async with open_world() as world:
        await world.node()
        await world.submit()
        await world.place()
        old = await world.claim()
        world.later(16)
        new = await world.claim()
        assert await world.storage.renew_claims(new.worker, [old, new], world.now + timedelta(seconds=15)) == [new]
