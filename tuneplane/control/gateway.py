"""The gateway's supervision tree, and the actor that listens for Nodes."""

from __future__ import annotations

import ssl
from typing import ClassVar

from attrs import define, field, frozen

from tuneplane.actors import Actor, ChildSpec, Context, MailboxSpec, Strategy, SupervisorSpec, handles
from tuneplane.domain.ids import GatewayId
from tuneplane.domain.ports import Storage
from tuneplane.domain.timings import Timings
from tuneplane.wire.link import serve_gateway

from .dispatch import Dispatcher
from .door import Door
from .listening import Listening
from .patience import Backoff, Clock, Entropy, parent_path
from .presence import Presence, Registration
from .relay import Relay, WhereAreYou
from .roster import Roster

GOODBYE_SECONDS = 2.0  # beyond the drain of its links, before the kernel calls the listener overdue
ADDRESS_QUESTIONS = 8  # start-up and tests ask once


@define
class Listener(Actor):
    """Serves Nodes on one address. Ready when it listens. Its end ends every session's link, so it is stopped first."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = (MailboxSpec("address", ADDRESS_QUESTIONS, "asked once at start-up"),)
    storage: Storage
    gateway: GatewayId
    timings: Timings
    clock: Clock
    entropy: Entropy
    roster: Roster
    host: str
    port: int
    tls: ssl.SSLContext
    _listening: Listening = field(factory=Listening, init=False)

    async def on_start(self, context: Context) -> None:
        context.start_task(self._serve, self._door(context), name="serve")
        await self._listening.wait()

    @handles(WhereAreYou, mailbox="address")
    async def where(self, message: WhereAreYou, context: Context) -> tuple[str, int]:
        return self.host, self._listening.port

    async def _serve(self, door: Door) -> None:
        await serve_gateway(
            host=self.host, port=self.port, tls=self.tls, door=door, timings=self.timings, clock=self.clock, task_status=self._listening
        )

    def _door(self, context: Context) -> Door:
        base = parent_path(context)
        return Door(
            storage=self.storage,
            gateway=self.gateway,
            timings=self.timings,
            clock=self.clock,
            entropy=self.entropy,
            roster=self.roster,
            sessions=context.system.pool(f"{base}/sessions"),
            dispatcher=f"{base}/dispatcher",
        )


@frozen(kw_only=True)
class _Gateway:
    """What the actors of one gateway share. The factories make a fresh actor for every incarnation."""

    storage: Storage
    id: GatewayId
    timings: Timings
    clock: Clock
    entropy: Entropy
    listen: tuple[str, int]
    tls: ssl.SSLContext
    relay: tuple[str, int]
    relay_tls: ssl.SSLContext
    relay_published_host: str
    roster: Roster = field(factory=Roster)
    registration: Registration = field(factory=Registration)

    def make_relay(self) -> Relay:
        host, port = self.relay
        published = self.relay_published_host or host
        return Relay(host=host, port=port, published_host=published, tls=self.relay_tls, roster=self.roster)

    def make_presence(self) -> Presence:
        return Presence(
            storage=self.storage,
            gateway=self.id,
            timings=self.timings,
            clock=self.clock,
            backoff=Backoff(self.entropy),
            roster=self.roster,
            registration=self.registration,
        )

    def make_dispatcher(self) -> Dispatcher:
        backoff = Backoff(self.entropy)
        return Dispatcher(storage=self.storage, gateway=self.id, timings=self.timings, backoff=backoff, roster=self.roster)

    def make_listener(self) -> Listener:
        host, port = self.listen
        return Listener(
            storage=self.storage,
            gateway=self.id,
            timings=self.timings,
            clock=self.clock,
            entropy=self.entropy,
            roster=self.roster,
            host=host,
            port=port,
            tls=self.tls,
        )


def gateway_root(
    storage: Storage,
    gateway_id: GatewayId,
    timings: Timings,
    clock: Clock,
    entropy: Entropy,
    *,
    listen: tuple[str, int],
    tls: ssl.SSLContext,
    relay: tuple[str, int],
    relay_tls: ssl.SSLContext,
    relay_published_host: str = "",
) -> SupervisorSpec:
    """``gateway``: relay, presence, sessions (pool), dispatcher, listener; stopped in reverse, Nodes first told goodbye.

    ``relay`` is bound on an internal address and published under ``relay_published_host`` (default: the bound host).
    Port 0 binds any free one; ask ``listener`` or ``relay`` with :class:`WhereAreYou`.
    """
    parts = _Gateway(
        storage=storage,
        id=gateway_id,
        timings=timings,
        clock=clock,
        entropy=entropy,
        listen=listen,
        tls=tls,
        relay=relay,
        relay_tls=relay_tls,
        relay_published_host=relay_published_host,
    )
    children = (
        ChildSpec(name="relay", factory=parts.make_relay),
        ChildSpec(name="presence", factory=parts.make_presence),
        SupervisorSpec(name="sessions", strategy=Strategy.POOL),
        ChildSpec(name="dispatcher", factory=parts.make_dispatcher),
        ChildSpec(name="listener", factory=parts.make_listener, stop_seconds=timings.shutdown_grace + GOODBYE_SECONDS),
    )
    return SupervisorSpec(name="gateway", children=children)
