"""A control plane of worker and gateway in one actor system, on a real database and real sockets, for the tests of this room."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trio
import trustme
from attrs import define, field, frozen

from tests.control.scripted_node import ScriptedNode, inventory
from tuneplane.actors import SupervisorSpec, System, open_system
from tuneplane.bridge.loop import open_bridge
from tuneplane.control.gateway import gateway_root
from tuneplane.control.logs import RelayLogReader
from tuneplane.control.relay import WhereAreYou
from tuneplane.control.worker import worker_root
from tuneplane.domain.fleets import Capability, Delivery, Fleet, FleetKind
from tuneplane.domain.ids import FleetId, GatewayId, JobId, NodeId, TokenId, TraceId, UserName, WorkerId
from tuneplane.domain.jobs import Job, JoinRequest, JoinToken
from tuneplane.domain.jobspec import JobBody, JobSpec, Metadata, Pool, Resources, RuntimeRef, WorkKind
from tuneplane.domain.launch_table import FINAL_JOB_STATES, JobState, MemberPhase
from tuneplane.domain.ports import Storage, Topic
from tuneplane.domain.secrets import SecretKind, secret_hash, spell_secret
from tuneplane.domain.timings import PRODUCTION, Timings
from tuneplane.storage import open_storage
from tuneplane.wire.relay import RELAY_NAME
from tuneplane.wire.tls import client_context, server_context

TIMINGS = PRODUCTION.scaled(0.1)  # heartbeat 0.7 s, idle 2 s, claims 1.5 s, poll 0.2 s
FLEET = FleetId("lab")
ADA = UserName("ada")
IMAGE = "registry.example/busybox@sha256:" + "0" * 64


def now() -> datetime:
    return datetime.now(UTC)


@frozen
class Tls:
    """Certificates of one test: a gateway's for 127.0.0.1, and the internal mutual-TLS identity."""

    gateway: ssl.SSLContext
    node: ssl.SSLContext
    relay: ssl.SSLContext
    reader: ssl.SSLContext


