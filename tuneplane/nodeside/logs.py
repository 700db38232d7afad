"""A member's output, kept by the Node itself: bounded segment files below the state directory.

Offsets are absolute: byte 0 is the first byte the container wrote. A segment is named by the offset of its first byte,
so the captured length survives a restart without a record of its own. The oldest segments are dropped beyond
MEMBER_LOG_BYTES; a read from before the first kept byte says so as a gap (L-E1). Nothing here is fsynced: a power cut
takes the container with it. Logs stay until Forget, after the container has gone too (R-LCH-13), and archived beyond it.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import trio
from attrs import define, field

from tuneplane.domain.faultpoint import fault_point
from tuneplane.domain.frames import LOG_CHUNK_BYTES, LogPiece
from tuneplane.domain.ids import MemberId
from tuneplane.domain.log_tail import TailSearch
from tuneplane.domain.node_ports import Runner

SEGMENT_BYTES = 8 << 20  # what is dropped at once when a log is full: a thirty-second of it
MEMBER_LOG_BYTES = 256 << 20  # a member's log on this Node; a flood must not fill the disk (L-E5)
BASE = "base"  # file: the offset that the engine's first byte has, when the engine lost its earlier output
COMPLETE = "complete"  # marker file: the container has ended and all of its output is here


@define(eq=False)
class MemberLog:
    """One member's log. One task appends; any number read."""

    directory: Path
    _run: Runner
    _segments: list[int] = field(factory=list)  # offsets of the first bytes, ascending
    _end: int = 0
    _base: int = 0
    _complete: bool = False
    _grown: trio.Event = field(factory=trio.Event)
    _segment_bytes: int = SEGMENT_BYTES
    _member_bytes: int = MEMBER_LOG_BYTES

    @property
    def first(self) -> int:
        """Offset of the oldest byte that is still kept."""
        return self._segments[0] if self._segments else self._end

    @property
    def end(self) -> int:
        """Offset after the newest byte."""
        return self._end

    @property
    def base(self) -> int:
        """Offset that the first byte of the engine's own log has."""
        return self._base

    @property
    def complete(self) -> bool:
        return self._complete

    async def append(self, data: bytes) -> None:
        """Keep ``data`` behind the newest byte. OSError when the disk does not take it: the log then ends before it."""
        await self._run(lambda: self._append(data))
        self._wake()

    async def finish(self) -> None:
        """No more will come."""
        if not self._complete:
            await self._run(self._finish)
            self._wake()

    async def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes from ``offset`` (kept: ``first <= offset``), not beyond one segment; b"" at the end."""
        return await self._run(lambda: self._read(offset, size))

    async def read_back(self, size: int) -> bytes:
        """At most ``size`` bytes before the end that are also in the engine's log, not beyond one segment."""
        start = max(self._end - size, self._base, self._segments[-1] if self._segments else 0)
        return await self.read(start, self._end - start) if start < self._end else b""

    async def rebase(self) -> None:
        """What the engine has now begins here."""
        await self._run(self._rebase)

    async def wait_grown(self, beyond: int) -> None:
        """Return when there are bytes beyond ``beyond``, or no more will come."""
        while self._end <= beyond and not self._complete:
            await self._grown.wait()

    async def tail_offset(self, lines: int, window: int) -> int:
        """Where the last ``lines`` lines begin, looking back at most ``window`` bytes."""
        search = TailSearch(lines, self._end, max(self.first, self._end - window))
        while block := search.next_block(max((s for s in self._segments if s < search.behind), default=0)):
            search.feed(block[0], await self.read(*block))
        return search.offset

    def sources(self, offset: int, size: int) -> list[tuple[Path, int, int]]:
        """The files that hold ``size`` kept bytes from ``offset``: path, bytes to skip, bytes to take; in order."""
        bounds = zip(self._segments, [*self._segments[1:], self._end], strict=True)
        cuts = [(start, max(start, offset), min(end, offset + size)) for start, end in bounds]
        return [(self._path(start), low - start, high - low) for start, low, high in cuts if low < high]

    def _wake(self) -> None:
        self._grown.set()
        self._grown = trio.Event()

    # ------------------------------------------------ on the runner

    def _append(self, data: bytes) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        view = memoryview(data)
        with fault_point("node.logs.append"):
            while view:
                room = self._segment_bytes - (self._end - self._segments[-1]) if self._segments else 0
                if room <= 0:
                    self._segments.append(self._end)
                    room = self._segment_bytes
                with self._path(self._segments[-1]).open("ab", buffering=0) as file:
                    written = file.write(view[:room]) or 0
                self._end += written
                view = view[written:]
        while len(self._segments) > 1 and self._end - self._segments[0] > self._member_bytes:
            self._path(self._segments.pop(0)).unlink(missing_ok=True)

    def _rebase(self) -> None:
        with fault_point("node.logs.append"):
            (self.directory / BASE).write_text(str(self._end))
        self._base = self._end

    def _finish(self) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        with fault_point("node.logs.finish"):
            (self.directory / COMPLETE).touch(mode=0o600)
        self._complete = True

    def _read(self, offset: int, size: int) -> bytes:
        holder = max((segment for segment in self._segments if segment <= offset), default=None)
        if holder is None:
            return b""
        with self._path(holder).open("rb") as file:
            file.seek(offset - holder)
            return file.read(size)

    def _path(self, segment: int) -> Path:
        return self.directory / f"{segment:020d}.log"

    def _load(self) -> None:
        paths = sorted(self.directory.glob("*.log")) if self.directory.is_dir() else []
        self._segments = [int(path.stem) for path in paths]
        self._end = self._segments[-1] + paths[-1].stat().st_size if paths else 0
        base = self.directory / BASE
        self._base = int(base.read_text() or 0) if base.exists() else 0
        self._complete = (self.directory / COMPLETE).exists()


