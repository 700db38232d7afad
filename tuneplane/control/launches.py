"""Launch consumers: claim attempts, and drive each by looking (house.md, "The launch, end to end"; R-LCH-01, P-05).

A :class:`Consumer` takes attempts that nobody drives and starts one :class:`Launch` actor for each in the pool. A Launch
remembers nothing: every look reads the rows, names the one thing that is true, and persists the step that follows
under its claim epoch and the old state. So a crash, a second worker or an unknown COMMIT (P-09) repeats a look, never
an act; the ids of the persisted commands are a function of the member, so a take-over repeats the same operations.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

import structlog
import trio
from attrs import define, field, frozen

from tuneplane.actors import Actor, ActorError, ChildSpec, Context, MailboxSpec, Ref, Restart, on_signal
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.ids import AttemptId, WorkerId
from tuneplane.domain.jobs import Claim
from tuneplane.domain.launch_table import AttemptEvent, LaunchView, next_look, observe
from tuneplane.domain.ports import LaunchStore, Storage, Topic
from tuneplane.domain.timings import Timings
from tuneplane.domain.verdict import decide

from .patience import Alarm, Backoff, Clock, Pace, parent_path, signal_on_pokes

log = structlog.get_logger("tuneplane.control.launches")

MAX_LAUNCHES = 512  # a worker: at one small read a poll interval each, a quarter of one PostgreSQL connection's time
CLAIMS_A_LOOK = 32  # one transaction claims that many: short enough not to hold others up
LOOKS_AT_ONCE = 4  # half the storage pool, so that renewals and the other actors of the process always find a connection
LOOK_SECONDS = 0.002  # what one look costs: ten launches are poked 50 times a second at most, all 512 once a second
STEPS_A_LOOK = 8  # the longest way through the attempt table has five steps; more means that the world keeps moving


@define
class Launch(Actor):
    """Drives one claimed attempt until it has ended or the claim is lost. Temporary: see :class:`Consumer`."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = ()
    storage: LaunchStore
    claim: Claim
    timings: Timings
    clock: Clock
    backoff: Backoff
    gate: trio.CapacityLimiter  # bounds how many launches of this worker look at once
    _next: Alarm = field(factory=lambda: Alarm("look"), init=False)

    async def on_start(self, context: Context) -> None:
        context.ref.signal("look")

    @on_signal("look")
    async def look(self, context: Context) -> None:
        """Take every step that is due, then sleep until time or a poke can have made another one true."""
        self._next.cancel()
        try:
            async with self.gate:
                delay = await self._drive()
        except StorageUnavailable as error:
            delay = self.backoff.next_seconds()
            log.warning("launch waits for the database", attempt=self.claim.attempt, error=str(error), seconds=delay)
        else:
            self.backoff.reset()
        if delay is None:
            context.stop_self()
        else:
            self._next.set(context, delay)

    async def _drive(self) -> float | None:
        """Seconds until the next look; None when there is nothing left for this actor to do."""
        for _ in range(STEPS_A_LOOK):
            view = await self.storage.load_launch(self.claim)
            if view is None:
                return None
            now = self.clock()
            event = observe(view, now, self.timings)
            if event is None:
                return next_look(view, now, self.timings)
            await self._advance(view, event, now)
        return self.backoff.next_seconds()

    async def _advance(self, view: LaunchView, event: AttemptEvent, now: datetime) -> None:
        """Persist the step that ``event`` leads to. A refused write changes nothing: the next look sees why."""
        step = decide(view, event)
        moved = await self.storage.advance(self.claim, view, step.target, step.action, step.cause, step.verdict, now)
        log.info("launch step", attempt=view.attempt, state=view.state.value, on=event.value, to=step.target.value, moved=moved)


@frozen
class _Held:
    claim: Claim
    ref: Ref


