"""One actor per Node session: what the Node says goes to PostgreSQL, what PostgreSQL decided goes to the Node.

Rules it keeps:
- an observation is acknowledged after its COMMIT (P-06); a fenced epoch ends this session only, a step that no history
  makes ends nothing but our knowledge of that member (domain/evidence.py);
- when the report is complete, what it lacks is doubted, never concluded from (P-02);
- commands are sent after the Node has reported every member it knows (ReconcileDone), so that a Prepare or Commit meets
  a control plane that has learnt what the Node did meanwhile. A Stop does not wait: it is right whatever the
  report will say, it is journalled as a tombstone that a late Prepare or Commit meets, and it must always win (R-LCH-12);
- a send is persisted before it happens; while PostgreSQL is away nothing new is sent and the session stays (P-17);
- a command that the Node leaves unanswered for ``engine_call`` seconds ends the session: the next one sends it again. Not of a
  Node that holds our commands (P-07): it is right not to answer.
"""

from __future__ import annotations

from typing import ClassVar

import structlog
import trio
from attrs import define, field, frozen

from tuneplane.actors import Actor, Context, MailboxSpec, Ref, handles, on_signal
from tuneplane.domain.clocks import Offset
from tuneplane.domain.errors import Fenced, Refused, StorageUnavailable
from tuneplane.domain.faultpoint import fault_point
from tuneplane.domain.frames import (
    Command,
    CommandAnswer,
    CommandKind,
    DrainState,
    DrainWish,
    Heartbeat,
    InventoryReport,
    LogQuery,
    Observation,
    ObservationAck,
    ReconcileDone,
)
from tuneplane.domain.ids import MemberId, NodeId, OperationId
from tuneplane.domain.nodes import MOST_LEFT
from tuneplane.domain.ports import SessionStore
from tuneplane.domain.timings import Timings
from tuneplane.wire.link import GatewayLink, LinkClosed

from .followers import Followers
from .inbox import Inbox, Reported
from .patience import Alarm, Backoff, Clock
from .rings import Ring

log = structlog.get_logger("tuneplane.control.session")

STOPS_WAITING = 64  # members of one machine, more than its cards; what does not fit is found by the next look
COMMANDS_WAITING = 64  # likewise; the rows wait, not the letters
READS_WAITING = 16  # log reads that wait for the link; a reader that is refused tries again
STALE_MARGIN = 0.001  # seconds after which what is just fresh has gone stale
MAX_UNANSWERED = 256  # commands in flight to one Node: the capacity of the control lane of its link


@frozen
class SendStop:
    command: Command


@frozen
class SendCommand:
    command: Command


@frozen
class OpenLog:
    """Ask: answer None once the read is asked for; the bytes come through ``ring``, the one end of a channel."""

    query: LogQuery
    ring: Ring = field(eq=False)