@define(eq=False)
class LogStore:
    """All members' logs below one directory; at most one object a member."""

    directory: Path
    _run: Runner
    _open: dict[MemberId, MemberLog] = field(factory=dict)

    async def log(self, member: MemberId) -> MemberLog:
        """The member's log, empty when nothing was captured yet."""
        if member not in self._open:
            found = MemberLog(self.directory / member, self._run)
            await self._run(lambda: self._load(found))
            self._open.setdefault(member, found)
        return self._open[member]

    async def forget(self, member: MemberId) -> None:
        """Delete the log; readers that follow it end."""
        found = self._open.pop(member, None)
        directory = self.directory / member
        if found is not None and not found.complete:
            found._complete = True
            found._wake()
        await self._run(lambda: self._delete(directory))

    def _load(self, log: MemberLog) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        log._load()

    @staticmethod
    def _delete(directory: Path) -> None:
        with fault_point("node.logs.delete"):
            shutil.rmtree(directory, ignore_errors=True)


async def read_log(
    log: MemberLog,
    *,
    offset: int | None,
    tail_lines: int | None,
    max_bytes: int,
    follow: bool,
) -> AsyncGenerator[LogPiece, None]:
    """The asked part in pieces of at most LOG_CHUNK_BYTES; the last one has ``end``.

    ``max_bytes`` bounds a read that does not follow (and how far back the last lines are looked for); a follower gets
    everything until the log is complete, and gap marks where it was slower than the writer by MEMBER_LOG_BYTES.
    """
    at = await log.tail_offset(tail_lines, max_bytes) if tail_lines is not None else min(max(offset or 0, 0), log.end)
    left = max_bytes
    while True:
        gap = max(0, log.first - at)
        at += gap
        data = await log.read(at, LOG_CHUNK_BYTES if follow else min(left, LOG_CHUNK_BYTES))
        if at < log.first:
            continue  # dropped between the check and the read: count it as a gap
        if data or gap:
            yield LogPiece(offset=at, data=data, gap=gap)
            at += len(data)
            left -= len(data)
        if not follow and (left <= 0 or at >= log.end):
            break
        if follow and at >= log.end:
            if log.complete:
                break
            await log.wait_grown(at)
    yield LogPiece(offset=at, data=b"", end=True)
