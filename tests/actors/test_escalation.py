"""Escalation, overdue children, and how a whole system ends."""

from __future__ import annotations

import pytest
import trio
from attrs import define
from trio.testing import MockClock

from tuneplane.actors import (
    Budget,
    ChildSpec,
    Context,
    Crashed,
    GaveUp,
    Kind,
    Restart,
    Stopped,
    Strategy,
    SupervisorSpec,
    System,
    SystemFailed,
    handles,
    open_system,
)
from tuneplane.actors.supervisor import OVERDUE_MARGIN_SECONDS

from .support import QUICK, Crash, Journal, Probe, Wait, boxes_at_rest, one, settle


def nest(journal: Journal, inner: Budget, outer: Budget) -> SupervisorSpec:
    def child(name: str) -> ChildSpec:
        return ChildSpec(name=name, factory=lambda: Probe(journal=journal))

    inside = SupervisorSpec(name="inner", children=(child("x"), child("y")), budget=inner, backoff=QUICK)
    return SupervisorSpec(name="root", children=(child("a"), inside, child("z")), budget=outer, backoff=QUICK)


async def crash(system: System, path: str) -> None:
    """Crash the actor at ``path`` and wait until it is back, or the system is down."""
    ref = system.find(path)
    await ref.tell(Crash())
    await ref.wait_exit()
    await trio.sleep(5)


async def test_supervisor_out_of_budget_is_restarted_by_its_own(autojump_clock: MockClock) -> None:
    journal = Journal()
    spec = nest(journal, Budget(restarts=1, seconds=60), Budget(restarts=3, seconds=60))
    async with open_system("t", spec) as system:
        await crash(system, "root/inner/x")
        assert journal.take() == ["start a", "start x", "start y", "start z", "stop x", "start x"]
        await crash(system, "root/inner/x")
        assert journal.take() == ["stop x", "stop y", "start x", "start y"], "its children go with it, its siblings stay"
        inner = system.tree().children[1]
        assert inner.restarts == 1
        assert inner.last_exit.startswith("gave up: root/inner/x needed more than 1 restarts in 60 s; last crashed: ValueError")
        assert set(system.refs()) == {"root/a", "root/inner/x", "root/inner/y", "root/z"}


async def test_root_out_of_budget_cancels_the_block_and_raises_with_the_whole_way(autojump_clock: MockClock) -> None:
    journal = Journal()
    spec = nest(journal, Budget(restarts=0, seconds=60), Budget(restarts=1, seconds=60))
    with pytest.raises(SystemFailed, match=r"gave up: root/inner needed .* gave up: root/inner/x") as caught:  # noqa: PT012 - the block is the subject
        async with open_system("t", spec) as system:
            await crash(system, "root/inner/x")
            await crash(system, "root/inner/x")
            pytest.fail("the block goes on although its actors are gone")
    reason = caught.value.reason
    assert isinstance(reason, GaveUp)
    assert isinstance(reason.last, GaveUp)
    assert isinstance(reason.last.last, Crashed)
    assert journal.lines[-4:] == ["stop x", "stop y", "stop z", "stop a"]
    assert all(boxes_at_rest(ref) for ref in journal.refs)


async def test_root_that_gives_up_before_it_was_ready_never_enters_the_block(autojump_clock: MockClock) -> None:
    def make() -> Probe:
        return Probe(fail_starts=[OSError("no disk")])

    with pytest.raises(SystemFailed, match="no disk"):
        async with open_system("t", one(make, restart=Restart.PERMANENT, budget=Budget(restarts=2, seconds=60))):
            pytest.fail("entered without its children")


async def test_block_that_raises_stops_the_tree_and_its_error_comes_out_unwrapped() -> None:
    journal = Journal()
    with pytest.raises(KeyError, match="block"):
        async with open_system("t", one(lambda: Probe(journal=journal))):
            raise KeyError("block")
    assert journal.lines == ["start probe", "stop probe"]


async def test_error_of_the_block_is_chained_when_the_root_gave_up_too(autojump_clock: MockClock) -> None:
    with pytest.raises(SystemFailed) as caught:  # noqa: PT012 - the block is the subject
        async with open_system("t", one(Probe, restart=Restart.PERMANENT, budget=Budget(restarts=0, seconds=1))) as system:
            system.find("root/probe").tell_nowait(Crash())
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("block")
    assert isinstance(caught.value.__cause__, KeyError)


