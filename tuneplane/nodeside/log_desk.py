"""Answers the gateway's log reads in one session: bounded in number, each cancellable, none in the way of anything else."""

from __future__ import annotations

from contextlib import aclosing

import trio
from attrs import define, field

from tuneplane.domain.frames import LogChunk, LogRead
from tuneplane.wire.link import LinkClosed, NodeLink

from .core import NodeCore
from .logs import read_log

MAX_READS = 64  # at once in a session; each holds one piece of 64 KiB while it waits for credit


@define(eq=False)
class LogDesk:
    """``nursery`` is the session's: with it end all reads."""

    core: NodeCore
    link: NodeLink
    nursery: trio.Nursery
    _open: dict[int, trio.CancelScope] = field(factory=dict)

    def begin(self, request: LogRead) -> None:
        """Start to answer; a read too many is answered with an error at once."""
        if len(self._open) >= MAX_READS:
            self._fail_nowait(request.request, f"this Node already answers {MAX_READS} log reads; try again")
            return
        scope = self._open[request.request] = trio.CancelScope()
        self.nursery.start_soon(self._answer, request, scope)

    def cancel(self, request: int) -> None:
        """The reader has gone."""
        scope = self._open.get(request)
        if scope is not None:
            scope.cancel()

    def _fail_nowait(self, request: int, text: str) -> None:
        self.nursery.start_soon(self._send_end, LogChunk(request=request, offset=0, data=b"", end=True, error=text))

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
