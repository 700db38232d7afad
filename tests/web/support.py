"""The web room on the real storage: a site with everything but Nodes, served over real HTTPS or through Quart's client."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import trio
import trustme
from attrs import define, field, frozen

from tuneplane.actors import System, open_system
from tuneplane.bridge.loop import open_bridge
from tuneplane.control.api import ControlApi, GatewayTrust, TokenDraft, make_control_api
from tuneplane.control.images import RegistryResolver
from tuneplane.control.log_archive import LogArchive
from tuneplane.domain.errors import Refused
from tuneplane.domain.frames import LogPiece, LogQuery
from tuneplane.domain.ids import UserName
from tuneplane.domain.timings import PRODUCTION, Timings
from tuneplane.storage import PostgresStorage, open_storage
from tuneplane.web.app import WebApp
from tuneplane.web.routes import ROUTES
from tuneplane.web.server import WhereListening, make_site, site_tree
from tuneplane.web.site import Site

from .audited import Audited
from .documented import Documented

PASSWORD = "correct horse battery staple"
SECRET = b"s" * 32
DIGEST = "sha256:" + "a" * 64
IMAGE = f"registry.example/train@{DIGEST}"
TIMINGS = PRODUCTION.scaled(0.05)


def now() -> datetime:
    return datetime.now(UTC)


@define
class StoredLogs:
    """A LogReader over bytes in memory: what a Node would answer. ``open_reads`` counts reads that nobody has left yet."""

    logs: dict[str, bytes] = field(factory=dict)
    ended: set[str] = field(factory=set)
    away: bool = False
    removed: bool = False
    forgotten: set[str] = field(factory=set)
    open_reads: int = 0
    grown: trio.Event = field(factory=trio.Event)

    def write(self, member: str, data: bytes) -> None:
        self.logs[member] = self.logs.get(member, b"") + data
        self.grown.set()
        self.grown = trio.Event()

    def end(self, member: str) -> None:
        self.ended.add(member)
        self.write(member, b"")

    @asynccontextmanager
    async def open_log(self, query: LogQuery) -> AsyncIterator[AsyncIterator[LogPiece]]:
        if self.removed:
            raise Refused("node-removed", f"Node {query.node} has been removed")
        if self.away:
            raise Refused("node-unreachable", f"Node {query.node} has no live session")
        self.open_reads += 1
        try:
            yield _Pieces(self, query)
        finally:
            self.open_reads -= 1


@define
class _Pieces:
    source: StoredLogs
    query: LogQuery
    at: int | None = None
    done: bool = False

    def __aiter__(self) -> _Pieces:
        return self

    async def __anext__(self) -> LogPiece:
        await trio.lowlevel.checkpoint()
        if self.done:
            raise StopAsyncIteration
        if self.query.member in self.source.forgotten:
            return self._refusal()
        data = self.source.logs.get(self.query.member, b"")
        if self.at is None:
            self.at = self._first(data)
        while self.query.follow and self.at >= len(data) and self.query.member not in self.source.ended:
            await self.source.grown.wait()
            data = self.source.logs.get(self.query.member, b"")
        if self.query.member in self.source.forgotten:
            return self._refusal()
        piece = data[self.at : self.at + min(self.query.max_bytes, 64 * 1024)]
        self.at += len(piece)
        self.done = not piece or (not self.query.follow and self.at >= len(data))
        return LogPiece(offset=self.at - len(piece), data=piece, end=self.done)

    def _refusal(self) -> LogPiece:
        self.done = True
        return LogPiece(offset=self.at or 0, data=b"", end=True, error="this Node knows no such member (any more)")

    def _first(self, data: bytes) -> int:
        if self.query.offset is not None:
            return min(self.query.offset, len(data))
        if self.query.tail_lines is None:
            return 0
        lines = data.splitlines(keepends=True)
        return len(data) - sum(len(line) for line in lines[len(lines) - self.query.tail_lines :])


@define
class Running:
    """A site under test, its services, and HTTP clients for it."""

    api: ControlApi
    storage: PostgresStorage
    logs: StoredLogs
    site: Site
    admin_token: str
    user_token: str
    url: str = ""
    ca: Path | None = None
    system: System | None = None
    documented: Documented = field(factory=Documented)
    audited: Audited | None = None  # a test where nothing acts but its HTTP clients sets it

    @asynccontextmanager
    async def client(self, token: str | None = None, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        """An HTTPS client; ``token`` None sends no credential."""
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        trust = ssl.create_default_context(cafile=str(self.ca))
        async with httpx.AsyncClient(base_url=self.url, verify=trust, headers=headers, timeout=20, **options) as client:
            client.event_hooks["response"] = [self.documented.check, *([self.audited.check] if self.audited else [])]
            yield client

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[httpx.AsyncClient]:
        async with self.client(self.admin_token) as client:
            yield client

    @asynccontextmanager
    async def user(self) -> AsyncIterator[httpx.AsyncClient]:
        async with self.client(self.user_token) as client:
            yield client


@asynccontextmanager
async def open_site(database: str, *, timings: Timings = TIMINGS, accounts: bool = True, storage_root: str = "") -> AsyncIterator[Running]:
    """The services and the site on ``database``, without a server: for Quart's test client."""
    logs = StoredLogs()
    async with open_bridge(), open_storage(database, size=4, timings=timings) as storage:
        api = make_control_api(
            storage=storage,
            clock=now,
            entropy=secrets.token_bytes,
            public_url="https://console.example",
            gateway=GatewayTrust(target="gateway.example:8443", trust_pem="-----BEGIN CERTIFICATE-----\n"),
            log_reader=logs,
            archive=LogArchive(),
            storage_root=storage_root,
            images=RegistryResolver(),
            timings=timings,
        )
        site = make_site(api, storage, jwt_secret=SECRET, clock=now, entropy=secrets.token_bytes)
        running = Running(api=api, storage=storage, logs=logs, site=site, admin_token="", user_token="")
        if accounts:
            running.admin_token = await _account(api, "ada", "admin")
            running.user_token = await _account(api, "bob", "user")
        yield running


