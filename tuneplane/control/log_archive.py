"""Reading an archived log: of an ended member whose Node is silent, gone, or has forgotten it (R-LCH-13, L-E7).

The storage root may hang, and what lies on it may be hostile: a child process of its own serves each read, follows no
link, and is left behind when it cannot be killed. So a dead mount costs a reader its deadline, and this process nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field, frozen

from tuneplane.domain.errors import InvalidInput, Refused
from tuneplane.domain.frames import LOG_CHUNK_BYTES, LogPiece, LogQuery
from tuneplane.domain.ids import AttemptId, JobId
from tuneplane.domain.log_archive import HEADER_BYTES, ArchiveIndex, archive_path, read_header
from tuneplane.domain.log_tail import TailSearch

SERVER = Path(__file__).with_name("archive_server.py")
ABSENT = 3  # exit status of the server
ANSWER_SECONDS = 10.0  # a healthy mount answers in milliseconds, a busy one in seconds
REAP_SECONDS = 1.0  # for a killed child that can die
MAX_READS = 32  # children of one process, those included that a dead mount holds
MAX_COMPLAINT_BYTES = 1000


@define(eq=False)
class LogArchive:
    """Opens archived logs. One a process: it bounds the children."""

    _children: set[trio.Process] = field(factory=set)

    @asynccontextmanager
    async def open_log(self, root: str, job: JobId, attempt: AttemptId, query: LogQuery) -> AsyncIterator[AsyncIterator[LogPiece]]:
        """The pieces of a read, as a Node would give them; the last has ``end``. Following changes nothing: it has ended.

        Refused: ``log-not-archived``, ``log-unavailable`` (with the reason), ``busy``. Leaving the block ends the child.
        """
        names = archive_path(job, attempt, query.member)
        async with self._serve([str(SERVER), root, *names], f"the archived log of {query.member} below {root}") as blocks:
            yield _Pieces(blocks, await blocks.index(), query)

    @asynccontextmanager
    async def _serve(self, arguments: Sequence[str], what: str) -> AsyncIterator[_Blocks]:
        self._children = {child for child in self._children if child.poll() is None}
        if len(self._children) >= MAX_READS:
            raise Refused("busy", f"{MAX_READS} archived logs are being read; try again")
        pipe = subprocess.PIPE
        command = [sys.executable, "-I", "-S", *arguments]
        child = await trio.lowlevel.open_process(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, cwd="/")
        self._children.add(child)
        try:
            yield _Blocks(child, what)
        finally:
            with trio.move_on_after(REAP_SECONDS, shield=True):
                await _end(child)


async def _end(child: trio.Process) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    if child.poll() is None:
        child.kill()
    for pipe in (child.stdin, child.stdout, child.stderr):
        await pipe.aclose()
    await child.wait()


@frozen(eq=False)
class _Blocks:
    """Blocks of the file, from the child."""

    child: trio.Process
    what: str

    async def index(self) -> ArchiveIndex:
        try:
            return read_header(await self.read(0, HEADER_BYTES))
        except InvalidInput as error:
            raise Refused("log-unavailable", f"{self.what} is damaged: its {error}") from error

    async def read(self, place: int, size: int) -> bytes:
        """At most ``size`` bytes from ``place`` of the file; fewer at its end only."""
        with trio.move_on_after(ANSWER_SECONDS):
            return await self._ask(place, size)
        raise Refused("log-unavailable", f"{self.what} could not be read within {ANSWER_SECONDS:g} s: the storage root hangs")

    async def _ask(self, place: int, size: int) -> bytes:
        assert self.child.stdin is not None
        try:
            await self.child.stdin.send_all(f"{place} {size}\n".encode())
            length = int.from_bytes(await self._exactly(8), "big")
            return await self._exactly(min(length, size))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        raise await self._refusal()

    async def _exactly(self, size: int) -> bytes:
        assert self.child.stdout is not None
        data = bytearray()
        while len(data) < size:
            part = await self.child.stdout.receive_some(size - len(data))
            if not part:
                raise trio.BrokenResourceError("it has ended")
            data += part
        return bytes(data)

    async def _refusal(self) -> Refused:
        """Why the child has ended."""
        assert self.child.stderr is not None
        text = await self.child.stderr.receive_some(MAX_COMPLAINT_BYTES)
        if await self.child.wait() == ABSENT:
            return Refused("log-not-archived", f"{self.what} is not there")
        return Refused("log-unavailable", f"{self.what} cannot be read: {text.decode(errors='replace').strip()}")


@define(eq=False)
class _Pieces:
    """The asked part, in pieces of at most LOG_CHUNK_BYTES."""

    blocks: _Blocks
    index: ArchiveIndex
    query: LogQuery
    _at: int | None = None
    _sent: int = 0
    _ended: bool = False

    def __aiter__(self) -> _Pieces:
        return self

    async def __anext__(self) -> LogPiece:
        if self._ended:
            raise StopAsyncIteration
        if self._at is None:
            self._at = await self._first()
        found = self.index.locate(self._at)
        left = self.query.max_bytes - self._sent
        if left <= 0 or self._at >= self.index.end:
            return self._last(0)
        if found is None:
            return self._last(self.index.end - self._at)
        return await self._piece(*found, left)

    async def _piece(self, offset: int, place: int, run: int, left: int) -> LogPiece:
        assert self._at is not None
        data = await self.blocks.read(place, min(run, left, LOG_CHUNK_BYTES))
        if not data:
            raise Refused("log-unavailable", f"{self.blocks.what} is shorter than its header says")
        gap = offset - self._at
        self._at = offset + len(data)
        self._sent += len(data)
        return LogPiece(offset=offset, data=data, gap=gap)

    def _last(self, gap: int) -> LogPiece:
        assert self._at is not None
        self._ended = True
        return LogPiece(offset=self._at + gap, data=b"", gap=gap, end=True)

    async def _first(self) -> int:
        query, index = self.query, self.index
        if query.tail_lines is None:
            return min(query.offset or 0, index.end)
        last = index.parts[-1] if index.parts else None
        if last is None or last.end < index.end:
            return index.end
        search = TailSearch(query.tail_lines, index.end, max(last.offset, index.end - query.max_bytes))
        while block := search.next_block():
            located = index.locate(block[0])
            assert located is not None
            search.feed(block[0], await self.blocks.read(located[1], block[1]))
        return search.offset
