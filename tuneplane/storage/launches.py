"""Attempts: placing them with their holds, claiming them for a worker, and the steps of the launch table (P-05)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from tuneplane.bridge.postgres import Connection, ConstraintViolated, Row
from tuneplane.domain.fleet_config import gang_deadline
from tuneplane.domain.ids import AttemptId, FleetId, JobId, WorkerId
from tuneplane.domain.jobs import Claim, Occupant, PlacedMember, placed_on
from tuneplane.domain.jobspec import Orchestrator
from tuneplane.domain.launch_table import (
    ENDED_PHASES,
    JOB_STATE_OF_ATTEMPT,
    AttemptAction,
    AttemptState,
    Cause,
    JobState,
    LaunchView,
    MemberPhase,
    MemberView,
    Verdict,
    hold_seconds,
)
from tuneplane.domain.ports import Topic
from tuneplane.domain.timings import Timings
from tuneplane.domain.verdict import backoff_reason, retry_delay

from .commands import insert_commit, insert_forget, insert_prepare
from .database import Aggregate, clean, note, poke, to_json
from .decoded import spec_of
from .holds import take
from .sight import LIVE, SEEN_NOW, SILENT_SINCE, WITH_SESSION, sight_of
from .stopping import stop_members

# What may say no to a placement: somebody else was quicker, or the world changed since the planner looked.
RACES = frozenset(
    {
        "node_capacity_budget",
        "resource_hold_pkey",
        "gpu_hold_pkey",
        "gpu_hold_grant",
        "gpu_hold_granted",
        "port_hold_pkey",
        "attempt_pkey",
        "attempt_number",
        "attempt_one_live",
        "attempt_follows",
        "attempt_after_stop",
        "member_pkey",
    }
)


class Launches(Aggregate):
    """LaunchStore (domain/ports.py), besides what is in nodes.py and jobs.py."""

    async def place(self, job: JobId, attempt: AttemptId, number: int, members: Sequence[PlacedMember], now: datetime) -> bool:
        try:
            return await self._db.write("place", _place, job, attempt, number, tuple(members), now)
        except ConstraintViolated as error:
            if error.constraint not in RACES:
                raise
            return False

    async def occupants(self, fleet: FleetId) -> list[Occupant]:
        sql = (
            "SELECT hold.node_id, attempt.created_at, attempt.running_at, job.spec FROM node"
            " JOIN resource_hold AS hold ON hold.node_id = node.id JOIN member ON member.id = hold.member_id"
            " JOIN attempt ON attempt.id = attempt_id JOIN job ON job.id = job_id WHERE node.live_fleet_id = $1 ORDER BY hold.member_id"
        )
        return [_occupant(row) for row in await self._db.fetch(sql, fleet)]

    async def claim_attempts(self, worker: WorkerId, limit: int, now: datetime, lease_until: datetime) -> list[Claim]:
        return await self._db.write("claim_attempts", _claim, worker, limit, now, lease_until)

    async def renew_claims(self, worker: WorkerId, claims: Sequence[Claim], lease_until: datetime) -> list[Claim]:
        return await self._db.write("renew_claims", _renew, worker, tuple(claims), lease_until)

    async def load_launch(self, claim: Claim) -> LaunchView | None:
        return await self._db.read(_load, claim)

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
        return await self._db.write("advance", _advance, claim, view, target, action, cause, verdict, self._db.timings, now)

    async def forget_ended(self, older_than: datetime, limit: int, now: datetime) -> int:
        return await self._db.write("forget_ended", _forget, older_than, limit, now)


# ---------------------------------------------------------------- placing


async def _place(
    connection: Connection, job: JobId, attempt: AttemptId, number: int, members: tuple[PlacedMember, ...], now: datetime
) -> bool:
    sql = (
        "SELECT FROM job WHERE id = $1 AND state = 'queued' AND stop_asked_at IS NULL AND attempt_number = $2 - 1"
        " AND (not_before IS NULL OR not_before <= $3) FOR NO KEY UPDATE"
    )
    if await connection.fetchrow(sql, job, number, now) is None or not await _open_to_work(connection, members):
        return False
    sql = "INSERT INTO attempt (id, job_id, number, created_at, entered_at) VALUES ($1, $2, $3, $4, $4)"
    await connection.execute(sql, attempt, job, number, now)
    sql = "INSERT INTO member (id, attempt_id, node_id, rank, plan, plan_digest) VALUES ($1, $2, $3, $4, $5, $6)"
    rows = [(one.member, attempt, one.node, one.rank, one.plan, one.plan_digest) for one in members]
    await connection.executemany(sql, rows)
    await take(connection, members)
    sql = (
        "UPDATE job SET state = $2, attempt_number = $3, not_before = NULL, waiting_code = NULL, waiting_reasons = NULL,"
        " waiting_since = NULL WHERE id = $1"
    )
    await connection.execute(sql, job, JOB_STATE_OF_ATTEMPT[AttemptState.PENDING].value, number)
    await note(connection, job, now, "attempt.placed", attempt, placed_on(members))
    await poke(connection, Topic.UNCLAIMED, Topic.CONSOLE)
    return True


async def _open_to_work(connection: Connection, members: tuple[PlacedMember, ...]) -> bool:
    """Whether every Node still takes new work; the shared locks keep an operator's drain or removal waiting meanwhile.

    The Nodes are locked before anything is asked: one statement sees the cordons and the Fleet as they were when it began
    to wait for a row. The Fleet is locked with the question: its own row is read anew after a wait.
    """
    nodes = sorted({member.node for member in members})
    await connection.execute("SELECT FROM node WHERE id = ANY($1::text[]) ORDER BY id FOR SHARE", nodes)
    sql = (
        "SELECT node.id FROM node JOIN fleet ON fleet.id = live_fleet_id WHERE node.id = ANY($1::text[]) AND node.state = 'active'"
        " AND removed_at IS NULL AND fleet.state = 'active' AND NOT EXISTS (SELECT FROM cordon WHERE node_id = node.id)"
        " FOR SHARE OF fleet"
    )
    return len(await connection.fetch(sql, nodes)) == len(nodes)


def _occupant(row: Row) -> Occupant:
    body = spec_of(row["spec"]).spec
    return Occupant(
        node=row["node_id"],
        placed_at=row["created_at"],
        running_at=row["running_at"],
        max_runtime_seconds=body.max_runtime_seconds,
        grace_seconds=body.stop.grace_seconds,
    )


# ---------------------------------------------------------------- claims


async def _claim(connection: Connection, worker: WorkerId, limit: int, now: datetime, lease_until: datetime) -> list[Claim]:
    sql = (
        "WITH free AS (SELECT id FROM attempt WHERE state <> 'ended' AND (claim_until IS NULL OR claim_until <= $2)"
        " ORDER BY created_at, id LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED)"
        " UPDATE attempt SET claim_worker = $1, claim_epoch = claim_epoch + 1, claim_until = $4 FROM free WHERE attempt.id = free.id"
        " RETURNING attempt.id, job_id, claim_epoch"
    )
    rows = await connection.fetch(sql, worker, now, limit, lease_until)
    for row in rows:
        await note(connection, row["job_id"], now, "attempt.claimed", row["id"], f"by {worker}, epoch {row['claim_epoch']}")
    return [Claim(attempt=row["id"], job=row["job_id"], worker=worker, epoch=row["claim_epoch"]) for row in rows]


async def _renew(connection: Connection, worker: WorkerId, claims: tuple[Claim, ...], lease_until: datetime) -> list[Claim]:
    wanted = ([claim.attempt for claim in claims], [claim.epoch for claim in claims])
    sql = (
        "SELECT attempt.id, claim_epoch FROM attempt JOIN unnest($1::text[], $2::bigint[]) AS ours (id, epoch) ON attempt.id = ours.id"
        " WHERE claim_epoch = ours.epoch AND claim_worker = $3 AND state <> 'ended' ORDER BY attempt.id FOR NO KEY UPDATE OF attempt"
    )
    ours = {row["id"]: row["claim_epoch"] for row in await connection.fetch(sql, *wanted, worker)}
    await connection.execute("UPDATE attempt SET claim_until = $2 WHERE id = ANY($1::text[])", sorted(ours), lease_until)
    return [claim for claim in claims if ours.get(claim.attempt) == claim.epoch]


# ---------------------------------------------------------------- looking


LOAD = f"""
    SELECT attempt.*, job.trace, job.spec, stop_asked_at, stop_asked_by, seen.*,
        (SELECT config FROM fleet WHERE fleet.id = job.fleet_id) AS fleet_config
    FROM attempt JOIN job ON job.id = job_id LEFT JOIN ({SEEN_NOW}) AS seen ON true
    WHERE attempt.id = $1 AND claim_epoch = $2 AND claim_worker = $3 AND attempt.state <> 'ended'
