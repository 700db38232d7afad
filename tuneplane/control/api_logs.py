"""Reading logs: bounded pieces, and following one member across waits, restarts of a gateway, reconnects, and
the end of the Node itself: then the archive has what was archived (R-LCH-13)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from typing import Protocol, Union

from attrs import define, evolve, field, frozen

from tuneplane.domain.errors import InvalidInput, NotFound, Refused, TuneplaneError
from tuneplane.domain.frames import LogPiece, LogQuery
from tuneplane.domain.ids import AttemptId, JobId, MemberId
from tuneplane.domain.jobs import AttemptRecord, Job, MemberRecord, User
from tuneplane.domain.launch_table import FINAL_JOB_STATES, MemberPhase

from .api_jobs import Jobs
from .plans import root_of_output, storage_root_of

MOST_BYTES = 4 << 20  # of one bounded read: held in memory by this process
DEFAULT_BYTES = 1 << 20
MOST_TAIL_LINES = 100_000
FOLLOW_BYTES = 1 << 40  # a follow is not cut by size: the reader's speed bounds it
NOT_STARTED = frozenset({MemberPhase.PENDING, MemberPhase.PREPARING, MemberPhase.PREPARED, MemberPhase.STARTING})
GONE_FOR_GOOD = "node-removed"  # no Node will ever answer
ENDED = frozenset({MemberPhase.TERMINATED, MemberPhase.ABORTED})


class LogReader(Protocol):
    """Log bytes of one member, wherever its Node's session is (P-23)."""

    def open_log(self, query: LogQuery) -> AbstractAsyncContextManager[AsyncIterator[LogPiece]]:
        """Pieces in order until one with ``end``. Refused: ``node-unreachable`` when no gateway holds the Node's session,
        ``node-removed`` when none will again.

        Leaving the context, or cancelling, cancels the read on the Node.
        """


class ArchiveReader(Protocol):
    """Logs of ended members as their Nodes archived them."""

    def open_log(self, root: str, job: JobId, attempt: AttemptId, query: LogQuery) -> AbstractAsyncContextManager[AsyncIterator[LogPiece]]:
        """Pieces as LogReader's, from below the storage root ``root``. Refused when there is no such archive."""


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
    """A piece of the one attempt that is followed: offsets are those of its log, and another attempt has another."""

    attempt: int
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
Caller = Callable[[], Awaitable[User]]


@frozen(kw_only=True)
class Logs:
    """Log bytes for whoever may see the job: of the Node while it has them, of the archive when it does not answer."""

    jobs: Jobs
    reader: LogReader
    archive: ArchiveReader
    storage_root: str = ""  # where the Fleet does not name its own (R-ENR-11)

    async def check(self, caller: User, job: JobId, choice: LogChoice) -> None:
        """Raise what a read or follow of ``choice`` would raise at once, without reading."""
        _check(choice)
        _pick(await self.jobs.get(caller, job), choice)

    async def read(self, caller: User, job: JobId, choice: LogChoice) -> LogBytes:
        """At most ``max_bytes`` of what there is now, possibly none. Deadline: the caller's scope.

        Refused(code="node-unreachable") while no gateway holds the Node's session and there is no archive; NotFound for
        attempt or member.
        """
        _check(choice)
        found = await self.jobs.get(caller, job)
        member = _pick(found, choice)
        if member is None or member.phase in NOT_STARTED:
            return LogBytes(data=b"", offset=0, next_offset=0, gap=0, ended=found.state in FINAL_JOB_STATES)
        query = _query(member, choice.offset, choice.tail_lines, choice.max_bytes, follow=False)
        try:
            async with self.reader.open_log(query) as pieces:
                return await self._collect(pieces, member, choice, member.cleaned)  # before that, the rest is being copied
        except Refused as error:
            refused = error
        archived = await self._read_archive(found, member, query, choice) if member.phase in ENDED else None
        if archived is None:
            raise refused
        return archived

    async def _read_archive(self, job: Job, member: MemberRecord, query: LogQuery, choice: LogChoice) -> LogBytes | None:
        async with self.open_archive(job, member, query) as pieces:
            return await self._collect(pieces, member, choice, True) if pieces is not None else None

    @asynccontextmanager
    async def open_archive(self, job: Job, member: MemberRecord, query: LogQuery) -> AsyncIterator[AsyncIterator[LogPiece] | None]:
        """The archived log of an ended member, or None when there is none. One that never started wrote nothing."""
        async with AsyncExitStack() as stack:
            attempt = _attempt_of(job, member)
            for root in await self._roots(job, attempt):
                try:
                    opening = self.archive.open_log(root, job.id, attempt.id, query)
                    pieces = await stack.enter_async_context(opening)
                except Refused:
                    continue
                yield pieces
                return
            yield await stack.enter_async_context(aclosing(_nothing())) if member.phase is MemberPhase.ABORTED else None

    async def _roots(self, job: Job, attempt: AttemptRecord) -> list[str]:
        """Where its Node archived it: as its plan says; of a plan that does not, as the Fleet and the setting say now."""
        fleet = await self.jobs.storage.get_fleet(job.fleet)
        named = storage_root_of(fleet, self.storage_root) if fleet is not None else self.storage_root
        return [root for root in dict.fromkeys((root_of_output(attempt.output_dir, job.id), named, self.storage_root)) if root]

    async def _collect(self, pieces: AsyncIterator[LogPiece], member: MemberRecord, choice: LogChoice, complete: bool) -> LogBytes:
        data, gap, start = bytearray(), 0, choice.offset or 0
        first, whole = True, False
        async for piece in pieces:
            if piece.error:
                raise Refused("log-unavailable", f"the log of {member.id} cannot be read: {piece.error}")
            if data and piece.gap:
                break  # bytes on both sides of a hole are two reads: offsets stay true
            start, first = (piece.offset, False) if first else (start, False)
            data += piece.data
            gap += piece.gap
            if piece.end or len(data) >= choice.max_bytes:
                whole = len(data) < choice.max_bytes
                break
        kept = bytes(data[: choice.max_bytes])
        return LogBytes(data=kept, offset=start, next_offset=start + len(kept), gap=gap, ended=whole and complete)

    async def follow(self, caller: Caller, job: JobId, choice: LogChoice, emit: Emit, pause: Pause) -> None:
        """Hand every event to ``emit`` until the log has ended; cancelling cancels the read on the Node.

        ``pause`` waits until something may have changed. Who ``caller`` is, and whether he may see the job, is asked each round.
        """
        _check(choice)
        state = _Follow(logs=self, emit=emit, offset=choice.offset, tail_lines=choice.tail_lines)
        while not await state.round(await self.jobs.get(await caller(), job), choice):
            await pause()


