"""One launch on real storage and a real link: success, stop at every phase, take-over, lost answers, silence.

The Node is scripted (scripted_node.py), everything else is what runs in production.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from tests.control.failing_storage import CutStorage, LosingStorage, cut
from tests.control.plane import ADA, TIMINGS, Plane, now, open_plane
from tests.control.scripted_node import ScriptedNode
from tuneplane.actors import System
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import MemberId
from tuneplane.domain.launch_table import JobState, MemberPhase

pytestmark = [pytest.mark.postgres, pytest.mark.seconds(60)]

K, P, J = CommandKind, MemberPhase, JobState


async def test_launch_from_submission_to_success(database: str, tmp_path: Path) -> None:
    """R-LCH-01: prepared, committed, running, ended with its own exit code; nothing is held afterwards."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        job = await plane.submit()
        await plane.wait_job(job, J.RUNNING)
        assert [command.kind for command in node.commands] == [K.PREPARE, K.COMMIT]
        assert node.commands[0].plan_digest == node.commands[1].plan_digest
        assert node.commands[0].trace == (await plane.job(job)).trace
        await node.finish(MemberId(f"{job}-1-0"), 0)
        ended = await plane.wait_job(job)
        assert (ended.state, ended.reason_code) == (J.SUCCEEDED, "")
        assert ended.attempts[0].members[0].exit_code == 0
        assert await _held(plane, node) == 0
        assert node.started == [f"{job}-1-0"]


