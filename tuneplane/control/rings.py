"""The bounded ring between a Node's log bytes and one reader (P-22).

Bytes come in as fast as the Node sends them, and credit returns at once; a reader that is too slow loses the oldest
and is told how many. So one reader's pace is nobody else's business: neither the session's, nor another reader's.
"""

from __future__ import annotations

from collections import deque

import trio
from attrs import define, evolve, field

from tuneplane.domain.frames import LOG_CHUNK_BYTES, LogChunk, LogPiece, LogQuery

MAX_READ_BYTES = 4 << 20  # the most that one bounded read may ask for (R-LCH-13); the reader holds it in memory too
FOLLOW_BYTES = 256 << 10  # what a follower may lag behind: seconds of a chatty job; a stuck one holds it for ever
MAX_PIECES = 4096  # a Node whose chunks are tiny or empty is bounded too; 4 MiB of whole chunks are 64
SLACK_BYTES = 4 * LOG_CHUNK_BYTES  # a Node may round a read up to whole chunks


def ring_bytes(query: LogQuery) -> int:
    """Room for the whole of a bounded read, so that it never meets a gap however slow its reader; a lag for a follower."""
    return SLACK_BYTES + (FOLLOW_BYTES if query.follow else min(query.max_bytes, MAX_READ_BYTES))


@define
class Ring:
    """One writer (the session, synchronously), one reader, who iterates."""

    limit: int
    abandoned: bool = field(default=False, init=False)  # the reader is gone; the session sweeps it
    _pieces: deque[LogPiece] = field(factory=deque, init=False)
    _size: int = field(default=0, init=False)
    _lost: int = field(default=0, init=False)
    _ended: bool = field(default=False, init=False)
    _news: trio.Event = field(factory=trio.Event, init=False)

    def put(self, chunk: LogChunk) -> None:
        """Take a chunk; drop the oldest bytes when there is no room. Never blocks. What follows the end is ignored."""
        if self._ended or self.abandoned:
            return
        self._append(LogPiece(offset=chunk.offset, data=chunk.data, gap=chunk.gap, end=chunk.end, error=chunk.error))

    def end(self, error: str) -> None:
        """Nothing more will come: the session ended, say. The reader gets all that is here, then ``error``."""
        if not self._ended:
            self._append(LogPiece(offset=0, data=b"", end=True, error=error))

    def __aiter__(self) -> Ring:
        return self

    async def __anext__(self) -> LogPiece:
        """The next piece, with ``gap`` counting all bytes lost before it; wait for one. After the end: StopAsyncIteration.

        Cancelled: no piece is lost.
        """
        while not self._pieces:
            if self._ended:
                raise StopAsyncIteration
            self._news = trio.Event()
            await self._news.wait()
        piece = self._pieces.popleft()
        self._size -= len(piece.data)
        gap, self._lost = piece.gap + self._lost, 0
        return evolve(piece, gap=gap)

    @property
    def ended(self) -> bool:
        return self._ended

    def _append(self, piece: LogPiece) -> None:
        self._pieces.append(piece)
        self._size += len(piece.data)
        self._ended = piece.end
        while (self._size > self.limit or len(self._pieces) > MAX_PIECES) and len(self._pieces) > 1:
            oldest = self._pieces.popleft()
            self._size -= len(oldest.data)
            self._lost += len(oldest.data) + oldest.gap
        self._news.set()
