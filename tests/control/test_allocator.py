"""The allocator on a real database: true reasons, immutable plans, and never more than there is (R-PLC-03, R-PLC-05)."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio.testing

from tests.control.failing_storage import CutStorage, cut
from tests.control.plane import ADA, FLEET, TIMINGS, Plane, now, open_plane
from tests.control.scripted_node import inventory
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.hardware import Series
from tuneplane.domain.ids import JobId, MemberId, SeriesId
from tuneplane.domain.inventory import Budgets, Gpu, Inventory
from tuneplane.domain.launch_table import JobState
from tuneplane.domain.plan import read_plan

pytestmark = [pytest.mark.postgres, pytest.mark.seconds(60)]


async def test_allocator_a_waiting_job_shows_why_and_starts_when_it_can(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.worker():
        job = await plane.submit()
        await _wait_reason(plane, job, "no-nodes")
        async with plane.gateway() as gateway:
            offline = await plane.enrol(gateway.target)
            waiting = await _wait_reason(plane, job, "no-ready-node")
            assert waiting.reasons[0].subject == offline.node
            assert "no live control session" in waiting.reasons[0].detail
            plane.nursery.start_soon(offline.run)
            started = await plane.wait_job(job, JobState.RUNNING)
            assert started.waiting is None


async def test_allocator_writes_the_plan_that_the_node_gets(database: str, tmp_path: Path) -> None:
    """R-LCH-01."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        await plane.storage.update_fleet(
            FLEET, capabilities=None, visibility=None, project=None, state=None, config={"storage_root": "/mnt/shared/"}
        )
        node = await plane.enrol(gateway.target)
        node.inventory = inventory(storage_root="/mnt/shared")
        plane.nursery.start_soon(node.run)
        job = await plane.submit(env={"EPOCHS": "3"})
        command = await node.wait_command(CommandKind.PREPARE)
        plan = read_plan(command.plan, command.plan_digest)
        assert (plan.member, plan.rank, plan.world, plan.node) == (f"{job}-1-0", 0, 1, node.node)
        assert (plan.storage_root, plan.output_dir) == ("/mnt/shared", f"/mnt/shared/jobs/{job}/{job}-1")  # the Node compares to the letter
        assert (await plane.job(job)).attempts[0].output_dir == plan.output_dir
        assert plan.env == {"EPOCHS": "3"}
        assert (plan.cpu_millis, plan.memory_bytes) == (1000, 10**9)
        assert (plan.main_address, plan.address, (plan.main_port,)) == ("127.0.0.1", "127.0.0.1", plan.ports)
        found = await plane.storage.get_node(node.node, now())
        assert found is not None
        assert found.held_ports == plan.ports  # R-PLC-05


async def test_allocator_places_a_waiting_job_as_soon_as_the_registry_knows_a_card_of_its_series(database: str, tmp_path: Path) -> None:
    """R-ENR-06: a card that the registry does not know takes no job that pins a series, and is named."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        await plane.storage.add_series(Series(series=SeriesId("b300"), card_names=("NVIDIA B300 SXM6",)), now())
        node = await plane.enrol(gateway.target)
        node.inventory = _with_cards("NVIDIA B300", "NVIDIA A40")
        plane.nursery.start_soon(node.run)
        job = await plane.submit(gpus=1, series="b300")
        await _wait_reason(plane, job, "no-free-capacity")
        await plane.wait_until(lambda: _waits_for(plane, job, "'NVIDIA B300'"), f"{job} to name the unknown card")
        await plane.storage.add_series(Series(series=SeriesId("b300"), card_names=("nvidia b300",)), now())
        command = await node.wait_command(CommandKind.PREPARE)
        assert read_plan(command.plan, command.plan_digest).gpu_uuids == ("GPU-0",)


def _with_cards(*names: str) -> Inventory:
    gpus = tuple(Gpu(index=index, uuid=f"GPU-{index}", name=name, memory_bytes=10**9) for index, name in enumerate(names))
    return inventory(gpus=gpus, gpu_runtime=True, budgets=Budgets(cpu_millis=8000, memory_bytes=32 << 30, gpu_indexes=(0, 1)))


async def _waits_for(plane: Plane, job: JobId, text: str) -> tuple[bool, object]:
    waiting = (await plane.job(job)).waiting
    return waiting is not None and any(text in reason.detail for reason in waiting.reasons), waiting


async def test_allocator_several_workers_never_place_more_than_there_is(database: str, tmp_path: Path) -> None:
    """R-PLC-05: three workers, twelve jobs, room for five; the rest follow as room comes free, each started once."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        node = await plane.enrol(gateway.target)
        node.inventory = inventory(budgets=Budgets(cpu_millis=5000, memory_bytes=32 << 30, gpu_indexes=()))
        plane.nursery.start_soon(node.run)
        jobs = [await plane.submit() for _ in range(12)]
        async with plane.worker("worker-1"), plane.worker("worker-2"), plane.worker("worker-3"):
            await node.wait_for(lambda node: len(node.started) == 5, "five starts")
            await _wait_reason(plane, jobs[-1], "no-free-capacity")
            while len(node.started) < len(jobs):
                before = len(node.started)
                assert _living(node.members) <= 5
                await node.finish(_first_living(node), 0)
                await node.wait_for(lambda node, more=before + 1: len(node.started) >= more, "the next start")  # type: ignore[misc]
            for member in list(node.members):
                if node.members[member].exit_code is None:
                    await node.finish(member, 0)
            for job in jobs:
                assert (await plane.wait_job(job)).state is JobState.SUCCEEDED
        assert sorted(node.started) == sorted(set(node.started))


