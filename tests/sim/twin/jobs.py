"""Jobs of the twin: submission, listings, records, stops and retries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from attrs import evolve

from tuneplane.domain.errors import NotFound, Reason, Refused
from tuneplane.domain.ids import FleetId, JobId, TraceId, UserName
from tuneplane.domain.jobs import (
    AttemptRecord,
    Job,
    JobSummary,
    MemberRecord,
    Page,
    TimelineEvent,
    User,
    Waiting,
    summary_of,
    waiting_for_peers,
    waits_for,
)
from tuneplane.domain.jobspec import JobSpec
from tuneplane.domain.launch_table import (
    ENDED_PHASES,
    FINAL_JOB_STATES,
    AttemptState,
    Cause,
    JobState,
)
from tuneplane.domain.plan import PlanSight, sight
from tuneplane.domain.ports import Topic
from tuneplane.domain.verdict import STOPPED, cause_between_attempts, cause_of_stop, check_retry
from tuneplane.domain.visibility import JobAccess, may_see_job
from tuneplane.domain.waiting import WaitingJobs, waiting_of
from tuneplane.storage.database import clean
from tuneplane.storage.jobs import no_such_series

from .base import Client, audit, note, page_of, poke
from .hardware import series_is_known
from .members import member_views, members_of, stop_members
from .rows import AttemptRow, Book, MemberRow
from .sight import silent_since


class Jobs(Client):
    """JobStore, and the waiting jobs (domain/ports.py)."""

    async def submit(
        self,
        job: JobId,
        spec: JobSpec,
        *,
        owner: UserName,
        fleet: FleetId,
        image: str,
        trace: TraceId,
        idempotency_key: str | None,
        now: datetime,
    ) -> Job:
        made = Job(
            id=job,
            name=spec.metadata.name,
            project=spec.metadata.project,
            owner=owner,
            fleet=fleet,
            spec=spec,
            image=image,
            state=JobState.QUEUED,
            trace=trace,
            created_at=now,
        )
        return await self.write("submit", _submit, made, idempotency_key, now)

    async def get_job(self, job: JobId) -> Job | None:
        return await self.read("get_job", lambda book: whole(book, job, self.database.clock()) if job in book.jobs else None)

    async def find_submission(self, owner: UserName, idempotency_key: str) -> Job | None:
        return await self.read("find_submission", _submitted, owner, idempotency_key)

    async def list_jobs(
        self, page: Page, *, states: Sequence[JobState] = (), fleet: FleetId | None = None, seen_by: User | None = None
    ) -> tuple[list[JobSummary], str | None]:
        def unit(book: Book) -> tuple[list[JobSummary], str | None]:
            rows = [job for job in book.jobs if (not states or job.state in states) and _is_asked(book, job, fleet, seen_by)]
            found, cursor = page_of(rows, page, lambda job: (job.created_at, job.id))
            return [summary_of(job) for job in found], cursor

        return await self.read("list_jobs", unit)

    async def waiting_by_reasons(self, *, fleet: FleetId | None = None, seen_by: User | None = None) -> list[WaitingJobs]:
        return await self.read("waiting_by_reasons", _by_reasons, fleet, seen_by)

    async def job_access(self, job: JobId) -> JobAccess | None:
        return await self.read("job_access", lambda book: _access(book, book.jobs[job]) if job in book.jobs else None)

    async def request_stop(self, job: JobId, by: UserName, now: datetime) -> Job:
        return await self.write("request_stop", _request_stop, job, by, now, self.database.clock())

    async def retry(self, job: JobId, by: UserName, now: datetime, *, after: int | None = None) -> Job:
        return await self.write("retry", _retry, job, by, after, now, self.database.clock())

    async def timeline(self, job: JobId, limit: int) -> list[TimelineEvent]:
        return await self.read("timeline", lambda book: [event for owner, event in book.timeline if owner == job][-limit:])

    async def waiting_fleets(self, now: datetime) -> list[FleetId]:
        return await self.read("waiting_fleets", lambda book: sorted({job.fleet for job in book.jobs if _is_waiting(job, now)}))

    async def waiting_jobs(self, fleet: FleetId, limit: int, now: datetime) -> list[Job]:
        return await self.read("waiting_jobs", _waiting_jobs, fleet, limit, now)

    async def note_waiting(self, jobs: Sequence[JobId], code: str, reasons: Sequence[Reason], now: datetime) -> None:
        await self.write("note_waiting", _note_waiting, tuple(jobs), clean(code), tuple(reasons), now)


# ---------------------------------------------------------------- jobs


def _access(book: Book, job: Job) -> JobAccess:
    return JobAccess(owner=job.owner, project=job.project, fleet=book.fleets.get(job.fleet))


def _submit(book: Book, made: Job, key: str | None, now: datetime) -> Job:
    former = book.submissions.get((made.owner, key)) if key is not None else None
    if former is not None or made.id in book.jobs:
        return book.jobs[former or made.id]
    if made.fleet not in book.fleets:
        raise NotFound("Fleet", made.fleet)
    if not series_is_known(book, made.spec):
        raise no_such_series(made.spec)
    book.jobs.put(made.id, made)
    if key is not None:
        book.submissions.put((made.owner, key), made.id)
    note(book, made.id, now, "job.submitted", made.id, f"by {made.owner}, to Fleet {made.fleet}")
    audit(book, made.owner, "job.submit", made.id, now, f"{made.name} to Fleet {made.fleet}")
    poke(book, Topic.JOBS, Topic.CONSOLE)
    return made


def _submitted(book: Book, owner: UserName, key: str) -> Job | None:
    job = book.submissions.get((owner, key))
    return book.jobs[job] if job is not None else None


def whole(book: Book, job: JobId, now: datetime) -> Job:
    attempts = sorted((row for row in book.attempts if row.job == job), key=lambda row: row.number)
    return evolve(book.jobs[job], attempts=tuple(_attempt(book, row, now) for row in attempts))


def _attempt(book: Book, row: AttemptRow, now: datetime) -> AttemptRecord:
    rows = members_of(book, row.id)
    members = waiting_for_peers(row.state, tuple(_member(book, member, now) for member in rows))
    head = sight(rows[0].plan) if rows else PlanSight()
    return AttemptRecord(
        id=row.id,
        number=row.number,
        state=row.state,
        members=members,
        created_at=row.created_at,
        running_at=row.running_at,
        ended_at=row.ended_at,
        reason_code=row.cause_code,
        reason_detail=row.cause_detail,
        main_address=head.main_address,
        main_port=head.main_port,
        output_dir=head.output_dir,
        waits_for=waits_for(row.state, members),
    )


def _member(book: Book, row: MemberRow, now: datetime) -> MemberRecord:
    seen = sight(row.plan)
    return MemberRecord(
        id=row.id,
        node=row.node,
        rank=row.rank,
        phase=row.phase,
        exit_code=row.exit_code,
        oom_killed=row.oom_killed,
        reason_code=row.reason_code,
        reason_detail=row.reason_detail,
        progress=row.progress,
        started_at=row.started_at,
        ended_at=row.ended_at,
        cleaned=row.cleaned,
        gpu_uuids=seen.gpu_uuids,
        ports=seen.ports,
        address=seen.address,
        interface=seen.interface,
        node_silent_since=None if row.phase in ENDED_PHASES else silent_since(book, row.node, now),
    )


def _is_asked(book: Book, job: Job, fleet: FleetId | None, seen_by: User | None) -> bool:
    return fleet in (None, job.fleet) and (seen_by is None or may_see_job(seen_by, _access(book, job)))


def _by_reasons(book: Book, fleet: FleetId | None, seen_by: User | None) -> list[WaitingJobs]:
    found: dict[tuple[object, ...], list[tuple[datetime, JobId]]] = {}
    for job in book.jobs:
        waiting = waiting_of(job)
        if waiting is not None and job.state is JobState.QUEUED and _is_asked(book, job, fleet, seen_by):
            found.setdefault((job.fleet, waiting.code, waiting.reasons), []).append((waiting.since or job.created_at, job.id))
    return [
        WaitingJobs(fleet=of, code=code, reasons=reasons, jobs=len(jobs), since=min(jobs)[0], oldest=min(jobs)[1])  # type: ignore[arg-type]
        for (of, code, reasons), jobs in found.items()
    ]


def _is_waiting(job: Job, now: datetime) -> bool:
    return job.state is JobState.QUEUED and (job.not_before is None or job.not_before <= now)


def _waiting_jobs(book: Book, fleet: FleetId, limit: int, now: datetime) -> list[Job]:
    found = [job for job in book.jobs if job.fleet == fleet and _is_waiting(job, now)]
    return sorted(found, key=lambda job: (-job.spec.spec.priority, job.created_at, job.id))[:limit]


def _note_waiting(book: Book, jobs: tuple[JobId, ...], code: str, reasons: tuple[Reason, ...], now: datetime) -> None:
    for row in [row for job in sorted(set(jobs)) if (row := book.jobs.get(job)) is not None and row.state is JobState.QUEUED]:
        same = row.waiting is not None and row.waiting.code == code
        if row.waiting is not None and same and row.waiting.reasons == reasons:
            continue
        since = row.waiting.since if row.waiting is not None and same else now
        book.jobs.put(row.id, evolve(row, waiting=Waiting(code=code, reasons=reasons, since=since)))
        poke(book, Topic.CONSOLE)


# ---------------------------------------------------------------- stops


def _request_stop(book: Book, job: JobId, by: UserName, now: datetime, true_now: datetime) -> Job:
    row = book.jobs.get(job)
    if row is None:
        raise NotFound("job", job)
    audit(book, by, "job.stop", job, now)
    if row.state in FINAL_JOB_STATES or row.stop_asked_at is not None:
        return whole(book, job, true_now)
    attempt = next((one for one in book.attempts if one.job == job and one.state is not AttemptState.ENDED), None)
    note(book, job, now, "job.stop-asked", job, f"stopped by {by}")
    cause = _cause(book, attempt, by, true_now) if attempt is not None else _cause_between(book, job, by)
    changes: dict[str, object] = {"state": JobState.STOPPING} if attempt else {"state": JobState.STOPPED, "ended_at": now}
    asked = {"stop_asked_at": now, "stop_asked_by": by, "reason_code": cause.code, "reason_detail": cause.detail}
    book.jobs.put(job, evolve(row, **asked, **changes, waiting=None, not_before=None))  # type: ignore[arg-type]
    if attempt is None:
        note(book, job, now, "job.stopped", job, "it waited for another attempt" if row.attempt_number else "it had not been placed")
    else:
        _stop_attempt(book, attempt, cause, now)
    poke(book, Topic.JOBS, Topic.ATTEMPTS, Topic.COMMANDS, Topic.CONSOLE)
    return whole(book, job, true_now)


def _cause(book: Book, attempt: AttemptRow, by: UserName, true_now: datetime) -> Cause:
    """The first cause is kept (L-H1)."""
    if attempt.cause_code:
        return Cause(attempt.cause_code, attempt.cause_detail)
    cause = cause_of_stop(member_views(book, attempt.id, true_now), by)
    return Cause(clean(cause.code), clean(cause.detail))


def _cause_between(book: Book, job: JobId, by: UserName) -> Cause:
    last = max((row for row in book.attempts if row.job == job), key=lambda row: row.number, default=None)
    if last is None:
        return cause_between_attempts(by, 0, None)
    cause = cause_between_attempts(by, last.number, Cause(last.cause_code, last.cause_detail))
    return Cause(cause.code, clean(cause.detail))


def _stop_attempt(book: Book, attempt: AttemptRow, cause: Cause, now: datetime) -> None:
    if attempt.state is not AttemptState.STOPPING:
        changed = evolve(attempt, state=AttemptState.STOPPING, entered_at=now, cause_code=cause.code, cause_detail=cause.detail)
        book.attempts.put(attempt.id, changed)
        note(book, attempt.job, now, "attempt.stopping", attempt.id, cause.detail)
    stop_members(book, attempt.id, STOPPED, now)


def _retry(book: Book, job: JobId, by: UserName, after: int | None, now: datetime, true_now: datetime) -> Job:
    row = book.jobs.get(job)
    if row is None:
        raise NotFound("job", job)
    last = row.attempt_number if after is None else min(after, row.attempt_number)
    audit(book, by, "job.retry", job, now, f"attempt {last + 1}")
    if row.attempt_number > last:
        return whole(book, job, true_now)
    check_retry(job, row.state, row.stop_asked_at, row.attempt_number)
    if row.fleet not in book.fleets:
        raise Refused("fleet-gone", f"the Fleet of job {job} was deleted: submit it anew")
    if not series_is_known(book, row.spec):
        raise Refused("series-gone", f"the hardware series of job {job} was deleted: submit it anew")
    if row.state is JobState.FAILED or row.not_before is not None:
        empty = {"ended_at": None, "not_before": None, "reason_code": "", "reason_detail": "", "waiting": None}
        book.jobs.put(job, evolve(row, state=JobState.QUEUED, **empty))  # type: ignore[arg-type]
        note(book, job, now, "job.retry-asked", job, f"by {by}, for attempt {row.attempt_number + 1}")
        poke(book, Topic.JOBS, Topic.CONSOLE)
    return whole(book, job, true_now)
