"""The way to the database and back: delays, requests that never arrive, commits whose answer is lost (P-09)."""

from __future__ import annotations

import trio
from attrs import define

from tuneplane.domain.errors import StorageUnavailable

from .clock import call_at, sleep
from .fate import Fate, Life


@define(eq=False)
class Outages:
    """Shared by all processes: while ``away_until`` lies ahead the database answers nobody."""

    away_until: float = 0.0

    @property
    def away(self) -> bool:
        return self.away_until > trio.current_time()


@define(eq=False)
class Storm:
    """The Weather of one process's life."""

    fate: Fate
    life: Life
    outages: Outages

    async def arrive(self, name: str) -> None:
        if not self.life.alive:
            await self.life.gate()
        await sleep(self._seconds())
        if not self.life.alive:
            await self.life.gate()
        if self.outages.away or self.fate.strikes("storage-down", 0.05):
            raise StorageUnavailable(f"{name}: no connection")

    async def depart(self, name: str) -> None:
        if self.fate.strikes("answer-late", 0.2):
            await sleep(self.fate.soon(3.0))
        if self.fate.random.random() < 0.2:  # else the answer is there in the same moment: a turn of the scheduler costs
            await sleep(self._seconds())
        if not self.life.alive:
            await self.life.gate()
        if self.outages.away or self.fate.strikes("storage-lost", 0.05):
            self.fate.history.add(self.life.process, "storage: the answer to {} is lost", name)
            raise StorageUnavailable(f"{name}: the connection broke before the answer")

    def loses_poke(self) -> bool:
        return self.outages.away or self.fate.strikes("poke-lost", 0.5)

    async def wait_news(self, news: trio.Event, seconds: float) -> None:
        call_at(trio.current_time() + seconds, news.set)
        await news.wait()

    def _seconds(self) -> float:
        if self.fate.strikes("storage-delay", 0.05):
            return self.fate.soon(3.0)
        return 0.0005 + self.fate.random.random() * 0.002
