"""The web room's actors: the HTTPS server and the feed's reader, and the supervisor over both."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import define, field, frozen

from tuneplane import __version__
from tuneplane.actors import Actor, ChildSpec, Context, MailboxSpec, SupervisorSpec, handles
from tuneplane.control.api import Clock, ControlApi, Entropy
from tuneplane.domain.ports import Storage
from tuneplane.domain.timings import Timings

from .app import WebApp
from .border import Border
from .connection import Connections, make_config
from .routes import ROUTES
from .sessions import Sessions
from .site import Site

log = structlog.get_logger("tuneplane.web")

BACKLOG = 256  # connections that the kernel holds while we are busy accepting
LEAST_SECRET = 32  # bytes: HS256 wants a key at least as long as its digest


@frozen
class WhereListening:
    """Ask for the bound ``(host, port)``: port 0 means that the kernel chose one."""


@define
class Place:
    """Where to listen. A port that the kernel chose is kept, so that a restarted server comes back to it."""

    host: str
    port: int


@define
class WebServer(Actor):
    """Accepts HTTPS connections. Ready once it listens; asked to stop it finishes requests in hand within its grace."""

    mailboxes = (MailboxSpec("questions", 4, "WhereListening, asked once by whoever started us"),)

    site: Site
    place: Place
    certificate: Path
    key: Path
    _listeners: list[trio.SSLListener[trio.SocketStream]] = field(factory=list)

    @handles(WhereListening)
    async def where(self, message: WhereListening, context: Context) -> tuple[str, int]:
        return self.place.host, self.place.port

    async def on_start(self, context: Context) -> None:
        """Read the certificate and bind. OSError and ssl.SSLError say what could not be used."""
        config = make_config(str(self.certificate), str(self.key))
        context_tls = await trio.to_thread.run_sync(config.create_ssl_context)
        assert context_tls is not None  # both files are set
        self._listeners = [trio.SSLListener(self._bind(), context_tls, https_compatible=True)]
        log.info("console listens", host=self.place.host, port=self.place.port)

    def _bind(self) -> trio.SocketListener:
        family = socket.AF_INET6 if ":" in self.place.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.place.host, self.place.port))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise OSError(error.errno, f"the console cannot listen on {self.place.host}:{self.place.port}: {error.strerror}") from error
        self.place.port = sock.getsockname()[1]
        return trio.SocketListener(trio.socket.from_stdlib_socket(sock))

    async def run(self, context: Context) -> None:
        """Accept until asked to stop; then no new connection, and those that are busy finish."""
        config = make_config(str(self.certificate), str(self.key))
        connections = Connections(Border(WebApp(self.site, ROUTES)), config, self.site.metrics)
        try:
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as accepting:
                    nursery.start_soon(_cancel_when_stopping, context, accepting)  # noqa: ASYNC111 - cancelling it late does nothing
                    await trio.serve_listeners(connections.serve, self._listeners, handler_nursery=nursery)
                self.site.streams.close()
                await connections.finish()
        finally:
            connections.abandon()

    async def on_stop(self, context: Context) -> None:
        for listener in self._listeners:
            await listener.aclose()


async def _cancel_when_stopping(context: Context, scope: trio.CancelScope) -> None:
    await context.wait_stopping()
    scope.cancel()


@define
class FeedReader(Actor):
    """Looks at the database for all event streams; without one it says stale and waits."""

    site: Site

    async def run(self, context: Context) -> None:
        await self.site.feed.run(self.site.api, self.site.storage, self.site.streams.check_all)


def make_site(api: ControlApi, storage: Storage, *, jwt_secret: bytes, clock: Clock, entropy: Entropy) -> Site:
    """The web room's wiring; one per process."""
    if len(jwt_secret) < LEAST_SECRET:
        raise ValueError(f"the session secret needs {LEAST_SECRET} bytes")
    sessions = Sessions(secret=jwt_secret, clock=clock, entropy=entropy)
    return Site(api=api, storage=storage, sessions=sessions, clock=clock, entropy=entropy, version=__version__)


def web_root(
    api: ControlApi,
    storage: Storage,
    *,
    listen: tuple[str, int],
    certificate: Path,
    key: Path,
    jwt_secret: bytes,
    timings: Timings,
    clock: Clock,
    entropy: Entropy,
) -> SupervisorSpec:
    """The web room's tree: ``web/feed`` and ``web/server``. Ask ``web/server`` for :class:`WhereListening`."""
    site = make_site(api, storage, jwt_secret=jwt_secret, clock=clock, entropy=entropy)
    return site_tree(site, listen=listen, certificate=certificate, key=key, timings=timings)


def site_tree(site: Site, *, listen: tuple[str, int], certificate: Path, key: Path, timings: Timings) -> SupervisorSpec:
    """The tree over a site that is made already."""
    place = Place(*listen)
    return SupervisorSpec(
        name="web",
        children=(
            ChildSpec(name="feed", factory=partial(FeedReader, site), stop_seconds=0),  # it has nothing to finish
            ChildSpec(
                name="server",
                factory=partial(WebServer, site, place, certificate, key),
                stop_seconds=timings.shutdown_grace,
            ),
        ),
    )
