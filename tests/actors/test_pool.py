"""Dynamic pools: bounded, named children that start to readiness from any task."""

from __future__ import annotations

import pytest
import trio
from attrs import define
from trio.testing import MockClock

from tuneplane.actors import (
    ActorGone,
    Budget,
    ChildSpec,
    Context,
    Crashed,
    NameTaken,
    PoolFull,
    Restart,
    StartFailed,
    Stopped,
    Strategy,
    SupervisorSpec,
    System,
    current_trace,
    open_system,
    trace_scope,
)

from .support import ASK_SECONDS, QUICK, Add, Crash, Journal, Probe, settle


def tree(capacity: int = 4, budget: Budget | None = None) -> SupervisorSpec:
    pool = SupervisorSpec(name="pool", strategy=Strategy.POOL, capacity=capacity, backoff=QUICK, budget=budget or Budget())
    return SupervisorSpec(name="root", children=(pool,), backoff=QUICK)


def child(name: str, journal: Journal, restart: Restart = Restart.TEMPORARY, **more: object) -> ChildSpec:
    return ChildSpec(name=name, factory=lambda: Probe(journal=journal, **more), restart=restart)  # type: ignore[arg-type]


def names(system: System) -> list[str]:
    (pool,) = system.tree().children
    return [node.path for node in pool.children]


async def test_child_of_a_pool_is_ready_when_start_returns() -> None:
    async with open_system("t", tree()) as system:
        ref = await system.pool("root/pool").start_child(child("x", Journal()))
        assert ref.path == "root/pool/x"
        assert system.find("root/pool/x") is ref
        assert await ref.ask(Add(1), ASK_SECONDS) == 1


async def test_pool_refuses_a_name_that_is_taken_and_frees_it_at_exit() -> None:
    async with open_system("t", tree()) as system:
        pool = system.pool("root/pool")
        ref = await pool.start_child(child("x", Journal()))
        with pytest.raises(NameTaken, match="root/pool/x"):
            await pool.start_child(child("x", Journal()))
        ref.stop()
        await ref.wait_exit()
        await settle()
        assert names(system) == []
        assert (await pool.start_child(child("x", Journal()))).alive


async def test_pool_refuses_more_children_than_it_may_hold() -> None:
    async with open_system("t", tree(capacity=2)) as system:
        pool = system.pool("root/pool")
        for name in "xy":
            await pool.start_child(child(name, Journal()))
        with pytest.raises(PoolFull, match="2 children"):
            await pool.start_child(child("z", Journal()))


async def test_child_that_fails_to_start_is_reported_and_not_kept(autojump_clock: MockClock) -> None:
    journal = Journal()
    async with open_system("t", tree()) as system:
        spec = child("x", journal, Restart.PERMANENT, fail_starts=[OSError("no disk")])
        with pytest.raises(StartFailed, match="no disk") as caught:
            await system.pool("root/pool").start_child(spec)
        assert isinstance(caught.value.reason, Crashed)
        await trio.sleep(10)
        assert names(system) == []
        assert journal.lines == ["start x", "stop x"]


@define
class Slow(Probe):
    async def on_start(self, context: Context) -> None:
        self.journal.add("start", context)
        await self.gate.wait()


async def test_start_that_is_cancelled_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    journal = Journal()
    async with open_system("t", tree()) as system:
        pool = system.pool("root/pool")
        with trio.move_on_after(1):
            await pool.start_child(ChildSpec(name="x", factory=lambda: Slow(journal=journal)))
        await settle()
        assert names(system) == []
        assert system.refs() == {}
        assert journal.lines == ["start x", "stop x"]
        assert (await pool.start_child(child("x", journal))).alive


async def test_slow_start_holds_no_other_start_back(nursery: trio.Nursery) -> None:
    slow = Slow()
    left = [slow]
    async with open_system("t", tree()) as system:
        pool = system.pool("root/pool")
        nursery.start_soon(pool.start_child, ChildSpec(name="slow", factory=left.pop))
        await settle()
        assert (await pool.start_child(child("quick", Journal()))).alive
        assert system.ref("root/pool/slow") is None
        slow.gate.set()
        await settle()
        assert system.ref("root/pool/slow") is not None


async def test_start_ends_when_the_pool_stops_meanwhile(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    ended: list[object] = []

    async def start() -> None:
        try:
            await pool.start_child(ChildSpec(name="slow", factory=Slow))
        except (StartFailed, ActorGone) as error:
            ended.append(error.reason)

    async with open_system("t", tree()) as system:
        pool = system.pool("root/pool")
        nursery.start_soon(start)
        await settle()
        system.stop()
        await system.wait()
        await settle()
        assert ended == [Stopped()]
        assert trio.current_time() == 0
        with pytest.raises(ActorGone):
            await pool.start_child(child("x", Journal()))
        with pytest.raises(ActorGone):
            system.pool("root/pool")


async def test_permanent_child_of_a_pool_is_restarted_under_its_name(autojump_clock: MockClock) -> None:
    journal = Journal()
    async with open_system("t", tree()) as system:
        ref = await system.pool("root/pool").start_child(child("x", journal, Restart.PERMANENT))
        await ref.tell(Crash())
        await trio.sleep(5)
        assert system.find("root/pool/x") is not ref
        assert journal.starts("x") == 2


async def test_pool_out_of_budget_takes_its_children_down_and_starts_empty(autojump_clock: MockClock) -> None:
    """Dynamic children are not in the specification: whoever wanted them derives them again."""
    journal = Journal()
    async with open_system("t", tree(budget=Budget(restarts=0, seconds=10))) as system:
        pool = system.pool("root/pool")
        await pool.start_child(child("y", journal))
        ref = await pool.start_child(child("x", journal, Restart.PERMANENT))
        await ref.tell(Crash())
        await trio.sleep(5)
        assert names(system) == []
        assert journal.lines[-1] == "stop y"
        with pytest.raises(ActorGone):
            await pool.start_child(child("z", journal))
        assert (await system.pool("root/pool").start_child(child("z", journal))).alive


async def test_children_of_a_pool_stop_together(autojump_clock: MockClock) -> None:
    @define
    class Lingering(Probe):
        async def run(self, context: Context) -> None:
            await context.wait_stopping()
            await trio.sleep(2)

    async with open_system("t", tree(capacity=50)) as system:
        for number in range(50):
            await system.pool("root/pool").start_child(ChildSpec(name=f"n{number}", factory=Lingering))
        begun = trio.current_time()
        system.stop()
        await system.wait()
        assert trio.current_time() - begun == pytest.approx(2)


async def test_child_starts_under_the_trace_of_whoever_started_it() -> None:
    traces: list[str | None] = []

    @define
    class Traced(Probe):
        async def on_start(self, context: Context) -> None:
            traces.append(current_trace())

    async with open_system("t", tree()) as system:
        with trace_scope("from-a-row"):
            await system.pool("root/pool").start_child(ChildSpec(name="x", factory=Traced))
    assert traces == ["from-a-row"]
