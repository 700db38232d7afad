"""The Node's session with a gateway: one actor that dials, reports everything, passes commands on, and dials again."""

from __future__ import annotations

import logging
import sqlite3
import ssl
from collections.abc import Awaitable, Callable
from typing import ClassVar

import trio
from attrs import define, field, frozen

from tuneplane.actors import Actor, Context, MailboxFull, MailboxSpec, handles
from tuneplane.domain.frames import (
    WIRE_PROTOCOL,
    Command,
    CommandKind,
    DrainState,
    GatewayFrame,
    Hello,
    InventoryReport,
    LogCancel,
    LogRead,
    ObservationAck,
    ReconcileDone,
)
from tuneplane.domain.ids import MemberId
from tuneplane.domain.member_table import ENDED, REPORTED
from tuneplane.domain.node_member import PROGRESS_TICKS, NodeMember, observation
from tuneplane.domain.timings import Timings
from tuneplane.wire.link import LinkClosed, NodeLink, SessionEnded

from .board import Board
from .core import NodeCore
from .drain import DrainDesk
from .log_desk import LogDesk
from .machine import node_version
from .member_actors import Answered, arrival

log = logging.getLogger(__name__)

RESEND_POLLS = 5  # a report without acknowledgement is sent again after that many poll intervals
TELL_AGAIN_SECONDS = 600.0  # an end for the same reason: who reads the log of a day still sees that it goes on
MOST_CODES = 16  # remembered; a gateway may make up more, and then some are told too often
SETTLED = frozenset({"credential-unknown", "credential-revoked", "credential-expired", "node-removed", "protocol-version"})


@frozen(kw_only=True)
class Dial:
    """How to reach the gateway and who we are there. ``run`` is ``wire.link.run_node_session``."""

    target: str
    tls: ssl.SSLContext
    credential: str = field(repr=False)
    address: str
    run: Callable[..., Awaitable[None]]


