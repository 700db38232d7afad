"""Many actors, many askers, crashes, kills and stops in random order: every letter ends once, every asker is answered."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
from attrs import Factory, define

from tuneplane.actors import (
    ActorGone,
    AskExpired,
    AskFailed,
    Budget,
    ChildSpec,
    Context,
    Kind,
    MailboxFull,
    NameTaken,
    PoolFull,
    Restart,
    StartFailed,
    Strategy,
    SupervisorSpec,
    System,
    handles,
    open_system,
)

from .support import QUICK, Add, Crash, Journal, Probe, Read, Refuse, boxes_at_rest, run_seeded

ACTS = 25
CLIENTS = 24
ENDS = {Kind.HANDLED, Kind.EXPIRED, Kind.CRASHED, Kind.REFUSED}
EXPECTED = (ActorGone, AskExpired, AskFailed, MailboxFull, NameTaken, PoolFull, StartFailed)
BUDGET = Budget(restarts=10_000, seconds=1.0)  # this test is about letters, not about giving up


@define
class Slow(Probe):
    """Takes its time, so that mailboxes fill and deadlines pass."""

    @handles(Add)
    async def add(self, message: Add, context: Context) -> int:
        await trio.sleep(0.02)
        self.total += message.amount
        return self.total


@define
class Soak:
    chance: random.Random
    journal: Journal = Factory(Journal)
    answered: Counter[str] = Factory(Counter)

    def child(self, name: str, restart: Restart = Restart.PERMANENT) -> ChildSpec:
        return ChildSpec(name=name, factory=lambda: Slow(journal=self.journal), restart=restart)

    def tree(self) -> SupervisorSpec:
        def group(name: str, strategy: Strategy) -> SupervisorSpec:
            children = tuple(self.child(f"{name}-{number}") for number in range(3)) if strategy is not Strategy.POOL else ()
            return SupervisorSpec(name=name, children=children, strategy=strategy, backoff=QUICK, budget=BUDGET)

        groups = tuple(group(strategy.value, strategy) for strategy in Strategy)
        return SupervisorSpec(name="root", children=groups, backoff=QUICK, budget=BUDGET)

    async def act(self, system: System) -> None:
        kind = self.chance.choice(("ask", "ask", "ask", "tell", "poke", "crash", "kill", "stop", "start", "refuse", "cancel"))
        refs = list(system.refs().values())
        if kind == "start" or not refs:
            name = f"n{self.chance.randrange(8)}"
            await system.pool("root/pool").start_child(self.child(name, self.chance.choice(list(Restart))))
            return
        ref = self.chance.choice(refs)
        if kind == "ask":
            await ref.ask(self.chance.choice((Add(1), Read())), self.chance.choice((0.001, 5.0)))
        elif kind == "tell":
            await ref.tell(Add(1))
        elif kind == "cancel":
            with trio.move_on_after(self.chance.choice((0, 0.01))):
                await ref.ask(Add(1), 5.0)
        elif kind in ("crash", "refuse"):
            await ref.ask(Crash() if kind == "crash" else Refuse(), 5.0)
        else:
            {"poke": lambda: ref.signal("poke"), "kill": ref.kill, "stop": ref.stop}[kind]()

    async def client(self, system: System) -> None:
        for _ in range(ACTS):
            try:
                await self.act(system)
                self.answered["done"] += 1
            except EXPECTED as error:
                self.answered[type(error).__name__] += 1
            await trio.sleep(self.chance.random() * 0.02)

    async def run(self) -> System:
        async with open_system("soak", self.tree(), seed=1, trace_size=100_000) as system, trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(self.client, system)
        return system


@pytest.mark.parametrize("seed", range(12))
def test_every_letter_ends_once_and_every_asker_is_answered(seed: int) -> None:
    soak = Soak(random.Random(seed))
    system: System = run_seeded(soak.run, seed)
    assert soak.answered.total() == ACTS * CLIENTS
    assert {"done", "ActorGone", "AskFailed", "AskExpired", "MailboxFull"} <= set(soak.answered), "the soak meets what it is about"
    assert system.refs() == {}
    assert system.overdue == []
    assert all(ref.exit_reason is not None and boxes_at_rest(ref) for ref in soak.journal.refs)
    lives: dict[int, list[Kind]] = {}
    for event in system.trace.read(limit=100_000):
        if event.letter:
            lives.setdefault(event.letter, []).append(event.kind)
    for letter, kinds in lives.items():
        assert sum(kind in ENDS for kind in kinds) <= 1, f"letter {letter}: {kinds}"
        assert kinds.count(Kind.RECEIVED) <= 1, f"letter {letter} was handled twice: {kinds}"
        assert kinds[0] in (Kind.SENT, Kind.REFUSED)