"""  # noqa: S608  a constant of ours


async def _load(connection: Connection, claim: Claim) -> LaunchView | None:
    row = await connection.fetchrow(LOAD, claim.attempt, claim.epoch, claim.worker)
    if row is None:
        return None
    spec = json.loads(row["spec"])["spec"]
    return LaunchView(
        job=row["job_id"],
        attempt=row["id"],
        number=row["number"],
        state=AttemptState(row["state"]),
        members=await member_views(connection, claim.attempt),
        trace=row["trace"],
        stop_asked_at=row["stop_asked_at"],
        stop_asked_by=row["stop_asked_by"],
        entered_at=row["entered_at"],
        running_at=row["running_at"],
        max_runtime_seconds=spec["max_runtime_seconds"],
        cause_code=row["cause_code"],
        cause_detail=row["cause_detail"],
        orchestrator=Orchestrator(spec["orchestrator"]),
        retries=spec["retries"],
        gang_deadline_seconds=gang_deadline(json.loads(row["fleet_config"] or "{}")),
        sight=sight_of(row),
    )


async def member_views(connection: Connection, attempt: AttemptId) -> tuple[MemberView, ...]:
    """By rank, each with what is known of its Node's session now."""
    sql = (
        f"SELECT member.*, {SILENT_SINCE} AS silent_since, CASE WHEN {LIVE} THEN opened_at END AS connected_since"  # noqa: S608
        f" FROM member JOIN node ON node.id = member.node_id {WITH_SESSION} WHERE attempt_id = $1 ORDER BY rank"
    )
    return tuple(_member(row) for row in await connection.fetch(sql, attempt))


