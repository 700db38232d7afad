"""PostgreSQL against its twin with concurrent clients: some sequential order on the twin explains every answer (house, Proof).

``python -m tests.contract.test_linearizable --histories N`` is the long run.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import evolve

from tests.contract.histories import CARDS, JOBS, NODES, History, Trouble, build
from tests.contract.linearizer import Call, NotLinearizable, linearize
from tests.contract.sequential import Act, Still, TwinModel, at_once, plain, said
from tests.contract.storage_world import World, a_member
from tests.sim.twin import Twin
from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.ids import attempt_id
from tuneplane.domain.jobs import Job
from tuneplane.domain.ports import Storage
from tuneplane.storage import open_storage

BUDGET_SECONDS = 30.0  # of the real clock, on two busy cores
MOST_HISTORIES = 300
CLIENTS, LENGTH = 4, 7


async def one_history(storage: Storage, seed: int, *, trouble: bool = True) -> History:
    """Build, run, and leave the record; the world is the same for the same seed, the race is the database's."""
    await build(storage, random.Random(seed))
    history = History(random.Random(seed + 1), storage)
    with Trouble(random.Random(seed + 2), left=3 if trouble else 0):
        await history.run(CLIENTS, LENGTH)
    return history


async def explain(history: History, seed: int) -> tuple[Call, ...]:
    twin = Twin(weather=Still())
    await build(twin, random.Random(seed))
    return linearize(history.calls, TwinModel(twin))


async def check(storage: Storage, seed: int) -> int:
    """The number of operations of a history that is explained."""
    history = await one_history(storage, seed)
    try:
        await explain(history, seed)
    except NotLinearizable as error:
        told = "\n".join(map(str, history.calls))
        raise AssertionError(f"seed {seed}: {error}\n\nas it was:\n{told}") from error
    return len(history.calls)


@asynccontextmanager
async def open_emptied(dsn: str) -> AsyncIterator[tuple[Storage, Callable[[], object]]]:
    """A storage on real PostgreSQL, and what empties it."""
    async with open_bridge(), open_storage(dsn, size=CLIENTS + 2) as storage:
        sql = (
            "SELECT string_agg(tablename, ', ') FROM pg_tables WHERE schemaname = 'public'"
            " AND tablename NOT IN ('schema_migration', 'audit')"
        )
        tables = await storage._db.fetchval(sql)  # type: ignore[attr-defined]

        async def empty() -> None:
            await storage._db.pool.execute(f"TRUNCATE {tables}")  # type: ignore[attr-defined]

        yield storage, empty


async def run_many(dsn: str, first: int, most: int, seconds: float) -> tuple[int, int]:
    """Histories and operations that were explained."""
    until, histories, operations = time.monotonic() + seconds, 0, 0
    async with open_emptied(dsn) as (storage, empty):
        while histories < most and time.monotonic() < until:
            await empty()  # type: ignore[misc]
            operations += await check(storage, first + histories)
            histories += 1
    return histories, operations


@pytest.mark.seconds(90)
async def test_postgres_is_explained_by_its_twin(database: str) -> None:
    """P-05, P-06, P-09, R-LCH-06, R-LCH-12: as if one after the other, with commits that raise among them."""
    histories, operations = await run_many(database, 0, MOST_HISTORIES, BUDGET_SECONDS)
    assert histories >= 5
    print(f"{histories} histories, {operations} operations")


async def test_twin_is_explained_by_itself() -> None:
    """Its clients wait on the way there and back, so their operations overlap."""
    for seed in range(20):
        await check(Twin(), seed)


# ---------------------------------------------------------------- the checker can say no


def call(model: Twin, what: str, invoked: int, returned: int | None, result: object, act: Act) -> Call:
    return Call(0, what, invoked, returned, plain(result), apply=lambda _: at_once(said(act, model)))  # type: ignore[arg-type]


