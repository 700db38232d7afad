"""The supervisor's grid, its specification: how a child ends × its restart kind × the strategy.

Three children a, b, c; the event happens to b; a and c are permanent. For each cell of the grid: who is started again,
who is left down, and in which order siblings stop and start.
"""

from __future__ import annotations

import pytest
import trio
from attrs import Factory, define
from trio.testing import MockClock

from tuneplane.actors import (
    Budget,
    ChildSpec,
    Crashed,
    Phase,
    Pool,
    Ref,
    Restart,
    Strategy,
    SupervisorSpec,
    System,
    open_system,
)

from .support import QUICK, Crash, Journal, Probe, boxes_at_rest

NAMES = ("a", "b", "c")
EVENTS = ("finish", "stop", "kill", "crash")
RESTARTED = {  # does b come back?
    ("finish", Restart.PERMANENT): True,
    ("finish", Restart.TRANSIENT): False,
    ("finish", Restart.TEMPORARY): False,
    ("stop", Restart.PERMANENT): True,
    ("stop", Restart.TRANSIENT): False,
    ("stop", Restart.TEMPORARY): False,
    ("kill", Restart.PERMANENT): True,
    ("kill", Restart.TRANSIENT): True,
    ("kill", Restart.TEMPORARY): False,
    ("crash", Restart.PERMANENT): True,
    ("crash", Restart.TRANSIENT): True,
    ("crash", Restart.TEMPORARY): False,
}
WITH_SIBLINGS = {  # what happens to the siblings when b comes back, after "stop b"
    Strategy.ONE_FOR_ONE: ["start b"],
    Strategy.POOL: ["start b"],
    Strategy.ONE_FOR_ALL: ["stop c", "stop a", "start a", "start b", "start c"],
    Strategy.REST_FOR_ONE: ["stop c", "start b", "start c"],
}


@define
class Grid:
    """The three probes of a run; ``probes[name]`` is the latest incarnation."""

    journal: Journal = Factory(Journal)
    probes: dict[str, Probe] = Factory(dict)
    fail_next_start: set[str] = Factory(set)

    def child(self, name: str, restart: Restart = Restart.PERMANENT) -> ChildSpec:
        def make() -> Probe:
            probe = self.probes[name] = Probe(journal=self.journal)
            if name in self.fail_next_start:
                self.fail_next_start.discard(name)
                probe.fail_starts = [OSError("not yet")]
            return probe

        return ChildSpec(name=name, factory=make, restart=restart)

    def tree(self, strategy: Strategy, restart: Restart, budget: Budget | None = None) -> SupervisorSpec:
        children = tuple(self.child(name, restart if name == "b" else Restart.PERMANENT) for name in NAMES)
        return SupervisorSpec(name="root", children=children, strategy=strategy, backoff=QUICK, budget=budget or Budget())

    async def bring_about(self, event: str, ref: Ref) -> None:
        if event == "finish":
            self.probes[ref.path[-1]].finish.set()
        elif event == "crash":
            await ref.tell(Crash())
        else:
            {"stop": ref.stop, "kill": ref.kill}[event]()
        await ref.wait_exit()


def phases(system: System) -> dict[str, Phase]:
    return {node.path[-1]: node.phase for node in system.tree().children}


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("restart", Restart)
@pytest.mark.parametrize("event", EVENTS)
async def test_child_ends_and_the_supervisor_restarts_whom_it_should(
    autojump_clock: MockClock, strategy: Strategy, restart: Restart, event: str
) -> None:
    grid = Grid()
    async with open_system("t", grid.tree(strategy, restart), seed=1) as system:
        first = dict(system.refs())
        assert grid.journal.take() == ["start a", "start b", "start c"]
        await grid.bring_about(event, first["root/b"])
        await trio.sleep(10)
        lines = grid.journal.take()
        assert lines[0] == "stop b"
        if RESTARTED[event, restart]:
            assert lines[1:] == WITH_SIBLINGS[strategy]
            assert set(system.refs()) == {"root/a", "root/b", "root/c"}
            assert system.find("root/b") is not first["root/b"], "a new incarnation has a new ref"
        else:
            assert lines[1:] == []
            assert set(system.refs()) == {"root/a", "root/c"}
            gone_from_pool = strategy is Strategy.POOL
            assert phases(system).get("b") == (None if gone_from_pool else Phase.DOWN)
    assert all(boxes_at_rest(ref) and ref.exit_reason is not None for ref in grid.journal.refs)


