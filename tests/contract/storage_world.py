"""A storage with a Fleet, Nodes, sessions and jobs in it, by the port's own methods: what the contract suite runs on.

Whatever implements domain.ports.Storage can run the suite: add an opener to ``OPENERS``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from attrs import define, evolve, field

from tests.sim.twin import Twin
from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.fleets import Capability, Delivery, Fleet, FleetKind
from tuneplane.domain.frames import Hello, Observation
from tuneplane.domain.ids import (
    FleetId,
    GatewayId,
    JobId,
    JournalId,
    MemberId,
    NodeId,
    TokenId,
    TraceId,
    UserName,
    WorkerId,
    attempt_id,
    member_id,
)
from tuneplane.domain.inventory import Budgets, Gpu, Inventory
from tuneplane.domain.jobs import Claim, JoinRequest, JoinToken, NodeIdentity, OutgoingCommand, PlacedMember, SessionOpened
from tuneplane.domain.jobspec import JobBody, JobSpec, Metadata, RuntimeRef, WorkKind
from tuneplane.domain.launch_table import AttemptEvent, AttemptState, LaunchView, MemberPhase
from tuneplane.domain.nodes import Node
from tuneplane.domain.ports import Storage
from tuneplane.domain.verdict import decide
from tuneplane.storage import open_storage

START = datetime.now(UTC)  # some leases are judged by the database's own clock
FLEET = FleetId("lab")
GATEWAY = GatewayId("gateway-1")
WORKER = WorkerId("worker-1")
USER = UserName("ada")
GB = 10**9

OpenWorld = Callable[[], AbstractAsyncContextManager["World"]]


def a_fleet(name: str = FLEET, kind: FleetKind = FleetKind.NODE, at: datetime = START) -> Fleet:
    return Fleet(id=FleetId(name), kind=kind, delivery=Delivery.OBJECT_PULL, capabilities=(Capability.TRAIN,), created_at=at)


def an_inventory(cards: tuple[str, ...] = (), *, cpus: int = 16, memory_gb: int = 64, **changes: object) -> Inventory:
    gpus = tuple(Gpu(index=index, uuid=uuid, name="H100", memory_bytes=80 * GB) for index, uuid in enumerate(cards))
    budgets = Budgets(cpu_millis=cpus * 1000, memory_bytes=memory_gb * GB, gpu_indexes=tuple(range(len(cards))))
    made = Inventory(hostname="host", node_version="1", cpu_count=cpus, memory_bytes=memory_gb * GB, gpus=gpus, budgets=budgets)
    return evolve(made, **changes)


def a_spec(name: str = "train", **body: object) -> JobSpec:
    made = JobBody(command=("train",), runtime=RuntimeRef(image="registry/train:1"))
    return JobSpec(apiVersion="tuneplane/v1", kind=WorkKind.TRAINING_JOB, metadata=Metadata(name=name), spec=evolve(made, **body))


def a_member(
    job: JobId, node: NodeId, *, number: int = 1, rank: int = 0, cards: tuple[str, ...] = (), cpus: int = 1, **more: object
) -> PlacedMember:
    made = PlacedMember(
        member=member_id(attempt_id(job, number), rank),
        node=node,
        rank=rank,
        plan=f'{{"gpu_uuids": [{", ".join(f"{chr(34)}{card}{chr(34)}" for card in cards)}]}}'.encode(),
        plan_digest="sha256:plan",
        cpu_millis=cpus * 1000,
        memory_bytes=GB,
        gpu_uuids=cards,
    )
    return evolve(made, **more)


async def audit_lines(storage: Storage) -> list[tuple[str, str, str, str, bool]]:
    """The audit log in order: actor, action, subject, detail, forced. No port reads it, so this looks inside."""
    if isinstance(storage, Twin):
        return [(row.actor, row.action, row.subject, row.detail, row.forced) for row in storage.book.audit]
    rows = await storage._db.fetch("SELECT actor, action, subject, detail, forced FROM audit ORDER BY sequence")
    return [tuple(row.values()) for row in rows]


@define(eq=False)
class World:
    """``now`` is the test's clock: move it with :meth:`later`."""

    storage: Storage
    now: datetime = START
    claimed: Claim | None = None  # what a test wants to remember
    tries: int = 0
    _revisions: dict[str, int] = field(factory=dict, init=False)

    def later(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now

    async def fleet(self, name: str = FLEET, kind: FleetKind = FleetKind.NODE) -> Fleet:
        made = a_fleet(name, kind, self.now)
        await self.storage.create_fleet(made)
        return made

    async def token(self, name: str = "t", *, fleet: str = FLEET, lives: float = 3600) -> TokenId:
        token = JoinToken(
            id=TokenId(name), fleet=FleetId(fleet), created_by=USER, created_at=self.now, expires_at=self.now + timedelta(seconds=lives)
        )
        await self.storage.mint_join_token(token, f"hash-{name}")
        return token.id

    async def join(
        self,
        node: str = "n1",
        *,
        token: str = "t",
        key: str = "k",
        try_: int = 1,
        fleet: str = FLEET,
        address: str = "host",
        inventory: Inventory | None = None,
    ) -> Node:
        request = JoinRequest(
            token="secret", join_key=key, try_=try_, address=address, node_version="1", protocol=1, inventory=inventory or an_inventory()
        )
        return await self.storage.join(
            FleetId(fleet),
            request,
            node=NodeId(node),
            token_hash=f"hash-{token}",
            join_key_hash=f"hash-{key}",
            credential_hash=f"credential-{node}-{try_}",
            credential_expires_at=self.now + timedelta(days=30),
            now=self.now,
        )

    async def node(
        self, name: str = "n1", *, cards: tuple[str, ...] = (), cpus: int = 16, ports: tuple[int, int] = (20000, 20999), route: str = ""
    ) -> SessionOpened:
        """Enrolled, connected through ``GATEWAY``, with a fresh inventory: ready."""
        if await self.storage.get_fleet(FLEET) is None:
            await self.fleet()
        await self.token(f"t-{name}")
        await self.join(name, token=f"t-{name}", key=name)
        if not await self.storage.renew_gateway(GATEWAY, self.now + timedelta(hours=1)):
            await self.storage.register_gateway(GATEWAY, "127.0.0.1", 9000, self.now, self.now + timedelta(hours=1))
        opened = await self.connect(name)
        seen = an_inventory(cards, cpus=cpus, route_address=route)
        seen = evolve(seen, budgets=evolve(seen.budgets, port_first=ports[0], port_last=ports[1]))
        await self.storage.record_inventory(NodeId(name), opened.epoch, seen, "sha256:i", self.now)
        return opened

    async def connect(
        self,
        node: str = "n1",
        *,
        gateway: GatewayId = GATEWAY,
        journal: str = "j1",
        sequence: int = 1,
        boot: str = "b1",
        machine: str = "m1",
    ) -> SessionOpened:
        hello = Hello(
            protocol=1,
            node=NodeId(node),
            fleet=FLEET,
            boot_id=boot,
            machine_id=f"{machine}-{node}",
            journal_id=JournalId(journal),
            journal_sequence=sequence,
            node_version="1",
            address="host",
            sent_at=self.now,
        )
        identity = NodeIdentity(node=NodeId(node), fleet=FLEET, credential_expires_at=self.now + timedelta(days=30))
        return await self.storage.open_session(identity, gateway, hello, self.now)

    async def submit(self, name: str = "job-a", *, key: str | None = None, fleet: str = FLEET, spec: JobSpec | None = None) -> JobId:
        made = spec or a_spec()
        job = await self.storage.submit(
            JobId(name),
            made,
            owner=USER,
            fleet=FleetId(fleet),
            image="registry/train@sha256:1",
            trace=TraceId("trace"),
            idempotency_key=key,
            now=self.now,
        )
        return job.id

    async def place(self, job: str = "job-a", node: str = "n1", *, cards: tuple[str, ...] = (), cpus: int = 1, **more: object) -> bool:
        member = a_member(JobId(job), NodeId(node), cards=cards, cpus=cpus, **more)
        return await self.storage.place(JobId(job), attempt_id(JobId(job), 1), 1, (member,), self.now)

    async def claim(self, worker: WorkerId = WORKER, *, job: str | None = None) -> Claim:
        """Claim what is free; the one claim, or that of ``job``."""
        claims = await self.storage.claim_attempts(worker, 10, self.now, self.now + timedelta(seconds=15))
        (claim,) = [claim for claim in claims if job is None or claim.job == job]
        return claim

    async def view(self, claim: Claim) -> LaunchView:
        view = await self.storage.load_launch(claim)
        assert view is not None
        return view

    async def step(self, claim: Claim, event: AttemptEvent) -> bool:
        """Look, and take the table's row for ``event``."""
        view = await self.view(claim)
        step = decide(view, event)
        return await self.storage.advance(claim, view, step.target, step.action, step.cause, step.verdict, self.now)

    async def send_all(self, gateway: GatewayId = GATEWAY) -> list[OutgoingCommand]:
        """What a gateway does: mark every outgoing command as sent."""
        found = await self.storage.outgoing_commands(gateway, 100)
        return [one for one in found if await self.storage.mark_sent(one.command.operation, one.node, one.command.session_epoch, self.now)]

    async def answer(self, sent: OutgoingCommand, *, accepted: bool = True, code: str = "", detail: str = "") -> None:
        command = sent.command
        await self.storage.answer_command(command.operation, sent.node, command.session_epoch, accepted, code, detail, self.now)

    async def see(self, member: MemberId, phase: MemberPhase, *, node: str = "n1", epoch: int = 1, **more: object) -> bool:
        """The Node's next observation of ``member``."""
        revision = self._revisions[member] = self._revisions.get(member, 0) + 1
        seen = Observation(member=member, revision=revision, phase=phase, plan_digest="sha256:plan", boot_id="b1")
        return await self.storage.observe(NodeId(node), epoch, evolve(seen, **more), self.now)

    async def launched(
        self, job: str = "job-a", node: str = "n1", *, until: AttemptState = AttemptState.RUNNING, **placed: object
    ) -> Claim:
        """Submit, place, claim and drive one job to ``until``, answering every command."""
        await self.submit(job)
        assert await self.place(job, node, **placed)
        claim = await self.claim(job=job)
        member = member_id(claim.attempt, 0)
        steps = (
            (AttemptState.PREPARING, AttemptEvent.CLAIMED, MemberPhase.PREPARED),
            (AttemptState.COMMITTED, AttemptEvent.ALL_PREPARED, MemberPhase.RUNNING),
            (AttemptState.RUNNING, AttemptEvent.ALL_RUNNING, None),
        )
        for state, event, phase in steps:
            assert await self.step(claim, event)
            for sent in await self.send_all():
                await self.answer(sent)
            if state is until:
                return claim
            if phase is not None:
                await self.see(member, phase, node=node)
        return claim


@asynccontextmanager
async def on_postgres(dsn: str) -> AsyncIterator[World]:
    async with open_bridge(), open_storage(dsn, size=24) as storage:
        yield World(storage)


@asynccontextmanager
async def on_twin() -> AsyncIterator[World]:
    """The simulator's storage (tests/sim/twin)."""
    yield World(Twin())


@pytest.fixture(params=["postgres", "twin"])
def open_world(request: pytest.FixtureRequest) -> OpenWorld:
    """How to open a fresh, empty world of each implementation."""
    if request.param == "twin":
        return on_twin
    dsn: str = request.getfixturevalue("database")
    return lambda: on_postgres(dsn)