def _member(row: Row) -> MemberView:
    return MemberView(
        member=row["id"],
        node=row["node_id"],
        rank=row["rank"],
        phase=MemberPhase(row["phase"]),
        exit_code=row["exit_code"],
        oom_killed=row["oom_killed"],
        reason_code=row["reason_code"],
        reason_detail=row["reason_detail"],
        ended_at=row["ended_at"],
        hold_expires_at=row["hold_expires_at"],
        silent_since=row["silent_since"],
        connected_since=row["connected_since"],
    )


# ---------------------------------------------------------------- stepping


async def _advance(
    connection: Connection,
    claim: Claim,
    view: LaunchView,
    target: AttemptState,
    action: AttemptAction,
    cause: Cause,
    verdict: Verdict | None,
    timings: Timings,
    now: datetime,
) -> bool:
    job = await connection.fetchrow("SELECT stop_asked_at FROM job WHERE id = $1 FOR NO KEY UPDATE", claim.job)
    sql = "SELECT FROM attempt WHERE id = $1 AND claim_epoch = $2 AND claim_worker = $3 AND state = $4 FOR NO KEY UPDATE"
    if job is None or await connection.fetchrow(sql, claim.attempt, claim.epoch, claim.worker, view.state.value) is None:
        return False
    late_stop = job["stop_asked_at"] is not None and view.stop_asked_at is None
    if target is not AttemptState.STOPPING and (late_stop or (job["stop_asked_at"] is not None and target is not AttemptState.ENDED)):
        return False  # stop wins, also one that came after the look
    if not await _act(connection, claim, action, cause, hold_seconds(view, timings), now):
        return False
    await _enter(connection, claim, target, cause, now)
    if target is AttemptState.ENDED:
        assert verdict is not None, "an attempt ends with a verdict"
        await _conclude(connection, claim, view.number, verdict, timings, now)
    else:
        await connection.execute("UPDATE job SET state = $2 WHERE id = $1", claim.job, JOB_STATE_OF_ATTEMPT[target].value)
    await poke(connection, Topic.COMMANDS, Topic.CONSOLE, *((Topic.JOBS,) if target is AttemptState.ENDED else ()))
    return True