@define
class _Follow:
    """Where one follow stands."""

    logs: Logs
    emit: Emit
    offset: int | None
    tail_lines: int | None
    last_wait: str = field(default="")
    attempt: int | None = field(default=None)  # the one whose bytes were asked for: a later one does not take its place

    async def round(self, job: Job, choice: LogChoice) -> bool:
        """One look and one read. True when the log has ended."""
        member = _pick(job, choice if self.attempt is None else evolve(choice, attempt=self.attempt))
        if member is None or member.phase in NOT_STARTED:
            return await self._not_started(job, member)
        self.attempt = _attempt_of(job, member).number
        try:
            ended = not await self._read(member) and member.phase in ENDED
        except TuneplaneError as error:  # the Node or its gateway is away: they come back, and so do we
            ended = member.phase in ENDED and await self._read_archive(job, member)
            if not ended:
                await self.emit(FollowInterrupted(detail=str(error), next_offset=self.offset or 0))
                ended = getattr(error, "code", "") == GONE_FOR_GOOD
        if ended:
            await self.emit(FollowEnded(state=job.state.value, next_offset=self.offset or 0))
        return ended

    async def _not_started(self, job: Job, member: MemberRecord | None) -> bool:
        if job.state in FINAL_JOB_STATES:
            await self.emit(FollowEnded(state=job.state.value, next_offset=0))
            return True
        detail = _waiting_for(job, member)
        if detail != self.last_wait:
            self.last_wait = detail
            await self.emit(FollowWaiting(state=job.state.value, detail=detail))
        return False

    async def _read(self, member: MemberRecord) -> bool:
        """Read until the source says end: whether it delivered bytes. Refused when it ended early."""
        query = _query(member, self.offset, self.tail_lines, FOLLOW_BYTES, follow=True)
        async with self.logs.reader.open_log(query) as pieces:
            return await self._pass_on(pieces, member)

    async def _read_archive(self, job: Job, member: MemberRecord) -> bool:
        """Whether all of it was delivered, from where the Node's bytes ended."""
        query = _query(member, self.offset, self.tail_lines, FOLLOW_BYTES, follow=True)
        try:
            async with self.logs.open_archive(job, member, query) as pieces:
                if pieces is not None:
                    await self._pass_on(pieces, member)
        except TuneplaneError as error:  # a storage root that hangs, or the database
            await self.emit(FollowInterrupted(detail=str(error), next_offset=self.offset or 0))
            return False
        return pieces is not None

    async def _pass_on(self, pieces: AsyncIterator[LogPiece], member: MemberRecord) -> bool:
        delivered = False
        async for piece in pieces:
            if piece.data or piece.gap:
                self.offset, self.tail_lines, delivered = piece.offset + len(piece.data), None, True
                told = FollowBytes(attempt=self.attempt or 0, data=piece.data, offset=piece.offset, next_offset=self.offset, gap=piece.gap)
                await self.emit(told)
            if piece.error:
                raise Refused("log-unavailable", f"the log of {member.id} cannot be read: {piece.error}")
            if piece.end:
                self.offset, self.tail_lines = piece.offset + len(piece.data), None  # also where more was asked for than there is
                break
        return delivered


def _query(member: MemberRecord, offset: int | None, tail_lines: int | None, most: int, *, follow: bool) -> LogQuery:
    tail = tail_lines if offset is None else None
    return LogQuery(node=member.node, member=MemberId(member.id), offset=offset, tail_lines=tail, max_bytes=most, follow=follow)


async def _nothing() -> AsyncGenerator[LogPiece, None]:
    yield LogPiece(offset=0, data=b"", end=True)


def _attempt_of(job: Job, member: MemberRecord) -> AttemptRecord:
    return next(attempt for attempt in job.attempts if member in attempt.members)


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
