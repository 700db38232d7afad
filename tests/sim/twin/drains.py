"""What a machine asks for itself, and its clock, in the twin."""

from __future__ import annotations

from datetime import datetime

from attrs import evolve

from tuneplane.domain.clocks import Offset
from tuneplane.domain.ids import NodeId
from tuneplane.domain.nodes import Node
from tuneplane.domain.ports import Topic
from tuneplane.storage.database import clean
from tuneplane.storage.drains import MACHINE, machine_reason

from .base import Client, audit, poke
from .nodes import hold_epoch, set_cordon, view
from .rows import Book


class Drains(Client):
    """That part of SessionStore (domain/ports.py)."""

    async def set_machine_drain(self, node: NodeId, epoch: int, wanted: bool, reason: str, now: datetime) -> Node:
        return await self.write("set_machine_drain", _set, node, epoch, wanted, clean(reason), now)

    async def note_clock(self, node: NodeId, epoch: int, offset: Offset, now: datetime) -> None:
        await self.write("note_clock", _note_clock, node, epoch, offset)


def _set(book: Book, node: NodeId, epoch: int, wanted: bool, reason: str, now: datetime) -> Node:
    hold_epoch(book, node, epoch)
    if ((node, "machine") in book.cordons) != wanted:
        set_cordon(book, node, "machine", machine_reason(reason) if wanted else None, now)
        audit(book, MACHINE, "node.machine-drain" if wanted else "node.machine-undrain", node, now, reason)
        poke(book, Topic.JOBS, Topic.CONSOLE)
    return view(book, node, now)


def _note_clock(book: Book, node: NodeId, epoch: int, offset: Offset) -> None:
    session = book.sessions.get(node)
    if session is not None and session.epoch == epoch and session.closed_at is None:
        book.sessions.put(node, evolve(session, clock_offset_seconds=offset.seconds, clock_error_seconds=offset.error_seconds))
        poke(book, Topic.CONSOLE)
