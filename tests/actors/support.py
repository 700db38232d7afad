"""Small actors and harnesses that the kernel's tests share."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio
from attrs import Factory, define, field, frozen
from trio.testing import MockClock

from tuneplane.actors import Actor, Backoff, Budget, ChildSpec, Context, MailboxSpec, Ref, Restart, SupervisorSpec, handles, on_signal

ASK_SECONDS = 5.0
QUICK = Backoff(first=0.1, most=1.0)


@frozen
class Add:
    amount: int


@frozen
class Read:
    pass


@frozen
class Crash:
    text: str = "as told"


@frozen
class Refuse:
    pass


@frozen
class Wait:
    """Hold the worker until the gate opens."""


@frozen
class Unknown:
    pass


class Refusal(Exception):
    pass


@define
class Journal:
    """What happened to whom, in order: ``start b``, ``stop b``."""

    lines: list[str] = Factory(list)
    refs: list[Ref] = Factory(list)  # of every incarnation that began
    _changed: trio.Event = Factory(trio.Event)

    def add(self, what: str, context: Context) -> None:
        self.lines.append(f"{what} {context.name}")
        if what == "start":
            self.refs.append(context.ref)
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def wait_starts(self, name: str, count: int) -> None:
        while self.starts(name) < count:
            await self._changed.wait()
        await settle()

    def starts(self, name: str) -> int:
        return self.lines.count(f"start {name}")

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


@define
class Probe(Actor):
    """Counts, waits, refuses and crashes as told; writes its life into a journal."""

    mailboxes = (
        MailboxSpec("work", 3, "small, so that tests fill it"),
        MailboxSpec("status", 2, "beside the work"),
    )
    journal: Journal = Factory(Journal)
    gate: trio.Event = Factory(trio.Event)
    begun: trio.Event = Factory(trio.Event)  # the first Wait is in hand
    total: int = 0
    seen: list[str] = Factory(list)
    fail_starts: list[Exception] = Factory(list)  # raised by on_start, one per incarnation
    finish: trio.Event = Factory(trio.Event)

    async def on_start(self, context: Context) -> None:
        self.journal.add("start", context)
        if self.fail_starts:
            raise self.fail_starts.pop(0)

    async def run(self, context: Context) -> None:
        with context.until_stopping():
            await self.finish.wait()

    async def on_stop(self, context: Context) -> None:
        self.journal.add("stop", context)

    @handles(Add)
    async def add(self, message: Add, context: Context) -> int:
        self.total += message.amount
        self.seen.append(f"add {message.amount}")
        return self.total

    @handles(Crash)
    async def crash(self, message: Crash, context: Context) -> None:
        raise ValueError(message.text)

    @handles(Refuse, raises=(Refusal,))
    async def refuse(self, message: Refuse, context: Context) -> None:
        raise Refusal("not today")

    @handles(Wait)
    async def wait(self, message: Wait, context: Context) -> str:
        self.seen.append("wait")
        self.begun.set()
        await self.gate.wait()
        return "waited"

    @handles(Read, mailbox="status")
    async def read(self, message: Read, context: Context) -> int:
        return self.total

    @on_signal("poke")
    async def poked(self, context: Context) -> None:
        self.seen.append("poke")


def one(make: Callable[[], Actor], *, name: str = "probe", budget: Budget | None = None, **child: Any) -> SupervisorSpec:
    """A root with one child; temporary unless told otherwise, so that it stays down."""
    child.setdefault("restart", Restart.TEMPORARY)
    spec = ChildSpec(name=name, factory=make, **child)
    return SupervisorSpec(name="root", children=(spec,), backoff=QUICK, budget=budget or Budget())


def only(actor: Actor) -> Callable[[], Actor]:
    """A factory for a child that must not be started twice."""
    left = [actor]
    return left.pop


async def settle() -> None:
    """Let every other task run until it waits for something."""
    await trio.testing.wait_all_tasks_blocked()


@contextmanager
def seeded_scheduler(seed: int) -> Iterator[None]:
    """Make Trio's order of runnable tasks a function of ``seed`` (the switch that Trio has for test libraries)."""
    run = trio._core._run
    former, former_random = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r
    run._ALLOW_DETERMINISTIC_SCHEDULING, run._r = True, random.Random(seed)  # type: ignore[misc]
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING, run._r = former, former_random  # type: ignore[misc]


def run_seeded(scenario: Callable[[], Awaitable[Any]], seed: int, *instruments: trio.abc.Instrument) -> Any:
    """One run on the mock clock with a seeded scheduler."""
    with seeded_scheduler(seed):
        return trio.run(scenario, clock=MockClock(autojump_threshold=0), instruments=instruments)


@define(slots=False, eq=False)
class CancelAt(trio.abc.Instrument):
    """Cancels ``scope`` just before the ``step``-th task step after it was armed."""

    step: int
    steps: int = 0
    scope: trio.CancelScope | None = field(default=None)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.scope is None:
            return
        self.steps += 1
        if self.steps == self.step:
            self.scope.cancel()


def boxes_at_rest(ref: Ref) -> bool:
    """No task waits at any mailbox of a dead incarnation, and none has a letter in hand."""
    return all(not (box._queue or box._senders or box.idle or box.in_hand or box.waits_on) for box in ref._cell.mailboxes.values())
