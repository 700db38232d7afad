"""Jobs, placements, claims and the steps of launches in the twin."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from attrs import evolve

from tuneplane.domain.errors import NotFound, Reason
from tuneplane.domain.fleets import FleetState, NodeState
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import AttemptId, FleetId, JobId, MemberId, TraceId, UserName, WorkerId
from tuneplane.domain.jobs import AttemptRecord, Claim, Job, MemberRecord, Page, PlacedMember, TimelineEvent, Waiting
from tuneplane.domain.jobspec import JobSpec
from tuneplane.domain.launch_table import (
    ENDED_PHASES,
    FINAL_JOB_STATES,
    JOB_STATE_OF_ATTEMPT,
    AttemptAction,
    AttemptState,
    Cause,
    JobState,
    LaunchView,
    MemberPhase,
    MemberView,
    Verdict,
)
from tuneplane.domain.ports import Topic
from tuneplane.storage.database import clean

from .base import Client, note, page_of, poke
from .nodes import granted, release
from .rows import AttemptRow, Book, HoldRow, MemberRow
from .sessions import UNANSWERED, insert, insert_stop, was_sent, withdraw


class Jobs(Client):
    """JobStore and LaunchStore (domain/ports.py)."""

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
        self, page: Page, *, states: Sequence[JobState] = (), fleet: FleetId | None = None, owner: UserName | None = None
    ) -> tuple[list[Job], str | None]:
        def unit(book: Book) -> tuple[list[Job], str | None]:
            rows = [job for job in book.jobs if (not states or job.state in states) and fleet in (None, job.fleet)]
            return page_of([job for job in rows if owner in (None, job.owner)], page, lambda job: (job.created_at, job.id))

        return await self.read("list_jobs", unit)

    async def request_stop(self, job: JobId, by: UserName, now: datetime) -> Job:
        return await self.write("request_stop", _request_stop, job, by, now, self.database.clock())

    async def timeline(self, job: JobId, limit: int) -> list[TimelineEvent]:
        return await self.read("timeline", lambda book: [event for owner, event in book.timeline if owner == job][-limit:])

    async def waiting_jobs(self, limit: int) -> list[Job]:
        return await self.read("waiting_jobs", _waiting_jobs, limit)

    async def note_waiting(self, job: JobId, code: str, reasons: Sequence[Reason], now: datetime) -> None:
        await self.write("note_waiting", _note_waiting, job, clean(code), tuple(reasons), now)

    async def place(self, job: JobId, attempt: AttemptId, number: int, members: Sequence[PlacedMember], now: datetime) -> bool:
        return await self.write("place", _place, job, attempt, number, tuple(members), now)

    async def claim_attempts(self, worker: WorkerId, limit: int, now: datetime, lease_until: datetime) -> list[Claim]:
        return await self.write("claim_attempts", _claim, worker, limit, now, lease_until)

    async def renew_claims(self, worker: WorkerId, claims: Sequence[Claim], lease_until: datetime) -> list[Claim]:
        return await self.write("renew_claims", _renew, worker, tuple(claims), lease_until)

    async def load_launch(self, claim: Claim) -> LaunchView | None:
        return await self.read("load_launch", _load, claim)

    async def advance(
        self,
        claim: Claim,
        view: LaunchView,
        target: AttemptState,
        action: AttemptAction,
        cause: Cause,
        verdict: Verdict | None,
        now: datetime,
    ) -> bool:
        hold = self.timings.hold
        return await self.write("advance", _advance, claim, view.state, target, action, cause, verdict, hold, now)

    async def forget_ended(self, older_than: datetime, limit: int, now: datetime) -> int:
        return await self.write("forget_ended", _forget, older_than, limit, now)


# ---------------------------------------------------------------- jobs


def _submit(book: Book, made: Job, key: str | None, now: datetime) -> Job:
    former = book.submissions.get((made.owner, key)) if key is not None else None
    if former is not None or made.id in book.jobs:
        return book.jobs[former or made.id]
    if made.fleet not in book.fleets:
        raise NotFound("Fleet", made.fleet)
    book.jobs.put(made.id, made)
    if key is not None:
        book.submissions.put((made.owner, key), made.id)
    note(book, made.id, now, "job.submitted", made.id, f"by {made.owner}, to Fleet {made.fleet}")
    poke(book, Topic.JOBS, Topic.CONSOLE)
    return made


def _submitted(book: Book, owner: UserName, key: str) -> Job | None:
    job = book.submissions.get((owner, key))
    return book.jobs[job] if job is not None else None


def whole(book: Book, job: JobId, now: datetime) -> Job:
    attempts = sorted((row for row in book.attempts if row.job == job), key=lambda row: row.number)
    return evolve(book.jobs[job], attempts=tuple(_attempt(book, row, now) for row in attempts))


def members_of(book: Book, attempt: AttemptId) -> list[MemberRow]:
    return sorted((row for row in book.members if row.attempt == attempt), key=lambda row: row.rank)


def _attempt(book: Book, row: AttemptRow, now: datetime) -> AttemptRecord:
    return AttemptRecord(
        id=row.id,
        number=row.number,
        state=row.state,
        members=tuple(_member(book, member, now) for member in members_of(book, row.id)),
        created_at=row.created_at,
        running_at=row.running_at,
        ended_at=row.ended_at,
        reason_code=row.cause_code,
        reason_detail=row.cause_detail,
    )


def _member(book: Book, row: MemberRow, now: datetime) -> MemberRecord:
    try:
        cards = tuple(json.loads(row.plan).get("gpu_uuids", ()))
    except (ValueError, AttributeError):
        cards = ()
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
        gpu_uuids=cards,
        node_silent_since=None if row.phase in ENDED_PHASES else _silent_since(book, row, now),
    )


def _silent_since(book: Book, row: MemberRow, now: datetime) -> datetime | None:
    session = book.sessions.get(row.node)
    gateway = book.gateways.get(session.gateway) if session is not None else None
    lease = gateway.lease_until if gateway is not None else None
    if session is not None and session.closed_at is None and lease is not None and lease > now:
        return None
    return (session.closed_at if session is not None else None) or lease or book.nodes[row.node].created_at


def _waiting_jobs(book: Book, limit: int) -> list[Job]:
    found = [job for job in book.jobs if job.state is JobState.QUEUED]
    return sorted(found, key=lambda job: (-job.spec.spec.priority, job.created_at, job.id))[:limit]


def _note_waiting(book: Book, job: JobId, code: str, reasons: tuple[Reason, ...], now: datetime) -> None:
    row = book.jobs.get(job)
    if row is None or row.state is not JobState.QUEUED:
        return
    same = row.waiting is not None and row.waiting.code == code
    if row.waiting is not None and same and row.waiting.reasons == reasons:
        return
    since = row.waiting.since if row.waiting is not None and same else now
    book.jobs.put(job, evolve(row, waiting=Waiting(code=code, reasons=reasons, since=since)))
    poke(book, Topic.CONSOLE)


# ---------------------------------------------------------------- stops


def _request_stop(book: Book, job: JobId, by: UserName, now: datetime, true_now: datetime) -> Job:
    row = book.jobs.get(job)
    if row is None:
        raise NotFound("job", job)
    if row.state in FINAL_JOB_STATES or row.stop_asked_at is not None:
        return whole(book, job, true_now)
    attempt = next((one for one in book.attempts if one.job == job and one.state is not AttemptState.ENDED), None)
    detail = f"stopped by {by}"
    note(book, job, now, "job.stop-asked", job, detail)
    changes: dict[str, object] = {"state": JobState.STOPPING} if attempt else {"state": JobState.STOPPED, "ended_at": now}
    asked = {"stop_asked_at": now, "stop_asked_by": by, "reason_code": "stopped", "reason_detail": detail, "waiting": None}
    book.jobs.put(job, evolve(row, **asked, **changes))  # type: ignore[arg-type]
    if attempt is None:
        note(book, job, now, "job.stopped", job, "it had not been placed")
    else:
        _stop_attempt(book, attempt, detail, now)
    poke(book, Topic.JOBS, Topic.ATTEMPTS, Topic.COMMANDS, Topic.CONSOLE)
    return whole(book, job, true_now)


def _stop_attempt(book: Book, attempt: AttemptRow, detail: str, now: datetime) -> None:
    if attempt.state is not AttemptState.STOPPING:
        cause = (attempt.cause_code, attempt.cause_detail) if attempt.cause_code else ("stopped", detail)
        changed = evolve(attempt, state=AttemptState.STOPPING, entered_at=now, cause_code=cause[0], cause_detail=cause[1])
        book.attempts.put(attempt.id, changed)
        note(book, attempt.job, now, "attempt.stopping", attempt.id, detail)
    stop_members(book, attempt.id, "stopped", now)


def stop_members(book: Book, attempt: AttemptId, reason: str, now: datetime) -> None:
    """Withdraw what was never sent, send Stop to the rest (R-LCH-12)."""
    for member in [member for member in members_of(book, attempt) if member.phase not in ENDED_PHASES]:
        withdraw(book, member.id, UNANSWERED, now)
        if was_sent(book, member.id):
            insert_stop(book, member.id, reason, now)
            continue
        why = {"reason_code": reason, "reason_detail": "no machine had been told of it"}
        book.members.put(member.id, evolve(member, phase=MemberPhase.ABORTED, ended_at=now, cleaned=True, **why))
        release(book, member.id)
        note(book, member.job, now, "member.aborted", member.id, "its Prepare was never sent")


# ---------------------------------------------------------------- placing


def _place(book: Book, job: JobId, attempt: AttemptId, number: int, members: tuple[PlacedMember, ...], now: datetime) -> bool:
    row = book.jobs.get(job)
    if row is None or row.state is not JobState.QUEUED or row.stop_asked_at is not None:
        return False
    live = any(one.job == job and (one.state is not AttemptState.ENDED or one.number == number) for one in book.attempts)
    if live or attempt in book.attempts or not all(_takes_work(book, member) for member in members):
        return False
    if not _take(book, members):
        return False
    book.attempts.put(attempt, AttemptRow(id=attempt, job=job, number=number, created_at=now, entered_at=now))
    for one in members:
        made = MemberRow(id=one.member, attempt=attempt, job=job, node=one.node, rank=one.rank, plan=one.plan, plan_digest=one.plan_digest)
        book.members.put(one.member, made)
    book.jobs.put(job, evolve(row, state=JOB_STATE_OF_ATTEMPT[AttemptState.PENDING], waiting=None))
    note(book, job, now, "attempt.placed", attempt, f"on {', '.join(sorted({one.node for one in members}))}")
    poke(book, Topic.ATTEMPTS, Topic.CONSOLE)
    return True


def _takes_work(book: Book, member: PlacedMember) -> bool:
    node = book.nodes.get(member.node)
    if node is None or node.removed_at is not None or node.state is not NodeState.ACTIVE:
        return False
    fleet = book.fleets.get(node.fleet)
    cordoned = any(key[0] == member.node for key in book.cordons.rows)
    return fleet is not None and fleet.state is FleetState.ACTIVE and not cordoned


def _take(book: Book, members: tuple[PlacedMember, ...]) -> bool:
    """All holds or none."""
    mark = len(book.log)
    if all(_take_one(book, member) for member in members):
        return True
    assert mark == 0, "a placement takes its holds before it writes anything else"
    book.roll_back()
    return False


def _take_one(book: Book, member: PlacedMember) -> bool:
    node = book.nodes[member.node]
    budgets = node.inventory.budgets if node.inventory is not None else None
    cpu, memory = node.cpu_used + member.cpu_millis, node.memory_used + member.memory_bytes
    if budgets is None or cpu > (budgets.cpu_millis or 0) or memory > (budgets.memory_bytes or 0):
        return False
    cards = {grant.gpu_uuid for grant in granted(book, member.node)}
    if any(uuid not in cards or uuid in book.gpu_holds for uuid in member.gpu_uuids):
        return False
    if any((member.node, port) in book.port_holds for port in member.ports):
        return False
    book.nodes.put(member.node, evolve(node, cpu_used=cpu, memory_used=memory))
    for uuid in member.gpu_uuids:
        book.gpu_holds.put(uuid, member.member)
    for port in member.ports:
        book.port_holds.put((member.node, port), member.member)
    made = HoldRow(
        member=member.member,
        node=member.node,
        cpu_millis=member.cpu_millis,
        memory_bytes=member.memory_bytes,
        gpu_uuids=member.gpu_uuids,
        ports=member.ports,
    )
    book.holds.put(member.member, made)
    return True


# ---------------------------------------------------------------- claims and steps


def _claim(book: Book, worker: WorkerId, limit: int, now: datetime, lease_until: datetime) -> list[Claim]:
    free = [row for row in book.attempts if row.state is not AttemptState.ENDED and (row.claim_until is None or row.claim_until <= now)]
    claims = []
    for row in sorted(free, key=lambda row: (row.created_at, row.id))[:limit]:
        taken = evolve(row, claim_worker=worker, claim_epoch=row.claim_epoch + 1, claim_until=lease_until)
        book.attempts.put(row.id, taken)
        note(book, row.job, now, "attempt.claimed", row.id, f"by {worker}, epoch {taken.claim_epoch}")
        claims.append(Claim(attempt=row.id, job=row.job, worker=worker, epoch=taken.claim_epoch))
    return claims


def _ours(book: Book, claim: Claim) -> AttemptRow | None:
    row = book.attempts.get(claim.attempt)
    ours = row is not None and (row.claim_epoch, row.claim_worker) == (claim.epoch, claim.worker)
    return row if row is not None and ours and row.state is not AttemptState.ENDED else None


def _renew(book: Book, worker: WorkerId, claims: tuple[Claim, ...], lease_until: datetime) -> list[Claim]:
    kept = []
    for claim in claims:
        row = _ours(book, claim)
        if row is not None and row.claim_worker == worker:
            book.attempts.put(row.id, evolve(row, claim_until=lease_until))
            kept.append(claim)
    return kept


def _load(book: Book, claim: Claim) -> LaunchView | None:
    row = _ours(book, claim)
    if row is None:
        return None
    job = book.jobs[row.job]
    return LaunchView(
        job=row.job,
        attempt=row.id,
        number=row.number,
        state=row.state,
        members=tuple(_member_view(member) for member in members_of(book, row.id)),
        trace=job.trace,
        stop_asked_at=job.stop_asked_at,
        stop_asked_by=job.stop_asked_by,
        entered_at=row.entered_at,
        running_at=row.running_at,
        max_runtime_seconds=job.spec.spec.max_runtime_seconds,
        cause_code=row.cause_code,
        cause_detail=row.cause_detail,
    )


def _member_view(row: MemberRow) -> MemberView:
    return MemberView(
        member=row.id,
        node=row.node,
        rank=row.rank,
        phase=row.phase,
        exit_code=row.exit_code,
        oom_killed=row.oom_killed,
        reason_code=row.reason_code,
        reason_detail=row.reason_detail,
        ended_at=row.ended_at,
        hold_expires_at=row.hold_expires_at,
    )


def _advance(
    book: Book,
    claim: Claim,
    state: AttemptState,
    target: AttemptState,
    action: AttemptAction,
    cause: Cause,
    verdict: Verdict | None,
    hold_seconds: float,
    now: datetime,
) -> bool:
    row = _ours(book, claim)
    job = book.jobs[claim.job]
    if row is None or row.state is not state:
        return False
    if job.stop_asked_at is not None and target not in (AttemptState.STOPPING, AttemptState.ENDED):
        return False  # stop wins
    if not _act(book, row, action, cause, hold_seconds, now):
        return False
    _enter(book, row, target, cause, now)
    if target is AttemptState.ENDED:
        assert verdict is not None
        _conclude(book, row, verdict, now)
    else:
        book.jobs.put(job.id, evolve(book.jobs[job.id], state=JOB_STATE_OF_ATTEMPT[target]))
    poke(book, Topic.ATTEMPTS, Topic.COMMANDS, Topic.CONSOLE, *((Topic.JOBS,) if target is AttemptState.ENDED else ()))
    return True


def _act(book: Book, row: AttemptRow, action: AttemptAction, cause: Cause, hold_seconds: float, now: datetime) -> bool:
    members = members_of(book, row.id)
    phases = {member.phase for member in members}
    if action is AttemptAction.SEND_STOP:
        stop_members(book, row.id, clean(cause.code) or "stopped", now)
    elif action is AttemptAction.SEND_PREPARE:
        for member in members:
            insert(book, member.id, CommandKind.PREPARE, now, hold_seconds=hold_seconds)
    elif action is AttemptAction.SEND_COMMIT:
        if phases != {MemberPhase.PREPARED}:
            return False
        for member in members:
            insert(book, member.id, CommandKind.COMMIT, now)
    return action is not AttemptAction.CONCLUDE or phases <= ENDED_PHASES


def _enter(book: Book, row: AttemptRow, target: AttemptState, cause: Cause, now: datetime) -> None:
    changed = evolve(row, state=target, entered_at=now)
    if target is AttemptState.RUNNING:
        changed = evolve(changed, running_at=now)
    if target is AttemptState.ENDED:
        changed = evolve(changed, ended_at=now)
    if target is AttemptState.STOPPING and not row.cause_code:
        changed = evolve(changed, cause_code=clean(cause.code), cause_detail=clean(cause.detail))
    book.attempts.put(row.id, changed)
    note(book, row.job, now, f"attempt.{target.value}", row.id, cause.detail)


def _conclude(book: Book, row: AttemptRow, verdict: Verdict, now: datetime) -> None:
    code, detail = clean(verdict.cause.code), clean(verdict.cause.detail)
    book.jobs.put(row.job, evolve(book.jobs[row.job], state=verdict.state, ended_at=now, reason_code=code, reason_detail=detail))
    ended = book.attempts[row.id]
    if not ended.cause_code:
        book.attempts.put(row.id, evolve(ended, cause_code=code, cause_detail=detail))
    note(book, row.job, now, f"job.{verdict.state.value}", row.job, detail)


def _forget(book: Book, older_than: datetime, limit: int, now: datetime) -> int:
    def due(member: MemberRow) -> bool:
        attempt = book.attempts[member.attempt]
        old = attempt.ended_at is not None and attempt.ended_at < older_than
        enrolled = book.nodes[member.node].removed_at is None
        return old and member.cleaned and enrolled and was_sent(book, member.id) and not _forgotten(book, member.id)

    members = sorted(member.id for member in book.members if due(member))[:limit]
    for member in members:
        insert(book, member, CommandKind.FORGET, now)
    if members:
        poke(book, Topic.COMMANDS)
    return len(members)


def _forgotten(book: Book, member: MemberId) -> bool:
    return any(command.member == member and command.kind is CommandKind.FORGET for command in book.commands)
