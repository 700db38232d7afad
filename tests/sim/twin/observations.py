"""What Nodes report of members, weighed as storage does (domain/evidence.py), in the twin."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from attrs import evolve

from tuneplane.domain.evidence import (
    CONTRADICTION,
    LOST,
    LOST_DETAIL,
    Known,
    Ruling,
    weigh,
    why_contradicted,
    why_reverted,
    why_violation,
)
from tuneplane.domain.frames import CommandKind, Observation
from tuneplane.domain.ids import MemberId, NodeId, operation_id
from tuneplane.domain.launch_table import ENDED_PHASES, MemberPhase
from tuneplane.domain.log_archive import archive_note, with_note
from tuneplane.domain.ports import Topic
from tuneplane.storage.database import clean
from tuneplane.storage.doubt import why_missing

from . import strangers
from .base import Client, note, poke
from .nodes import hold_epoch, release
from .rows import Book, MemberRow
from .sessions import UNANSWERED, doubt_journal, insert_stop, make_unknown, settle_stop, withdraw

TOLD_BY_US = frozenset({"", "stopped", "aborted"})


class Observations(Client):
    """The observation part of SessionStore (domain/ports.py)."""

    async def observe(self, node: NodeId, epoch: int, observation: Observation, now: datetime) -> bool:
        for _ in range(2):
            doubt = await self.write("observe", _observe, node, epoch, observation, now)
            if not doubt:
                break
            await self.write("doubt_journal", _doubt, node, epoch, doubt, now)
        return doubt is not None

    async def reconcile(self, node: NodeId, epoch: int, reported: Collection[MemberId], now: datetime) -> None:
        await self.write("reconcile", _reconcile, node, epoch, frozenset(reported), now)


def _doubt(book: Book, node: NodeId, epoch: int, doubt: str, now: datetime) -> None:
    hold_epoch(book, node, epoch)
    doubt_journal(book, node, doubt, now)
    poke(book, Topic.ATTEMPTS, Topic.COMMANDS, Topic.CONSOLE)


def _reconcile(book: Book, node: NodeId, epoch: int, reported: frozenset[MemberId], now: datetime) -> None:
    hold_epoch(book, node, epoch)
    missing = sorted(row.id for row in book.members if row.node == node and row.id not in reported and _is_missing(book, row, epoch))
    if missing:
        _doubt(book, node, epoch, why_missing(missing), now)


def _is_missing(book: Book, row: MemberRow, epoch: int) -> bool:
    if row.phase in ENDED_PHASES and row.cleaned:
        return False
    commands = [command for command in book.commands if command.member == row.id]
    answered = any(command.accepted and command.sent_epoch is not None and command.sent_epoch < epoch for command in commands)
    stops = [command for command in commands if command.kind is CommandKind.STOP and command.withdrawn_at is None]
    stopping = any(stop.answered_at is None or stop.sent_epoch == epoch for stop in stops)
    return (row.revision > 0 or answered) and not stopping


def _observe(book: Book, node: NodeId, epoch: int, seen: Observation, now: datetime) -> str | None:
    hold_epoch(book, node, epoch)
    row = book.members.get(seen.member)
    if (row is None or row.node != node) and strangers.settle(book, node, seen, now):
        return ""
    if row is None or row.node != node or (seen.plan_digest and seen.plan_digest != row.plan_digest):
        return None
    known = _known(book, row)
    journal = book.nodes[node].journal_id or ""
    ruling = weigh(known, seen, journal, epoch)
    if ruling is Ruling.REVERTED:
        return why_reverted(known, seen)
    if ruling is not Ruling.KNOWN:
        _follow(book, row, ruling, known, seen, now)
        revision = 0 if ruling is Ruling.CONTRADICTED else seen.revision
        book.members.put(row.id, evolve(book.members[row.id], revision=revision, revision_epoch=epoch, journal_id=journal))
    return ""


def _known(book: Book, row: MemberRow) -> Known:
    commit = book.commands.get(operation_id(row.id, "commit"))
    return Known(
        phase=row.phase,
        revision=row.revision,
        journal=row.journal_id,
        epoch=row.revision_epoch,
        commit_sent=commit is not None and commit.sent_epoch is not None,
        forgetting=operation_id(row.id, "forget") in book.commands,
    )


def _follow(book: Book, row: MemberRow, ruling: Ruling, known: Known, seen: Observation, now: datetime) -> None:
    if ruling is Ruling.LOST:
        seen = evolve(seen, phase=MemberPhase.TERMINATED, exit_code=None, oom_killed=False, reason_code=LOST, reason_detail=LOST_DETAIL)
    if ruling in (Ruling.APPLY, Ruling.LOST):
        _apply(book, row, seen, now)
    elif ruling is Ruling.UNSETTLED:
        changed = evolve(row, boot_id=clean(seen.boot_id), container_id=clean(seen.container_id))
        book.members.put(row.id, evolve(changed, started_at=seen.started_at or row.started_at))
        poke(book, Topic.CONSOLE)
    elif ruling is Ruling.CONTRADICTED:
        make_unknown(book, row, CONTRADICTION, why_contradicted(known, seen), now)
        poke(book, Topic.ATTEMPTS, Topic.COMMANDS, Topic.CONSOLE)
    elif ruling is Ruling.SETTLED:
        _settle(book, row, seen, now)
    elif not row.violation:
        _violate(book, row, seen, now)


def _settle(book: Book, row: MemberRow, seen: Observation, now: datetime) -> None:
    said = archive_note(clean(seen.reason_detail)) if seen.cleaned else ""
    detail = with_note(row.reason_detail, said)
    book.members.put(row.id, evolve(row, cleaned=row.cleaned or seen.cleaned, reason_detail=detail, violation=""))
    settle_stop(book, row.id, now)
    if seen.cleaned and not row.cleaned:
        note(book, row.job, now, "member.cleaned", row.id, said)
    poke(book, Topic.CONSOLE)


def _violate(book: Book, row: MemberRow, seen: Observation, now: datetime) -> None:
    why = why_violation(seen)
    book.members.put(row.id, evolve(row, violation=why, cleaned=False))
    book.commands.drop(operation_id(row.id, "forget"))
    insert_stop(book, row.id, "ended", now, again=True)
    note(book, row.job, now, "member.violation", row.id, why)
    poke(book, Topic.COMMANDS, Topic.CONSOLE)


def _apply(book: Book, row: MemberRow, seen: Observation, now: datetime) -> None:
    ended = seen.phase in ENDED_PHASES
    code, detail = clean(seen.reason_code), clean(seen.reason_detail)
    if seen.phase is MemberPhase.ABORTED and row.refusal_code and seen.reason_code in TOLD_BY_US:
        code, detail = row.refusal_code, row.refusal_detail
    left = seen.hold_seconds_left
    changed = evolve(
        row,
        phase=seen.phase,
        boot_id=clean(seen.boot_id),
        container_id=clean(seen.container_id),
        exit_code=seen.exit_code,
        oom_killed=seen.oom_killed,
        reason_code=code,
        reason_detail=detail,
        progress=seen.progress,
        hold_expires_at=now + timedelta(seconds=left) if left is not None else None,
        started_at=seen.started_at or row.started_at,
        ended_at=(seen.ended_at or now) if ended else None,
        cleaned=seen.cleaned,
    )
    book.members.put(row.id, changed)
    if ended:
        withdraw(book, row.id, UNANSWERED, now)
        settle_stop(book, row.id, now)
        release(book, row.id)
    _tell(book, row, seen.phase, now)


def _tell(book: Book, row: MemberRow, after: MemberPhase, now: datetime) -> None:
    poke(book, Topic.CONSOLE)
    if after is row.phase:
        return
    member = book.members[row.id]
    note(book, row.job, now, f"member.{after.value}", row.id, f"{member.reason_code} {member.exit_code}")
    poke(book, Topic.ATTEMPTS, *((Topic.JOBS,) if after in ENDED_PHASES else ()))
