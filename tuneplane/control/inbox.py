"""What a Node has said and PostgreSQL does not have yet: coalesced, in order, bounded.

Observations are states, not events: a newer one of the same member replaces the older while that waits, so a
session that waits for the database holds at most one frame a member (P-17), and the receive loop keeps draining.

Answers to stops have a place of their own, and go first: reports of fifty preparations, a transaction each, would hold them
up (R-SES-07). An answer only settles its command row, so it may overtake what the Node said of the member before it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Union

import trio
from attrs import define, field

from tuneplane.domain.frames import CommandAnswer, DrainWish, InventoryReport, Observation, ReconcileDone
from tuneplane.domain.ids import OperationId

Reported = Union[Observation, CommandAnswer, InventoryReport, ReconcileDone, DrainWish]

MAX_WAITING = 1024  # members of one Node in a reconciliation burst; past it the Node's HTTP/2 window closes


@define
class Inbox:
    """Filled by the receive loop, emptied by the task that stores. Both belong to one NodeSession."""

    _waiting: dict[Hashable, Reported] = field(factory=dict, init=False)
    _urgent: dict[OperationId, CommandAnswer] = field(factory=dict, init=False)  # at most one a command in flight
    _room: trio.Event | None = field(default=None, init=False)

    async def put(self, frame: Reported) -> None:
        """Take ``frame``, in place of an older one about the same thing; wait while full. Cancelling loses ``frame``."""
        key = _key(frame)
        while len(self._waiting) >= MAX_WAITING and key not in self._waiting:
            self._room = trio.Event()
            await self._room.wait()
        if not self._is_older(key, frame):
            self._waiting[key] = frame

    def put_first(self, answer: CommandAnswer) -> None:
        """Take the answer to a stop: ahead of all else, and never waiting for room."""
        self._urgent.setdefault(answer.operation, answer)

    def put_again(self, frame: Reported) -> None:
        """Our own repeat of a frame that was stored before; never refused, so at most one of a kind."""
        self._waiting.setdefault(_key(frame), frame)

    def first(self) -> Reported | None:
        """An answer to a stop, or else the frame that has waited longest; it stays until :meth:`done`."""
        return next(iter(self._urgent.values()), None) or next(iter(self._waiting.values()), None)

    def done(self, frame: Reported) -> None:
        """``frame`` is stored; what replaced it meanwhile stays, at the end of the queue."""
        if isinstance(frame, CommandAnswer) and self._urgent.get(frame.operation) is frame:
            del self._urgent[frame.operation]
            return
        key = _key(frame)
        current = self._waiting.pop(key)
        if current is not frame:
            self._waiting[key] = current
        if self._room is not None:
            self._room.set()
            self._room = None

    def _is_older(self, key: Hashable, frame: Reported) -> bool:
        waiting = self._waiting.get(key)
        return isinstance(frame, Observation) and isinstance(waiting, Observation) and frame.revision < waiting.revision


def _key(frame: Reported) -> Hashable:
    if isinstance(frame, Observation):
        return ("member", frame.member)
    if isinstance(frame, CommandAnswer):
        return ("operation", frame.operation)
    return type(frame).__name__
