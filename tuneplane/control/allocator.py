"""The allocator: waiting jobs to attempts with plans and holds, or to a true reason why they wait (R-PLC-03, R-PLC-05).

Any number of workers may run one: the planner's answer is only a proposal, and the database's constraints decide. When
they say no, the world is read again. It takes no payload from pokes: each look reads everything it needs.
"""

from __future__ import annotations

from typing import ClassVar

import structlog
import trio
from attrs import define, field

from tuneplane.actors import Actor, Context, MailboxSpec, on_signal
from tuneplane.domain.errors import Reason, StorageUnavailable
from tuneplane.domain.fleets import Fleet
from tuneplane.domain.ids import FleetId, attempt_id
from tuneplane.domain.jobs import Job
from tuneplane.domain.jobspec import Orchestrator, Resources
from tuneplane.domain.nodes import Node
from tuneplane.domain.placement import MustWait, Placed, place
from tuneplane.domain.plan import MAX_PLAN_BYTES
from tuneplane.domain.ports import Storage, Topic

from .patience import Alarm, Backoff, Clock, Pace, signal_on_pokes
from .plans import PlannedAttempt, next_number, plan_attempt, storage_root_of

log = structlog.get_logger("tuneplane.control.allocator")

JOBS_A_LOOK = 500  # the head of the queue, over all Fleets; the rest is looked at when these have moved
TRIES_A_JOB = 3  # lost races within one look; more than that is left to the next look
MAX_REASONS = 50  # as many as a person reads; a Fleet may have thousands of Nodes


@define
class _Look:
    """What one look has read: each Fleet and its Nodes once, until something was placed there."""

    storage: Storage
    clock: Clock
    _fleets: dict[FleetId, Fleet | None] = field(factory=dict, init=False)
    _nodes: dict[FleetId, list[Node]] = field(factory=dict, init=False)
    _refusals: dict[tuple[FleetId, Resources, Orchestrator], MustWait] = field(factory=dict, init=False)

    async def fleet(self, fleet: FleetId) -> Fleet | None:
        if fleet not in self._fleets:
            self._fleets[fleet] = await self.storage.get_fleet(fleet)
        return self._fleets[fleet]

    async def nodes(self, fleet: FleetId) -> list[Node]:
        if fleet not in self._nodes:
            self._nodes[fleet] = await self.storage.placement_nodes(fleet, self.clock())
        return self._nodes[fleet]

    async def place(self, job: Job, fleet: Fleet) -> Placed | MustWait:
        """The planner's answer. A look only takes room away, so what did not fit once is not tried again in it."""
        key = (fleet.id, job.spec.spec.resources, job.spec.spec.orchestrator)
        if key not in self._refusals:
            answer = place(job.spec, fleet, await self.nodes(fleet.id), self.clock(), seed=attempt_id(job.id, next_number(job)))
            if isinstance(answer, Placed):
                return answer
            self._refusals[key] = answer
        return self._refusals[key]

    def forget_nodes(self, fleet: FleetId) -> None:
        self._nodes.pop(fleet, None)


@define
class Allocator(Actor):
    """One look at the waiting jobs after every poke and every poll interval."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = ()
    storage: Storage
    clock: Clock
    backoff: Backoff
    storage_root: str  # for Fleets that name none
    _pace: Pace = field(factory=Pace, init=False)
    _again: Alarm = field(factory=lambda: Alarm("look"), init=False)

    async def run(self, context: Context) -> None:
        await signal_on_pokes(context, "look", self.storage, (Topic.JOBS,), self.backoff)

    @on_signal("look")
    async def look(self, context: Context) -> None:
        """One pass over the head of the queue. It rests as long as it took: half of this process is left to the others."""
        left, began = self._pace.seconds_left(), trio.current_time()
        if left > 0:
            self._again.set(context, left)
            return
        try:
            await self._pass()
        except StorageUnavailable as error:
            log.warning("allocator waits for the database", error=str(error))  # P-09: the next look reads what was written
            self._again.set(context, self.backoff.next_seconds())
        self._pace.rest(trio.current_time() - began)

    async def _pass(self) -> None:
        look = _Look(self.storage, self.clock)
        for job in await self.storage.waiting_jobs(JOBS_A_LOOK, self.clock()):
            await self._allocate(job, look)
            await trio.lowlevel.checkpoint()  # planning many jobs must not hold up the renewals of claims

    async def _allocate(self, job: Job, look: _Look) -> None:
        """Place ``job``, or keep the reason why it waits. A job that was stopped meanwhile is simply not placed."""
        fleet = await look.fleet(job.fleet)
        if fleet is None:
            await self._wait(job, "no-fleet", (Reason("no-fleet", f"Fleet {job.fleet} does not exist any more", job.fleet),))
            return
        if not storage_root_of(fleet, self.storage_root):
            reason = Reason("no-storage-root", f"neither Fleet {fleet.id} nor TUNEPLANE_STORAGE_ROOT names a storage root", fleet.id)
            await self._wait(job, reason.code, (reason,))
            return
        for _ in range(TRIES_A_JOB):
            answer = await look.place(job, fleet)
            if isinstance(answer, MustWait):
                await self._wait(job, answer.code, answer.reasons)
                return
            planned = plan_attempt(job, fleet, answer, self.storage_root)
            if planned.too_large:
                await self._wait(job, "plan-too-large", (Reason("plan-too-large", f"its plan is larger than {MAX_PLAN_BYTES} bytes"),))
                return
            look.forget_nodes(fleet.id)
            if await self._write(job, planned):
                return

    async def _write(self, job: Job, planned: PlannedAttempt) -> bool:
        if_placed = await self.storage.place(job.id, planned.id, planned.number, planned.members, self.clock())
        log.info("placement", job=job.id, attempt=planned.id, nodes=[member.node for member in planned.members], placed=if_placed)
        return if_placed

    async def _wait(self, job: Job, code: str, reasons: tuple[Reason, ...]) -> None:
        shown = _shorten(reasons)
        if job.waiting is None or (job.waiting.code, job.waiting.reasons) != (code, shown):
            await self.storage.note_waiting(job.id, code, shown, self.clock())


def _shorten(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    if len(reasons) <= MAX_REASONS:
        return reasons
    return (*reasons[:MAX_REASONS], Reason("more", f"and {len(reasons) - MAX_REASONS} more Nodes with reasons of their own"))
