"""Attempt after attempt, silent machines and an operator's word, on real storage and real links to scripted Nodes.

R-LCH-02, R-LCH-03, R-LCH-12, R-LCH-16, L-B8, L-E7, P-11.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from attrs import evolve

from tests.control.failing_storage import CutStorage, cut
from tests.control.plane import ADA, TIMINGS, Gateway, Plane, now, open_plane
from tests.control.scripted_node import ScriptedNode
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import MemberId
from tuneplane.domain.launch_table import JobState, MemberPhase

pytestmark = [pytest.mark.postgres, pytest.mark.seconds(90)]

K, P, J = CommandKind, MemberPhase, JobState
# Silence is judged after 2 s; retries follow at once. The relations are those of production.
SHORT = evolve(TIMINGS, prepare_deadline=2.0, hold=9.0, judging_grace=1.0, retry_first=0.2)


async def come(plane: Plane, gateway: Gateway) -> tuple[ScriptedNode, trio.CancelScope]:
    """A new Node, ready, and what ends its connection for good."""
    node, scope = await plane.enrol(gateway.target), trio.CancelScope()
    plane.nursery.start_soon(run, node, scope)
    await plane.wait_until(lambda: plane._healthy(node.node), f"{node.node} to be ready")
    return node, scope


async def run(node: ScriptedNode, scope: trio.CancelScope) -> None:
    with scope:
        await node.run()


async def held(plane: Plane, node: ScriptedNode) -> tuple[str, ...]:
    found = await plane.storage.get_node(node.node, now())
    assert found is not None
    return found.members


async def test_a_failed_attempt_is_followed_by_another_after_its_backoff(database: str, tmp_path: Path) -> None:
    """R-LCH-02, L-E7: new identities, the old ones' evidence first, each attempt with its own cause."""
    async with open_plane(database, tmp_path, timings=SHORT) as plane, plane.gateway() as gateway, plane.worker():
        node, _ = await come(plane, gateway)
        job = await plane.submit(retries=2)
        for number, code in ((1, 3), (2, 4), (3, 0)):
            member = MemberId(f"{job}-{number}-0")
            await node.wait_for(lambda node, member=member: member in node.started, f"the start of {member}")  # type: ignore[misc]
            await plane.wait_job(job, J.RUNNING)
            await node.finish(member, code)
        ended = await plane.wait_job(job)
        assert (ended.state, ended.attempt_number) == (J.SUCCEEDED, 3)
        assert [attempt.reason_detail for attempt in ended.attempts] == [
            f"{job}-1-0 ended with exit code 3", f"{job}-2-0 ended with exit code 4", "",
        ]  # fmt: skip
        assert node.started == [f"{job}-{number}-0" for number in (1, 2, 3)]
        assert await held(plane, node) == ()


async def test_a_job_that_is_stopped_during_its_backoff_never_starts_again(database: str, tmp_path: Path) -> None:
    """R-LCH-12: the next attempt would follow ten minutes later; the stop is final at once."""
    timings = evolve(SHORT, retry_first=600.0)
    async with open_plane(database, tmp_path, timings=timings) as plane, plane.gateway() as gateway, plane.worker():
        node, _ = await come(plane, gateway)
        job = await plane.submit(retries=5)
        await plane.wait_job(job, J.RUNNING)
        await node.finish(MemberId(f"{job}-1-0"), 1)
        waiting = (await plane.wait_job(job, J.QUEUED)).waiting
        assert waiting is not None
        assert waiting.code == "retry-backoff"
        stopped = await plane.storage.request_stop(job, ADA, now())
        assert stopped.state is J.STOPPED
        assert node.started == [f"{job}-1-0"]


async def test_a_gang_whose_node_falls_silent_is_stopped_at_the_deadline_and_held_until_its_return(database: str, tmp_path: Path) -> None:
    """R-LCH-16, R-LCH-03: the others stop, the silent Node is named and keeps its holds; then another attempt."""
    async with open_plane(database, tmp_path, timings=SHORT) as plane, plane.gateway() as gateway, plane.worker():
        (first, _), (second, cut) = await come(plane, gateway), await come(plane, gateway)
        job = await plane.submit(nodes=2, retries=1)
        await plane.wait_job(job, J.RUNNING)
        cut.cancel()
        silent, other = (second, first)
        lost = next(member for member in silent.started)
        await other.wait_command(K.STOP)
        found = await plane.job(job)
        assert (found.state, found.attempts[0].reason_code) == (J.STOPPING, "member-silent")
        assert silent.node in found.attempts[0].reason_detail
        assert await held(plane, silent) == (lost,)

        async def only_the_silent_one() -> tuple[bool, object]:
            waits = (await plane.job(job)).attempts[0].waits_for
            return [(reason.code, reason.subject) for reason in waits] == [("silent-node", silent.node)], waits

        await plane.wait_until(only_the_silent_one, "the silent Node alone to be waited for")
        plane.nursery.start_soon(silent.run)
        await plane.wait_until(lambda: _started(plane, job, 2), "the second attempt")
        assert {member for node in (first, second) for member in node.started} == {f"{job}-{n}-{rank}" for n in (1, 2) for rank in (0, 1)}


