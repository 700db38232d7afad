"""Cancelled at every step: a scenario is run again and again, cancelled one scheduler step later each time.

Mock clock and seeded scheduler, so that step n is the same step in every run. After each run: no task waits at a
mailbox, no registration is left, everybody who began has cleaned up, and what the caller was told is what happened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
from attrs import Factory, define

from tuneplane.actors import (
    ActorGone,
    AskExpired,
    AskFailed,
    ChildSpec,
    Context,
    Killed,
    MailboxFull,
    Ref,
    Restart,
    StartFailed,
    Strategy,
    SupervisorSpec,
    System,
    handles,
    open_system,
)
from tuneplane.actors.supervisor import Supervisor

from .support import QUICK, Add, CancelAt, Crash, Journal, Probe, Read, Wait, boxes_at_rest, run_seeded, settle

SEEDS = (1, 2, 3)
MOST_STEPS = 2000  # far more than any scenario here takes: a scenario that never ends is a bug
UNHEARD = (ActorGone, AskExpired, AskFailed, MailboxFull, StartFailed)


@define
class Busy(Probe):
    """A probe with an effect, a timer and a clean-up that waits."""

    async def on_start(self, context: Context) -> None:
        self.journal.add("start", context)
        context.timer("poke", 0.5)
        context.start_task(trio.sleep_forever)
        await trio.sleep(0.1)

    async def on_stop(self, context: Context) -> None:
        await trio.sleep(0.1)
        self.journal.add("stop", context)

    @handles(Wait)
    async def wait(self, message: Wait, context: Context) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0.2)
            nursery.start_soon(trio.sleep, 0.1)
        return "waited"


@asynccontextmanager
async def open_bare(name: str, spec: SupervisorSpec, *, seed: int) -> AsyncIterator[System]:
    """A tree without the shield of ``open_system``: a cancel hits every actor at once, as at the last rung of the ladder."""
    system = System(name, seed=seed, trace_size=0)
    root = system.root = Supervisor(system, spec, spec.name)
    ready = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(root.live, ready.set)
        await ready.wait()
        yield system
        system.stop()


@define
class Run:
    """One run of the big scenario and what must hold after it."""

    open: Callable[..., AbstractAsyncContextManager[System]] = open_system
    journal: Journal = Factory(Journal)
    system: System | None = None
    pending: int = 0

    def busy(self, name: str, restart: Restart = Restart.PERMANENT) -> ChildSpec:
        return ChildSpec(name=name, factory=lambda: Busy(journal=self.journal), restart=restart, stop_seconds=0.3)

    def tree(self) -> SupervisorSpec:
        pair = SupervisorSpec(name="pair", children=(self.busy("a"), self.busy("b")), strategy=Strategy.ONE_FOR_ALL, backoff=QUICK)
        pool = SupervisorSpec(name="pool", strategy=Strategy.POOL, backoff=QUICK)
        return SupervisorSpec(name="root", children=(pair, pool), backoff=QUICK)

    async def attempt(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        """Somebody who waits for an answer must get one, be it an error or a cancel."""
        self.pending += 1
        try:
            await work(*args)
        except UNHEARD:
            pass
        finally:
            self.pending -= 1

    async def scenario(self) -> None:
        async with self.open("t", self.tree(), seed=1) as system, trio.open_nursery() as nursery:
            self.system = system
            a, b = system.find("root/pair/a"), system.find("root/pair/b")
            for ref, message in ((a, Wait()), (a, Add(1)), (a, Add(2)), (b, Wait()), (b, Read())):
                nursery.start_soon(self.attempt, ref.ask, message, 3.0)
            for amount in range(5):
                nursery.start_soon(self.attempt, a.tell, Add(amount))
            pool = system.pool("root/pool")
            for name in ("x", "y"):
                nursery.start_soon(self.attempt, pool.start_child, self.busy(name, Restart.TEMPORARY))
            await trio.sleep(0.15)
            nursery.start_soon(self.attempt, b.ask, Crash(), 3.0)
            await self.attempt(a.wait_exit)
            await trio.sleep(1)

    def check(self) -> None:
        assert self.pending == 0
        if self.system is not None:
            assert self.system.refs() == {}
            assert self.system.overdue == []
        for ref in self.journal.refs:
            assert ref.exit_reason is not None
            assert boxes_at_rest(ref)
        began, ended = self.journal.lines.count, self.journal.lines.count
        for name in "abxy":
            assert began(f"start {name}") == ended(f"stop {name}"), f"{name}: {self.journal.lines}"


def cancelled_at(step: int, seed: int, opener: Callable[..., AbstractAsyncContextManager[System]]) -> tuple[Run, bool]:
    """Run the scenario, cancelling its scope at ``step``; whether there was such a step."""
    run, instrument = Run(opener), CancelAt(step)

    async def main() -> None:
        with trio.CancelScope() as scope:
            instrument.scope = scope
            await run.scenario()
        instrument.scope = None

    run_seeded(main, seed, instrument)
    return run, instrument.steps >= step


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("opener", [open_system, open_bare])
def test_system_cancelled_at_every_step_leaves_no_waiter_and_no_registration(
    seed: int, opener: Callable[..., AbstractAsyncContextManager[System]]
) -> None:
    for step in range(1, MOST_STEPS):
        run, reached = cancelled_at(step, seed, opener)
        run.check()
        if not reached:
            assert step > 150, "the scenario is shorter than it looks"
            return
    pytest.fail("the scenario never ends")


# --- one caller is cancelled, the actors live on ---


async def _tell_in_line(ref: Ref) -> None:
    await ref.tell(Add(7))


async def _ask(ref: Ref) -> None:
    await ref.ask(Add(7), 100.0)


async def _wait_exit(ref: Ref) -> None:
    await ref.wait_exit()


CALLS = {"tell": _tell_in_line, "ask": _ask, "wait_exit": _wait_exit}


async def _caller_cancelled(call: Callable[[Ref], Awaitable[None]], instrument: CancelAt) -> tuple[bool, Probe]:
    """A caller at a full mailbox that is emptied meanwhile. Whether the call returned, and the probe."""
    probe = Probe()
    left = [probe]
    spec = SupervisorSpec(name="root", children=(ChildSpec(name="probe", factory=left.pop, restart=Restart.TEMPORARY),))
    returned = False
    async with open_system("t", spec, seed=1) as system, trio.open_nursery() as nursery:
        ref = system.find("root/probe")
        for message in (Wait(), Add(1), Add(2)):
            await ref.tell(message)
        await probe.begun.wait()
        if call is _tell_in_line:
            await ref.tell(Add(3))

        async def caller() -> None:
            nonlocal returned
            with trio.CancelScope() as scope:
                instrument.scope = scope
                await call(ref)
                returned = True
            instrument.scope = None

        nursery.start_soon(caller)
        await settle()
        probe.gate.set()
        await settle()
        if call is _wait_exit:
            ref.stop()
            await settle()
        else:
            assert await ref.ask(Read(), 1.0) == probe.total, "the actor lives on"
            assert ref.statistics()[0].senders_waiting == 0
    assert boxes_at_rest(ref)
    return returned, probe


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CALLS)
def test_caller_cancelled_at_every_step_was_told_the_truth(name: str, seed: int) -> None:
    """A tell that returned was handled, a tell that was cancelled was not; an ask that returned was handled."""
    for step in range(1, MOST_STEPS):
        instrument = CancelAt(step)
        returned, probe = run_seeded(lambda at=instrument: _caller_cancelled(CALLS[name], at), seed, instrument)
        handled = probe.seen.count("add 7")
        if name == "tell":
            assert handled == returned
        if name == "ask":
            assert handled >= returned
        if instrument.steps < step:
            assert returned
            return
    pytest.fail("the scenario never ends")


@pytest.mark.parametrize("seed", SEEDS)
def test_start_child_cancelled_at_every_step_keeps_the_child_or_leaves_nothing(seed: int) -> None:
    for step in range(1, MOST_STEPS):
        run, instrument = Run(), CancelAt(step)

        async def main(run: Run = run, instrument: CancelAt = instrument) -> bool:
            returned = False
            async with open_system("t", run.tree(), seed=1) as system:
                with trio.CancelScope() as scope:
                    instrument.scope = scope
                    await system.pool("root/pool").start_child(run.busy("x"))
                    returned = True
                instrument.scope = None
                await trio.sleep(1)
                assert (system.ref("root/pool/x") is not None) == returned
                assert len(system.tree().children[1].children) == returned
            run.system = system
            return returned

        returned = run_seeded(main, seed, instrument)
        run.check()
        if instrument.steps < step:
            assert returned
            return
    pytest.fail("the scenario never ends")


@pytest.mark.parametrize("seed", SEEDS)
def test_actor_killed_at_every_step_answers_everybody(seed: int) -> None:
    """Like a cancel from within: the target dies at step n of serving its letters."""
    for step in range(1, MOST_STEPS):
        outcomes: list[str] = []
        instrument = CancelAt(step)

        async def main(outcomes: list[str] = outcomes, instrument: CancelAt = instrument) -> None:
            child = ChildSpec(name="probe", factory=Busy, restart=Restart.TEMPORARY)
            async with open_system("t", SupervisorSpec(name="root", children=(child,)), seed=1) as system:
                ref = system.find("root/probe")

                async def ask(message: object) -> None:
                    try:
                        await ref.ask(message, 100.0)
                        outcomes.append("answered")
                    except ActorGone as gone:
                        outcomes.append("gone, killed" if gone.reason == Killed() else repr(gone))

                async with trio.open_nursery() as nursery:
                    for message in (Wait(), Add(1), Add(2), Read()):
                        nursery.start_soon(ask, message)
                    instrument.scope = ref._cell._scope  # as Ref.kill does, but between any two steps
                    ref._cell._killed = True
                    await trio.sleep(1)
                instrument.scope = None

        run_seeded(main, seed, instrument)
        assert len(outcomes) == 4
        assert set(outcomes) <= {"answered", "gone, killed"}
        if instrument.steps < step:
            return
    pytest.fail("the scenario never ends")
