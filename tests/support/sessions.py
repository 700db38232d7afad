"""Real gateways and Nodes for tests: certificates, a scripted door, sessions over loopback."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trio
import trustme
from attrs import define, evolve, field

from tuneplane.domain.errors import Refused
from tuneplane.domain.frames import WIRE_PROTOCOL, Command, CommandKind, Hello, LogChunk, Observation, Welcome
from tuneplane.domain.ids import FleetId, GatewayId, JournalId, MemberId, NodeId, OperationId
from tuneplane.domain.jobs import NodeIdentity
from tuneplane.domain.launch_table import MemberPhase
from tuneplane.domain.timings import Timings
from tuneplane.wire.link import GatewayLink, LinkClosed, NodeLink, SessionEnded, run_node_session, serve_gateway
from tuneplane.wire.tls import client_context, server_context

CALM = Timings().scaled(0.5)  # idle deadline 10 s: nothing that a loaded machine does slowly is taken for silence
FAST = Timings().scaled(0.05)  # heartbeat 0.35 s, idle deadline 1 s: for the tests of exactly that
FLEET = FleetId("lab")


def now() -> datetime:
    return datetime.now(UTC)


@define
class Certificates:
    """A certificate authority, a server certificate for 127.0.0.1, and contexts for both sides."""

    authority: trustme.CA
    certificate: Path
    key: Path

    @property
    def trust_pem(self) -> str:
        return self.authority.cert_pem.bytes().decode()

    def server(self) -> ssl.SSLContext:
        return server_context(self.certificate, self.key)

    def client(self) -> ssl.SSLContext:
        return client_context(trust_pem=self.trust_pem)


def write_certificate(issued: trustme.LeafCert, folder: Path) -> tuple[Path, Path]:
    """The chain and key of ``issued`` as files."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return certificate, key


@contextmanager
def make_certificates(*names: str, **validity: Any) -> Iterator[Certificates]:
    """Fresh certificates; ``validity`` goes to trustme (not_before, not_after)."""
    with tempfile.TemporaryDirectory() as folder:
        authority = trustme.CA()
        certificate, key = write_certificate(authority.issue_cert(*(names or ("127.0.0.1", "localhost")), **validity), Path(folder))
        yield Certificates(authority, certificate, key)


def hello(node: str = "node-1", **changes: Any) -> Hello:
    value = Hello(
        protocol=WIRE_PROTOCOL,
        node=NodeId(node),
        fleet=FLEET,
        boot_id="boot-1",
        machine_id="machine-1",
        journal_id=JournalId("journal-1"),
        journal_sequence=1,
        node_version="0.1.0",
        address="10.0.0.1",
        sent_at=now(),
    )
    return evolve(value, **changes)


def observation(revision: int = 1, member: str = "job-a-1-0", **changes: Any) -> Observation:
    value = Observation(member=MemberId(member), revision=revision, phase=MemberPhase.RUNNING, plan_digest="", boot_id="boot-1")
    return evolve(value, **changes)


def stop_command(number: int = 1) -> Command:
    return Command(
        operation=OperationId(f"job-a-1-0:stop-{number}"),
        kind=CommandKind.STOP,
        member=MemberId("job-a-1-0"),
        session_epoch=0,
        claim_epoch=1,
        stop_signal="SIGTERM",
        stop_grace_seconds=5.0,
    )


@define(eq=False)
class Seen:
    """What the gateway's side of one session saw."""

    link: GatewayLink
    frames: list[Any] = field(factory=list)
    logs: list[LogChunk] = field(factory=list)
    ended: LinkClosed | None = None
    cancelled: bool = False


