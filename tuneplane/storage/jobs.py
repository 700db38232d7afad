"""Jobs: submission, listings, the whole record of one, its timeline, and a user's stop."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tuneplane.bridge.postgres import Connection, ConstraintViolated, Row
from tuneplane.domain.errors import NotFound, Reason, Refused
from tuneplane.domain.frames import Progress
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
    first_reason,
    waiting_for_peers,
    waits_for,
)
from tuneplane.domain.jobspec import JobSpec
from tuneplane.domain.launch_table import FINAL_JOB_STATES, AttemptState, Cause, JobState, MemberPhase
from tuneplane.domain.plan import PlanSight, sight
from tuneplane.domain.ports import Topic
from tuneplane.domain.verdict import STOPPED, cause_between_attempts, cause_of_stop, check_retry
from tuneplane.domain.visibility import JobAccess
from tuneplane.domain.waiting import NOT_LOOKED_AT, WaitingJobs

from .database import Aggregate, audit, clean, from_json, keys_of, note, page_of, poke, to_json
from .decoded import spec_of
from .fleets import fleet_of
from .launches import member_views
from .seen import job_seen
from .sight import SILENT_SINCE, WITH_SESSION
from .stopping import stop_members


class Jobs(Aggregate):
    """JobStore (domain/ports.py)."""

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
        try:
            return await self._db.write("submit", _submit, job, spec, owner, fleet, image, trace, idempotency_key, now)
        except ConstraintViolated as error:
            if error.constraint == "job_fleet":
                raise NotFound("Fleet", fleet) from error
            if error.constraint == "job_series":
                raise no_such_series(spec) from error
            raise

    async def get_job(self, job: JobId) -> Job | None:
        return await self._db.read(_get, job)

    async def find_submission(self, owner: UserName, idempotency_key: str) -> Job | None:
        row = await self._db.fetchrow("SELECT * FROM job WHERE owner = $1 AND idempotency_key = $2", owner, idempotency_key)
        return job_of(row) if row is not None else None

    async def list_jobs(
        self, page: Page, *, states: Sequence[JobState] = (), fleet: FleetId | None = None, seen_by: User | None = None
    ) -> tuple[list[JobSummary], str | None]:
        keys = keys_of(page)
        asked, args = _filters(states, fleet, seen_by, at=4)
        sql = f"SELECT {SUMMARY} FROM job WHERE (created_at, id) < ($1, $2){asked} ORDER BY created_at DESC, id DESC LIMIT $3"  # noqa: S608
        rows, cursor = page_of(await self._db.fetch(sql, keys.at, keys.id, keys.limit, *args), page)
        return [_summary(row) for row in rows], cursor

    async def waiting_by_reasons(self, *, fleet: FleetId | None = None, seen_by: User | None = None) -> list[WaitingJobs]:
        asked, args = _filters((), fleet, seen_by, at=1)
        sql = (
            "SELECT fleet_id, waiting_code, waiting_reasons::text AS reasons, count(*) AS jobs,"  # noqa: S608
            " min(coalesce(waiting_since, created_at)) AS since,"
            " (array_agg(id ORDER BY coalesce(waiting_since, created_at), id))[1] AS oldest"
            f" FROM job WHERE state = 'queued'{asked} GROUP BY fleet_id, waiting_code, waiting_reasons::text"
        )
        return [_waiting_jobs(row) for row in await self._db.fetch(sql, *args)]

    async def job_access(self, job: JobId) -> JobAccess | None:
        sql = "SELECT owner, job.project AS job_project, fleet.* FROM job LEFT JOIN fleet ON fleet.id = job.fleet_id WHERE job.id = $1"
        row = await self._db.fetchrow(sql, job)
        if row is None:
            return None
        return JobAccess(owner=row["owner"], project=row["job_project"], fleet=fleet_of(row) if row["id"] is not None else None)

    async def waiting_fleets(self, now: datetime) -> list[FleetId]:
        sql = (
            "SELECT id FROM fleet WHERE EXISTS (SELECT FROM job WHERE live_fleet_id = fleet.id AND state = 'queued'"
            " AND (not_before IS NULL OR not_before <= $1)) ORDER BY id"
        )
        return [row["id"] for row in await self._db.fetch(sql, now)]

    async def waiting_jobs(self, fleet: FleetId, limit: int, now: datetime) -> list[Job]:
        sql = (
            "SELECT * FROM job WHERE live_fleet_id = $1 AND state = 'queued' AND (not_before IS NULL OR not_before <= $3)"
            " ORDER BY priority DESC, created_at, id LIMIT $2"
        )
        return [job_of(row) for row in await self._db.fetch(sql, fleet, limit, now)]

    async def note_waiting(self, jobs: Sequence[JobId], code: str, reasons: Sequence[Reason], now: datetime) -> None:
        await self._db.write("note_waiting", _note_waiting, tuple(jobs), code, tuple(reasons), now)

    async def request_stop(self, job: JobId, by: UserName, now: datetime) -> Job:
        return await self._db.write("request_stop", _request_stop, job, by, now)

    async def retry(self, job: JobId, by: UserName, now: datetime, *, after: int | None = None) -> Job:
        try:
            return await self._db.write("retry", _retry, job, by, after, now)
        except ConstraintViolated as error:
            gone = {"job_fleet": ("fleet-gone", "Fleet"), "job_series": ("series-gone", "hardware series")}.get(error.constraint)
            if gone is None:
                raise
            raise Refused(gone[0], f"the {gone[1]} of job {job} was deleted: submit it anew") from error

    async def timeline(self, job: JobId, limit: int) -> list[TimelineEvent]:
        """The latest ``limit`` events, oldest first."""
        sql = "SELECT * FROM (SELECT * FROM timeline WHERE job_id = $1 ORDER BY sequence DESC LIMIT $2) AS latest ORDER BY sequence"
        rows = await self._db.fetch(sql, job, limit)
        return [
            TimelineEvent(at=row["at"], kind=row["kind"], subject=row["subject"], detail=row["detail"], sequence=row["sequence"])
            for row in rows
        ]


def no_such_series(spec: JobSpec) -> Refused:
    detail = f"the hardware registry has no series {spec.pool.series!r}"
    return Refused("no-such-series", detail, field="spec.resources.pools[0].series")


SUMMARY = (
    "id, name, project, owner, fleet_id, state, priority, created_at, ended_at, stop_asked_at, stop_asked_by, waiting_code,"
    " waiting_reasons, waiting_since, reason_code, reason_detail, attempt_number, not_before"
)


def _filters(states: Sequence[JobState], fleet: FleetId | None, seen_by: User | None, *, at: int) -> tuple[str, list[object]]:
    """Conditions only for what is asked, so that an index serves each; their arguments begin at ``$at``."""
    asked: list[tuple[str, object]] = [("state = ANY(${})", [state.value for state in states])] if states else []
    asked += [("fleet_id = ${}", fleet)] if fleet is not None else []
    sql = "".join(f" AND {condition.format(number)}" for number, (condition, _) in enumerate(asked, at))
    live = " AND ended_at IS NULL" if states and FINAL_JOB_STATES.isdisjoint(states) else ""
    seen, who = job_seen(seen_by, at + len(asked))
    return sql + live + seen, [*(value for _, value in asked), *who]


async def _submit(
    connection: Connection,
    job: JobId,
    spec: JobSpec,
    owner: UserName,
    fleet: FleetId,
    image: str,
    trace: TraceId,
    idempotency_key: str | None,
    now: datetime,
) -> Job:
    sql = (
        "INSERT INTO job (id, name, project, owner, fleet_id, spec, series, image, trace, priority, idempotency_key, created_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ON CONFLICT DO NOTHING RETURNING *"
    )
    named = (job, spec.metadata.name, spec.metadata.project, owner, fleet, to_json(spec), spec.pool.series)
    row = await connection.fetchrow(sql, *named, image, trace, spec.spec.priority, idempotency_key, now)
    if row is None:  # the same submission again, by its key or by its id
        sql = (
            "SELECT * FROM job WHERE (owner = $1 AND idempotency_key = $2) OR id = $3 ORDER BY idempotency_key = $2 DESC NULLS LAST LIMIT 1"
        )
        return job_of(await connection.fetchrow(sql, owner, idempotency_key, job))
    await note(connection, job, now, "job.submitted", job, f"by {owner}, to Fleet {fleet}")
    await audit(connection, owner, "job.submit", job, now, f"{spec.metadata.name} to Fleet {fleet}")
    await poke(connection, Topic.JOBS, Topic.CONSOLE)
    return job_of(row)


async def _note_waiting(connection: Connection, jobs: tuple[JobId, ...], code: str, reasons: tuple[Reason, ...], now: datetime) -> None:
    """Locks the jobs in the order of their ids, as whoever else changes several does."""
    sql = "SELECT id FROM job WHERE id = ANY($1::text[]) AND state = 'queued' ORDER BY id FOR NO KEY UPDATE"
    queued = [row["id"] for row in await connection.fetch(sql, list(jobs))]
    sql = (
        "UPDATE job SET waiting_code = $2, waiting_reasons = $3::json,"
        " waiting_since = CASE WHEN waiting_code IS DISTINCT FROM $2 THEN $4 ELSE waiting_since END"
        " WHERE id = ANY($1::text[]) AND (waiting_code IS DISTINCT FROM $2 OR waiting_reasons::text IS DISTINCT FROM $5)"
        " RETURNING id"
    )
    text = to_json(reasons)
    if await connection.fetch(sql, queued, clean(code), text, now, text):
        await poke(connection, Topic.CONSOLE)


async def _request_stop(connection: Connection, job: JobId, by: UserName, now: datetime) -> Job:
    row = await connection.fetchrow("SELECT * FROM job WHERE id = $1 FOR NO KEY UPDATE", job)
    if row is None:
        raise NotFound("job", job)
    await audit(connection, by, "job.stop", job, now)
    if JobState(row["state"]) in FINAL_JOB_STATES or row["stop_asked_at"] is not None:
        return await _whole(connection, row)
    sql = "SELECT id, state, cause_code, cause_detail FROM attempt WHERE job_id = $1 AND state <> 'ended' FOR NO KEY UPDATE"
    attempt = await connection.fetchrow(sql, job)
    await note(connection, job, now, "job.stop-asked", job, f"stopped by {by}")
    state = JobState.STOPPED if attempt is None else JobState.STOPPING
    cause = await (_cause(connection, attempt, by) if attempt is not None else _cause_between(connection, job, by))
    sql = (
        "UPDATE job SET stop_asked_at = $2::timestamptz, stop_asked_by = $3, state = $4, reason_code = $5, reason_detail = $6,"
        " ended_at = CASE WHEN $4 = 'stopped' THEN $2::timestamptz END, not_before = NULL, waiting_code = NULL, waiting_reasons = NULL,"
        " waiting_since = NULL WHERE id = $1 RETURNING *"
    )
    row = await connection.fetchrow(sql, job, now, by, state.value, cause.code, cause.detail)
    if attempt is None:
        placed = "it waited for another attempt" if row["attempt_number"] else "it had not been placed"
        await note(connection, job, now, "job.stopped", job, placed)
    else:
        await _stop_attempt(connection, job, attempt, cause, now)
    await poke(connection, Topic.JOBS, Topic.ATTEMPTS, Topic.COMMANDS, Topic.CONSOLE)
    return await _whole(connection, row)


async def _cause(connection: Connection, attempt: Row, by: UserName) -> Cause:
    """The first cause is kept (L-H1): the attempt's own, that of a member which had failed by now, else this stop."""
    if attempt["cause_code"]:
        return Cause(attempt["cause_code"], attempt["cause_detail"])
    # a failure that is being reported at this moment comes before this stop, or after it: not both
    await connection.fetch("SELECT FROM member WHERE attempt_id = $1 ORDER BY id FOR NO KEY UPDATE", attempt["id"])
    cause = cause_of_stop(await member_views(connection, attempt["id"]), by)
    return Cause(clean(cause.code), clean(cause.detail))


