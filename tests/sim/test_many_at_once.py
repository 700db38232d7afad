"""Many submissions at once, several workers, few cards: each card has one job, and the others know why they wait (L-D10, R-PLC-05).

The simulated runtime under production workers, gateway and Node daemon, on virtual time.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import define

from tuneplane.domain.fleets import Capability, Delivery, Fleet, FleetKind
from tuneplane.domain.ids import JobId, NodeId, TraceId
from tuneplane.domain.jobs import Job
from tuneplane.domain.jobspec import JobBody, JobSpec, Metadata, Pool, Resources, RuntimeRef, WorkKind
from tuneplane.domain.launch_table import JobState
from tuneplane.domain.node_member import LABEL_MEMBER

from .clock import SimClock
from .disk import watched_fsync
from .fate import Fate, Focus, Life, true_now
from .judge import Judge
from .loop import seeded
from .machine import Container, SimMachine
from .processes import FLEET, Gateway, Ground, Worker, make_root
from .stream import Network, installed
from .twin import Database, Twin
from .users import ADA, IMAGE
from .weather import Outages
from .world import DISKS, TIMINGS, World, _instrumented, _quiet

CARDS, JOBS, WORKERS = 8, 100, 3
NODE = NodeId("node-0")
PATIENCE_SECONDS = 600.0  # virtual
NO_FAULTS = Focus(odds={}, workers=WORKERS, images=True)


@define(eq=False)
class Lasting(Judge):
    """What is started runs until somebody ends it."""

    def started(self, machine: SimMachine, container: Container) -> None:
        super().started(machine, container)
        container.ends_at, container.exit_code, container.oom = trio.current_time() + 1e6, 0, False


@asynccontextmanager
async def open_crowd(fate: Fate, clock: SimClock, root: Path) -> AsyncIterator[tuple[World, Twin]]:
    """One machine with eight cards, three workers, one gateway; nothing goes wrong."""
    network, database = Network(fate, clock), Database(clock=true_now)
    async with trio.open_nursery() as nursery:
        judge = Lasting(fate, database, TIMINGS)
        world = World(fate, Ground(fate, clock, TIMINGS, database, network, Outages(), nursery, judge.deciding), judge)
        database.watchers.append(judge.committed)
        twin = Twin(database)
        fleet = Fleet(
            id=FLEET, kind=FleetKind.NODE, delivery=Delivery.SHARED_MOUNT, capabilities=(Capability.TRAIN,), created_at=true_now()
        )
        await twin.create_fleet(fleet)
        await world._add_node(twin, root, NODE)
        judge.machines[NODE].gpus = CARDS
        for number in range(WORKERS):
            world.processes[f"worker-{number}"] = Worker(f"worker-{number}", world.ground)
        world.processes["gateway-0"] = Gateway("gateway-0", world.ground)
        network.gateways = ("gateway-0",)
        with installed(network), _instrumented(fate, world), watched_fsync([judge.machines[NODE].disk]):
            for process in world.processes.values():
                process.life = Life(process.name, fate, alive=False)
                nursery.start_soon(process.run)
            yield world, twin
            nursery.cancel_scope.cancel()
            for process in world.processes.values():
                process.life.die("the test is over")


def one_card() -> JobSpec:
    pool = Pool(gpus_per_node=1, cpus=0.5, memory_gb=1.0)
    body = JobBody(command=("train",), runtime=RuntimeRef(image="train"), resources=Resources(pools=(pool,)))
    return JobSpec(apiVersion="tuneplane/v1", kind=WorkKind.TRAINING_JOB, metadata=Metadata(name="one"), spec=body)


async def submit_all(twin: Twin) -> list[JobId]:
    names = [JobId(f"job-{number:03}") for number in range(JOBS)]

    async def submit(name: JobId) -> None:
        await twin.submit(name, one_card(), owner=ADA, fleet=FLEET, image=IMAGE, trace=TraceId(name), idempotency_key=name, now=true_now())

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(submit, name)
    return names


async def jobs_of(twin: Twin, names: list[JobId]) -> list[Job]:
    return [found for name in names if (found := await twin.get_job(name)) is not None]


def waits_truly(job: Job) -> bool:
    """For a card, by its numbers; or it has just been put where nobody has looked since."""
    waiting = job.waiting
    if waiting is None or waiting.code != "no-free-capacity":
        return False
    return [(one.code, one.subject, one.unit, one.need, one.have) for one in waiting.reasons] == [("insufficient-gpus", NODE, "gpus", 1, 0)]


async def settle(world: World, twin: Twin, names: list[JobId], ended: int) -> list[Job]:
    """Until eight run, ``ended`` have ended, and every other one waits with the true reason."""
    shown: list[str] = []
    with trio.move_on_after(PATIENCE_SECONDS):
        while world.fate.violation is None:
            jobs = await jobs_of(twin, names)
            running = [job for job in jobs if job.state is JobState.RUNNING]
            waiting = [job for job in jobs if job.state is JobState.QUEUED and waits_truly(job)]
            shown = [f"{job.id} {job.state.value} {job.waiting}" for job in jobs]
            if (len(running), len(waiting)) == (CARDS, JOBS - CARDS - ended):
                return running
            await trio.sleep(0.5)
    raise AssertionError("\n".join([str(world.fate.violation), *shown]))


async def _crowd(fate: Fate, clock: SimClock, root: Path) -> None:
    async with open_crowd(fate, clock, root) as (world, twin):
        names = await submit_all(twin)
        machine = world.judge.machines[NODE]
        for ended in range(2):
            running = await settle(world, twin, names, ended)
            cards = [card for job in running for member in job.attempts[-1].members for card in member.gpu_uuids]
            assert len(set(cards)) == len(cards) == CARDS
            alive = [one for one in machine.of_ours() if one.running]
            assert sorted(card for one in alive for card in one.spec.gpu_uuids) == sorted(cards)  # by the runtime, not our tables
            assert len({one.spec.labels[LABEL_MEMBER] for one in alive}) == CARDS
            if ended == 0:
                alive[0].end(0, "natural")
        assert set(world.judge.starts.values()) == {1}


@pytest.mark.parametrize("seed", range(20))
def test_each_card_has_one_job_and_the_others_wait_with_true_reasons(seed: int) -> None:
    """L-D10, R-PLC-03, R-PLC-05: 100 at once on 8 cards, three workers; when one ends, another takes its card."""
    fate, root = Fate(seed, NO_FAULTS), make_root(DISKS, 10**6 + seed)
    clock = SimClock()
    try:
        with _quiet(fate), seeded(seed):
            trio.run(_crowd, fate, clock, root, clock=clock)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    assert fate.violation is None