@define(eq=False)
class ScriptedDoor:
    """A door that knows credentials ``good-NODE``. Every session records what it sees; ``answer`` may reply."""

    timings: Timings = CALM
    answer: Callable[[GatewayLink, Any], None] = lambda link, frame: None
    sessions: dict[str, Seen] = field(factory=dict)
    changed: trio.Condition = field(factory=trio.Condition)
    accepted_hold: str = ""
    _epoch: int = 0

    async def authenticate(self, credential: str, peer: str) -> NodeIdentity:
        if not credential.startswith("good-"):
            raise Refused("credential-unknown", "this credential is not known")
        return NodeIdentity(node=NodeId(credential.removeprefix("good-")), fleet=FLEET, credential_expires_at=now())

    async def welcome(self, identity: NodeIdentity, hello: Hello) -> Welcome:
        self._epoch += 1
        return Welcome(
            protocol=WIRE_PROTOCOL,
            session_epoch=self._epoch,
            gateway=GatewayId("gateway-1"),
            heartbeat_seconds=self.timings.heartbeat,
            idle_seconds=self.timings.session_idle,
            sent_at=now(),
            accepted_hold=self.accepted_hold,
        )

    async def session(self, link: GatewayLink) -> None:
        seen = self.sessions[link.identity.node] = Seen(link)
        link.log_sink = seen.logs.append
        try:
            await self._notify()
            while True:
                frame = await link.receive()
                seen.frames.append(frame)
                self.answer(link, frame)
                await self._notify()
        except LinkClosed as closed:
            seen.ended = closed
        except trio.Cancelled:
            seen.cancelled = True
            raise
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await self._notify()

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def wait(self, node: str, condition: Callable[[Seen], bool] = lambda seen: True, seconds: float = 5.0) -> Seen:
        """Wait, level-triggered, until the session of ``node`` is there and ``condition`` holds of it."""
        with trio.move_on_after(seconds):
            async with self.changed:
                while not (node in self.sessions and condition(self.sessions[node])):
                    await self.changed.wait()
        seen = self.sessions.get(node)
        assert seen is not None, f"no session of {node}; there are {sorted(self.sessions)}"
        assert condition(seen), f"last seen of {node}: frames {seen.frames[-3:]}, ended {seen.ended}, {len(seen.logs)} log chunks"
        return seen

    async def wait_ended(self, node: str, seconds: float = 5.0) -> LinkClosed:
        seen = await self.wait(node, lambda seen: seen.ended is not None, seconds)
        assert seen.ended is not None
        return seen.ended


@define
class Gateway:
    port: int
    door: ScriptedDoor
    certificates: Certificates
    scope: trio.CancelScope

    async def session(self, node: str, body: Callable[[NodeLink], Any], **changes: Any) -> None:
        """One session of ``node`` from this process; raises SessionEnded."""
        arguments: dict[str, Any] = {
            "target": f"127.0.0.1:{self.port}",
            "tls": self.certificates.client(),
            "credential": f"good-{node}",
            "hello": hello(node),
            "timings": self.door.timings,
            "body": body,
        }
        await run_node_session(**{**arguments, **changes})

    async def ended(self, node: str, body: Callable[[NodeLink], Any] | None = None, **changes: Any) -> SessionEnded:
        """The SessionEnded of a session whose body waits for its end."""
        try:
            await self.session(node, body or wait_end, **changes)
        except SessionEnded as ended:
            return ended
        raise AssertionError("the session ended without a reason")


async def wait_end(link: NodeLink) -> None:
    """A body that ignores what it receives."""
    while True:
        await link.receive()


@asynccontextmanager
async def open_gateway(door: ScriptedDoor | None = None, *, names: tuple[str, ...] = (), **validity: Any) -> AsyncIterator[Gateway]:
    """A gateway on loopback, inside an open bridge, with a certificate for ``names``. Leaving shuts it down gracefully."""
    door = door or ScriptedDoor()
    with make_certificates(*names, **validity) as certificates:
        async with trio.open_nursery() as nursery:

            async def serve(*, task_status: trio.TaskStatus[int]) -> None:
                tls = certificates.server()
                await serve_gateway(host="127.0.0.1", port=0, tls=tls, door=door, timings=door.timings, task_status=task_status)

            port = await nursery.start(serve)
            try:
                yield Gateway(port, door, certificates, nursery.cancel_scope)
            finally:
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_session(gateway: Gateway, node: str = "node-1", **changes: Any) -> AsyncIterator[NodeLink]:
    """A live session from this process; leaving ends it normally."""
    opened: list[NodeLink] = []
    ready, leave = trio.Event(), trio.Event()

    async def body(link: NodeLink) -> None:
        opened.append(link)
        ready.set()
        await leave.wait()

    async with trio.open_nursery() as nursery:

        async def run() -> None:
            await gateway.session(node, body, **changes)

        nursery.start_soon(run)
        with trio.fail_after(10):
            await ready.wait()
        try:
            yield opened[0]
        finally:
            leave.set()