@define
class Consumer(Actor):
    """Claims attempts, starts and pokes their Launch actors, and keeps the claims renewed.

    A Launch that crashes is not restarted here: its claim is no longer renewed, so the lease is the back-off, and the
    next claim (ours or another worker's) starts from the rows. After a stop the claims are given back at once.
    """

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = ()
    storage: Storage
    worker: WorkerId
    timings: Timings
    clock: Clock
    backoff: Backoff
    _held: dict[AttemptId, _Held] = field(factory=dict, init=False)  # at most MAX_LAUNCHES
    _pace: Pace = field(factory=Pace, init=False)
    _again: Alarm = field(factory=lambda: Alarm("look"), init=False)
    _gate: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(LOOKS_AT_ONCE), init=False)

    async def on_start(self, context: Context) -> None:
        context.timer("renew", self.timings.claim_renew)

    async def run(self, context: Context) -> None:
        await signal_on_pokes(context, {Topic.ATTEMPTS: "look", Topic.UNCLAIMED: "claim"}, self.storage, self.backoff)

    @on_signal("look")
    async def look(self, context: Context) -> None:
        """Poke the launches that we have. Where one has made room in a full worker, there may be another to take."""
        was_full = len(self._held) >= MAX_LAUNCHES
        self._drop_ended()
        self._poke_launches(context)
        if was_full:
            context.ref.signal("claim")

    @on_signal("claim")
    async def claim(self, context: Context) -> None:
        """Take attempts while there is room: new ones, and those of a worker that is gone (found by polling)."""
        self._drop_ended()
        room = min(MAX_LAUNCHES - len(self._held), CLAIMS_A_LOOK)
        if room <= 0:
            return
        now = self.clock()
        try:
            claims = await self.storage.claim_attempts(self.worker, room, now, now + self._lease)
        except StorageUnavailable as error:
            log.warning("cannot claim attempts", error=str(error))  # the next poll looks again
            return
        for claim in claims:
            await self._start(claim, context)
        if len(claims) == room:
            context.ref.signal("claim")

    @on_signal("renew")
    async def renew(self, context: Context) -> None:
        """Prolong our claims; a Launch whose claim another worker has taken is stopped at once (P-05)."""
        self._drop_ended()
        ours = [held.claim for held in self._held.values()]
        try:
            kept = set(await self.storage.renew_claims(self.worker, ours, self.clock() + self._lease)) if ours else set()
        except StorageUnavailable as error:
            log.warning("cannot renew claims", error=str(error), claims=len(ours))
            context.timer("renew", self.backoff.next_seconds())
            return
        for claim in ours:
            if claim not in kept:
                self._lose(claim)
        context.timer("renew", self.timings.claim_renew)

    async def on_stop(self, context: Context) -> None:
        """Give the claims back, so that another worker need not wait for the leases to run out."""
        self._drop_ended()
        claims = [held.claim for held in self._held.values()]
        try:
            await self.storage.renew_claims(self.worker, claims, self.clock())
        except StorageUnavailable as error:
            log.info("claims not given back, their leases will run out", error=str(error))

    def _poke_launches(self, context: Context) -> None:
        """A poke does not say whom it concerns, so all look; not more often than they can read."""
        left = self._pace.seconds_left()
        if left > 0:
            self._again.set(context, left)
            return
        for held in self._held.values():
            held.ref.signal("look")
        self._pace.rest(len(self._held) * LOOK_SECONDS)

    @property
    def _lease(self) -> timedelta:
        return timedelta(seconds=self.timings.claim_lease)

    async def _start(self, claim: Claim, context: Context) -> None:
        former = self._held.pop(claim.attempt, None)
        if former is not None:
            former.ref.kill()
        launch = ChildSpec(name=f"{claim.attempt}.{claim.epoch}", factory=lambda: self._launch(claim), restart=Restart.TEMPORARY)
        try:
            ref = await context.system.pool(f"{parent_path(context)}/launches").start_child(launch)
        except ActorError as error:  # the claim is not renewed, so it goes to whoever can drive it
            log.error("cannot start a launch", attempt=claim.attempt, error=str(error))
            return
        self._held[claim.attempt] = _Held(claim, ref)

    def _launch(self, claim: Claim) -> Launch:
        backoff = Backoff(self.backoff.entropy)
        return Launch(
            storage=self.storage,
            claim=claim,
            timings=self.timings,
            clock=self.clock,
            backoff=backoff,
            gate=self._gate,
        )

    def _lose(self, claim: Claim) -> None:
        held = self._held.get(claim.attempt)
        if held is not None and held.claim == claim:
            log.info("claim lost", attempt=claim.attempt, epoch=claim.epoch, alive=held.ref.alive)
            held.ref.kill()
            del self._held[claim.attempt]

    def _drop_ended(self) -> None:
        for attempt in [attempt for attempt, held in self._held.items() if not held.ref.alive]:
            del self._held[attempt]