@define
class Patience:
    """Full jitter below a doubling cap, so that ten thousand Nodes do not come back in the same second (L-B6, L-B15)."""

    timings: Timings
    _failures: int = 0

    def next_wait(self, jitter: float, *, lived_seconds: float, asked_seconds: float, settled: bool) -> float:
        """Seconds until the next dial. ``jitter`` is in [0, 1); ``settled``: nothing changes until somebody acts."""
        if lived_seconds >= self.timings.reconnect_most:
            self._failures = 0
        cap = min(self.timings.reconnect_most, self.timings.reconnect_first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        if settled:
            return self.timings.reconnect_most * (1 + jitter)
        return asked_seconds + cap * jitter


@define(eq=False)
class SessionActor(Actor):
    """Owns the connection. Members, journal and containers do not notice whether there is one."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = (
        MailboxSpec("answers", 512, "as many as the steward's two mailboxes hold; the link takes them in microseconds"),
    )
    core: NodeCore
    board: Board
    dial: Dial
    _link: NodeLink | None = None
    _acknowledged: dict[MemberId, int] = field(factory=dict)  # of this session, by reported revision
    _told: dict[str, float] = field(factory=dict)  # codes of ends, and when the log told of each

    async def run(self, context: Context) -> None:
        patience = Patience(self.core.timings)
        self._raise_alarm()
        with context.until_stopping():
            while True:
                begun = trio.current_time()
                ended = await self._hold_session(context)
                lived = trio.current_time() - begun
                wait = patience.next_wait(
                    context.system.random.random(),
                    lived_seconds=lived,
                    asked_seconds=ended.retry_after_seconds,
                    settled=ended.code in SETTLED,
                )
                self._note_end(ended, lived, wait)
                await trio.sleep(wait)

    def _note_end(self, ended: SessionEnded, lived: float, wait: float) -> None:
        """One line a reason, and again after a while; reasons that take turns do not fill the log either (L-B15)."""
        now = trio.current_time()
        if lived >= self.core.timings.reconnect_most or len(self._told) >= MOST_CODES:
            self._told.clear()
        fresh = ended.code not in self._told or now - self._told[ended.code] >= TELL_AGAIN_SECONDS
        if fresh:
            self._told[ended.code] = now
        level = logging.WARNING if fresh else logging.DEBUG
        log.log(level, "no session with %s: %s; dialling again in %.1f s", self.dial.target, ended, wait)

    async def _hold_session(self, context: Context) -> SessionEnded:
        async def body(link: NodeLink) -> None:
            await self._session(link, context)

        try:
            await self.dial.run(
                target=self.dial.target,
                tls=self.dial.tls,
                credential=self.dial.credential,
                hello=self._hello(),
                timings=self.core.timings,
                body=body,
            )
        except SessionEnded as ended:
            return ended
        finally:
            self._link = None
        return SessionEnded("closed", "the session ended")

    def _hello(self) -> Hello:
        core = self.core
        return Hello(
            protocol=WIRE_PROTOCOL,
            node=core.node,
            fleet=core.fleet,
            boot_id=core.machine.boot_id(),
            machine_id=core.machine.machine_id(),
            journal_id=core.journal.journal_id,
            journal_sequence=core.journal.sequence,
            node_version=node_version(),
            address=self.dial.address,
            sent_at=core.machine.now(),
        )

    async def _session(self, link: NodeLink, context: Context) -> None:
        """The body of one session. The epoch is on the disk before the first command is looked at (P-06)."""
        try:
            welcome = link.welcome
            fresh = await self.core.journal.open_session(welcome.session_epoch, self.core.machine.now(), welcome.accepted_hold)
        except (OSError, sqlite3.Error) as error:  # a full disk, say: no reason to take the members' drivers down
            log.error("cannot journal session epoch %d: %s", link.welcome.session_epoch, error)
            link.close("journal-failed", f"the session's epoch cannot be journalled: {error}")
            return
        self._raise_alarm()
        self.board.accept_cards(link.welcome.accepted_cards)
        self._acknowledged.clear()
        self._link = link
        log.info("session %d with %s", link.welcome.session_epoch, link.peer)
        async with trio.open_nursery() as nursery:
            desk, drain = LogDesk(self.core, link), DrainDesk(self.core, link)
            nursery.start_soon(desk.serve)
            nursery.start_soon(drain.serve)
            nursery.start_soon(self._confirm_inventory, link)
            nursery.start_soon(self._report, link)
            nursery.start_soon(self._resend)
            while True:
                frame = await link.receive()
                if isinstance(frame, DrainState):
                    drain.heard(frame)
                else:
                    self._dispatch(frame, link, desk, context, fresh)

    def _raise_alarm(self) -> None:
        """P-07: the commands of a control plane whose epochs went back are held; it gets reports, and an operator the alarm."""
        hold = self.core.journal.hold
        if hold is not None:
            log.error("%s", hold)
        self.board.raise_alarm(str(hold) if hold is not None else "")

    # ------------------------------------------------ in

    def _dispatch(self, frame: GatewayFrame, link: NodeLink, desk: LogDesk, context: Context, fresh: bool) -> None:
        if isinstance(frame, Command):
            held = not fresh and not (frame.kind is CommandKind.STOP and (frame.ended or frame.stranger))
            if not held and frame.session_epoch == link.welcome.session_epoch:
                self._pass_on(frame, link, context)
        elif isinstance(frame, ObservationAck):
            self._acknowledge(frame, context)
        elif isinstance(frame, LogRead):
            desk.begin(frame)
        elif isinstance(frame, LogCancel):
            desk.cancel(frame.request)

    def _pass_on(self, command: Command, link: NodeLink, context: Context) -> None:
        steward = context.system.ref(f"{context.path.rsplit('/', 1)[0]}/steward")
        try:
            if steward is None:
                raise LookupError("the steward is being restarted")
            steward.tell_nowait(arrival(command, context.ref))
        except (MailboxFull, LookupError) as error:  # unanswered commands come again with the next session
            link.close("overloaded", f"cannot take {command.kind.value} of {command.member}: {error}")

    def _acknowledge(self, ack: ObservationAck, context: Context) -> None:
        self._acknowledged[ack.member] = max(ack.revision, self._acknowledged.get(ack.member, 0))
        record = self.core.journal.member(ack.member)
        if record is not None and record.phase in ENDED and ack.revision // PROGRESS_TICKS > record.acknowledged:
            context.start_task(self._keep_acknowledgement, ack)

    async def _keep_acknowledgement(self, ack: ObservationAck) -> None:
        try:
            await self.core.journal.acknowledge(ack.member, ack.revision)
        except (OSError, sqlite3.Error) as error:
            log.error("cannot journal an acknowledgement of %s: %s", ack.member, error)

    # ------------------------------------------------ out

    @handles(Answered, mailbox="answers")
    async def answered(self, letter: Answered, context: Context) -> None:
        link = self._link
        if link is None:
            return  # it will be asked again, and the journal knows the answer
        try:
            await link.send(letter.answer)
        except LinkClosed:
            return

    async def _report(self, link: NodeLink) -> None:
        """All members, then whatever changes (R-LCH-05). A changed member is reported with its newest state only."""
        self.core.outbox.clear()
        records = self.core.journal.members()
        for record in records:
            await self._send_record(link, record)
        await link.send(ReconcileDone(members=len(records)))
        while True:
            await self.core.outbox.wait_due()
            member = self.core.outbox.take()
            changed = self.core.journal.member(member) if member is not None else None
            if changed is not None:
                await self._send_record(link, changed)

    async def _send_record(self, link: NodeLink, record: NodeMember) -> None:
        if record.phase not in REPORTED:
            return  # being forgotten: the control plane asked for it
        now = self.core.progress.get(record.member) if record.phase not in ENDED else None
        progress, tick = (now.progress, now.tick) if now is not None else (None, 0)
        await link.send(observation(record, self.core.place(), progress, tick))

    async def _resend(self) -> None:
        """A gateway that could not store a report does not acknowledge it (P-06): report again until it does."""
        silent: set[MemberId] = set()
        while True:
            await trio.sleep(self.core.timings.poll * RESEND_POLLS)
            for record in self.core.journal.members():
                if record.phase in REPORTED and self._acknowledged.get(record.member, 0) // PROGRESS_TICKS < record.revision:
                    self.core.outbox.report(record.member)
            silent = self._note_unclaimed(silent)

    def _note_unclaimed(self, before: set[MemberId]) -> set[MemberId]:
        """Members of which no report was acknowledged in this session: twice running, they are none of this control plane's (P-07)."""
        live = {record.member for record in self.core.journal.members() if record.phase not in ENDED}
        silent = live - set(self._acknowledged)
        if silent & before != self.core.unclaimed:
            self.core.unclaimed = frozenset(silent & before)
            self.board.look_again()
        return silent

    async def _confirm_inventory(self, link: NodeLink) -> None:
        """Send an inventory when it changed; let heartbeats confirm it only while it is fresh (R-SES-05, R-PLC-04)."""
        sent = ""
        while True:
            changed = self.board.changed()
            survey = self.board.survey
            age = trio.current_time() - self.board.seen_at
            fresh = survey is not None and age < self.core.timings.inventory_fresh
            if survey is not None and fresh and survey.digest != sent:  # an old look tells how it was, not how it is
                link.inventory_digest = ""
                await link.send(InventoryReport(inventory=survey.inventory, digest=survey.digest))
                sent = survey.digest
            link.inventory_seen_at = self.board.seen_at
            link.inventory_digest = sent if fresh else ""
            with trio.move_on_after(self.core.timings.inventory_confirm):
                await changed.wait()
