"""What the twin's workers see of the Nodes: silence, the brake, and storage cordons whose cause is gone."""

from __future__ import annotations

from datetime import datetime, timedelta

from attrs import evolve

from tuneplane.domain.ids import NodeId
from tuneplane.domain.nodes import NodeState
from tuneplane.domain.ports import Topic
from tuneplane.domain.sight import Census, Sight, look, window_from
from tuneplane.domain.timings import Timings

from .base import Client, poke
from .rows import Book


class Sights(Client):
    """SightStore (domain/ports.py)."""

    async def look_around(self, missed: bool, now: datetime) -> Sight:
        return await self.write("look_around", _look, missed, self.timings, now)

    async def load_sight(self, now: datetime) -> Sight | None:
        return await self.read("load_sight", sight_of, now)


def sight_of(book: Book, now: datetime) -> Sight | None:
    row = book.sight.get(True)
    since = min((one.live_since for one in book.gateways if one.lease_until > now), default=None)
    return evolve(row, gateways_since=since) if row is not None else None


def silent_since(book: Book, node: NodeId, now: datetime) -> datetime | None:
    """None: it has a live session."""
    session = book.sessions.get(node)
    gateway = book.gateways.get(session.gateway) if session is not None else None
    lease = gateway.lease_until if gateway is not None else None
    if session is not None and session.closed_at is None and lease is not None and lease > now:
        return None
    return (session.closed_at if session is not None else None) or lease or book.nodes[node].created_at


def _census(book: Book, now: datetime, began: datetime) -> Census:
    ours = [row.id for row in book.nodes if row.removed_at is None and row.state is NodeState.ACTIVE and row.id in book.sessions]
    there = [silent_since(book, node, now) for node in ours if (node, "machine") not in book.cordons]
    return Census(live=there.count(None), vanished=len([since for since in there if since is not None and since >= began]))


def _look(book: Book, missed: bool, timings: Timings, now: datetime) -> Sight:
    former = sight_of(book, now)
    seen = look(former, _census(book, now, window_from(former, now, missed, timings)), now, missed, timings)
    book.sight.put(True, evolve(seen, gateways_since=None))
    lifted = _lift_cleared(book, now - timedelta(seconds=timings.storage_steady))
    if (
        lifted
        or former is None
        or _crossed(book, former, timings, now)
        or (former.census, former.brake is None) != (seen.census, seen.brake is None)
    ):
        poke(book, Topic.CONSOLE, *((Topic.JOBS,) if lifted else ()))
    return seen


def _crossed(book: Book, former: Sight, timings: Timings, now: datetime) -> bool:
    """Whether some Node has been silent for long enough to matter since the last look."""
    quiet = [since for row in book.nodes if (since := silent_since(book, row.id, now)) is not None]
    counted = [now - max(since, former.counts_from) for since in quiet]
    limits = (timedelta(seconds=timings.quiet_serve), timedelta(seconds=timings.quiet_train))
    return any(limit <= seconds <= limit + now - former.looked_at for seconds in counted for limit in limits)


def _lift_cleared(book: Book, cleared: datetime) -> bool:
    due = [node for node, since in book.clearing.rows.items() if since <= cleared and _is_confirmed(book, node)]
    for node in due:
        book.clearing.drop(node)
        book.cordons.drop((node, "storage"))
    return bool(due)


def _is_confirmed(book: Book, node: NodeId) -> bool:
    session = book.sessions.get(node)
    return session is not None and session.closed_at is None and book.nodes[node].inventory_epoch == session.epoch