@define
class NodeSession(Actor):
    """Owns one link. Ends when the link ends, or closes it with a reason. Temporary: the Node dials again."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = (
        MailboxSpec("stops", STOPS_WAITING, "stops of one Node; never behind launches (R-SES-07)"),
        MailboxSpec("commands", COMMANDS_WAITING, "prepares, commits and forgets of one Node"),
        MailboxSpec("logs", READS_WAITING, "log reads of one Node; never ahead of stops (R-SES-07)"),
    )
    storage: SessionStore
    link: GatewayLink
    timings: Timings
    clock: Clock
    backoff: Backoff
    dispatcher: str  # path of the dispatcher, who looks again when this session can take more
    _inbox: Inbox = field(factory=Inbox, init=False)
    _followers: Followers = field(factory=Followers, init=False)
    _unanswered: dict[OperationId, float] = field(factory=dict, init=False)  # since when, on the Trio clock
    _stops: set[OperationId] = field(factory=set, init=False)  # of them, the stops
    _marking: set[OperationId] = field(factory=set, init=False)  # at most one a lane
    _reconciled: bool = field(default=False, init=False)
    _reported: set[MemberId] = field(factory=set, init=False)  # of ours, until reconciled: bounded by the rows of this Node
    _opened_at: float = field(default=0.0, init=False)
    _inventory: InventoryReport | None = field(default=None, init=False)  # as recorded in this session
    _reported_at: float = field(default=0.0, init=False)  # when the newest report arrived
    _beat: tuple[str, float] = field(default=("", 0.0), init=False)  # what the newest heartbeat confirms, and when that was looked at
    _confirmed_at: float = field(default=0.0, init=False)
    _stale: bool = field(default=False, init=False)  # marked so in the database
    _maybe_stale: bool = field(default=False, init=False)  # the same, or an answer was lost on the way there (P-09)
    _offset: Offset | None = field(default=None, init=False)  # of the Node's clock, as written or about to be
    _reason: str = field(default="the connection ended", init=False)
    _self: Ref | None = field(default=None, init=False)
    _retry: Alarm = field(factory=lambda: Alarm("store"), init=False)

    @property
    def node(self) -> NodeId:
        return self.link.identity.node

    async def on_start(self, context: Context) -> None:
        self._self = context.ref
        self._opened_at = trio.current_time()
        self.link.log_sink = self._followers.arrived
        self.link.on_heartbeat = self._heard
        context.timer("watch", self.timings.heartbeat)

    async def run(self, context: Context) -> None:
        """Receive until the link ends. Storing is another task's, so that a slow database does not stop the reading."""
        with context.until_stopping():
            try:
                while True:
                    await self._receive(context)
            except LinkClosed as closed:
                self._reason = f"{closed.code}: {closed.detail}"

    async def _receive(self, context: Context) -> None:
        frame = await self.link.receive()
        if not isinstance(frame, (Observation, CommandAnswer, InventoryReport, ReconcileDone, DrainWish)):
            self._end("unexpected-frame", f"a Node does not send {type(frame).__name__} in a session")
            return
        if isinstance(frame, InventoryReport):
            self._reported_at = trio.current_time()
        urgent = isinstance(frame, CommandAnswer) and frame.operation in self._stops
        if isinstance(frame, CommandAnswer):
            self._answer_heard(frame, context)
            if urgent:
                self._inbox.put_first(frame)
        if not urgent:
            await self._inbox.put(frame)
        context.ref.signal("store")

    async def on_stop(self, context: Context) -> None:
        """End the log reads and close the row (if it cannot be closed now, the presence does). The door closes the link."""
        self._followers.end_all(f"the session of Node {self.node} ended: {self._reason}")
        log.info("session ended", node=self.node, epoch=self.link.epoch, reason=self._reason)
        try:
            await self.storage.close_session(self.node, self.link.epoch, self._reason, self.clock())
        except StorageUnavailable as error:
            log.warning("session row left open for now", node=self.node, epoch=self.link.epoch, error=str(error))

    def _end(self, code: str, detail: str) -> None:
        """Close the link with a reason; ``run`` sees it and returns."""
        log.warning("session closed by us", node=self.node, epoch=self.link.epoch, code=code, detail=detail)
        self.link.close(code, detail)

    # ------------------------------------------------------------ from the Node

    @on_signal("store")
    async def store(self, context: Context) -> None:
        """Take in what waits, oldest first, until it is empty, the database is away, or the session must end."""
        while (frame := self._inbox.first()) is not None and not context.stopping:
            try:
                await self._take_in(frame, context)
            except StorageUnavailable as error:
                log.warning("session waits for the database", node=self.node, error=str(error))
                self._retry.set(context, self.backoff.next_seconds())
                return
            except Fenced as error:
                self._end("fenced", str(error))
                return
            except LinkClosed:
                return
            self._inbox.done(frame)
            self.backoff.reset()

    async def _take_in(self, frame: Reported, context: Context) -> None:
        if isinstance(frame, Observation):
            await self._observe(frame)
        elif isinstance(frame, CommandAnswer):
            await self.storage.answer_command(
                frame.operation, self.node, self.link.epoch, frame.accepted, frame.code, frame.detail, self.clock()
            )
        elif isinstance(frame, InventoryReport):
            await self._record(frame)
        elif isinstance(frame, DrainWish):
            await self._drain(frame)
        elif isinstance(frame, ReconcileDone):
            await self.storage.reconcile(self.node, self.link.epoch, self._reported, self.clock())
            self._reconciled = True
            self._reported.clear()
            log.info("Node reconciled", node=self.node, epoch=self.link.epoch, members=frame.members)
            self._wake_dispatcher(context)

    async def _observe(self, observation: Observation) -> None:
        known = await self.storage.observe(self.node, self.link.epoch, observation, self.clock())
        if not known:  # P-07: report it, never stop it; without an acknowledgement the Node keeps its record
            log.warning("Node reports a member that is none of ours", node=self.node, member=observation.member)
            return
        if not self._reconciled:
            self._reported.add(observation.member)
        with fault_point("control.acknowledge"):
            await self.link.send(ObservationAck(member=observation.member, revision=observation.revision))

    async def _drain(self, wish: DrainWish) -> None:
        """L-E15: what was asked on the machine is kept, and it is told how it stands by now."""
        node = await self.storage.set_machine_drain(self.node, self.link.epoch, wish.wanted, wish.reason, self.clock())
        await self.link.send(DrainState(revision=wish.revision, state=node.state, drained=node.is_drained, left=node.left[:MOST_LEFT]))

    def _answer_heard(self, answer: CommandAnswer, context: Context) -> None:
        """On arrival, not once stored: the Node's duty is done, whatever the database does."""
        if len(self._unanswered) >= MAX_UNANSWERED:
            self._wake_dispatcher(context)
        self._unanswered.pop(answer.operation, None)
        self._stops.discard(answer.operation)

    async def _record(self, report: InventoryReport) -> None:
        await self.storage.record_inventory(self.node, self.link.epoch, report.inventory, report.digest, self.clock())
        digest, heard_at = self._beat
        self._confirmed_at = max(self._reported_at, heard_at if digest == report.digest else 0.0)
        self._inventory, self._stale = report, False
        self._maybe_stale = False
        await self._watch_inventory(trio.current_time())  # it may have waited long for the database

    def _heard(self, heartbeat: Heartbeat) -> None:
        """A heartbeat confirms the recorded inventory by its digest, and writes nothing unless it had gone stale."""
        self._clock_heard(heartbeat)
        self._beat = (heartbeat.inventory_digest, trio.current_time() - heartbeat.inventory_age_seconds)
        if self._inventory is None or heartbeat.inventory_digest != self._inventory.digest:
            return
        self._confirmed_at = max(self._confirmed_at, self._beat[1])
        if self._maybe_stale and self._is_fresh(trio.current_time()) and self._self is not None:
            self._inbox.put_again(self._inventory)
            self._self.signal("store")

    def _clock_heard(self, heartbeat: Heartbeat) -> None:
        """Written once a session, and when it has changed by more than people can overlook."""
        if heartbeat.clock_offset_seconds is None:
            return
        heard = Offset(seconds=heartbeat.clock_offset_seconds, error_seconds=heartbeat.clock_error_seconds)
        if self._offset is None or heard.differs(self._offset):
            self._offset = heard
            if self._self is not None:
                self._self.signal("clock")

    @on_signal("clock")
    async def note_clock(self, context: Context) -> None:
        offset = self._offset
        if offset is None:
            return
        try:
            await self.storage.note_clock(self.node, self.link.epoch, offset, self.clock())
        except StorageUnavailable:
            self._offset = None  # the next heartbeat tells it again

    # ------------------------------------------------------------ to the Node

    @handles(SendStop, mailbox="stops")
    async def send_stop(self, message: SendStop, context: Context) -> None:
        await self._send(message.command, context)

    @handles(SendCommand, mailbox="commands")
    async def send_command(self, message: SendCommand, context: Context) -> None:
        if self._reconciled and len(self._unanswered) < MAX_UNANSWERED:  # else the dispatcher looks again
            await self._send(message.command, context)

    async def _send(self, command: Command, context: Context) -> None:
        """Mark, then send. A letter that was queued twice, or for another epoch, is dropped."""
        operation = command.operation
        if command.session_epoch != self.link.epoch or operation in self._unanswered or operation in self._marking:
            return
        self._marking.add(operation)
        marked = await self._mark_sent(command, context)
        self._marking.discard(operation)
        if not marked:
            return
        self._unanswered[operation] = trio.current_time()
        if command.kind is CommandKind.STOP:
            self._stops.add(operation)
        try:
            with fault_point("control.send-command"):
                await self.link.send(command)
        except LinkClosed:
            return

    async def _mark_sent(self, command: Command, context: Context) -> bool:
        """Persist the send. Repeated until PostgreSQL answers: after an unknown COMMIT no look would find it again (P-09)."""
        backoff = Backoff(self.backoff.entropy)
        with context.until_stopping():
            while True:
                try:
                    return await self.storage.mark_sent(command.operation, self.node, self.link.epoch, self.clock())
                except StorageUnavailable:
                    await trio.sleep(backoff.next_seconds())
        return False

    def _wake_dispatcher(self, context: Context) -> None:
        dispatcher = context.system.ref(self.dispatcher)
        if dispatcher is not None:
            dispatcher.signal("look")

    # ------------------------------------------------------------ logs

    @handles(OpenLog, mailbox="logs", raises=(Refused,))
    async def open_log(self, message: OpenLog, context: Context) -> None:
        read = self._followers.open(message.query, message.ring)
        try:
            await self.link.send(read)
        except LinkClosed as closed:
            raise Refused("node-disconnected", f"Node {self.node} has just disconnected: {closed.detail}") from closed

    @on_signal("sweep")
    async def sweep(self, context: Context) -> None:
        """Tell the Node to end the reads whose readers are gone."""
        for cancel in self._followers.sweep():
            try:
                await self.link.send(cancel)
            except LinkClosed:
                return

    # ------------------------------------------------------------ deadlines

    @on_signal("watch")
    async def watch(self, context: Context) -> None:
        """Once a heartbeat: is the report overdue, a command unanswered, the inventory unconfirmed?"""
        now = trio.current_time()
        if not self._reconciled and self._inbox.first() is None and now - self._opened_at > self.timings.engine_call:
            self._end("reconcile-overdue", f"no complete report of members within {self.timings.engine_call:g} s")
            return
        late = [operation for operation, since in self._unanswered.items() if now - since > self.timings.engine_call]
        if late and not self._node_holds:
            self._end("answer-overdue", f"no answer to {late[0]} within {self.timings.engine_call:g} s")
            return
        await self._watch_inventory(now)
        stale_in = self._confirmed_at + self.timings.inventory_fresh - now
        context.timer("watch", min(self.timings.heartbeat, stale_in + STALE_MARGIN) if stale_in > 0 else self.timings.heartbeat)

    @property
    def _node_holds(self) -> bool:
        """P-07: it answers no command until an operator's word, which ends this session; its reports go on meanwhile."""
        return self._inventory is not None and self._inventory.inventory.hold is not None

    def _is_fresh(self, now: float) -> bool:
        return now - self._confirmed_at <= self.timings.inventory_fresh

    async def _watch_inventory(self, now: float) -> None:
        if self._inventory is None or self._stale or self._is_fresh(now):
            return
        self._maybe_stale = True  # before it is: once confirmed again, the inventory is written again
        try:
            await self.storage.inventory_stale(self.node, self.link.epoch, self.clock())
        except StorageUnavailable:
            self._maybe_stale = True  # the next watch tries again; nothing is placed without PostgreSQL anyway
            return
        except Fenced as error:
            self._end("fenced", str(error))
            return
        self._stale = self._maybe_stale = True  # also when a confirmation was written meanwhile: it may have been overtaken
        log.warning("inventory not confirmed any more", node=self.node, epoch=self.link.epoch)
