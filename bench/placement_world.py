"""Ten thousand machines and their queues, in memory and as rows: made of one real row each, copied by PostgreSQL itself."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import structlog
from attrs import define, evolve, field

from tests.contract.storage_world import GATEWAY, World, a_fleet, a_spec, an_inventory
from tests.support.postgres import TEMPLATE, Postgres, database_name
from tests.web.support import Running, job_spec
from tests.web.world import make_fleet, ready_node
from tuneplane.bridge.loop import open_bridge
from tuneplane.control.allocator import JOBS_A_LOOK, Allocator
from tuneplane.control.patience import Backoff
from tuneplane.domain import codec
from tuneplane.domain.fleets import Fleet
from tuneplane.domain.ids import FleetId, JobId, NodeId, TraceId, UserName
from tuneplane.domain.jobs import Job
from tuneplane.domain.jobspec import JobSpec, Pool, Resources
from tuneplane.domain.launch_table import JobState
from tuneplane.domain.nodes import Capacity, Connection, Node, NodeState
from tuneplane.domain.timings import PRODUCTION
from tuneplane.storage import PostgresStorage, open_storage

NOW = datetime.now(UTC)
TIMINGS = PRODUCTION
CARDS = 8
GB = 10**9
# What jobs ask for: gangs, whole machines, and small ones of forty sizes, a few of which are the most
POOLS = (
    *(Pool(nodes=nodes, gpus_per_node=8, cpus=8.0, memory_gb=32.0) for nodes in (2, 4, 8)),
    *(Pool(gpus_per_node=gpus, cpus=1.0 + gpus / 2, memory_gb=4.0 * gpus) for gpus in (1, 1, 2, 4, 8)),
    *(Pool(gpus_per_node=1, cpus=1.0 + number / 16, memory_gb=4.0) for number in range(40)),
)
ROOM = 25  # of a hundred machines in memory, those that are not full
ROOM_OF_ROWS = 1  # of a hundred in the database: there each placement takes milliseconds to write


def template() -> str:
    return TEMPLATE


def spec_of(number: int) -> JobSpec:
    return a_spec(resources=Resources(pools=(POOLS[number % len(POOLS)],)), priority=number % 3)


def fleet_of(number: int, machines: int, jobs: int) -> tuple[Fleet, list[Node], list[Job]]:
    fleet = evolve(a_fleet(f"fleet-{number}"), created_at=NOW)
    return fleet, [_machine(fleet, one) for one in range(machines)], [_job(fleet, one) for one in range(jobs)]


def _machine(fleet: Fleet, number: int) -> Node:
    used = 0 if number % 100 < ROOM else CARDS
    cards = tuple(f"GPU-{fleet.id}-{number}-{card}" for card in range(CARDS))
    capacity = Capacity(
        cpu_millis=16_000, cpu_millis_used=used * 1500, memory_bytes=64 * GB, memory_bytes_used=used * 6 * GB, gpus=CARDS, gpus_used=used
    )
    return Node(
        id=NodeId(f"{fleet.id}-node-{number:05}"),
        fleet=fleet.id,
        address="host",
        state=NodeState.ACTIVE,
        connection=Connection(state="connected", lease_expires_at=NOW + timedelta(seconds=15)),
        inventory=an_inventory(cards, route_address=f"10.{number // 250 + 1}.0.{number % 250 + 1}"),
        inventory_observed_at=NOW,
        inventory_healthy=True,
        capacity=capacity,
        free_gpu_uuids=cards[used:],
        created_at=NOW,
    )


def _job(fleet: Fleet, number: int) -> Job:
    return Job(
        id=JobId(f"{fleet.id}-job-{number:05}"),
        name="train",
        project="default",
        owner=UserName("ada"),
        fleet=fleet.id,
        spec=spec_of(number),
        image="registry/train@sha256:1",
        state=JobState.QUEUED,
        trace=TraceId("trace"),
        created_at=NOW - timedelta(seconds=number % 200),
    )


# ---------------------------------------------------------------- as rows


def copies(columns: list[str], table: str, where: str, numbers: range, **changed: str) -> str:
    """SQL for rows like those of ``table`` that fit ``where``, once for each ``n`` of ``numbers``; ``changed`` are SQL by column."""
    values = ", ".join(changed.get(column, column) for column in columns)
    source = f"{table}, generate_series({numbers.start}, {numbers.stop - 1}) AS n WHERE {where}"
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {source};"


def columns_of(postgres: Postgres, database: str, table: str) -> list[str]:
    """Those that one may write."""
    sql = (
        "SELECT column_name FROM information_schema.columns"
        f" WHERE table_name = '{table}' AND table_schema = 'public' AND is_generated = 'NEVER' AND is_identity = 'NO'"
    )
    return postgres.sql(sql, database).splitlines()


@define(eq=False)
class Seeded:
    """The database, and an allocator that works on it."""

    postgres: Postgres
    database: str
    storage: PostgresStorage
    allocator: Allocator
    fleets: list[FleetId]
    nodes: int = 1  # of each Fleet
    jobs: int = 0
    placed: int = field(default=0, init=False)

    def grow(self, nodes: int, jobs: int) -> None:
        """To so many Nodes and waiting jobs of each Fleet; a hundredth of the Nodes is free."""
        tables = ("node", "session", "node_capacity", "gpu_grant", "job")
        columns = {table: columns_of(self.postgres, self.database, table) for table in tables}
        for fleet in self.fleets:
            kinds = [[one for one in range(self.jobs, jobs) if one % len(POOLS) == kind] for kind in range(len(POOLS))]
            queue = [_more_jobs(columns["job"], fleet, kind, numbers) for kind, numbers in enumerate(kinds) if numbers]
            self.postgres.sql(" ".join([*_more_nodes(columns, fleet, range(self.nodes, nodes)), *queue]), self.database)
        self.nodes, self.jobs = nodes, jobs
        self.postgres.sql("ANALYZE", self.database)

    async def look(self) -> None:
        """What the allocator does after a poke."""
        for fleet in await self.storage.waiting_fleets(NOW):
            await self.allocator._serve(fleet)
        self.placed = int(self.postgres.sql("SELECT count(*) FROM attempt", self.database))

    async def read(self) -> None:
        """The rows that a look reads."""
        for fleet in self.fleets:
            await self.storage.waiting_jobs(fleet, JOBS_A_LOOK, datetime.now(UTC))
            await self.storage.placement_nodes(fleet, datetime.now(UTC))


def _more_jobs(columns: list[str], fleet: FleetId, kind: int, numbers: list[int]) -> str:
    """Queued, like the one that was stopped."""
    number = f"(n * {len(POOLS)} + {kind})"
    empty = dict.fromkeys(("ended_at", "stop_asked_at", "idempotency_key"), "NULL")
    named = {"id": f"'{fleet}-job-' || {number}", "fleet_id": f"'{fleet}'"}
    new = {"state": "'queued'", "created_at": f"created_at + {number} * interval '1 ms'"}
    rows = range(numbers[0] // len(POOLS), numbers[-1] // len(POOLS) + 1)
    return copies(columns, "job", f"id = 'like-{kind}'", rows, **empty, **named, **new)


def _more_nodes(columns: dict[str, list[str]], fleet: FleetId, numbers: range) -> list[str]:
    seed = f"{fleet}-node"
    like, name, card = f"node_id = '{seed}'", "node_id || '-' || n", f"'GPU-{seed}', 'GPU-{seed}-' || n"
    own = f"replace(replace(inventory::text, {card}), '10.0.0.1', '10.0.' || n / 250 || '.' || n % 250)::json"
    full = f"node_id LIKE '{seed}-%' AND split_part(node_id, '-', 4)::int % 100 >= {ROOM_OF_ROWS}"
    return [
        copies(columns["node"], "node", f"id = '{seed}'", numbers, id="id || '-' || n", inventory=own),
        *(copies(columns[table], table, like, numbers, node_id=name) for table in ("session", "node_capacity")),
        copies(columns["gpu_grant"], "gpu_grant", like, numbers, node_id=name, gpu_uuid=f"replace(gpu_uuid, {card})"),
        f"UPDATE node_capacity SET cpu_millis_used = cpu_millis_budget WHERE {full};",
    ]


@asynccontextmanager
async def open_fleets(postgres: Postgres, dsn: str, count: int) -> AsyncIterator[Seeded]:
    """``count`` Fleets with one connected Node each, and one stopped job of every kind to copy from."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    async with open_bridge(), open_storage(dsn, size=4) as storage:
        made, database = World(storage), database_name(dsn)
        fleets = [FleetId(f"fleet-{number}") for number in range(count)]
        for fleet in fleets:
            await made.fleet(fleet)
            await _one_node(made, fleet)
        for number in range(len(POOLS)):
            job = await made.submit(f"like-{number}", fleet=fleets[0], spec=spec_of(number))
            await storage.request_stop(job, UserName("ada"), made.now)
        allocator = Allocator(
            storage=storage, timings=TIMINGS, clock=lambda: datetime.now(UTC), backoff=Backoff(os.urandom), storage_root="/srv/shared"
        )
        yield Seeded(postgres, database, storage, allocator, fleets)