async def test_launch_a_failing_command_keeps_its_exit_code(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        job = await plane.submit()
        await plane.wait_job(job, J.RUNNING)
        await node.finish(MemberId(f"{job}-1-0"), 3)
        ended = await plane.wait_job(job)
        assert (ended.state, ended.reason_code, ended.attempts[0].members[0].exit_code) == (J.FAILED, "exit-code", 3)


async def test_launch_a_container_that_ends_before_the_first_look_succeeds(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        node.deaf_to = {K.COMMIT}
        job = await plane.submit()
        commit = await node.wait_command(K.COMMIT)
        await node.finish(commit.member, 0)
        assert (await plane.wait_job(job)).state is J.SUCCEEDED


# ---------------------------------------------------------------- stop at every phase (R-LCH-12)


async def test_stop_a_queued_job_ends_it_at_once(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.worker():
        job = await plane.submit()
        await plane.storage.request_stop(job, ADA, now())
        assert (await plane.wait_job(job)).state is J.STOPPED


async def test_stop_before_the_prepare_was_sent_starts_nothing(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        job = await plane.submit()
        async with plane.worker():
            await plane.wait_job(job, J.PREPARING)
            await plane.storage.request_stop(job, ADA, now())
            ended = await plane.wait_job(job)
        assert ended.state is J.STOPPED
        assert node.started == []
        assert await _held(plane, node) == 0


@pytest.mark.parametrize("deaf", [{K.PREPARE}, {K.COMMIT}, set()], ids=["preparing", "prepared-and-committed", "running"])
async def test_stop_while_the_launch_is_under_way_wins(database: str, tmp_path: Path, deaf: set[CommandKind]) -> None:
    """R-LCH-12: before or after the commit, a stop is accepted once, reaches the Node, and ends with evidence."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        node.deaf_to = set(deaf)
        job = await plane.submit()
        if deaf:
            await node.wait_command(next(iter(deaf)))
        else:
            await plane.wait_job(job, J.RUNNING)
        await plane.storage.request_stop(job, ADA, now())
        ended = await plane.wait_job(job)
        assert (ended.state, ended.reason_code) == (J.STOPPED, "stopped")
        assert len(node.started) == (0 if deaf else 1)
        assert await _held(plane, node) == 0


async def test_stop_a_late_commit_meets_the_tombstone(database: str, tmp_path: Path) -> None:
    """P-10: the Commit was delivered, the stop overtook it; the Node refuses it and nothing starts."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        node.deaf_to = {K.COMMIT}
        job = await plane.submit()
        commit = await node.wait_command(K.COMMIT)
        await plane.storage.request_stop(job, ADA, now())
        await plane.wait_job(job, J.STOPPED)
        assert node.link is not None
        await node.obey(commit, node.link)
        assert node.started == []


async def test_stop_twice_is_one_stop(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        job = await plane.submit()
        await plane.wait_job(job, J.RUNNING)
        for _ in range(3):
            await plane.storage.request_stop(job, ADA, now())
        await plane.wait_job(job)
        assert node.count(K.STOP) == 1


# ---------------------------------------------------------------- deadlines


async def test_prepare_overdue_stops_the_attempt_and_frees_the_machine(database: str, tmp_path: Path) -> None:
    """R-LCH-10: a member that cannot prepare by the deadline ends the attempt; the Stop's tombstone is the evidence."""
    timings = attrs.evolve(TIMINGS, prepare_deadline=0.5)
    async with open_plane(database, tmp_path, timings=timings) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        node.deaf_to = {K.PREPARE}
        ended = await plane.wait_job(await plane.submit())
        assert (ended.state, ended.reason_code) == (J.FAILED, "prepare-deadline")
        assert await _held(plane, node) == 0


async def test_commit_overdue_stops_the_gang(database: str, tmp_path: Path) -> None:
    """P-10: a Commit without effect is ended as a whole after the deadline."""
    timings = attrs.evolve(TIMINGS, commit_deadline=0.5)
    async with open_plane(database, tmp_path, timings=timings) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        node.deaf_to = {K.COMMIT}
        ended = await plane.wait_job(await plane.submit())
        assert (ended.state, ended.reason_code) == (J.FAILED, "commit-deadline")
        assert node.started == []


async def test_commit_is_not_decided_close_to_the_end_of_a_hold(database: str, tmp_path: Path) -> None:
    """P-08: a hold that is about to run out is not committed."""
    timings = attrs.evolve(TIMINGS, hold=TIMINGS.commit_margin / 2)
    async with open_plane(database, tmp_path, timings=timings) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        ended = await plane.wait_job(await plane.submit())
        assert (ended.state, ended.reason_code) == (J.FAILED, "prepare-deadline")
        assert node.count(K.COMMIT) == 0


async def test_max_runtime_stops_the_job_with_that_reason(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        await plane.connect(gateway)
        ended = await plane.wait_job(await plane.submit(max_runtime_seconds=1.0))
        assert (ended.state, ended.reason_code) == (J.FAILED, "max-runtime")


# ---------------------------------------------------------------- crashes and silence


async def test_worker_dies_after_prepare_and_another_goes_on_with_the_same_operations(database: str, tmp_path: Path) -> None:
    """R-LCH-02, P-05: the claim's lease runs out, the epoch rises, and no second Prepare identity appears."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        node.deaf_to = {K.PREPARE}
        dead = CutStorage(plane.storage)
        async with plane.worker("worker-1", storage=dead):  # type: ignore[arg-type]
            job = await plane.submit()
            prepare = await node.wait_command(K.PREPARE)
            dead.is_cut = True  # nothing of this worker reaches the database any more, its release of the claims included
        async with plane.worker("worker-2"):
            node.deaf_to = set()
            assert node.link is not None
            await node.obey(prepare, node.link)
            await plane.wait_job(job, J.RUNNING)
        commit = await node.wait_command(K.COMMIT)
        assert commit.claim_epoch > prepare.claim_epoch
        assert {command.operation for command in node.commands} == {f"{job}-1-0:prepare", f"{job}-1-0:commit"}
        assert len(node.started) == 1


async def test_worker_whose_launch_actor_crashes_claims_again_and_goes_on(database: str, tmp_path: Path) -> None:
    """The claim of a dead Launch actor is not renewed, so its lease is the back-off; work starts again from the rows."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker() as worker:
        node = await plane.connect(gateway)
        node.deaf_to = {K.PREPARE}
        job = await plane.submit()
        prepare = await node.wait_command(K.PREPARE)
        for path, ref in worker.refs().items():
            if path.startswith("root/worker/launches/"):
                ref.kill()
        node.deaf_to = set()
        assert node.link is not None
        await node.obey(prepare, node.link)
        await plane.wait_job(job, J.RUNNING)
        assert len(node.started) == 1


async def test_claim_lost_while_its_worker_lives_stops_the_launch_actor(database: str, tmp_path: Path) -> None:
    """P-05: renewals fail, another worker takes over, and the first one's actors are gone once it can look again."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        node.deaf_to = {K.PREPARE}
        storage = CutStorage(plane.storage)
        async with plane.worker("worker-1", storage=storage) as first:  # type: ignore[arg-type]
            jobs = [await plane.submit() for _ in range(3)]
            await node.wait_command(K.PREPARE, 3)
            async with plane.worker("worker-2") as second:
                async with cut(storage):
                    await _wait_launches(plane, second, 3)
                await _wait_launches(plane, first, 0)
                for job in jobs:
                    await plane.storage.request_stop(job, ADA, now())
                    await plane.wait_job(job)


async def test_commit_whose_answer_was_lost_is_read_again(database: str, tmp_path: Path) -> None:
    """P-09: every write of the worker succeeds and raises, once each; the launch goes on as if nothing had been."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        losing = LosingStorage(plane.storage, {"place", "claim_attempts", "advance"})
        async with plane.worker(storage=losing):  # type: ignore[arg-type]
            job = await plane.submit()
            await plane.wait_job(job, J.RUNNING)
            await node.finish(MemberId(f"{job}-1-0"), 0)
            assert (await plane.wait_job(job)).state is J.SUCCEEDED
        assert losing.left == set()
        assert len(node.started) == 1


async def test_a_silent_node_releases_nothing(database: str, tmp_path: Path) -> None:
    """R-LCH-03, P-11: a stop on a silent Node stays open, its hold is shown, and ends with evidence after its return."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.enrol(gateway.target)
        session = trio.CancelScope()
        plane.nursery.start_soon(_run_in, session, node)
        job = await plane.submit()
        await plane.wait_job(job, J.RUNNING)
        session.cancel()
        await plane.storage.request_stop(job, ADA, now())
        await plane.wait_until(lambda: _disconnected(plane, node), "the session's end")
        await trio.sleep(plane.timings.gateway_lease)  # time alone must not help: that is what is tested
        stopping = await plane.job(job)
        assert stopping.state is J.STOPPING
        assert stopping.attempts[0].members[0].node_silent_since is not None
        assert await _held(plane, node) == 1
        plane.nursery.start_soon(node.run)
        assert (await plane.wait_job(job)).state is J.STOPPED
        assert await _held(plane, node) == 0


async def test_work_that_ended_while_the_node_was_away_is_learnt(database: str, tmp_path: Path) -> None:
    """R-LCH-05, L-C17: the journal reports it in the next session."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.enrol(gateway.target)
        session = trio.CancelScope()
        plane.nursery.start_soon(_run_in, session, node)
        job = await plane.submit()
        await plane.wait_job(job, J.RUNNING)
        session.cancel()
        await node.wait_for(lambda node: node.link is None, "the end of the session")
        await node.finish(MemberId(f"{job}-1-0"), 0)
        plane.nursery.start_soon(node.run)
        assert (await plane.wait_job(job)).state is J.SUCCEEDED
        assert node.count(K.COMMIT) == 1


async def test_a_node_with_another_journal_has_its_members_stopped(database: str, tmp_path: Path) -> None:
    """P-02: absence from a report proves nothing; the Stop's tombstone does."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.enrol(gateway.target)
        session = trio.CancelScope()
        plane.nursery.start_soon(_run_in, session, node)
        job = await plane.submit()
        await plane.wait_job(job, J.RUNNING)
        session.cancel()
        await node.wait_for(lambda node: node.link is None, "the end of the session")
        node.members.clear()
        node.journal = "journal-2"
        plane.nursery.start_soon(node.run)
        ended = await plane.wait_job(job)
        assert (ended.state, ended.reason_code) == (J.FAILED, "member-unknown")
        assert node.count(K.STOP) == 1
        found = await plane.storage.get_node(node.node, now())
        assert found is not None
        assert [cordon.owner for cordon in found.cordons] == ["journal"]


# ---------------------------------------------------------------- helpers


async def _held(plane: Plane, node: ScriptedNode) -> int:
    found = await plane.storage.get_node(node.node, now())
    assert found is not None
    return len(found.members)


async def _disconnected(plane: Plane, node: ScriptedNode) -> tuple[bool, object]:
    found = await plane.storage.get_node(node.node, now())
    assert found is not None
    return found.connection.state == "disconnected", found.connection


async def _run_in(scope: trio.CancelScope, node: ScriptedNode) -> None:
    with scope:
        await node.run()


async def _wait_launches(plane: Plane, system: System, count: int) -> None:
    async def reached() -> tuple[bool, object]:
        await trio.lowlevel.checkpoint()
        running = [path for path in system.refs() if path.startswith("root/worker/launches/")]
        return len(running) == count, running

    await plane.wait_until(reached, f"{count} launch actors in {system.name}")