async def _started(plane: Plane, job: str, number: int) -> tuple[bool, object]:
    found = await plane.job(job)  # type: ignore[arg-type]
    return found.state is J.RUNNING and found.attempt_number == number, found


async def test_one_machine_alone_is_waited_for_as_long_as_it_takes(database: str, tmp_path: Path) -> None:
    """R-LCH-16, R-LCH-03: several deadlines of silence; the work went on, and its end is learnt."""
    async with open_plane(database, tmp_path, timings=SHORT) as plane, plane.gateway() as gateway, plane.worker():
        node, cut = await come(plane, gateway)
        job = await plane.submit()
        await plane.wait_job(job, J.RUNNING)
        cut.cancel()
        await trio.sleep(2 * SHORT.prepare_deadline)  # time alone must not end it: that is what is tested
        found = await plane.job(job)
        assert (found.state, found.attempts[0].waits_for[0].code) == (J.RUNNING, "silent-node")
        await node.finish(MemberId(f"{job}-1-0"), 0)
        plane.nursery.start_soon(node.run)
        assert (await plane.wait_job(job)).state is J.SUCCEEDED


async def test_control_plane_down_for_longer_than_every_deadline_fails_nothing(database: str, tmp_path: Path) -> None:
    """L-B8: gateway and worker are stopped, and started much later: the gang that ran all the while is not judged by it."""
    async with open_plane(database, tmp_path, timings=SHORT) as plane:
        async with AsyncExitStack() as before:
            gateway = await before.enter_async_context(plane.gateway())
            await before.enter_async_context(plane.worker())
            nodes = [(await come(plane, gateway))[0] for _ in range(2)]
            job = await plane.submit(nodes=2)
            await plane.wait_job(job, J.RUNNING)
        await trio.sleep(2 * SHORT.prepare_deadline)  # nobody lives to see this
        async with plane.worker(), plane.gateway("gateway-2") as gateway:
            for node in nodes:
                node.target = gateway.target
            for node in nodes:
                await plane.wait_until(lambda node=node: plane._healthy(node.node), f"{node.node} to be back")  # type: ignore[misc]
            assert (await plane.job(job)).state is J.RUNNING
            for node in nodes:
                await node.finish(node.started[0], 0)
            assert (await plane.wait_job(job)).state is J.SUCCEEDED


async def test_silence_while_the_worker_cannot_reach_the_database_counts_for_nothing(database: str, tmp_path: Path) -> None:
    """P-16, L-B9: the gateway saw it all; the judge did not, and watches a whole deadline once he can."""
    async with open_plane(database, tmp_path, timings=SHORT) as plane, plane.gateway() as gateway:
        storage = CutStorage(plane.storage)
        async with plane.worker(storage=storage):  # type: ignore[arg-type]
            nodes = [await come(plane, gateway) for _ in range(2)]
            job = await plane.submit(nodes=2)
            await plane.wait_job(job, J.RUNNING)
            async with cut(storage):
                nodes[1][1].cancel()
                await trio.sleep(2 * SHORT.prepare_deadline)  # what the worker does not see
            back = trio.current_time()
            await nodes[0][0].wait_command(K.STOP)
            assert trio.current_time() - back >= SHORT.prepare_deadline
            assert (await plane.job(job)).attempts[0].reason_code == "member-silent"


async def test_declared_lost_and_alive_after_all_is_stopped_when_it_returns(database: str, tmp_path: Path) -> None:
    """P-11, R-LCH-05: the operator was wrong; the Stop waits for the machine, and what it reports ends no session."""
    async with open_plane(database, tmp_path, timings=SHORT) as plane, plane.gateway() as gateway, plane.worker():
        node, cut = await come(plane, gateway)
        job = await plane.submit(retries=3)
        await plane.wait_job(job, J.RUNNING)
        cut.cancel()
        member = MemberId(f"{job}-1-0")

        async def silent() -> tuple[bool, object]:
            found = (await plane.job(job)).attempts[0].members[0]
            return found.node_silent_since is not None, found

        await plane.wait_until(silent, "the Node to be silent")
        await plane.storage.declare_lost(node.node, member, ADA, "it burnt", now())
        ended = await plane.wait_job(job)
        assert (ended.state, ended.reason_code, ended.attempt_number) == (J.FAILED, "declared-lost", 1)
        assert await held(plane, node) == ()
        plane.nursery.start_soon(node.run)
        await node.wait_for(lambda node: node.members[member].phase is P.TERMINATED, "the end of what still ran")

        async def cleaned() -> tuple[bool, object]:
            found = (await plane.job(job)).attempts[0].members[0]
            return found.cleaned, found

        await plane.wait_until(cleaned, "its clean-up")
        assert (await plane.job(job)).attempts[0].members[0].reason_code == "declared-lost"
        assert not [end for end in node.ends if "illegal" in end.code]