async def _account(api: ControlApi, name: str, role: str) -> str:
    user = await api.accounts.create_user(UserName("ada"), name, role, PASSWORD)
    return (await api.accounts.create_token(user.username, TokenDraft(name="test"))).token


@frozen
class Certificate:
    certificate: Path
    key: Path
    ca: Path


@contextmanager
def make_certificate(tmp: Path) -> Iterator[Certificate]:
    """A server certificate for localhost and its CA, as files below ``tmp``."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    paths = Certificate(tmp / "server.pem", tmp / "server.key", tmp / "ca.pem")
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(paths.certificate), append=True)
    issued.private_key_pem.write_to_path(str(paths.key))
    authority.cert_pem.write_to_path(str(paths.ca))
    yield paths


@asynccontextmanager
async def open_server(
    database: str, tmp: Path, *, timings: Timings = TIMINGS, port: int = 0, storage_root: str = "", accounts: bool = True
) -> AsyncIterator[Running]:
    """The whole web room as its supervision tree, on a real HTTPS socket."""
    with make_certificate(tmp) as paths:
        async with open_site(database, timings=timings, storage_root=storage_root, accounts=accounts) as running:
            root = site_tree(running.site, listen=("127.0.0.1", port), certificate=paths.certificate, key=paths.key, timings=timings)
            async with open_system("test", root) as system:
                _, bound = await system.find("web/server").ask(WhereListening(), 5)
                running.url, running.ca, running.system = f"https://localhost:{bound}", paths.ca, system
                yield running


def make_app(running: Running) -> WebApp:
    """The Quart application alone, for its test client."""
    return WebApp(running.site, ROUTES)


def job_spec(**body: Any) -> dict[str, Any]:
    """A JobSpec that is admitted where a Node with a CPU is."""
    return {
        "apiVersion": "tuneplane/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "sft-demo"},
        "spec": {"command": ["true"], "runtime": {"image": IMAGE}, **body},
    }