async def _cause_between(connection: Connection, job: JobId, by: UserName) -> Cause:
    """Of a queued job: the stop, which names how the last attempt ended, if there was one."""
    sql = "SELECT number, cause_code, cause_detail FROM attempt WHERE job_id = $1 ORDER BY number DESC LIMIT 1"
    last = await connection.fetchrow(sql, job)
    if last is None:
        return cause_between_attempts(by, 0, None)
    cause = cause_between_attempts(by, last["number"], Cause(last["cause_code"], last["cause_detail"]))
    return Cause(cause.code, clean(cause.detail))


async def _stop_attempt(connection: Connection, job: JobId, attempt: Row, cause: Cause, now: datetime) -> None:
    """From whatever state to ``stopping``."""
    sql = (
        "UPDATE attempt SET state = 'stopping', entered_at = $2, cause_code = $3, cause_detail = $4"
        " WHERE id = $1 AND state <> 'stopping' RETURNING id"
    )
    if await connection.fetchrow(sql, attempt["id"], now, cause.code, cause.detail) is not None:
        await note(connection, job, now, "attempt.stopping", attempt["id"], cause.detail)
    await stop_members(connection, job, attempt["id"], STOPPED, now)


async def _retry(connection: Connection, job: JobId, by: UserName, after: int | None, now: datetime) -> Job:
    row = await connection.fetchrow("SELECT * FROM job WHERE id = $1 FOR NO KEY UPDATE", job)
    if row is None:
        raise NotFound("job", job)
    last = row["attempt_number"] if after is None else min(after, row["attempt_number"])  # of a repeat: the one it was about
    await audit(connection, by, "job.retry", job, now, f"attempt {last + 1}")
    if row["attempt_number"] > last:
        return await _whole(connection, row)
    check_retry(job, JobState(row["state"]), row["stop_asked_at"], row["attempt_number"])
    sql = (
        "UPDATE job SET state = 'queued', ended_at = NULL, not_before = NULL, reason_code = '', reason_detail = '', waiting_code = NULL,"
        " waiting_reasons = NULL, waiting_since = NULL WHERE id = $1 AND (state = 'failed' OR not_before IS NOT NULL) RETURNING *"
    )
    queued = await connection.fetchrow(sql, job)
    if queued is not None:
        await note(connection, job, now, "job.retry-asked", job, f"by {by}, for attempt {row['attempt_number'] + 1}")
        await poke(connection, Topic.JOBS, Topic.CONSOLE)
    return await _whole(connection, queued or row)


