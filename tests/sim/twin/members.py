"""What the twin's jobs and launches share: the members of an attempt, as they are looked at and as they are stopped."""

from __future__ import annotations

from datetime import datetime

from attrs import evolve

from tuneplane.domain.ids import AttemptId
from tuneplane.domain.launch_table import ENDED_PHASES, MemberPhase, MemberView

from .base import note
from .nodes import release
from .rows import Book, MemberRow
from .sessions import UNANSWERED, insert_stop, was_sent, withdraw
from .sight import silent_since


def members_of(book: Book, attempt: AttemptId) -> list[MemberRow]:
    return sorted((row for row in book.members if row.attempt == attempt), key=lambda row: row.rank)


def member_views(book: Book, attempt: AttemptId, true_now: datetime) -> tuple[MemberView, ...]:
    return tuple(_member_view(book, member, true_now) for member in members_of(book, attempt))


def _member_view(book: Book, row: MemberRow, true_now: datetime) -> MemberView:
    silent = silent_since(book, row.node, true_now)
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
        silent_since=silent,
        connected_since=book.sessions[row.node].opened_at if silent is None else None,
    )


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
