"""The gateway's presence in PostgreSQL: its row, its lease, and the sessions that both sides take for live.

A Node is live if its session row is open and its gateway's lease is fresh, so heartbeats write nothing. This actor
renews the lease and compares the rows with the sessions that run here, both ways: a session that the database no longer
knows (removed, revoked, fenced) is closed; a row that nobody here serves is closed too.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

import structlog
import trio
from attrs import define, field, frozen

from tuneplane.actors import Actor, ActorError, Context, MailboxSpec, on_signal
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.ids import GatewayId, NodeId
from tuneplane.domain.ports import Storage, Topic
from tuneplane.domain.timings import Timings

from .patience import Alarm, Backoff, Clock, Pace, sibling, signal_on_pokes
from .relay import WhereAreYou
from .roster import Roster

log = structlog.get_logger("tuneplane.control.presence")

COMPARISONS_A_POLL = 10  # at most: each reads a row for every session of this gateway
ASK_SECONDS = 2.0  # the relay answers from memory
REGISTER_SECONDS = 5.0  # of a start: a database that takes longer must not make the presence count as not started


@frozen
class Address:
    host: str
    port: int


@define
class Registration:
    """What this process has published of itself. Outlives a crash of the presence: registering anew would end all sessions."""

    address: Address | None = None


@define
class Presence(Actor):
    """Registers at start when PostgreSQL answers, else as soon as it does; closes the row at the end."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = ()
    storage: Storage
    gateway: GatewayId
    timings: Timings
    clock: Clock
    backoff: Backoff
    roster: Roster
    registration: Registration
    _unserved: dict[tuple[NodeId, int], float] = field(factory=dict, init=False)  # rows without a session here, since when
    _leaving: bool = field(default=False, init=False)  # asked to stop, as opposed to crashed
    _pace: Pace = field(factory=Pace, init=False)
    _next_renewal: Alarm = field(factory=lambda: Alarm("renew"), init=False)
    _next_comparison: Alarm = field(factory=lambda: Alarm("compare"), init=False)

    async def on_start(self, context: Context) -> None:
        with trio.move_on_after(REGISTER_SECONDS) as scope:
            await self._renew_or_wait(context)
        if scope.cancelled_caught:
            log.warning("gateway not registered yet, the database is slow", gateway=self.gateway)
            self._next_renewal.set(context, self.backoff.next_seconds())

    async def run(self, context: Context) -> None:
        await signal_on_pokes(context, {Topic.SESSIONS: "compare"}, self.storage, self.backoff)
        self._leaving = True

    @on_signal("renew")
    async def renew(self, context: Context) -> None:
        await self._renew_or_wait(context)

    @on_signal("compare")
    async def compare(self, context: Context) -> None:
        """Every Node that comes or goes pokes: when thousands come back together, one comparison stands for many."""
        left = self._pace.seconds_left()
        if left > 0:
            self._next_comparison.set(context, left)
            return
        self._pace.rest(self.timings.poll / COMPARISONS_A_POLL)
        try:
            await self._compare()
        except StorageUnavailable as error:
            log.warning("sessions not compared with the database", error=str(error))  # the next poll does

    async def on_stop(self, context: Context) -> None:
        """Close row and sessions when asked to stop; after a crash the next incarnation goes on with them."""
        if not self._leaving:
            return
        try:
            await self.storage.close_gateway(self.gateway, self.clock())
        except StorageUnavailable as error:
            log.warning("gateway row left open, its lease will run out", error=str(error))

    async def _renew_or_wait(self, context: Context) -> None:
        try:
            await self._renew(context)
        except StorageUnavailable as error:
            log.warning("gateway lease not renewed", gateway=self.gateway, error=str(error))
            seconds = self.backoff.next_seconds()
        else:
            seconds = self.timings.gateway_renew
        self._next_renewal.set(context, seconds)

    async def _renew(self, context: Context) -> None:
        """Prolong the lease; register when the row is gone or the relay has moved."""
        address, now = await self._relay_address(context), self.clock()
        if address is None:
            return  # the relay is being restarted: nothing to publish yet
        until = now + timedelta(seconds=self.timings.gateway_lease)
        if self.registration.address == address and await self.storage.renew_gateway(self.gateway, until):
            return
        await self.storage.register_gateway(self.gateway, address.host, address.port, now, until)
        self.registration.address = address
        log.info("gateway registered", gateway=self.gateway, relay=f"{address.host}:{address.port}")

    async def _relay_address(self, context: Context) -> Address | None:
        """Where the relay listens now, or where it did: its restart must not cost the lease."""
        relay = sibling(context, "relay")
        try:
            return self.registration.address if relay is None else Address(*await relay.ask(WhereAreYou(), ASK_SECONDS))
        except ActorError as error:
            log.warning("relay does not answer", error=str(error))
            return self.registration.address

    async def _compare(self) -> None:
        """The sessions are listed before the rows are read: one that opens in between is in the rows, not in the list."""
        running = self.roster.entries()
        live = await self.storage.live_epochs(self.gateway)
        for entry in running:
            if live.get(entry.node) != entry.epoch:
                entry.end("session-closed", "the control plane has ended this session: removed, revoked or fenced")
        await self._close_unserved(live)

    async def _close_unserved(self, live: dict[NodeId, int]) -> None:
        """A row precedes its session by a round trip; without one for a whole lease it has none (ours was restarted, say)."""
        now = trio.current_time()
        unserved = {(node, epoch) for node, epoch in live.items() if self.roster.session(node, epoch) is None}
        self._unserved = {row: self._unserved.get(row, now) for row in unserved}
        for (node, epoch), since in self._unserved.items():
            if now - since >= self.timings.gateway_lease:
                log.warning("closing a session row that nobody serves", node=node, epoch=epoch)
                await self.storage.close_session(node, epoch, "no session of this gateway serves it", self.clock())
