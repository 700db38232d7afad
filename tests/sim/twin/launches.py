"""Placements, claims and the steps of launches in the twin."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from attrs import evolve

from tuneplane.domain.fleet_config import gang_deadline
from tuneplane.domain.fleets import FleetState
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import AttemptId, FleetId, JobId, MemberId, WorkerId
from tuneplane.domain.jobs import Claim, Occupant, PlacedMember, Waiting, placed_on
from tuneplane.domain.launch_table import (
    ENDED_PHASES,
    JOB_STATE_OF_ATTEMPT,
    AttemptAction,
    AttemptState,
    Cause,
    JobState,
    LaunchView,
    MemberPhase,
    Verdict,
    hold_seconds,
)
from tuneplane.domain.nodes import NodeState
from tuneplane.domain.ports import Topic
from tuneplane.domain.timings import Timings
from tuneplane.domain.verdict import backoff_reason, retry_delay
from tuneplane.storage.database import clean

from .base import Client, note, poke
from .cards import placeable
from .members import member_views, members_of, stop_members
from .rows import AttemptRow, Book, HoldRow, MemberRow
from .sessions import insert, was_sent
from .sight import sight_of


class Launches(Client):
    """LaunchStore (domain/ports.py), besides the waiting jobs."""

    async def place(self, job: JobId, attempt: AttemptId, number: int, members: Sequence[PlacedMember], now: datetime) -> bool:
        return await self.write("place", _place, job, attempt, number, tuple(members), now)

    async def occupants(self, fleet: FleetId) -> list[Occupant]:
        return await self.read("occupants", _occupants, fleet)

    async def claim_attempts(self, worker: WorkerId, limit: int, now: datetime, lease_until: datetime) -> list[Claim]:
        return await self.write("claim_attempts", _claim, worker, limit, now, lease_until)

    async def renew_claims(self, worker: WorkerId, claims: Sequence[Claim], lease_until: datetime) -> list[Claim]:
        return await self.write("renew_claims", _renew, worker, tuple(claims), lease_until)

    async def load_launch(self, claim: Claim) -> LaunchView | None:
        return await self.read("load_launch", _load, claim, self.database.clock())

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
        return await self.write("advance", _advance, claim, view, target, action, cause, verdict, self.timings, now)

    async def forget_ended(self, older_than: datetime, limit: int, now: datetime) -> int:
        return await self.write("forget_ended", _forget, older_than, limit, now)


# ---------------------------------------------------------------- placing


def _place(book: Book, job: JobId, attempt: AttemptId, number: int, members: tuple[PlacedMember, ...], now: datetime) -> bool:
    row = book.jobs.get(job)
    if row is None or row.state is not JobState.QUEUED or row.stop_asked_at is not None or row.attempt_number != number - 1:
        return False
    if row.not_before is not None and row.not_before > now:
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
    placed = {"attempt_number": number, "not_before": None, "waiting": None}
    book.jobs.put(job, evolve(row, state=JOB_STATE_OF_ATTEMPT[AttemptState.PENDING], **placed))  # type: ignore[arg-type]
    note(book, job, now, "attempt.placed", attempt, placed_on(members))
    poke(book, Topic.UNCLAIMED, Topic.CONSOLE)
    return True


def _occupants(book: Book, fleet: FleetId) -> list[Occupant]:
    return [
        _occupant(book, hold) for hold in book.holds if book.nodes[hold.node].fleet == fleet and book.nodes[hold.node].removed_at is None
    ]


def _occupant(book: Book, hold: HoldRow) -> Occupant:
    attempt = book.attempts[book.members[hold.member].attempt]
    body = book.jobs[attempt.job].spec.spec
    return Occupant(
        node=hold.node,
        placed_at=attempt.created_at,
        running_at=attempt.running_at,
        max_runtime_seconds=body.max_runtime_seconds,
        grace_seconds=body.stop.grace_seconds,
    )


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
    cards = set(placeable(book, member.node))
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


def _load(book: Book, claim: Claim, true_now: datetime) -> LaunchView | None:
    row = _ours(book, claim)
    if row is None:
        return None
    job = book.jobs[row.job]
    return LaunchView(
        job=row.job,
        attempt=row.id,
        number=row.number,
        state=row.state,
        members=member_views(book, row.id, true_now),
        trace=job.trace,
        stop_asked_at=job.stop_asked_at,
        stop_asked_by=job.stop_asked_by,
        entered_at=row.entered_at,
        running_at=row.running_at,
        max_runtime_seconds=job.spec.spec.max_runtime_seconds,
        cause_code=row.cause_code,
        cause_detail=row.cause_detail,
        orchestrator=job.spec.spec.orchestrator,
        retries=job.spec.spec.retries,
        gang_deadline_seconds=gang_deadline(book.fleets[job.fleet].config),
        sight=sight_of(book, true_now),
    )


def _advance(
    book: Book,
    claim: Claim,
    view: LaunchView,
    target: AttemptState,
    action: AttemptAction,
    cause: Cause,
    verdict: Verdict | None,
    timings: Timings,
    now: datetime,
) -> bool:
    row = _ours(book, claim)
    job = book.jobs[claim.job]
    if row is None or row.state is not view.state:
        return False
    late_stop = job.stop_asked_at is not None and view.stop_asked_at is None
    if target is not AttemptState.STOPPING and (late_stop or (job.stop_asked_at is not None and target is not AttemptState.ENDED)):
        return False  # stop wins, also one that came after the look
    if not _act(book, row, action, cause, hold_seconds(view, timings), now):
        return False
    _enter(book, row, target, cause, now)
    if target is AttemptState.ENDED:
        assert verdict is not None
        _conclude(book, row, verdict, timings, now)
    else:
        book.jobs.put(job.id, evolve(book.jobs[job.id], state=JOB_STATE_OF_ATTEMPT[target]))
    poke(book, Topic.COMMANDS, Topic.CONSOLE, *((Topic.JOBS,) if target is AttemptState.ENDED else ()))
    return True


def _act(book: Book, row: AttemptRow, action: AttemptAction, cause: Cause, hold: float, now: datetime) -> bool:
    members = members_of(book, row.id)
    phases = {member.phase for member in members}
    if action is AttemptAction.SEND_STOP:
        stop_members(book, row.id, clean(cause.code) or "stopped", now)
    elif action is AttemptAction.SEND_PREPARE:
        for member in members:
            insert(book, member.id, CommandKind.PREPARE, now, hold_seconds=hold)
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


def _conclude(book: Book, row: AttemptRow, verdict: Verdict, timings: Timings, now: datetime) -> None:
    code, detail = clean(verdict.cause.code), clean(verdict.cause.detail)
    ended = book.attempts[row.id]
    if not ended.cause_code:
        book.attempts.put(row.id, evolve(ended, cause_code=code, cause_detail=detail))
    if verdict.state is JobState.QUEUED:
        _queue_again(book, row, Cause(code, detail), now + timedelta(seconds=retry_delay(row.number, timings)), now)
        return
    book.jobs.put(row.job, evolve(book.jobs[row.job], state=verdict.state, ended_at=now, reason_code=code, reason_detail=detail))
    note(book, row.job, now, f"job.{verdict.state.value}", row.job, detail)


def _queue_again(book: Book, row: AttemptRow, cause: Cause, not_before: datetime, now: datetime) -> None:
    reason = backoff_reason(row.id, row.number, cause, not_before)
    waiting = Waiting(code=reason.code, reasons=(reason,), since=now)
    book.jobs.put(row.job, evolve(book.jobs[row.job], state=JobState.QUEUED, not_before=not_before, waiting=waiting))
    note(book, row.job, now, "job.queued-again", row.job, reason.detail)


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
