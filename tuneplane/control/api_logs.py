"""Reading logs: bounded pieces, and following one member across waits, restarts of a gateway and reconnects (R-LCH-13)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, Union

from attrs import define, field, frozen

from tuneplane.domain.errors import InvalidInput, NotFound, Refused, TuneplaneError
from tuneplane.domain.frames import LogPiece, LogQuery
from tuneplane.domain.ids import JobId, MemberId
from tuneplane.domain.jobs import AttemptRecord, Job, MemberRecord, User
from tuneplane.domain.launch_table import FINAL_JOB_STATES, MemberPhase

from .api_jobs import Jobs

MOST_BYTES = 4 << 20  # of one bounded read: held in memory by this process
DEFAULT_BYTES = 1 << 20
MOST_TAIL_LINES = 100_000
FOLLOW_BYTES = 1 << 40  # a follow is not cut by size: the reader's speed bounds it
NOT_STARTED = frozenset({MemberPhase.PENDING, MemberPhase.PREPARING, MemberPhase.PREPARED, MemberPhase.STARTING})
ENDED = frozenset({MemberPhase.TERMINATED, MemberPhase.ABORTED})


class LogReader(Protocol):
    """Log bytes of one member, wherever its Node's session is (P-23)."""

    def open_log(self, query: LogQuery) -> AbstractAsyncContextManager[AsyncIterator[LogPiece]]:
        """Pieces in order until one with ``end``. Refused(code="node-unreachable") when no gateway holds the Node's session.

        Leaving the context, or cancelling, cancels the read on the Node.
        """


@frozen(kw_only=True)
class LogChoice:
    """Which bytes of a job's log: the query of ``GET /api/jobs/{id}/logs``. ``member``: a rank, or a member's id."""

    member: str = "0"
    attempt: int | None = None  # None: the latest
    offset: int | None = None
    tail_lines: int | None = None
    max_bytes: int = DEFAULT_BYTES
    follow: bool = False


@frozen(kw_only=True)
class LogBytes:
    """One bounded read. ``gap`` bytes before ``offset`` are lost; ``ended``: the log will not grow beyond ``next_offset``."""

    data: bytes
    offset: int
    next_offset: int
    gap: int
    ended: bool


@frozen(kw_only=True)
class FollowWaiting:
    """Nothing to read yet; ``state`` is the job's, ``detail`` says what it waits for."""

    state: str
    detail: str


@frozen(kw_only=True)
class FollowBytes:
    data: bytes
    offset: int
    next_offset: int
    gap: int


@frozen(kw_only=True)
class FollowInterrupted:
    """The bytes stopped coming for a reason that may pass; following goes on from ``next_offset``."""

    detail: str
    next_offset: int


@frozen(kw_only=True)
class FollowEnded:
    """All bytes were sent; the job or member has ended."""

    state: str
    next_offset: int


FollowEvent = Union[FollowWaiting, FollowBytes, FollowInterrupted, FollowEnded]
Emit = Callable[[FollowEvent], Awaitable[None]]
Pause = Callable[[], Awaitable[None]]


@frozen(kw_only=True)
class Logs:
    """Log bytes for whoever may see the job."""

    jobs: Jobs
    reader: LogReader

    async def check(self, caller: User, job: JobId, choice: LogChoice) -> None:
        """Raise what a read or follow of ``choice`` would raise at once, without reading."""
        _check(choice)
        _pick(await self.jobs.get(caller, job), choice)

    async def read(self, caller: User, job: JobId, choice: LogChoice) -> LogBytes:
        """At most ``max_bytes`` of what there is now, possibly none. Deadline: the caller's scope.

        Refused(code="node-unreachable") while no gateway holds the Node's session; NotFound for attempt or member.
        """
        _check(choice)
        found = await self.jobs.get(caller, job)
        member = _pick(found, choice)
        if member is None or member.phase in NOT_STARTED:
            return LogBytes(data=b"", offset=0, next_offset=0, gap=0, ended=found.state in FINAL_JOB_STATES)
        return await self._read(member, choice)

    async def _read(self, member: MemberRecord, choice: LogChoice) -> LogBytes:
        query = _query(member, choice.offset, choice.tail_lines, choice.max_bytes, follow=False)
        data, gap, start = bytearray(), 0, choice.offset or 0
        first = True
        async with self.reader.open_log(query) as pieces:
            async for piece in pieces:
                if piece.error:
                    raise Refused("log-unavailable", f"the log of {member.id} cannot be read: {piece.error}")
                start, first = (piece.offset, False) if first else (start, False)
                data += piece.data
                gap += piece.gap
                if piece.end or len(data) >= choice.max_bytes:
                    break
        whole = len(data) < choice.max_bytes
        kept = bytes(data[: choice.max_bytes])
        return LogBytes(data=kept, offset=start, next_offset=start + len(kept), gap=gap, ended=whole and member.phase in ENDED)

    async def follow(self, caller: User, job: JobId, choice: LogChoice, emit: Emit, pause: Pause) -> None:
        """Hand every event to ``emit`` until the log has ended; cancelling cancels the read on the Node.

        ``pause`` waits until something may have changed. The caller's right to see the job is asked again each round.
        """
        _check(choice)
        state = _Follow(logs=self, emit=emit, offset=choice.offset, tail_lines=choice.tail_lines)
        while not await state.round(await self.jobs.get(caller, job), choice):
            await pause()


