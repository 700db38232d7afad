"""The door of a gateway: who may come in, with which epoch, and which actor then owns the session (R-SES-02, R-SES-04).

The link calls it from the task of each connection. Everything it refuses is a code and a sentence for the Node.
"""

from __future__ import annotations

import structlog
import trio
from attrs import define, field

from tuneplane.actors import ActorError, ChildSpec, Crashed, Pool, Restart
from tuneplane.domain.errors import Refused, StorageUnavailable
from tuneplane.domain.frames import WIRE_PROTOCOL, Hello, Welcome
from tuneplane.domain.ids import GatewayId
from tuneplane.domain.jobs import NodeIdentity
from tuneplane.domain.ports import SessionStore
from tuneplane.domain.secrets import secret_hash
from tuneplane.domain.timings import Timings
from tuneplane.wire.link import GatewayLink

from .patience import Backoff, Clock, Entropy
from .roster import Entry, Roster
from .session import NodeSession

log = structlog.get_logger("tuneplane.control.door")

GREETINGS_AT_ONCE = 16  # after a gateway died its Nodes come back together; more at once would only queue in PostgreSQL


@define
class Door:
    """Implements ``wire.link.Door``. Owns the roster."""

    storage: SessionStore
    gateway: GatewayId
    timings: Timings
    clock: Clock
    entropy: Entropy
    roster: Roster
    sessions: Pool
    dispatcher: str
    _greetings: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(GREETINGS_AT_ONCE), init=False)

    async def authenticate(self, credential: str, peer: str) -> NodeIdentity:
        """Whose credential it is: only its hash is looked up. Refused with the credential's fault."""
        async with self._greetings:
            try:
                return await self.storage.authenticate(secret_hash(credential), self.clock())
            except StorageUnavailable as error:
                raise self._away() from error

    async def welcome(self, identity: NodeIdentity, hello: Hello) -> Welcome:
        """Raise the Node's epoch: from here on every earlier session of it is fenced. The link has compared the ids."""
        now = self.clock()
        async with self._greetings:
            try:
                opened = await self.storage.open_session(identity, self.gateway, hello, now)
            except StorageUnavailable as error:
                raise self._away() from error
            except Refused as refused:  # P-15: another machine's session may end with its gateway's lease
                raise Refused(refused.code, str(refused), retry_after_seconds=self.timings.gateway_lease) from refused
        offset = (hello.sent_at - now).total_seconds()
        log.info("session opened", node=identity.node, epoch=opened.epoch, version=hello.node_version, clock_offset=offset)
        return Welcome(
            protocol=WIRE_PROTOCOL,
            session_epoch=opened.epoch,
            gateway=self.gateway,
            heartbeat_seconds=self.timings.heartbeat,
            idle_seconds=self.timings.session_idle,
            sent_at=now,
            accepted_hold=opened.accepted_hold,
            accepted_cards=opened.accepted_cards,
        )

    async def session(self, link: GatewayLink) -> None:
        """Run the session's actor; return when it has ended. Cancelled (the stream is gone): the actor is stopped."""
        node, epoch = link.identity.node, link.epoch
        try:
            ref = await self.sessions.start_child(self._child(link))
        except ActorError as error:
            log.error("cannot start a session", node=node, epoch=epoch, error=str(error))
            link.close("gateway-full", "this gateway cannot take another session now", self.timings.gateway_renew)
            return
        self._fence_older(link)
        self.roster.add(Entry(node, epoch, ref, link))
        try:
            reason = await ref.wait_exit()
            if isinstance(reason, Crashed):
                link.close("internal", "the session failed on our side")
        finally:
            self.roster.remove(node, epoch)
            ref.stop()

    def _child(self, link: GatewayLink) -> ChildSpec:
        def make() -> NodeSession:
            return NodeSession(
                storage=self.storage,
                link=link,
                timings=self.timings,
                clock=self.clock,
                backoff=Backoff(self.entropy),
                dispatcher=self.dispatcher,
            )

        return ChildSpec(name=f"{link.identity.node}.{link.epoch}", factory=make, restart=Restart.TEMPORARY)

    def _fence_older(self, link: GatewayLink) -> None:
        """A newer session of the same Node is here: end the older ones at once, before their next write is refused."""
        for entry in self.roster.of_node(link.identity.node):
            if entry.epoch < link.epoch:
                entry.end("fenced", f"session {link.epoch} of the same Node has begun")

    def _away(self) -> Refused:
        wait = self.timings.gateway_renew
        return Refused("storage-unavailable", "the gateway has no database at the moment; try again", retry_after_seconds=wait)