async def test_block_that_is_cancelled_stops_the_tree_in_reverse_with_grace(autojump_clock: MockClock) -> None:
    journal = Journal()
    with trio.move_on_after(3):
        async with open_system("t", nest(journal, Budget(), Budget())):
            await trio.sleep_forever()
    assert journal.lines[-4:] == ["stop z", "stop y", "stop x", "stop a"]


async def test_system_stopped_from_inside_lets_the_block_go_on() -> None:
    async with open_system("t", one(Probe)) as system:
        system.stop()
        assert await system.wait() == Stopped()
        assert system.refs() == {}


@define
class Deaf(Probe):
    """Its handler shields itself: neither a stop nor a cancel ends it before the gate opens."""

    @handles(Wait)
    async def wait(self, message: Wait, context: Context) -> None:
        with trio.CancelScope(shield=True):
            self.begun.set()
            await self.gate.wait()


async def test_overdue_child_is_reported_by_name_and_still_waited_for(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, nursery: trio.Nursery
) -> None:
    deaf = Deaf()
    stop_seconds, cleanup_seconds = 3.0, 2.0

    async def open_gate() -> None:
        await trio.sleep(60)
        deaf.gate.set()

    left = [deaf]
    spec = SupervisorSpec(
        name="root",
        children=(
            ChildSpec(name="first", factory=lambda: Probe(journal=deaf.journal)),
            ChildSpec(name="deaf", factory=left.pop, stop_seconds=stop_seconds, cleanup_seconds=cleanup_seconds),
        ),
    )
    async with open_system("t", spec) as system:
        system.find("root/deaf").tell_nowait(Wait())
        await deaf.begun.wait()
        nursery.start_soon(open_gate)
        begun = trio.current_time()
        system.stop()
        await trio.sleep(stop_seconds + cleanup_seconds + OVERDUE_MARGIN_SECONDS - 0.01)
        assert system.overdue == []
        await trio.sleep(0.02)
        assert system.overdue == ["root/deaf"]
        assert system.ref("root/first") is not None, "those before it are stopped after it"
        await system.wait()
        assert trio.current_time() - begun == pytest.approx(60)
        assert [event.path for event in system.trace.read() if event.kind is Kind.OVERDUE] == ["root/deaf"]
    assert "root/deaf is overdue" in caplog.text
    assert deaf.journal.lines[-2:] == ["stop deaf", "stop first"]


async def test_leaving_the_block_waits_no_longer_than_all_graces_before_it_cancels_the_tree(autojump_clock: MockClock) -> None:
    """The last rung: who hangs in a shield is named, everybody else is cancelled."""
    deaf = Deaf()
    left = [deaf]
    journal = Journal()
    spec = SupervisorSpec(
        name="root",
        children=(
            ChildSpec(name="first", factory=lambda: Probe(journal=journal)),
            ChildSpec(name="deaf", factory=left.pop, stop_seconds=1.0, cleanup_seconds=1.0),
        ),
    )

    async def open_gate() -> None:
        await trio.sleep(600)
        deaf.gate.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_gate)
        with pytest.raises(SystemFailed, match="killed"):  # noqa: PT012 - the block is the subject
            async with open_system("t", spec) as system:
                system.find("root/deaf").tell_nowait(Wait())
                await deaf.begun.wait()
        assert system.overdue == ["root/deaf"]
        assert journal.lines == ["start first", "stop first"]


async def test_stop_limit_is_the_sum_of_graces_except_in_a_pool() -> None:
    def children() -> tuple[ChildSpec, ...]:
        return tuple(ChildSpec(name=name, factory=Probe, stop_seconds=3, cleanup_seconds=1) for name in "abc")

    limits = {}
    for strategy in (Strategy.ONE_FOR_ONE, Strategy.POOL):
        async with open_system("t", SupervisorSpec(name="root", children=children(), strategy=strategy)) as system:
            assert system.root is not None
            limits[strategy] = system.root.stop_limit
    assert limits[Strategy.ONE_FOR_ONE] == 12 + 3 * OVERDUE_MARGIN_SECONDS
    assert limits[Strategy.POOL] == 4 + OVERDUE_MARGIN_SECONDS


async def test_child_that_dies_while_its_supervisor_stops_is_not_restarted(autojump_clock: MockClock) -> None:
    journal = Journal()
    async with open_system("t", nest(journal, Budget(), Budget())) as system:
        system.find("root/a").tell_nowait(Crash())
        system.stop()
        await system.wait()
        await settle()
    assert journal.starts("a") == 1
