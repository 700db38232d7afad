"""Placement at 10,000 Nodes in 20 Fleets with 10,000 waiting jobs, and the first page of 100,000 jobs (house, "At 10,000 Nodes").

Four things. The planner alone: all queues decided in memory, and how that grows by Nodes and by queue length; its reference
judges every Node anew for every job. The allocator on a real PostgreSQL: a first look, with everything to write, and a
steady one, with nothing new; its reference is reading the same rows. A submission that names no Fleet. The API: first
pages and the waiting page, each against ``/healthz`` of the same run.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import httpx
import trio

from tests.support.postgres import Postgres, database_name, open_postgres
from tests.web.support import open_server
from tuneplane.domain.fairness import plan_queue
from tuneplane.domain.placement import Placed, place

from . import placement_world as world
from .figures import Figure, median_ratio

NODES, FLEETS, JOBS, LISTED = 10_000, 20, 10_000, 100_000
ROUNDS = 3
LINEAR = 1.25  # twice as much may take as much more than twice as long: caches and the noise of a shared machine
PAGE_BUDGET_MS = 200.0  # L-L2, L-L4
PAGE_ROUNDS = 20
NAIVE_JOBS = 25  # a quarter of a second each with every Node judged anew


def figures() -> Iterator[Figure]:
    yield from _planner()
    with TemporaryDirectory() as directory, open_postgres() as postgres:
        postgres.make_template()
        with postgres.fresh_database(world.template()) as dsn:
            yield from trio.run(_allocator, postgres, dsn)
        with postgres.fresh_database(world.template()) as dsn:
            yield from trio.run(_pages, postgres, dsn, Path(directory))


# ---------------------------------------------------------------- the planner


def _planner() -> Iterator[Figure]:
    whole, fewer_nodes, fewer_jobs, naive = [], [], [], []
    for _ in range(ROUNDS):
        whole.append(_plan_seconds(NODES, JOBS))
        fewer_nodes.append(_plan_seconds(NODES // 2, JOBS))
        fewer_jobs.append(_plan_seconds(NODES, JOBS // 2))
        naive.append(_naive_seconds())
    detail: dict[str, object] = {"nodes": NODES, "fleets": FLEETS, "jobs": JOBS, "placed": _placed(NODES, JOBS)}
    yield Figure(name="placement.plan.decisions_per_second", value=JOBS / median(whole), unit="1/s", detail=detail)
    growth = partial(Figure, unit="of linear", budget=LINEAR, lower_is_better=True)
    yield growth(name="placement.plan.growth_by_nodes", value=median_ratio(whole, fewer_nodes) / 2)
    yield growth(name="placement.plan.growth_by_queue", value=median_ratio(whole, fewer_jobs) / 2)
    per_job = [seconds / JOBS for seconds in whole]
    yield Figure(name="placement.plan.against_every_node_anew", value=median_ratio(naive, per_job), unit="times as fast", budget=2.0)


def _plan_seconds(nodes: int, jobs: int) -> float:
    fleets = [world.fleet_of(number, nodes // FLEETS, jobs // FLEETS) for number in range(FLEETS)]
    began = time.perf_counter()
    for fleet, machines, queue in fleets:
        for _ in plan_queue(fleet, machines, queue, {}, world.NOW, world.TIMINGS):
            pass
    return time.perf_counter() - began


def _placed(nodes: int, jobs: int) -> int:
    fleet, machines, queue = world.fleet_of(0, nodes // FLEETS, jobs // FLEETS)
    plan = plan_queue(fleet, machines, queue, {}, world.NOW, world.TIMINGS)
    return FLEETS * sum(isinstance(decision.answer, Placed) for decision in plan)


def _naive_seconds() -> float:
    """Seconds a job."""
    fleet, machines, queue = world.fleet_of(0, NODES // FLEETS, NAIVE_JOBS)
    began = time.perf_counter()
    for job in queue:
        place(job.spec, fleet, machines, world.NOW, job.id)
    return (time.perf_counter() - began) / len(queue)


# ---------------------------------------------------------------- the allocator


async def _allocator(postgres: Postgres, dsn: str) -> list[Figure]:
    """``looks`` by size: seconds of a steady look, and of reading what it reads."""
    steady: dict[int, tuple[float, float]] = {}
    first = 0.0
    async with world.open_fleets(postgres, dsn, FLEETS) as seeded:
        for nodes, jobs in ((NODES // 2, JOBS // 2), (NODES, JOBS)):
            seeded.grow(nodes // FLEETS, jobs // FLEETS)
            first = await _timed(seeded.look)
            looks = [(await _timed(seeded.look), await _timed(seeded.read)) for _ in range(ROUNDS)]
            steady[nodes] = (median(look for look, _ in looks), median_ratio([look for look, _ in looks], [read for _, read in looks]))
    half, whole = steady[NODES // 2], steady[NODES]
    detail: dict[str, object] = {"nodes": NODES, "jobs": JOBS, "placed_at_first": seeded.placed, "first_look_s": round(first, 2)}
    return [
        Figure(name="placement.look.decisions_per_second", value=JOBS / whole[0], unit="1/s", detail=detail),
        Figure(name="placement.look.growth", value=whole[0] / half[0] / 2, unit="of linear", budget=LINEAR, lower_is_better=True),
        Figure(name="placement.look.against_reading", value=whole[1], unit="of reading the rows", budget=3.0, lower_is_better=True),
    ]


async def _timed(act: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await act()
    return time.perf_counter() - began


# ---------------------------------------------------------------- the API


async def _pages(postgres: Postgres, dsn: str, directory: Path) -> list[Figure]:
    async with open_server(dsn, directory) as running, running.admin() as ada, running.user() as bob:
        job = await world.one_job(running)
        world.list_of_jobs(postgres, database_name(dsn), job, LISTED)
        asked = {
            "first_page": (ada, "/api/jobs"),
            "first_page_of_a_user": (bob, "/api/jobs"),
            "first_page_of_live_ones": (ada, "/api/jobs?state=queued&state=running"),
            "waiting": (ada, "/api/waiting"),
        }
        reference = await _seconds(ada, "/healthz")
        return [_page(name, await _seconds(client, path), reference) for name, (client, path) in asked.items()]


async def _seconds(client: httpx.AsyncClient, path: str) -> list[float]:
    took = []
    for _ in range(PAGE_ROUNDS):
        began = time.perf_counter()
        answer = await client.get(path)
        took.append(time.perf_counter() - began)
        answer.raise_for_status()
    return sorted(took)


def _page(name: str, took: Sequence[float], reference: Sequence[float]) -> Figure:
    p95 = took[len(took) * 95 // 100 - 1]
    p50, reference_p50 = median(took) * 1e3, median(reference) * 1e3
    detail: dict[str, object] = {"p50_ms": round(p50, 1), "healthz_p50_ms": round(reference_p50, 1), "jobs": LISTED}
    return Figure(name=f"placement.{name}.p95", value=p95 * 1e3, unit="ms", budget=PAGE_BUDGET_MS, lower_is_better=True, detail=detail)
