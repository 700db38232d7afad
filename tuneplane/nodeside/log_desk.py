"""Answers the gateway's log reads in one session: bounded in number, each cancellable, none in the way of anything else."""

from __future__ import annotations

from collections import deque
from contextlib import aclosing

import trio
from attrs import define, field

from tuneplane.domain.frames import MAX_LOG_FOLLOWS, MAX_LOG_READS, LogChunk, LogRead
from tuneplane.wire.link import LinkClosed, NodeLink

from .core import NodeCore
from .logs import read_log

MAX_REFUSED = 64  # refusals on their way; a gateway that asks for still more hears nothing and gives its readers up by deadline


@define(eq=False)
class LogDesk:
    """Lives as long as one session: with ``serve`` end all reads."""

    core: NodeCore
    link: NodeLink
    _open: dict[int, tuple[LogRead, trio.CancelScope]] = field(factory=dict)  # each holds one piece while it waits for credit
    _begun: deque[tuple[LogRead, trio.CancelScope]] = field(factory=deque)  # of them, those that are not yet started
    _refused: deque[LogRead] = field(factory=deque)  # reads too many, to be told: at most MAX_REFUSED
    _news: trio.Event = field(factory=trio.Event)

    async def serve(self) -> None:
        """Answer what begins, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve_refusals)
            while True:
                while self._begun:
                    nursery.start_soon(self._answer, *self._begun.popleft())
                await self._news.wait()

    async def _serve_refusals(self) -> None:
        """One after the other, each in its turn among the logs: no read begins later for it."""
        while True:
            while self._refused:
                await self._refuse(self._refused.popleft())
            await self._news.wait()

    def begin(self, request: LogRead) -> None:
        """Start to answer; a read too many is answered with an error."""
        if sum(read.follow is request.follow for read, _ in self._open.values()) < _most(request):
            begun = self._open[request.request] = (request, trio.CancelScope())
            self._begun.append(begun)
        elif len(self._refused) < MAX_REFUSED:
            self._refused.append(request)
        self._news.set()
        self._news = trio.Event()

    def cancel(self, request: int) -> None:
        """The reader has gone."""
        found = self._open.get(request)
        if found is not None:
            found[1].cancel()

    async def _refuse(self, request: LogRead) -> None:
        text = f"this Node already answers {_most(request)} log reads of this kind; try again"
        await self._send_end(LogChunk(request=request.request, offset=0, data=b"", end=True, error=text))

    async def _send_end(self, chunk: LogChunk) -> None:
        try:
            await self.link.send(chunk)
        except LinkClosed:
            return

    async def _answer(self, request: LogRead, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self._send_pieces(request)
        except LinkClosed:
            return
        except OSError as error:
            await self._send_end(LogChunk(request=request.request, offset=0, data=b"", end=True, error=f"the log cannot be read: {error}"))
        finally:
            self._open.pop(request.request, None)

    async def _send_pieces(self, request: LogRead) -> None:
        if self.core.journal.member(request.member) is None:
            text = f"this Node knows no member {request.member} (any more)"
            await self.link.send(LogChunk(request=request.request, offset=0, data=b"", end=True, error=text))
            return
        log = await self.core.logs.log(request.member)
        pieces = read_log(log, offset=request.offset, tail_lines=request.tail_lines, max_bytes=request.max_bytes, follow=request.follow)
        async with aclosing(pieces):
            async for piece in pieces:
                chunk = LogChunk(request=request.request, offset=piece.offset, data=piece.data, gap=piece.gap, end=piece.end)
                await self.link.send(chunk)


def _most(request: LogRead) -> int:
    return MAX_LOG_FOLLOWS if request.follow else MAX_LOG_READS
