"""Gangs, from the real allocator and launches on a real database to scripted Nodes: all or nothing (R-LCH-10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import evolve

from tests.control.plane import TIMINGS, Plane, now, open_plane
from tests.control.scripted_node import ScriptedNode
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import JobId, MemberId, attempt_id, member_id
from tuneplane.domain.jobs import Job
from tuneplane.domain.launch_table import JobState, MemberPhase
from tuneplane.domain.nodes import NodeState
from tuneplane.domain.plan import MemberPlan, read_plan
from tuneplane.domain.timings import Timings

pytestmark = [pytest.mark.postgres, pytest.mark.seconds(90)]

# Deadlines that a test can wait for; the relations are those of production (P-08: hold > prepare_deadline + commit_margin).
# A busy machine must still be able to start the gang that follows in the same test.
IMPATIENT = evolve(TIMINGS, prepare_deadline=4.0, hold=12.0, commit_deadline=4.0)
FAILURE_SECONDS = 10.0  # L-H1, L-B6: from the first failure to the end of the gang


@asynccontextmanager
async def fleet_of(count: int, database: str, place: Path, timings: Timings = TIMINGS) -> AsyncIterator[tuple[Plane, list[ScriptedNode]]]:
    """A plane with a worker, a gateway, and ``count`` Nodes of one machine's size; in the order of their ids."""
    async with open_plane(database, place, timings=timings) as plane, plane.gateway() as gateway, plane.worker():
        nodes = [await plane.connect(gateway) for _ in range(count)]
        yield plane, sorted(nodes, key=lambda node: node.node)


def member(job: JobId, rank: int) -> MemberId:
    return member_id(attempt_id(job, 1), rank)


async def plans(nodes: list[ScriptedNode]) -> list[MemberPlan]:
    commands = [await node.wait_command(CommandKind.PREPARE) for node in nodes]
    return [read_plan(command.plan, command.plan_digest) for command in commands]


async def free_again(plane: Plane, nodes: list[ScriptedNode]) -> None:
    """Wait until ``nodes`` hold nothing: no amounts, cards, ports or members."""

    async def free() -> tuple[bool, object]:
        found = [await plane.storage.get_node(node.node, now()) for node in nodes]
        held = [
            (one.members, one.held_ports, one.capacity.cpu_millis_used) for one in found if one is not None and one.capacity is not None
        ]
        return held == [((), (), 0)] * len(nodes), held

    await plane.wait_until(free, f"{[node.node for node in nodes]} to hold nothing")


async def holds(plane: Plane, node: ScriptedNode) -> tuple[str, ...]:
    found = await plane.storage.get_node(node.node, now())
    assert found is not None
    return found.members


def phases(job: Job) -> list[MemberPhase]:
    return [one.phase for one in job.attempts[-1].members]


async def test_gang_is_prepared_everywhere_then_committed_once_and_meets_at_one_address(database: str, tmp_path: Path) -> None:
    """R-LCH-08, R-LCH-09, R-LCH-10: rank, world, main address and port; each member started once."""
    async with fleet_of(3, database, tmp_path) as (plane, nodes):
        job = await plane.submit(nodes=3)
        await plane.wait_job(job, JobState.RUNNING)
        got = await plans(nodes)
        (attempt,) = (await plane.job(job)).attempts
        assert (attempt.main_address, attempt.main_port) == (got[0].main_address, got[0].main_port)
        assert [(plan.rank, plan.world, plan.member) for plan in got] == [(rank, 3, member(job, rank)) for rank in range(3)]
        assert len({(plan.main_address, plan.main_port) for plan in got}) == 1
        assert [plan.ports for plan in got] == [(got[0].main_port,), (), ()]
        for rank, node in enumerate(nodes):
            assert node.started == [member(job, rank)]
            assert {one.operation for one in node.commands if one.kind is CommandKind.COMMIT} == {f"{member(job, rank)}:commit"}
        for rank, node in enumerate(nodes):
            await node.finish(member(job, rank), 0)
        assert (await plane.wait_job(job)).state is JobState.SUCCEEDED
        await free_again(plane, nodes)


