"""Pools: supervisors whose children come and go at run time."""

from __future__ import annotations

from typing import Protocol

from .ref import Ref
from .spec import ChildSpec


class _Owner(Protocol):
    path: str

    async def start_child(self, spec: ChildSpec) -> Ref: ...


class Pool:
    """The public face of a supervisor with ``Strategy.POOL``. Its children stop when the pool does, all together."""

    __slots__ = ("_owner", "path")

    def __init__(self, owner: _Owner) -> None:
        self._owner = owner
        self.path = owner.path

    async def start_child(self, spec: ChildSpec) -> Ref:
        """Start a child and wait until it is ready.

        NameTaken while a child of that name is in the pool (also one that waits for its restart), PoolFull, ActorGone
        when the pool is stopping, StartFailed when it ended before it was ready (it is then not restarted). Cancelled:
        the child is stopped.
        """
        return await self._owner.start_child(spec)