# ---------------------------------------------------------------- rows to values


async def _get(connection: Connection, job: JobId) -> Job | None:
    row = await connection.fetchrow("SELECT * FROM job WHERE id = $1", job)
    return await _whole(connection, row) if row is not None else None


async def _whole(connection: Connection, row: Row) -> Job:
    attempts = await connection.fetch("SELECT * FROM attempt WHERE job_id = $1 ORDER BY number", row["id"])
    sql = (
        f"SELECT member.*, CASE WHEN phase NOT IN ('terminated', 'aborted') THEN {SILENT_SINCE} END AS silent_since"  # noqa: S608  constants
        " FROM member JOIN attempt ON attempt.id = attempt_id JOIN node ON node.id = member.node_id"
        f" {WITH_SESSION} WHERE job_id = $1 ORDER BY attempt_id, rank"
    )
    members = await connection.fetch(sql, row["id"])
    return job_of(row, tuple(_attempt(one, [member for member in members if member["attempt_id"] == one["id"]]) for one in attempts))


def job_of(row: Row, attempts: tuple[AttemptRecord, ...] = ()) -> Job:
    return Job(
        id=row["id"],
        name=row["name"],
        project=row["project"],
        owner=row["owner"],
        fleet=row["fleet_id"],
        spec=spec_of(row["spec"]),
        image=row["image"],
        state=JobState(row["state"]),
        trace=row["trace"],
        created_at=row["created_at"],
        ended_at=row["ended_at"],
        stop_asked_at=row["stop_asked_at"],
        stop_asked_by=row["stop_asked_by"],
        waiting=_waiting(row),
        reason_code=row["reason_code"],
        reason_detail=row["reason_detail"],
        attempt_number=row["attempt_number"],
        not_before=row["not_before"],
        attempts=attempts,
    )