async def test_gang_a_member_that_cannot_prepare_by_the_deadline_aborts_all_and_keeps_none_but_its_own(
    database: str, tmp_path: Path
) -> None:
    """R-LCH-10, R-LCH-16, L-H10: nothing starts; the healthy machines are free for others at once, the silent one is held."""
    async with fleet_of(3, database, tmp_path, IMPATIENT) as (plane, nodes):
        silent = nodes[1]
        silent.deaf_to = {CommandKind.PREPARE, CommandKind.STOP}
        job = await plane.submit(nodes=3)
        for node in nodes:
            await node.wait_command(CommandKind.PREPARE)
        await free_again(plane, [nodes[0], nodes[2]])
        assert [node.started for node in nodes] == [[], [], []]
        found = await plane.job(job)
        assert (found.state, found.attempts[0].reason_code) == (JobState.STOPPING, "prepare-deadline")
        assert f"{member(job, 1)} on {silent.node}" in found.attempts[0].reason_detail
        assert await holds(plane, silent) == (member(job, 1),)
        await plane.storage.set_node_state(silent.node, NodeState.CORDONED, "it does not answer", now())
        second = await plane.submit(nodes=2)
        await plane.wait_job(second, JobState.RUNNING)
        assert [node.started for node in nodes] == [[member(second, 0)], [], [member(second, 1)]]
        silent.deaf_to = set()
        assert (await plane.wait_job(job)).state is JobState.FAILED
        await free_again(plane, [silent])


async def test_gang_the_first_failure_ends_the_rest_and_its_cause_is_kept(database: str, tmp_path: Path) -> None:
    """L-H1: rank 2 exits 1, the rest would run on."""
    async with fleet_of(4, database, tmp_path) as (plane, nodes):
        job = await plane.submit(nodes=4)
        await plane.wait_job(job, JobState.RUNNING)
        began = trio.current_time()
        await nodes[2].finish(member(job, 2), 1)
        ended = await plane.wait_job(job)
        assert trio.current_time() - began < FAILURE_SECONDS
        assert (ended.state, ended.reason_code) == (JobState.FAILED, "exit-code")
        assert member(job, 2) in ended.reason_detail
        assert phases(ended) == [MemberPhase.TERMINATED] * 4
        assert [one.exit_code for one in ended.attempts[0].members] == [143, 143, 1, 143]
        assert nodes[2].count(CommandKind.STOP) == 0  # it has ended by itself
        await free_again(plane, nodes)


async def test_gang_a_member_that_is_unfit_while_others_prepare_gives_everything_back_in_the_end(database: str, tmp_path: Path) -> None:
    """L-H8: each machine is held until there is evidence for its own member, and no longer."""
    async with fleet_of(3, database, tmp_path) as (plane, nodes):
        for node in nodes:
            node.deaf_to = {CommandKind.PREPARE}
        nodes[2].deaf_to |= {CommandKind.STOP}
        job = await plane.submit(nodes=3)
        for node in nodes:
            await node.wait_command(CommandKind.PREPARE)
        await nodes[0].report(member(job, 0), MemberPhase.ABORTED, reason_code="image-unavailable", cleaned=True)
        await free_again(plane, nodes[:2])
        assert await holds(plane, nodes[2]) == (member(job, 2),)
        assert (await plane.job(job)).state is JobState.STOPPING
        nodes[2].deaf_to = set()
        ended = await plane.wait_job(job)
        assert (ended.state, ended.reason_code) == (JobState.FAILED, "image-unavailable")
        assert [node.started for node in nodes] == [[], [], []]
        await free_again(plane, nodes)