async def _one_node(made: World, fleet: FleetId) -> None:
    name = f"{fleet}-node"
    await made.token(f"t-{name}", fleet=fleet)
    await made.join(name, token=f"t-{name}", key=name, fleet=fleet)
    gateway = made.now + timedelta(hours=9)
    if not await made.storage.renew_gateway(GATEWAY, gateway):
        await made.storage.register_gateway(GATEWAY, "127.0.0.1", 9000, made.now, gateway)
    opened = await made.connect(name)
    cards = tuple(f"GPU-{name}-card-{card}" for card in range(CARDS))
    seen = an_inventory(cards, route_address="10.0.0.1")
    await made.storage.record_inventory(NodeId(name), opened.epoch, seen, "sha256:i", made.now)


async def one_job(running: Running) -> JobId:
    await ready_node(running, await make_fleet(running))
    caller = await running.api.accounts.user_of_token(running.user_token)
    return JobId((await running.api.jobs.submit(caller, codec.decode(JobSpec, job_spec()))).id)


def list_of_jobs(postgres: Postgres, database: str, like: JobId, count: int) -> None:
    """``count`` jobs of everybody, one in a hundred the user's and one in twenty waiting; the others have ended."""
    waits = "CASE WHEN n % 20 = 0 THEN {} ELSE {} END"
    waiting = {
        "state": waits.format("'queued'", "'succeeded'"),
        "ended_at": waits.format("NULL", "created_at"),
        "waiting_code": waits.format("'cause-' || n % 6", "NULL"),
        "waiting_reasons": waits.format("'[]'::json", "NULL"),
        "waiting_since": waits.format("created_at", "NULL"),
    }
    owner, age = "CASE n % 100 WHEN 0 THEN owner ELSE 'eve' END", "created_at - n * interval '1 s'"
    columns = columns_of(postgres, database, "job")
    postgres.sql(
        copies(columns, "job", f"id = '{like}'", range(1, count), id="'job-' || n", owner=owner, created_at=age, **waiting), database
    )
    postgres.sql("ANALYZE", database)