def _summary(row: Row) -> JobSummary:
    return JobSummary(
        id=row["id"],
        name=row["name"],
        project=row["project"],
        owner=row["owner"],
        fleet=row["fleet_id"],
        state=JobState(row["state"]),
        priority=row["priority"],
        created_at=row["created_at"],
        ended_at=row["ended_at"],
        stop_asked_at=row["stop_asked_at"],
        stop_asked_by=row["stop_asked_by"],
        waiting=first_reason(_waiting(row)),
        reason_code=row["reason_code"],
        reason_detail=row["reason_detail"],
        attempt_number=row["attempt_number"],
        not_before=row["not_before"],
    )


def _waiting_jobs(row: Row) -> WaitingJobs:
    """A job that nobody has looked at has no reasons yet."""
    looked = row["waiting_code"] is not None
    reasons = from_json(tuple[Reason, ...], row["reasons"]) if looked else (NOT_LOOKED_AT,)
    code = row["waiting_code"] if looked else NOT_LOOKED_AT.code
    return WaitingJobs(fleet=row["fleet_id"], code=code, reasons=reasons or (), jobs=row["jobs"], since=row["since"], oldest=row["oldest"])


def _waiting(row: Row) -> Waiting | None:
    if row["waiting_code"] is None:
        return None
    reasons = from_json(tuple[Reason, ...], row["waiting_reasons"])
    return Waiting(code=row["waiting_code"], reasons=reasons or (), since=row["waiting_since"])