@pytest.mark.parametrize("strategy", Strategy)
async def test_children_start_in_order_and_stop_in_reverse(strategy: Strategy) -> None:
    grid = Grid()
    async with open_system("t", grid.tree(strategy, Restart.PERMANENT)):
        assert grid.journal.take() == ["start a", "start b", "start c"]
    assert grid.journal.take() == ["stop c", "stop b", "stop a"] or strategy is Strategy.POOL


@pytest.mark.parametrize("strategy", Strategy)
async def test_each_child_is_ready_before_the_next_begins(strategy: Strategy) -> None:
    """Start to readiness: c's start sees a and b registered."""
    seen: list[set[str]] = []

    @define
    class Looking(Probe):
        async def on_start(self, context: object) -> None:
            await trio.lowlevel.checkpoint()
            seen.append(set(context.system.refs()))  # type: ignore[attr-defined]

    children = tuple(ChildSpec(name=name, factory=Looking) for name in NAMES)
    async with open_system("t", SupervisorSpec(name="root", children=children, strategy=strategy)):
        assert seen == [set(), {"root/a"}, {"root/a", "root/b"}]


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("restart", Restart)
async def test_start_that_fails_is_tried_again_before_the_next_child_begins(
    autojump_clock: MockClock, strategy: Strategy, restart: Restart
) -> None:
    """A failed start is a crash: permanent and transient children get another try, a temporary one is left out."""
    grid = Grid(fail_next_start={"b"})
    async with open_system("t", grid.tree(strategy, restart), seed=1) as system:
        lines = grid.journal.take()
        if restart is Restart.TEMPORARY:
            assert lines == ["start a", "start b", "stop b", "start c"]
            assert set(system.refs()) == {"root/a", "root/c"}
            return
        again = ["stop a", "start a"] if strategy is Strategy.ONE_FOR_ALL else []
        assert lines == ["start a", "start b", "stop b", *again, "start b", "start c"]
        assert trio.current_time() >= QUICK.first / 2
        assert set(system.refs()) == {"root/a", "root/b", "root/c"}


@pytest.mark.parametrize("strategy", Strategy)
async def test_factory_that_raises_is_a_crash_of_the_child(autojump_clock: MockClock, strategy: Strategy) -> None:
    left: list[Exception] = [ValueError("no such setting")]

    def make() -> Probe:
        if left:
            raise left.pop()
        return Probe()

    spec = SupervisorSpec(name="root", children=(ChildSpec(name="a", factory=make),), strategy=strategy, backoff=QUICK)
    async with open_system("t", spec) as system:
        (node,) = system.tree().children
        assert (node.phase, node.restarts) == (Phase.RUNNING, 1)
        assert node.last_exit == "crashed: ValueError: no such setting"