@define
class _Follow:
    """Where one follow stands."""

    logs: Logs
    emit: Emit
    offset: int | None
    tail_lines: int | None
    last_wait: str = field(default="")

    async def round(self, job: Job, choice: LogChoice) -> bool:
        """One look and one read. True when the log has ended."""
        member = _pick(job, choice)
        if member is None or member.phase in NOT_STARTED:
            return await self._not_started(job, member)
        try:
            whole, delivered = await self._read(member)
        except TuneplaneError as error:  # the Node or its gateway is away: they come back, and so do we
            await self.emit(FollowInterrupted(detail=str(error), next_offset=self.offset or 0))
            return False
        if whole and not delivered and member.phase in ENDED:
            await self.emit(FollowEnded(state=job.state.value, next_offset=self.offset or 0))
            return True
        return False

    async def _not_started(self, job: Job, member: MemberRecord | None) -> bool:
        if job.state in FINAL_JOB_STATES:
            await self.emit(FollowEnded(state=job.state.value, next_offset=0))
            return True
        detail = _waiting_for(job, member)
        if detail != self.last_wait:
            self.last_wait = detail
            await self.emit(FollowWaiting(state=job.state.value, detail=detail))
        return False

    async def _read(self, member: MemberRecord) -> tuple[bool, bool]:
        """Read until the source says end: (it ended without an error, it delivered bytes)."""
        delivered = False
        query = _query(member, self.offset, self.tail_lines, FOLLOW_BYTES, follow=True)
        async with self.logs.reader.open_log(query) as pieces:
            async for piece in pieces:
                if piece.data or piece.gap:
                    self.offset, self.tail_lines, delivered = piece.offset + len(piece.data), None, True
                    await self.emit(FollowBytes(data=piece.data, offset=piece.offset, next_offset=self.offset, gap=piece.gap))
                if piece.error:
                    await self.emit(FollowInterrupted(detail=piece.error, next_offset=self.offset or 0))
                    return False, delivered
                if piece.end:
                    break
        return True, delivered


def _query(member: MemberRecord, offset: int | None, tail_lines: int | None, most: int, *, follow: bool) -> LogQuery:
    tail = tail_lines if offset is None else None
    return LogQuery(node=member.node, member=MemberId(member.id), offset=offset, tail_lines=tail, max_bytes=most, follow=follow)


def _waiting_for(job: Job, member: MemberRecord | None) -> str:
    if job.waiting is not None and member is None:
        return "; ".join(reason.detail for reason in job.waiting.reasons) or job.waiting.code
    if member is not None and member.progress is not None:
        return f"{member.id} is {member.phase.value}: {member.progress.phase}"
    return f"{member.id} is {member.phase.value}" if member is not None else f"the job is {job.state.value}"


def _pick(job: Job, choice: LogChoice) -> MemberRecord | None:
    """The member asked for, or None while there is no attempt. NotFound when there is one and it has no such member."""
    attempt = _attempt(job, choice.attempt)
    if attempt is None:
        return None
    for member in attempt.members:
        if choice.member in (member.id, str(member.rank)):
            return member
    raise NotFound("member", choice.member)


def _attempt(job: Job, number: int | None) -> AttemptRecord | None:
    if not job.attempts and number is None:
        return None
    for attempt in sorted(job.attempts, key=lambda one: -one.number):
        if number is None or attempt.number == number:
            return attempt
    raise NotFound("attempt", str(number))


def _check(choice: LogChoice) -> None:
    if choice.offset is not None and choice.offset < 0:
        raise InvalidInput("offset", "must not be negative")
    if choice.tail_lines is not None and not 0 <= choice.tail_lines <= MOST_TAIL_LINES:
        raise InvalidInput("tail_lines", f"must be between 0 and {MOST_TAIL_LINES}")
    if choice.offset is not None and choice.tail_lines is not None:
        raise InvalidInput("tail_lines", "give either offset or tail_lines")
    if not 1 <= choice.max_bytes <= MOST_BYTES:
        raise InvalidInput("max_bytes", f"must be between 1 and {MOST_BYTES}")
