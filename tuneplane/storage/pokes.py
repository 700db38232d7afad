"""Pokes: LISTEN as topics, with a poll underneath that finds what a lost poke hid."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from attrs import define

from tuneplane.bridge.postgres import Listener
from tuneplane.domain.ports import Topic

from .database import Aggregate, channel_of


class Pokes(Aggregate):
    """PokeStore (domain/ports.py)."""

    @asynccontextmanager
    async def open_pokes(self, topics: Sequence[Topic]) -> AsyncIterator[AsyncIterator[frozenset[Topic]]]:
        wanted = {channel_of(topic): topic for topic in topics}
        async with self._db.pool.open_listener(tuple(wanted)) as listener:
            yield _Turns(listener, wanted, self._db.timings.poll)


@define
class _Turns:
    """Yields within ``poll_seconds`` always: all topics when nothing was heard, also while PostgreSQL is away."""

    _listener: Listener
    _topics: dict[str, Topic]
    _poll_seconds: float

    def __aiter__(self) -> _Turns:
        return self

    async def __anext__(self) -> frozenset[Topic]:
        with trio.move_on_after(self._poll_seconds):
            return frozenset(self._topics[channel] for channel in await self._listener.__anext__())
        return frozenset(self._topics.values())
