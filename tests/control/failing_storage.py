"""Storage that fails on purpose in front of the real one: cut off, or *committed but raised* (P-09)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import trio
from attrs import define, field

from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.ids import NodeId
from tuneplane.domain.ports import Storage


@define(eq=False)
class CutStorage:
    """While ``is_cut`` every call raises StorageUnavailable before it reaches PostgreSQL, as for a lost connection."""

    real: Storage
    is_cut: bool = False
    refused: int = field(default=0, init=False)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.real, name)

        async def checked(*args: Any, **named: Any) -> Any:
            if self.is_cut:
                self.refused += 1
                raise StorageUnavailable(f"{name}: the test took the database away")
            return await call(*args, **named)

        return call if name == "open_pokes" else checked


@define(eq=False)
class LosingStorage:
    """The first call of each name in ``left`` is done and its answer lost: the caller gets StorageUnavailable."""

    real: Storage
    left: set[str]

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.real, name)
        if name not in self.left:
            return call

        async def losing(*args: Any, **named: Any) -> Any:
            answer = await call(*args, **named)
            if name in self.left and answer:  # an empty look is no write
                self.left.discard(name)
                raise StorageUnavailable(f"{name}: committed, but the answer was lost")
            return answer

        return losing


@define(eq=False)
class SlowlyLosingStorage:
    """The first ``inventory_stale`` is done (``marked``); its answer is lost once the test says ``lose``."""

    real: Storage
    marked: trio.Event = field(factory=trio.Event, init=False)
    lose: trio.Event = field(factory=trio.Event, init=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def inventory_stale(self, node: NodeId, epoch: int, now: datetime) -> None:
        await self.real.inventory_stale(node, epoch, now)
        if not self.marked.is_set():
            self.marked.set()
            await self.lose.wait()
            raise StorageUnavailable("inventory_stale: committed, but the answer was lost")


@define(eq=False)
class BrokenStorage:
    """The first call of ``name`` raises what nobody expects, as a bug would."""

    real: Storage
    name: str
    calls: int = field(default=0, init=False)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.real, name)
        if name != self.name:
            return call

        async def breaking(*args: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == 1:
                raise ZeroDivisionError(f"{name}: a bug")
            return await call(*args, **named)

        return breaking


@asynccontextmanager
async def cut(storage: CutStorage) -> AsyncIterator[None]:
    """The block runs while the database is out of reach."""
    storage.is_cut = True
    try:
        yield
    finally:
        storage.is_cut = False
