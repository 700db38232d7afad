"""Random histories of the storage port by concurrent clients, recorded for ``linearizer``; the twin is its sequential model.

A history has one world (two Nodes with two cards each, a few jobs in random states, two workers, one gateway) and
clients that share what they have learnt (claims, views, epochs, commands), so that they get into each other's way.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable, Hashable, Iterator
from datetime import datetime, timedelta
from typing import Any

import trio
from attrs import define, evolve, field, frozen

from tests.contract.linearizer import Call, Model
from tests.contract.sequential import Act, TwinModel, at_once, said, skipping
from tests.contract.storage_world import GATEWAY, START, USER, World, a_member, an_inventory
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.faultpoint import AnswerLost, install_fault_hook
from tuneplane.domain.frames import CommandKind, Observation
from tuneplane.domain.ids import JobId, MemberId, NodeId, WorkerId, attempt_id, member_id, operation_id
from tuneplane.domain.jobs import Claim
from tuneplane.domain.launch_table import ATTEMPT_TABLE, AttemptEvent, AttemptState, LaunchView, MemberPhase
from tuneplane.domain.node_member import PROGRESS_TICKS
from tuneplane.domain.nodes import NodeState
from tuneplane.domain.ports import Storage
from tuneplane.domain.verdict import decide

NODES = (NodeId("n1"), NodeId("n2"))
CARDS = {node: (f"GPU-{node}-a", f"GPU-{node}-b") for node in NODES}
JOBS = tuple(JobId(f"job-{letter}") for letter in "abcd")
WORKERS = (WorkerId("worker-1"), WorkerId("worker-2"))
LEASE = timedelta(seconds=2)
TICK = timedelta(seconds=0.4)  # between two moments of a history: leases of ten ticks run out within it
MOST_UNKNOWN = 3  # operations of one history: each doubles the search
LATER = tuple(phase for phase in MemberPhase if phase not in (MemberPhase.PENDING, MemberPhase.UNKNOWN))

# ---------------------------------------------------------------- one history


@frozen
class Op:
    what: str
    act: Act
    learn: Callable[[Any], None] = lambda result: None  # from a result that came
    skips_locked: bool = False  # it may leave out what another transaction has locked


@define(eq=False)
class History:
    """Generates, runs and records. ``luck`` decides everything but the order in which the database serves the clients."""

    luck: random.Random
    storage: Storage
    calls: list[Call] = field(factory=list)
    claims: list[Claim] = field(factory=list)
    views: list[tuple[Claim, LaunchView]] = field(factory=list)
    epochs: dict[NodeId, int] = field(factory=lambda: dict.fromkeys(NODES, 1))
    placed: dict[MemberId, NodeId] = field(factory=dict)  # as far as anybody has heard
    _clock: Iterator[int] = field(factory=lambda: itertools.count(1))
    _now: datetime = START + timedelta(minutes=1)

    def tick(self) -> datetime:
        self._now += TICK
        return self._now

    async def run(self, clients: int, length: int) -> None:
        for job in JOBS:
            known = await self.storage.get_job(job)
            self.placed |= {member.id: member.node for attempt in known.attempts for member in attempt.members} if known else {}
        async with trio.open_nursery() as nursery:
            for client in range(clients):
                nursery.start_soon(self._client, client, length)
        for op in self._last_looks():
            await self._do(clients, op)

    async def _client(self, client: int, length: int) -> None:
        for _ in range(length):
            await self._do(client, self._draw())

    async def _do(self, client: int, op: Op) -> None:
        invoked = next(self._clock)
        kept: list[object] = []

        async def act(storage: Storage) -> object:
            kept[:] = [await op.act(storage)]
            return kept[0]

        try:
            result = await said(act, self.storage)
        except StorageUnavailable:
            self.calls.append(Call(client, op.what, invoked, None, apply=self._apply(op, None)))
            return
        self.calls.append(Call(client, op.what, invoked, next(self._clock), result, apply=self._apply(op, result)))
        if kept:
            op.learn(kept[0])

    def _apply(self, op: Op, result: Hashable) -> Callable[[Model], Hashable]:
        def apply(model: Model) -> Hashable:
            assert isinstance(model, TwinModel)
            with skipping(model.twin, result if op.skips_locked else None):  # refused or unknown: nothing is left out
                return at_once(said(op.act, model.twin))  # type: ignore[arg-type]

        return apply

    # ------------------------------------------------ what clients do

    def _draw(self) -> Op:
        kinds = (
            self._place,
            self._place,
            self._claim,
            self._claim,
            self._renew,
            self._load,
            self._load,
            self._advance,
            self._advance,
            self._advance,
            self._stop,
            self._observe,
            self._observe,
            self._observe,
            self._mark_sent,
            self._mark_sent,
            self._answer,
            self._answer,
            self._connect,
            self._close,
            self._inventory,
            self._state,
            self._outgoing,
            self._get_job,
            self._submit,
        )
        return self.luck.choice(kinds)()

    def _place(self) -> Op:
        job, now, gang = self.luck.choice(JOBS), self.tick(), self.luck.random() < 0.4
        nodes = NODES if gang else (self.luck.choice(NODES),)
        cards = {node: tuple(self.luck.sample(CARDS[node], self.luck.randint(0, 2))) for node in nodes}
        cpus, port = self.luck.choice((1, 6, 12)), self.luck.choice(((), (30000,), (30001,)))
        members = tuple(a_member(job, node, rank=rank, cards=cards[node], cpus=cpus, ports=port) for rank, node in enumerate(nodes))

        def learn(placed: bool) -> None:
            self.placed |= {one.member: one.node for one in members} if placed else {}

        return Op(f"place {job} on {nodes} {cards} {cpus} CPUs {port}", lambda s: s.place(job, attempt_id(job, 1), 1, members, now), learn)

    def _claim(self) -> Op:
        worker, now, limit = self.luck.choice(WORKERS), self.tick(), self.luck.choice((1, 10))
        lease = now + self.luck.choice((LEASE, LEASE * 10))

        async def act(storage: Storage) -> object:  # in no promised order
            return sorted(await storage.claim_attempts(worker, limit, now, lease), key=lambda claim: claim.attempt)

        return Op(f"claim {limit} for {worker} until {lease:%S.%f}", act, self.claims.extend, skips_locked=True)

    def _renew(self) -> Op:
        worker, now = self.luck.choice(WORKERS), self.tick()
        mine = [claim for claim in self.claims if claim.worker == worker][-3:]
        return Op(f"renew {[(c.attempt, c.epoch) for c in mine]} of {worker}", lambda s: s.renew_claims(worker, mine, now + LEASE))

    def _load(self) -> Op:
        if not self.claims:
            return self._claim()
        claim = self.luck.choice(self.claims[-4:])

        def learn(view: LaunchView | None) -> None:
            if view is not None:
                self.views.append((claim, view))

        return Op(f"load {claim.attempt} under epoch {claim.epoch} of {claim.worker}", lambda s: s.load_launch(claim), learn)

    def _advance(self) -> Op:
        if not self.views:
            return self._load()
        claim, view = self.luck.choice(self.views[-3:])
        now = self.tick()
        event = self.luck.choice(_events(view) or [None])
        if event is None:
            return self._load()
        step = decide(view, event)
        what = f"advance {view.attempt} from {view.state.value} on {event.value}, epoch {claim.epoch} of {claim.worker}"
        return Op(what, lambda s: s.advance(claim, view, step.target, step.action, step.cause, step.verdict, now))

    def _stop(self) -> Op:
        job, now = self.luck.choice(JOBS), self.tick()
        return Op(f"stop {job}", lambda s: s.request_stop(job, USER, now))

    def _member(self) -> tuple[NodeId, MemberId]:
        if self.placed and self.luck.random() < 0.9:
            member = self.luck.choice(sorted(self.placed))
            return self.placed[member], member
        return self.luck.choice(NODES), member_id(attempt_id(self.luck.choice(JOBS), 1), self.luck.choice((0, 0, 1)))

    def _observe(self) -> Op:
        (node, member), now = self._member(), self.tick()
        phase, epoch = self.luck.choice(LATER), self._epoch(node)
        # a newer session's journal has grown: one that went back takes two units (doubt, then the report), which a gateway,
        # telling the reports of a Node one after the other, never runs beside another report
        revision = (10 * epoch + self.luck.randint(1, 6)) * PROGRESS_TICKS
        seen = Observation(member=member, revision=revision, phase=phase, plan_digest="sha256:plan", boot_id="b1", exit_code=0)
        seen = evolve(seen, cleaned=self.luck.random() < 0.5)
        return Op(
            f"observe {member} {phase.value} revision {revision} on {node}, epoch {epoch}", lambda s: s.observe(node, epoch, seen, now)
        )

    def _epoch(self, node: NodeId) -> int:
        return max(1, self.epochs[node] - (self.luck.random() < 0.15))

    def _command(self) -> tuple[NodeId, str, int]:
        node, member = self._member()
        return node, operation_id(member, self.luck.choice(tuple(CommandKind)).value), self._epoch(node)

    def _mark_sent(self) -> Op:
        (node, operation, epoch), now = self._command(), self.tick()
        return Op(f"mark {operation} sent to {node}, epoch {epoch}", lambda s: s.mark_sent(operation, node, epoch, now))  # type: ignore[arg-type]

    def _answer(self) -> Op:
        (node, operation, epoch), now, accepted = self._command(), self.tick(), self.luck.random() < 0.5
        act: Act = lambda s: s.answer_command(operation, node, epoch, accepted, "no", "because", now)  # type: ignore[arg-type]  # noqa: E731
        return Op(f"answer {operation} of {node} {accepted}, epoch {epoch}", act)

    def _connect(self) -> Op:
        node, journal, sequence = self.luck.choice(NODES), self.luck.choice(("j1", "j1", "j2")), self.luck.choice((1, 1, 2))
        now = self.tick()

        def learn(opened: Any) -> None:
            self.epochs[node] = max(self.epochs[node], opened.epoch)

        act: Act = lambda s: World(s, now).connect(node, journal=journal, sequence=sequence)  # noqa: E731
        return Op(f"open a session of {node}, journal {journal} at {sequence}", act, learn)

    def _close(self) -> Op:
        node, now = self.luck.choice(NODES), self.tick()
        epoch = self._epoch(node)
        return Op(f"close session {epoch} of {node}", lambda s: s.close_session(node, epoch, "bye", now))

    def _inventory(self) -> Op:
        node, now, some = self.luck.choice(NODES), self.tick(), self.luck.random() < 0.7
        epoch, cards = self._epoch(node), CARDS[node] if some else ()
        if self.luck.random() < 0.3:
            return Op(f"inventory of {node} is stale, epoch {epoch}", lambda s: s.inventory_stale(node, epoch, now))
        act: Act = lambda s: s.record_inventory(node, epoch, an_inventory(cards), "sha256:i", now)  # noqa: E731
        return Op(f"inventory of {node} with {len(cards)} cards, epoch {epoch}", act)

    def _state(self) -> Op:
        node, now, state = self.luck.choice(NODES), self.tick(), self.luck.choice((NodeState.ACTIVE, NodeState.DRAINING))
        return Op(f"{node} is set to {state.value}", lambda s: _node_view(s.set_node_state(node, state, "", now)))

    def _forget(self) -> Op:
        now = self.tick()
        return Op("at last forget what has ended", lambda s: s.forget_ended(now, 10, now))  # it leaves out what is locked

    def _outgoing(self) -> Op:
        return Op("what is to be sent", _outgoing)

    def _get_job(self) -> Op:
        job = self.luck.choice(JOBS)
        return Op(f"look at {job}", lambda s: s.get_job(job))

    def _submit(self) -> Op:
        job, now = JobId(f"job-{self.luck.choice('de')}"), self.tick()
        return Op(f"submit {job} under the key k", lambda s: World(s, now).submit(job, key="k"))

    def _last_looks(self) -> list[Op]:
        """What must come out alike when all is quiet."""
        now = self.tick()
        looks = [Op(f"at last {job}", lambda s, job=job: s.get_job(job)) for job in JOBS]  # type: ignore[misc]
        nodes = [Op(f"at last {node}", lambda s, node=node: _node_view(s.get_node(node, now))) for node in NODES]  # type: ignore[misc]
        return [*looks, *nodes, self._forget(), Op("at last what is to be sent", _outgoing)]


async def _outgoing(storage: Storage) -> object:
    return sorted(one.command.operation for one in await storage.outgoing_commands(GATEWAY, 100))


async def _node_view(found: Awaitable[Any]) -> object:
    node = await found
    return (node.state, node.cordons, node.members, node.free_gpu_uuids, node.capacity, node.inventory_healthy)


def _events(view: LaunchView) -> list[AttemptEvent | None]:
    """What the table knows in this state, true or not: the storage judges for itself."""
    return [event for state, event in ATTEMPT_TABLE if state is view.state and event is not AttemptEvent.RUNTIME_OVERDUE]


# ---------------------------------------------------------------- worlds


async def build(storage: Storage, luck: random.Random) -> None:
    """The same world on any storage, for the same ``luck``."""
    world = World(storage)
    for node in NODES:
        await world.node(node, cards=CARDS[node])
    for job, state in zip(JOBS, luck.sample((None, None, *AttemptState), len(JOBS)), strict=True):
        if state in (AttemptState.PREPARING, AttemptState.COMMITTED, AttemptState.RUNNING):
            await world.launched(job, luck.choice(NODES), until=state)
        else:
            await world.submit(job)
        if state is AttemptState.PENDING:
            await world.place(job, luck.choice(NODES))


@define(eq=False)
class Trouble:
    """A fault hook: some commits raise, before they happen or after (P-09)."""

    luck: random.Random
    left: int = MOST_UNKNOWN

    def __call__(self, name: str, moment: str) -> None:
        if self.left and name.startswith("storage.") and self.luck.random() < 0.04:
            self.left -= 1
            raise AnswerLost(name) if moment == "after" else StorageUnavailable(f"{name}: not committed")

    def __enter__(self) -> None:
        install_fault_hook(self)

    def __exit__(self, *_: object) -> None:
        install_fault_hook(None)