async def test_gang_a_commit_that_one_member_never_gets_stops_all_and_comes_too_late(database: str, tmp_path: Path) -> None:
    """L-H11, P-10: committed, and one machine does not hear it: the gang is stopped as a whole, the late Commit is refused."""
    async with fleet_of(3, database, tmp_path, IMPATIENT) as (plane, nodes):
        nodes[2].deaf_to = {CommandKind.COMMIT}
        job = await plane.submit(nodes=3)
        lost = await nodes[2].wait_command(CommandKind.COMMIT)
        ended = await plane.wait_job(job)
        assert (ended.state, ended.reason_code) == (JobState.FAILED, "commit-deadline")
        assert phases(ended) == [MemberPhase.TERMINATED, MemberPhase.TERMINATED, MemberPhase.ABORTED]
        await free_again(plane, nodes)
        await nodes[2].wait_for(lambda node: node.link is not None, "its session")
        assert nodes[2].link is not None
        await nodes[2].obey(lost, nodes[2].link)
        assert nodes[2].started == []
        assert nodes[2].members[member(job, 2)].phase is MemberPhase.ABORTED
        after = await plane.submit(nodes=3)  # and nothing of it is left anywhere
        nodes[2].deaf_to = set()
        await plane.wait_job(after, JobState.RUNNING)


async def test_gangs_on_one_pair_of_machines_lease_ports_of_their_own(database: str, tmp_path: Path) -> None:
    """L-H3, R-PLC-05: and give them back when they end."""
    async with fleet_of(2, database, tmp_path) as (plane, nodes):
        first, second = await plane.submit(nodes=2), await plane.submit(nodes=2)
        for job in (first, second):
            await plane.wait_job(job, JobState.RUNNING)
        prepares = [command for command in nodes[0].commands if command.kind is CommandKind.PREPARE]  # one may come twice
        leased = {read_plan(command.plan, command.plan_digest).main_port for command in prepares}
        assert len(leased) == 2
        found = await plane.storage.get_node(nodes[0].node, now())
        assert found is not None
        assert found.held_ports == tuple(sorted(leased))
        for job in (first, second):
            for rank, node in enumerate(nodes):
                await node.finish(member(job, rank), 0)
            assert (await plane.wait_job(job)).state is JobState.SUCCEEDED
        await free_again(plane, nodes)


async def test_gang_that_does_not_fit_waits_with_the_number_that_would(database: str, tmp_path: Path) -> None:
    """R-PLC-03."""
    async with fleet_of(2, database, tmp_path) as (plane, _):
        job = await plane.submit(nodes=4)

        async def waits() -> tuple[bool, object]:
            found = await plane.job(job)
            return found.waiting is not None and found.waiting.code == "too-few-machines", found

        await plane.wait_until(waits, f"{job} to wait for machines")
        waiting = (await plane.job(job)).waiting
        assert waiting is not None
        assert waiting.reasons[0].detail == "needs 4 machines, 2 fit"


async def test_gang_whose_port_was_found_taken_is_tried_again_with_another_port(database: str, tmp_path: Path) -> None:
    """L-H3: something foreign listens there; rank 0's Node says so at prepare, the whole attempt ends, the next leases another."""
    async with fleet_of(2, database, tmp_path) as (plane, nodes):
        nodes[0].deaf_to = {CommandKind.PREPARE}
        job = await plane.submit(nodes=2, retries=1)
        await nodes[0].wait_command(CommandKind.PREPARE)
        nodes[0].deaf_to = set()
        await nodes[0].report(member(job, 0), MemberPhase.ABORTED, reason_code="port-taken", reason_detail="in use", cleaned=True)
        ended, again = (await plane.wait_job(job, JobState.RUNNING)).attempts
        assert (ended.reason_code, ended.members[1].phase) == ("port-taken", MemberPhase.ABORTED)
        assert again.main_port != ended.main_port
        assert [node.started for node in nodes] == [[MemberId(f"{job}-2-0")], [MemberId(f"{job}-2-1")]]