async def small_world() -> tuple[Twin, Act, Act]:
    """A twin with one job, a placement on one card, and a look at the job's state."""
    twin = Twin(weather=Still())
    world = World(twin)
    await world.node(NODES[0], cards=CARDS[NODES[0]])
    await world.submit(JOBS[0])
    members = (a_member(JOBS[0], NODES[0], cards=CARDS[NODES[0]]),)

    async def look(storage: Storage) -> object:
        job = await storage.get_job(JOBS[0])
        assert job is not None
        return job.state

    return twin, lambda storage: storage.place(JOBS[0], attempt_id(JOBS[0], 1), 1, members, world.now), look


@pytest.mark.parametrize(
    ("looks", "explained"),
    [
        ([(3, 4, "preparing")], True),
        ([(3, 4, "queued")], False),  # a stale read
        ([(1, 4, "queued"), (1, 4, "preparing")], True),  # both overlap the placement
        ([(1, 3, "preparing"), (4, 5, "queued")], False),  # back in time
    ],
)
async def test_stale_and_reordered_reads_are_refused(looks: list[tuple[int, int, str]], explained: bool) -> None:
    twin, place, look = await small_world()
    calls = [call(twin, "place", 1, 2, True, place)]
    calls += [call(twin, "look", invoked, returned, state, look) for invoked, returned, state in looks]
    if explained:
        linearize(calls, TwinModel(twin))
    else:
        with pytest.raises(NotLinearizable, match="look"):
            linearize(calls, TwinModel(twin))


@pytest.mark.parametrize("state", ["queued", "preparing"])
async def test_unknown_outcome_may_have_happened_or_not(state: str) -> None:
    """P-09; but not both, one after the other."""
    twin, place, look = await small_world()
    unknown = call(twin, "place", 1, None, None, place)
    linearize([unknown, call(twin, "look", 2, 3, state, look)], TwinModel(twin))
    twin, place, look = await small_world()
    unknown = call(twin, "place", 1, None, None, place)
    with pytest.raises(NotLinearizable):
        linearize([unknown, call(twin, "look", 2, 3, "preparing", look), call(twin, "look", 4, 5, "queued", look)], TwinModel(twin))


async def test_history_of_a_storage_that_loses_an_update_is_refused() -> None:
    """A stop that was accepted and is not there: what a unit that forgot to lock its rows would do."""

    class Forgetful(Twin):
        async def request_stop(self, *args: object, **named: object) -> Job:  # type: ignore[override]
            backup = self.book.backup()
            accepted = await super().request_stop(*args, **named)  # type: ignore[arg-type]
            self.book.restore(backup)
            return accepted

    stopped, refused = 0, 0
    for seed in range(20):
        history = await one_history(Forgetful(), seed, trouble=False)
        stopped += any(one.what.startswith("stop") for one in history.calls)
        try:
            await explain(history, seed)
        except NotLinearizable:
            refused += 1
    assert refused >= stopped // 2 > 0


async def test_history_with_two_answers_exchanged_is_refused() -> None:
    refused = 0
    for seed in range(20):
        history = await one_history(Twin(), seed, trouble=False)
        answers = [(number, one) for number, one in enumerate(history.calls) if one.what.startswith("at last job")]
        (first, one), (second, other) = answers[0], answers[1]
        history.calls[first], history.calls[second] = evolve(one, result=other.result), evolve(other, result=one.result)
        try:
            await explain(history, seed)
        except NotLinearizable:
            refused += 1
    assert refused == 20


def main() -> None:
    from tests.support.postgres import TEMPLATE, open_postgres

    parser = argparse.ArgumentParser(prog="python -m tests.contract.test_linearizable", description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="no new history after that")
    asked = parser.parse_args()
    with open_postgres() as server:
        server.make_template()
        with server.fresh_database(TEMPLATE) as dsn:
            began = time.perf_counter()
            histories, operations = trio.run(run_many, dsn, asked.start, asked.histories, asked.seconds)
            took = time.perf_counter() - began
    print(f"{histories} histories of {CLIENTS} clients explained: {histories / took:.1f} a second, {operations} operations")


if __name__ == "__main__":
    main()