async def test_allocator_a_stopped_job_is_not_placed(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        stopped, kept = await plane.submit(), await plane.submit()
        await plane.storage.request_stop(stopped, ADA, now())
        async with plane.worker():
            await plane.wait_job(kept, JobState.RUNNING)
        assert node.started == [f"{kept}-1-0"]
        assert (await plane.job(stopped)).attempts == ()


async def test_allocator_without_a_storage_root_says_so(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker(storage_root=""):
        await plane.connect(gateway)
        job = await plane.submit()
        await _wait_reason(plane, job, "no-storage-root")


async def test_allocator_goes_on_after_the_database_was_away(database: str, tmp_path: Path) -> None:
    """P-09."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        storage = CutStorage(plane.storage)
        async with plane.worker(storage=storage):  # type: ignore[arg-type]
            await plane.connect(gateway)
            async with cut(storage):
                job = await plane.submit()
                while storage.refused < 3:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            await plane.wait_job(job, JobState.RUNNING)


async def test_allocator_keeps_machines_for_a_gang_that_has_waited_long(database: str, tmp_path: Path) -> None:
    """R-PLC-06: a small job that would fit waits behind it, and says so; each starts in its turn."""
    timings = attrs.evolve(TIMINGS, earmark_after=0.1)
    async with open_plane(database, tmp_path, timings=timings) as plane, plane.gateway() as gateway, plane.worker():
        nodes = [await plane.enrol(gateway.target) for _ in range(2)]
        for node in nodes:
            node.inventory = inventory(budgets=Budgets(cpu_millis=1000, memory_bytes=32 << 30, gpu_indexes=()))
            plane.nursery.start_soon(node.run)
        first = await plane.submit()
        await plane.wait_job(first, JobState.RUNNING)
        [busy] = [node for node in nodes if node.started]
        gang = await plane.submit(nodes=2)

        async def kept() -> tuple[bool, object]:
            found = (await plane.job(gang)).waiting
            return found is not None and [one.code for one in found.reasons][1:2] == ["earmarked"], found

        await plane.wait_until(kept, "machines to be kept")
        small = await plane.submit()
        behind = await _wait_reason(plane, small, "behind")
        assert [(one.subject, one.need, one.have) for one in behind.reasons] == [(gang, 1, 0)]  # type: ignore[attr-defined]
        await busy.finish(MemberId(f"{first}-1-0"), 0)
        await plane.wait_job(gang, JobState.RUNNING)
        await _wait_reason(plane, small, "no-free-capacity")
        for rank, node in enumerate(sorted(nodes, key=lambda one: one.node)):
            await node.finish(MemberId(f"{gang}-1-{rank}"), 0)
        await plane.wait_job(small, JobState.RUNNING)


async def _wait_reason(plane: Plane, job: JobId, code: str) -> object:
    async def waits() -> tuple[bool, object]:
        found = await plane.job(job)
        return found.waiting is not None and found.waiting.code == code, found

    await plane.wait_until(waits, f"{job} to wait for {code}")
    return attrs.evolve((await plane.job(job)).waiting)  # type: ignore[type-var]


def _living(members: dict) -> int:
    return sum(observation.exit_code is None for observation in members.values())


def _first_living(node: object) -> MemberId:
    return next(member for member, observation in node.members.items() if observation.exit_code is None)  # type: ignore[attr-defined]