@pytest.mark.parametrize("strategy", [Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
async def test_group_restart_leaves_temporary_siblings_down_and_brings_finished_transients_back(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    """As in OTP: a restarted group begins from its specification, but what is temporary never comes back."""
    grid = Grid()
    children = (grid.child("a"), grid.child("b", Restart.TRANSIENT), grid.child("c", Restart.TEMPORARY))
    async with open_system("t", SupervisorSpec(name="root", children=children, strategy=strategy, backoff=QUICK)) as system:
        await grid.bring_about("finish", system.find("root/b"))
        await trio.sleep(10)
        assert phases(system) == {"a": Phase.RUNNING, "b": Phase.DOWN, "c": Phase.RUNNING}
        await grid.bring_about("crash", system.find("root/a"))
        await trio.sleep(10)
        assert phases(system) == {"a": Phase.RUNNING, "b": Phase.RUNNING, "c": Phase.DOWN}


async def test_second_crash_during_a_group_restart_is_settled_with_the_first(autojump_clock: MockClock) -> None:
    grid = Grid()
    async with open_system("t", grid.tree(Strategy.ONE_FOR_ALL, Restart.PERMANENT), seed=1) as system:
        grid.journal.take()
        system.find("root/a").tell_nowait(Crash())
        system.find("root/c").tell_nowait(Crash())
        await trio.sleep(10)
        starts = [line for line in grid.journal.take() if line.startswith("start")]
        assert starts in (["start a", "start b", "start c"], ["start a", "start b", "start c"] * 2)
        assert set(system.refs()) == {"root/a", "root/b", "root/c"}


async def test_one_for_one_children_wait_out_their_back_offs_side_by_side(autojump_clock: MockClock) -> None:
    """A child in its back-off holds no sibling's restart back once the tree is up."""
    grid = Grid()
    async with open_system("t", grid.tree(Strategy.ONE_FOR_ONE, Restart.PERMANENT), seed=1) as system:
        for _ in range(3):
            await grid.bring_about("crash", system.find("root/a"))
            await trio.sleep(2)
        await grid.bring_about("crash", system.find("root/a"))  # the fourth: its back-off is the longest
        await grid.bring_about("finish", system.find("root/b"))
        await trio.sleep(5)
        assert set(system.refs()) == {"root/a", "root/b", "root/c"}


async def test_restart_waits_longer_each_time_within_the_window(autojump_clock: MockClock) -> None:
    grid = Grid()
    waits: list[float] = []
    async with open_system("t", grid.tree(Strategy.ONE_FOR_ONE, Restart.PERMANENT), seed=1) as system:
        for restart in range(4):
            await grid.bring_about("crash", system.find("root/b"))
            begun = trio.current_time()
            await grid.journal.wait_starts("b", restart + 2)
            waits.append(trio.current_time() - begun)
    for number, waited in enumerate(waits):
        full = QUICK.first * 2**number
        assert full / 2 <= waited <= full


async def test_budget_refills_as_the_window_slides(autojump_clock: MockClock) -> None:
    grid = Grid()
    async with open_system("t", grid.tree(Strategy.ONE_FOR_ONE, Restart.PERMANENT, Budget(restarts=2, seconds=10))) as system:
        for _ in range(12):
            await grid.bring_about("crash", system.find("root/b"))
            await trio.sleep(6)
        assert grid.journal.starts("b") == 13


async def test_poison_letter_is_met_once() -> None:
    """A letter is out of the queue before it is handled, so it cannot crash the next incarnation too."""
    grid = Grid()
    async with open_system("t", grid.tree(Strategy.ONE_FOR_ONE, Restart.PERMANENT)) as system:
        ref = system.find("root/b")
        ref.tell_nowait(Crash())
        reason = await ref.wait_exit()
        assert isinstance(reason, Crashed)
        await grid.journal.wait_starts("b", 2)
        assert system.find("root/b").alive
        assert system.find("root/b").statistics()[0].handled == 0
        assert grid.journal.starts("b") == 2


async def test_crash_is_logged_once_by_its_owner(caplog: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    grid = Grid()
    async with open_system("t", grid.tree(Strategy.ONE_FOR_ALL, Restart.PERMANENT)) as system:
        await grid.bring_about("crash", system.find("root/b"))
        await trio.sleep(5)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert errors[0].getMessage() == "root/b crashed: ValueError: as told"
    assert errors[0].exc_info is not None


def test_pool_is_the_only_strategy_with_a_public_handle() -> None:
    assert {name for name in vars(Pool) if not name.startswith("_")} == {"start_child", "path"}
