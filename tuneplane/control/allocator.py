"""The allocator: waiting jobs to attempts with plans and holds, or to a true reason why they wait (R-PLC-03, R-PLC-05).

Any number of workers may run one: the planner's answers (domain/fairness.py) are only proposals, and the database's
constraints decide. When they say no, the Fleet is looked at again. It takes no payload from pokes: each look reads
everything it needs. Each Fleet has a queue of its own, so that no backlog hides another Fleet's jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import structlog
import trio
from attrs import define, field

from tuneplane.actors import Actor, Context, MailboxSpec, on_signal
from tuneplane.domain.errors import Reason, StorageUnavailable
from tuneplane.domain.fairness import plan_queue, releases_of, wants_releases
from tuneplane.domain.fleets import Fleet
from tuneplane.domain.ids import FleetId, JobId
from tuneplane.domain.jobs import Job
from tuneplane.domain.placement import Placed
from tuneplane.domain.plan import MAX_PLAN_BYTES
from tuneplane.domain.ports import Storage, Topic
from tuneplane.domain.timings import Timings
from tuneplane.domain.waiting import shorten

from .patience import Alarm, Backoff, Clock, Pace, signal_on_pokes
from .plans import PlannedAttempt, plan_attempt, storage_root_of

log = structlog.get_logger("tuneplane.control.allocator")

JOBS_A_LOOK = 1000  # the head of each Fleet's queue; the rest is looked at when these have moved
ROUNDS_A_LOOK = 3  # at one Fleet, after lost races; more than that is left to the next look
TOO_LARGE = Reason("plan-too-large", f"its plan is larger than {MAX_PLAN_BYTES} bytes")


@define
class Allocator(Actor):
    """One look at the waiting jobs after every poke and every poll interval."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = ()
    storage: Storage
    timings: Timings
    clock: Clock
    backoff: Backoff
    storage_root: str  # for Fleets that name none
    _pace: Pace = field(factory=Pace, init=False)
    _again: Alarm = field(factory=lambda: Alarm("look"), init=False)

    async def run(self, context: Context) -> None:
        await signal_on_pokes(context, {Topic.JOBS: "look"}, self.storage, self.backoff)

    @on_signal("look")
    async def look(self, context: Context) -> None:
        """One pass over the head of every queue. It rests as long as it took: half of this process is left to the others."""
        left, began = self._pace.seconds_left(), trio.current_time()
        if left > 0:
            self._again.set(context, left)
            return
        try:
            for fleet in await self.storage.waiting_fleets(self.clock()):
                await self._serve(fleet)
        except StorageUnavailable as error:
            log.warning("allocator waits for the database", error=str(error))  # P-09: the next look reads what was written
            self._again.set(context, self.backoff.next_seconds())
        self._pace.rest(trio.current_time() - began)

    async def _serve(self, name: FleetId) -> None:
        too_large: set[JobId] = set()
        for number in range(ROUNDS_A_LOOK):
            fleet = await self.storage.get_fleet(name)
            jobs = [job for job in await self.storage.waiting_jobs(name, JOBS_A_LOOK, self.clock()) if job.id not in too_large]
            if fleet is None or not jobs:
                return  # the Fleet cannot be gone while a job waits: both have gone since
            if not storage_root_of(fleet, self.storage_root):
                reason = Reason("no-storage-root", f"neither Fleet {name} nor TUNEPLANE_STORAGE_ROOT names a storage root", name)
                await self._wait(jobs, reason.code, (reason,))
                return
            if await self._round(fleet, jobs, too_large, last=number == ROUNDS_A_LOOK - 1):
                return

    async def _round(self, fleet: Fleet, jobs: Sequence[Job], too_large: set[JobId], *, last: bool) -> bool:
        """One plan of a Fleet's queue. False when the world was another one: look again before anybody is told to wait."""
        nodes, now, held = await self.storage.placement_nodes(fleet.id, self.clock()), self.clock(), True
        overdue = wants_releases(jobs, now, self.timings)
        releases = releases_of(await self.storage.occupants(fleet.id), self.timings) if overdue else {}
        for decision in plan_queue(fleet, nodes, jobs, releases, now, self.timings):
            if isinstance(decision.answer, Placed):
                held &= await self._place(decision.jobs[0], fleet, decision.answer, too_large)
            elif held or last:
                await self._wait(decision.jobs, decision.answer.code, shorten(decision.answer.reasons))
            await trio.lowlevel.checkpoint()  # planning many jobs must not hold up the renewals of claims
        return held

    async def _place(self, job: Job, fleet: Fleet, placed: Placed, too_large: set[JobId]) -> bool:
        """A job that was stopped meanwhile, or that another worker has placed, is simply not placed."""
        planned = plan_attempt(job, fleet, placed, self.storage_root)
        if not planned.too_large:
            return await self._write(job, planned)
        too_large.add(job.id)
        await self._wait((job,), TOO_LARGE.code, (TOO_LARGE,))
        return False  # the plan has given its room away

    async def _write(self, job: Job, planned: PlannedAttempt) -> bool:
        if_placed = await self.storage.place(job.id, planned.id, planned.number, planned.members, self.clock())
        log.info("placement", job=job.id, attempt=planned.id, nodes=[member.node for member in planned.members], placed=if_placed)
        return if_placed

    async def _wait(self, jobs: Sequence[Job], code: str, reasons: tuple[Reason, ...]) -> None:
        new = [job.id for job in jobs if job.waiting is None or (job.waiting.code, job.waiting.reasons) != (code, reasons)]
        if new:
            await self.storage.note_waiting(new, code, reasons, self.clock())
