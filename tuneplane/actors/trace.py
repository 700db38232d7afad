"""The trace: what happened to every letter, in a bounded ring, and the trace id that crosses processes.

A trace id names one chain of causes, from a person's request through letters, frames and rows. It is carried by a
context variable: a handler runs under its letter's trace, and tasks started there inherit it. Letters sent without a
trace begin one of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from itertools import count, islice
from typing import Protocol

from attrs import frozen

TRACE_SIZE = 4096  # events: about a megabyte, some seconds of a busy process, hours of a quiet one


class Kind(str, Enum):
    """What a trace event tells."""

    SENT = "sent"
    RECEIVED = "received"
    HANDLED = "handled"
    REFUSED = "refused"
    EXPIRED = "expired"
    STARTED = "started"
    STOPPED = "stopped"
    CRASHED = "crashed"
    RESTARTED = "restarted"
    OVERDUE = "overdue"


SENT, RECEIVED, HANDLED = Kind.SENT, Kind.RECEIVED, Kind.HANDLED  # an attribute of an enum costs as much as half an event


@frozen
class TraceEvent:
    """One event. ``letter`` and ``cause`` are letter ids of this process, 0 where there is none."""

    sequence: int
    kind: Kind
    at: float  # seconds on the Trio clock of the process
    path: str
    letter: int
    cause: int
    trace: str
    what: str  # the message's class, or a sentence about the exit


class Point(Protocol):
    """Where in a trace the current task stands: the letter in hand, or a trace that came from outside."""

    @property
    def id(self) -> int: ...

    @property
    def trace(self) -> str: ...


@frozen
class Origin:
    """A trace that entered this process from a frame or a row: no letter of ours caused it."""

    trace: str
    id: int = 0


current_point: ContextVar[Point | None] = ContextVar("current_point", default=None)


def current_trace() -> str | None:
    """The trace id under which this task works, to be written into frames and rows."""
    point = current_point.get()
    return None if point is None else point.trace


@contextmanager
def trace_scope(trace: str) -> Iterator[None]:
    """Work on under a trace id that came from a frame or a row; the former one is back afterwards."""
    token = current_point.set(Origin(trace))
    try:
        yield
    finally:
        current_point.reset(token)


def keep_trace_only() -> None:
    """Stay in the trace of the letter that led here without keeping its message: for tasks that live long."""
    point = current_point.get()
    if point is not None:
        current_point.set(Origin(point.trace, point.id))


About = tuple[str, int, int, str, str]
"""``(path, letter, cause, trace, what)``: a plain tuple, made once per letter and shared by its events."""


class TraceRing:
    """The last ``size`` events; 0 switches recording off. Old events make room for new ones, nobody waits.

    With nobody watching an event costs one small tuple; it becomes a TraceEvent when somebody reads.
    """

    __slots__ = ("_append", "_entries", "_numbers", "on", "size")

    def __init__(self, size: int = TRACE_SIZE) -> None:
        self.size = size
        self.on = size > 0
        self._numbers = count(1)
        self._entries: deque[tuple[int, Kind, float, About]] = deque(maxlen=max(size, 1))
        self._append = self._entries.append

    def record(self, kind: Kind, at: float, about: About) -> None:
        if self.on:
            self._append((next(self._numbers), kind, at, about))

    def read(self, after: int = 0, limit: int = TRACE_SIZE) -> list[TraceEvent]:
        """Up to ``limit`` events with a sequence above ``after``, oldest first.

        A reader that asks again with the last sequence it got sees every event once; a gap in the sequence says how
        many it was too slow for.
        """
        newer = (entry for entry in self._entries if entry[0] > after)
        return [TraceEvent(sequence, kind, at, *about) for sequence, kind, at, about in islice(newer, limit)]