async def _act(connection: Connection, claim: Claim, action: AttemptAction, cause: Cause, hold: float, now: datetime) -> bool:
    """The commands of one step. False when the members are not what the step was decided on."""
    if action is AttemptAction.SEND_STOP:
        await stop_members(connection, claim.job, claim.attempt, clean(cause.code) or "stopped", now)
        return True
    sql = "SELECT id, phase FROM member WHERE attempt_id = $1 ORDER BY id FOR NO KEY UPDATE"
    members = await connection.fetch(sql, claim.attempt)
    phases = {MemberPhase(member["phase"]) for member in members}
    if action is AttemptAction.SEND_PREPARE:
        for member in members:
            await insert_prepare(connection, member["id"], hold, now)
    if action is AttemptAction.SEND_COMMIT:
        if phases != {MemberPhase.PREPARED}:
            return False
        for member in members:
            await insert_commit(connection, member["id"], now)
    return action is not AttemptAction.CONCLUDE or phases <= ENDED_PHASES


async def _enter(connection: Connection, claim: Claim, target: AttemptState, cause: Cause, now: datetime) -> None:
    """The new state; a cause is written when it begins to stop, and kept (L-H1)."""
    code, detail = (clean(cause.code), clean(cause.detail)) if target is AttemptState.STOPPING else ("", "")
    sql = (
        "UPDATE attempt SET state = $3, entered_at = $4::timestamptz,"
        " running_at = CASE WHEN $3 = 'running' THEN $4::timestamptz ELSE running_at END,"
        " ended_at = CASE WHEN $3 = 'ended' THEN $4::timestamptz END,"
        " cause_detail = CASE cause_code WHEN '' THEN $6 ELSE cause_detail END,"
        " cause_code = CASE cause_code WHEN '' THEN $5 ELSE cause_code END WHERE id = $1 AND claim_epoch = $2"
    )
    await connection.execute(sql, claim.attempt, claim.epoch, target.value, now, code, detail)
    await note(connection, claim.job, now, f"attempt.{target.value}", claim.attempt, cause.detail)


async def _conclude(connection: Connection, claim: Claim, number: int, verdict: Verdict, timings: Timings, now: datetime) -> None:
    code, detail = clean(verdict.cause.code), clean(verdict.cause.detail)
    sql = "UPDATE attempt SET cause_code = $2, cause_detail = $3 WHERE id = $1 AND cause_code = ''"
    await connection.execute(sql, claim.attempt, code, detail)
    if verdict.state is JobState.QUEUED:
        await _queue_again(connection, claim, number, Cause(code, detail), now + timedelta(seconds=retry_delay(number, timings)), now)
        return
    sql = "UPDATE job SET state = $2, ended_at = $3, reason_code = $4, reason_detail = $5 WHERE id = $1"
    await connection.execute(sql, claim.job, verdict.state.value, now, code, detail)
    await note(connection, claim.job, now, f"job.{verdict.state.value}", claim.job, detail)


async def _queue_again(connection: Connection, claim: Claim, number: int, cause: Cause, not_before: datetime, now: datetime) -> None:
    """The next attempt is the allocator's; the database refuses it while a member of this one lacks evidence."""
    reason = backoff_reason(claim.attempt, number, cause, not_before)
    sql = (
        "UPDATE job SET state = 'queued', not_before = $2, waiting_code = $3, waiting_reasons = $4::json, waiting_since = $5 WHERE id = $1"
    )
    await connection.execute(sql, claim.job, not_before, reason.code, to_json((reason,)), now)
    await note(connection, claim.job, now, "job.queued-again", claim.job, reason.detail)


async def _forget(connection: Connection, older_than: datetime, limit: int, now: datetime) -> int:
    """Members that a Node still remembers, of Nodes that are still enrolled."""
    sql = (
        "SELECT member.id FROM member JOIN attempt ON attempt.id = attempt_id JOIN node ON node.id = node_id"
        " WHERE attempt.state = 'ended' AND attempt.ended_at < $1 AND cleaned AND removed_at IS NULL"
        " AND EXISTS (SELECT FROM command WHERE member_id = member.id AND sent_epoch IS NOT NULL)"
        " AND NOT EXISTS (SELECT FROM command WHERE member_id = member.id AND kind = 'forget')"
        " ORDER BY member.id LIMIT $2 FOR NO KEY UPDATE OF member SKIP LOCKED"
    )
    members = await connection.fetch(sql, older_than, limit)
    for member in members:
        await insert_forget(connection, member["id"], now)
    if members:
        await poke(connection, Topic.COMMANDS)
    return len(members)
