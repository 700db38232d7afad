"""Whoever reads logs while everything breaks: by the tail, by offset, followed; fast or slow; to the end or not.

Only liveness and truth are judged here: a piece is what the container wrote at that offset, and a gap is marked.
"""

from __future__ import annotations

import trio
from attrs import define

from tuneplane.domain.errors import Refused, StorageUnavailable
from tuneplane.domain.frames import LogPiece, LogQuery
from tuneplane.wire.relay import read_relay

from .clock import sleep
from .engine import OUTPUT
from .fate import LIFE, Fate, Life, true_now
from .processes import Ground
from .stream import TLS
from .twin.rows import MemberRow

PATIENCE_SECONDS = 20.0  # mean, of a reader


@define(eq=False)
class Readers:
    ground: Ground

    @property
    def fate(self) -> Fate:
        return self.ground.fate

    async def read(self) -> None:
        """One read of one member's log, wherever its Node is connected."""
        LIFE.set(Life("reader", self.fate))
        rows = list(self.ground.database.book.members)
        if not rows:
            return
        row = self.fate.random.choice(rows)
        try:
            where = await self.ground.twin(LIFE.get()).gateway_of(row.node, true_now())
            if where is not None:
                with trio.move_on_after(self.fate.soon(PATIENCE_SECONDS)):
                    async with read_relay(host=where.host, port=where.port, tls=TLS, query=self._query(row)) as pieces:
                        await self._take(row, pieces)
        except (Refused, StorageUnavailable) as error:
            self.fate.history.add("reader", "cannot read the log of {}: {}", row.id, error)

    def _query(self, row: MemberRow) -> LogQuery:
        luck = self.fate.random
        offset, tail = luck.choice(((0, None), (luck.randint(0, len(OUTPUT)), None), (None, luck.randint(0, 3))))
        return LogQuery(node=row.node, member=row.id, offset=offset, tail_lines=tail, follow=luck.random() < 0.7)

    async def _take(self, row: MemberRow, pieces: object) -> None:
        pace = self.fate.random.choice((0.0, 0.0, 1.0))
        at: int | None = None
        async for piece in pieces:  # type: ignore[attr-defined]
            self._check(row, piece, at)
            at = piece.offset + len(piece.data)
            await sleep(pace)

    def _check(self, row: MemberRow, piece: LogPiece, at: int | None) -> None:
        here = OUTPUT[piece.offset : piece.offset + len(piece.data)]
        self.fate.judge(piece.data == here, "the log of {} has {} at {}", row.id, piece.data, piece.offset)
        if at is not None and not piece.error:
            silent = piece.offset - piece.gap != at
            self.fate.judge(not silent, "L-E1: the log of {} goes on at {} after {}, gap {}", row.id, piece.offset, at, piece.gap)