def _attempt(row: Row, rows: Sequence[Row]) -> AttemptRecord:
    state = AttemptState(row["state"])
    members = waiting_for_peers(state, tuple(_member(member) for member in rows))
    head = sight(rows[0]["plan"]) if rows else PlanSight()
    return AttemptRecord(
        id=row["id"],
        number=row["number"],
        state=state,
        members=members,
        created_at=row["created_at"],
        running_at=row["running_at"],
        ended_at=row["ended_at"],
        reason_code=row["cause_code"],
        reason_detail=row["cause_detail"],
        main_address=head.main_address,
        main_port=head.main_port,
        output_dir=head.output_dir,
        waits_for=waits_for(state, members),
    )


def _member(row: Row) -> MemberRecord:
    seen = sight(row["plan"])
    return MemberRecord(
        id=row["id"],
        node=row["node_id"],
        rank=row["rank"],
        phase=MemberPhase(row["phase"]),
        exit_code=row["exit_code"],
        oom_killed=row["oom_killed"],
        reason_code=row["reason_code"],
        reason_detail=row["reason_detail"],
        progress=from_json(Progress, row["progress"]),
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        cleaned=row["cleaned"],
        gpu_uuids=seen.gpu_uuids,
        ports=seen.ports,
        address=seen.address,
        interface=seen.interface,
        node_silent_since=row["silent_since"],
    )