def make_tls(place: Path) -> Tls:
    authority = trustme.CA()
    files = {}
    for name, host in (("gateway", "127.0.0.1"), ("internal", RELAY_NAME)):
        issued = authority.issue_cert(host)
        files[name] = (place / f"{name}.crt", place / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(files[name][0])
        issued.private_key_pem.write_to_path(files[name][1])
    authority.cert_pem.write_to_path(place / "ca.crt")
    trust = authority.cert_pem.bytes().decode()
    return Tls(
        gateway=server_context(*files["gateway"]),
        node=client_context(trust_pem=trust),
        relay=server_context(*files["internal"], client_ca=place / "ca.crt"),
        reader=client_context(trust_pem=trust, certificate=files["internal"][0], key=files["internal"][1]),
    )


@define(eq=False)
class Plane:
    """What a test holds: the storage, the actor systems, and ways to wait for what a user would see."""

    storage: Storage
    tls: Tls
    timings: Timings
    nursery: trio.Nursery
    _count: int = field(default=0, init=False)

    @asynccontextmanager
    async def worker(
        self, name: str = "worker-1", storage: Storage | None = None, storage_root: str = "/srv/tuneplane"
    ) -> AsyncIterator[System]:
        """A worker process, as a system of its own."""
        root = worker_root(storage or self.storage, WorkerId(name), self.timings, now, os.urandom, storage_root=storage_root)
        async with open_system(name, SupervisorSpec(name="root", children=(root,))) as system:
            yield system
        assert system.overdue == [], "every actor stops in time"

    @asynccontextmanager
    async def gateway(self, name: str = "gateway-1", storage: Storage | None = None) -> AsyncIterator[Gateway]:
        """A gateway process, as a system of its own, on free ports."""
        root = gateway_root(
            storage or self.storage,
            GatewayId(name),
            self.timings,
            now,
            os.urandom,
            listen=("127.0.0.1", 0),
            tls=self.tls.gateway,
            relay=("127.0.0.1", 0),
            relay_tls=self.tls.relay,
        )
        async with open_system(name, SupervisorSpec(name="root", children=(root,))) as system:
            listener = system.ref("root/gateway/listener")
            assert listener is not None
            host, port = await listener.ask(WhereAreYou(), 5.0)
            yield Gateway(GatewayId(name), system, f"{host}:{port}")
        assert system.overdue == [], "every actor stops in time"

    async def enrol(self, target: str, timings: Timings | None = None) -> ScriptedNode:
        """A new Node of Fleet ``lab``, through a Join Token, not connected yet."""
        self._count += 1
        secret, credential = (spell_secret(kind, os.urandom(32)) for kind in (SecretKind.JOIN_TOKEN, SecretKind.NODE_CREDENTIAL))
        token = JoinToken(
            id=TokenId(f"token-{self._count}"), fleet=FLEET, created_by=ADA, created_at=now(), expires_at=now() + timedelta(days=1)
        )
        await self.storage.mint_join_token(token, secret_hash(secret))
        request = JoinRequest(
            token=secret, join_key="key", try_=1, address="127.0.0.1", node_version="0.1.0", protocol=1, inventory=inventory()
        )
        node = await self.storage.join(
            FLEET,
            request,
            node=NodeId(f"node-{self._count}"),
            token_hash=secret_hash(secret),
            join_key_hash=secret_hash("key"),
            credential_hash=secret_hash(credential),
            credential_expires_at=now() + timedelta(days=30),
            now=now(),
        )
        return ScriptedNode(
            node=node.id, fleet=FLEET, credential=credential, target=target, tls=self.tls.node, timings=timings or self.timings
        )

    async def connect(self, gateway: Gateway) -> ScriptedNode:
        """A new Node that stays connected for the rest of the test, and has been found ready."""
        node = await self.enrol(gateway.target)
        self.nursery.start_soon(node.run)
        await self.wait_until(lambda: self._healthy(node.node), f"{node.node} with a fresh inventory")
        return node

    async def _healthy(self, node: NodeId) -> tuple[bool, object]:
        found = await self.storage.get_node(node, now())
        return found is not None and found.connection.state == "connected" and found.inventory_healthy, found

    async def submit(self, *, nodes: int = 1, gpus: int = 0, series: str | None = None, pinned: str = IMAGE, **changes: object) -> JobId:
        """One CPU and 1 GB a machine. ``pinned`` is what the image was resolved to."""
        self._count += 1
        body = JobBody(
            command=("true",),
            runtime=RuntimeRef(image="busybox"),
            resources=Resources(pools=(Pool(nodes=nodes, gpus_per_node=gpus, cpus=1.0, memory_gb=1.0, series=series),)),
            **changes,  # type: ignore[arg-type]
        )
        spec = JobSpec(apiVersion="tuneplane/v1", kind=WorkKind.TRAINING_JOB, metadata=Metadata(name="demo"), spec=body)
        job = await self.storage.submit(
            JobId(f"job-{self._count}"),
            spec,
            owner=ADA,
            fleet=FLEET,
            image=pinned,
            trace=TraceId(f"trace-{self._count}"),
            idempotency_key=None,
            now=now(),
        )
        return job.id

    async def job(self, job: JobId) -> Job:
        found = await self.storage.get_job(job)
        assert found is not None
        return found

    async def wait_job(self, job: JobId, *states: JobState) -> Job:
        """Wait for one of ``states`` (default: a final one)."""
        wanted = states or tuple(FINAL_JOB_STATES)

        async def reached() -> tuple[bool, object]:
            found = await self.job(job)
            return found.state in wanted, found

        await self.wait_until(reached, f"{job} in {[state.value for state in wanted]}")
        return await self.job(job)

    async def wait_phase(self, job: JobId, *phases: MemberPhase) -> None:
        async def reached() -> tuple[bool, object]:
            found = await self.job(job)
            return bool(found.attempts) and found.attempts[-1].members[0].phase in phases, found

        await self.wait_until(reached, f"the member of {job} in {[phase.value for phase in phases]}")

    async def wait_until(self, look: Callable[[], object], what: str, seconds: float = 30.0) -> None:
        """Level-triggered: look again after every poke. ``look`` is async and answers (holds?, what it saw)."""
        seen: object = None
        with trio.move_on_after(seconds):
            async with self.storage.open_pokes(tuple(Topic)) as pokes:
                async for _ in pokes:
                    holds, seen = await look()  # type: ignore[misc]
                    if holds:
                        return
        raise AssertionError(f"waited {seconds:g} s for {what}; last seen {seen}")

    def reader(self) -> RelayLogReader:
        return RelayLogReader(storage=self.storage, tls=self.tls.reader, clock=now)


@frozen
class Gateway:
    id: GatewayId
    system: System
    target: str


@asynccontextmanager
async def open_plane(database: str, place: Path, *, timings: Timings = TIMINGS, bare: bool = False) -> AsyncIterator[Plane]:
    """Storage on ``database`` with an administrator and Fleet ``lab``. No worker and no gateway run yet."""
    async with open_bridge(), open_storage(database, timings=timings) as storage:
        if not bare:
            await storage.create_user(ADA, "admin", None, now())
            await storage.create_fleet(
                Fleet(
                    id=FLEET,
                    kind=FleetKind.NODE,
                    delivery=Delivery.SHARED_MOUNT,
                    capabilities=(Capability.TRAIN,),
                    created_at=now(),
                )
            )
        async with trio.open_nursery() as nursery:
            yield Plane(storage, make_tls(place), timings, nursery)
            nursery.cancel_scope.cancel()


def phases_of(jobs: Sequence[Job]) -> list[str]:
    return [member.phase.value for job in jobs for attempt in job.attempts for member in attempt.members]
