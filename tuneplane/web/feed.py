"""What changed: one reader of the database for all who watch, told as differences between two looks.

A poke carries no data, so the feed looks again and compares. It looks only while somebody watches, at most every
LOOK_SECONDS. ``changed`` events are filtered to what the watcher may see. Lists are cut at one page: ``complete`` is
then false and says that something beyond it may have changed too. ``fresh`` tells truthfully whether the last look at
the database is recent: without it a console would show an old state as a live one (R-ADM-04).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import structlog
import trio
from attrs import define, evolve, field, frozen

from tuneplane.control.api import ControlApi, JobAccess, NodeAnswer, may_see, may_see_job
from tuneplane.domain.accounts import AuditFilter
from tuneplane.domain.errors import NotFound, StorageUnavailable
from tuneplane.domain.fleets import Fleet
from tuneplane.domain.hardware import MOST_SERIES
from tuneplane.domain.ids import FleetId, JobId, UserName
from tuneplane.domain.jobs import Job, JobSummary, Page, User
from tuneplane.domain.ports import Storage, Topic
from tuneplane.domain.visibility import ADMIN

log = structlog.get_logger("tuneplane.web.feed")

LOOK_SECONDS = 0.5  # pokes come in bursts; people see no difference below it
FRESH_SECONDS = 10.0  # several poll intervals: a look older than this is called stale
LOOK_DEADLINE_SECONDS = 5.0  # a database that hangs is one that is away
LOOKED_AT = 500  # rows per list in one look: the newest, one page
MOST_PENDING = 500  # changes kept for a slow watcher; beyond them it is told to look at everything
EVERYTHING = User(username=UserName("the-console-feed"), role="admin", created_at=datetime(2026, 1, 1, tzinfo=UTC))

Key = tuple[str, str]


@frozen(kw_only=True)
class Change:
    """One object that changed: ``state`` is its present one, "" when it is gone."""

    kind: str  # "fleet", "node", "job", or "audit": the log, whose state is the number of its newest line
    id: str
    state: str


@frozen(kw_only=True)
class Changes:
    """Body of a ``changed`` event. ``complete`` false: others may have changed too."""

    changes: tuple[Change, ...]
    complete: bool


@frozen
class _Row:
    """What the feed compares, and what decides who may hear of it: a Fleet that he sees, and for a job whose it is.

    With neither, it is for administrators, unless it is ``public``: then for everybody who is signed in."""

    value: Any
    state: str
    fleet: Fleet | None = field(eq=lambda fleet: fleet and (fleet.visibility, fleet.project))
    job: JobAccess | None = field(default=None, eq=lambda job: job and job.fleet and (job.fleet.visibility, job.fleet.project))
    public: bool = False


@frozen
class _Look:
    rows: dict[Key, _Row]
    complete: bool


@define(eq=False)
class Watcher:
    """One listener's pending changes, coalesced by object."""

    user: User  # as of the last look: what he may see changes
    job: JobId | None = None  # also tell of this job's members
    greeted: bool = False  # the first look after it came: what it shows may be older
    _pending: dict[Key, Change] = field(factory=dict)
    _complete: bool = True
    _woken: trio.Event = field(factory=trio.Event)

    def offer(self, key: Key, change: Change, *, complete: bool = True) -> None:
        """Keep a change; too many become "look at everything"."""
        self._pending[key] = change
        self._complete = self._complete and complete
        if len(self._pending) > MOST_PENDING:
            self._pending.clear()
            self._complete = False
        self._woken.set()

    def greet(self) -> None:
        """Tell it to look at everything once: it may have loaded its page before we looked, or sees something else now."""
        self.greeted, self._complete, self._pending = True, False, {}
        self._woken.set()

    async def next_changes(self) -> Changes:
        """Wait for something; takes all of it. Cancelling loses nothing."""
        await self._woken.wait()
        self._woken = trio.Event()
        changes = Changes(changes=tuple(self._pending.values()), complete=self._complete)
        self._pending, self._complete = {}, True
        return changes


@define(eq=False)
class Feed:
    """Shared by all streams of a process; :meth:`run` is its one task, owned by the FeedReader actor."""

    _watchers: set[Watcher] = field(factory=set)
    _last: _Look | None = None
    _looked_at: float = -1e9  # Trio's clock
    _poked: trio.Event = field(factory=trio.Event)
    reachable: bool = True  # whether the last look could be taken: a change is logged once

    @property
    def fresh(self) -> bool:
        """Whether the database was looked at within FRESH_SECONDS."""
        return trio.current_time() - self._looked_at < FRESH_SECONDS

    @contextmanager
    def watch(self, user: User, job: JobId | None = None) -> Iterator[Watcher]:
        """Register a watcher for as long as the block runs; it hears of what changes from now on."""
        watcher = Watcher(user, job)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    async def wait_poke(self) -> None:
        """Until the database says that something changed, or its poll interval is over."""
        await self._poked.wait()

    async def run(self, api: ControlApi, storage: Storage, on_accounts: Callable[[], None] = lambda: None) -> None:
        """Listen and look for ever. The database's absence is waited out, poll by poll; anything else is the caller's.

        ``on_accounts`` hears, before anything else is told, that accounts may have changed.
        """
        async with storage.open_pokes([Topic.CONSOLE, Topic.ACCOUNTS]) as pokes:
            async for topics in pokes:
                if Topic.ACCOUNTS in topics:
                    on_accounts()
                self._poked.set()
                self._poked = trio.Event()
                await self._look_if_possible(api, storage)
                await trio.sleep(LOOK_SECONDS)

    async def _look_if_possible(self, api: ControlApi, storage: Storage) -> None:
        try:
            with trio.fail_after(LOOK_DEADLINE_SECONDS):
                await self._look(api, storage)
        except (StorageUnavailable, trio.TooSlowError) as error:
            if self.reachable:
                log.warning("the feed lost the database", error=str(error) or "no answer in time")
            self.reachable = False
        else:
            self.reachable = True

    async def _look(self, api: ControlApi, storage: Storage) -> None:
        if not self._watchers:
            self._last = None  # nobody can have missed anything
            await storage.ping()
        else:
            await self._look_up(api)
            look = await _read(api, {watcher.job for watcher in self._watchers if watcher.job is not None})
            if self._last is not None:
                self._tell(self._last, look)
            self._last = look
            for watcher in self._watchers:
                if not watcher.greeted:
                    watcher.greet()
        self._looked_at = trio.current_time()

    async def _look_up(self, api: ControlApi) -> None:
        """Who the watchers are now. One who sees something else now is told to look at everything; the disabled hear nothing."""
        watchers = tuple(self._watchers)  # who comes meanwhile was looked up by the request that it came with
        users = await api.accounts.look_up({watcher.user.username for watcher in watchers})
        for watcher in watchers:
            user = users.get(watcher.user.username, evolve(watcher.user, disabled=True))
            if user != watcher.user:
                watcher.user = user
                watcher.greet()

    def _tell(self, before: _Look, after: _Look) -> None:
        complete = before.complete and after.complete
        for key in before.rows.keys() | after.rows.keys():
            was, now = before.rows.get(key), after.rows.get(key)
            if was == now:
                continue
            kind = key[0].removeprefix("watched ")
            for watcher in self._watchers:
                if now is not None and _may_hear(watcher.user, now):
                    watcher.offer((kind, key[1]), Change(kind=kind, id=key[1], state=now.state), complete=complete)
                elif was is not None and _may_hear(watcher.user, was):  # what went out of his sight is gone
                    watcher.offer((kind, key[1]), Change(kind=kind, id=key[1], state=""), complete=complete)


def _may_hear(user: User, row: _Row) -> bool:
    if user.disabled:
        return False
    if row.job is not None:
        return may_see_job(user, row.job)
    return may_see(user, row.fleet) if row.fleet is not None else row.public or user.role == ADMIN


async def _read(api: ControlApi, watched: set[JobId]) -> _Look:
    """One look at the newest page of everything, and at the watched jobs as a whole."""
    page = Page(limit=LOOKED_AT)
    fleets = {fleet.id: fleet for fleet in await api.fleets.visible(EVERYTHING)}
    nodes, more_nodes = await api.nodes.list_page(EVERYTHING, None, page)
    jobs, more_jobs = await api.jobs.list_page(EVERYTHING, page)
    rows: dict[Key, _Row] = {("fleet", fleet.id): _Row(fleet, fleet.state.value, fleet) for fleet in fleets.values()}
    rows |= {("node", node.id): _node_row(node, fleets) for node in nodes}
    rows["audit", "log"] = await _audit_row(api)
    rows |= {("job", job.id): _job_row(job, fleets) for job in jobs}
    series, _ = await api.hardware.list_page(Page(limit=MOST_SERIES))
    rows |= {("hardware", one.series): _Row(one, "known", None, public=True) for one in series}
    for job_id in watched:
        try:
            job = await api.jobs.get(EVERYTHING, job_id)
        except NotFound:
            continue
        rows["watched job", job_id] = _job_row(job, fleets)
    return _Look(rows, complete=more_nodes is None and more_jobs is None)


async def _audit_row(api: ControlApi) -> _Row:
    """Whatever a person does is a line there: it tells administrators that accounts and projects may be others now."""
    lines, _ = await api.audit.list_page(EVERYTHING, Page(limit=1), AuditFilter())
    newest = lines[0].sequence if lines else 0
    return _Row(newest, str(newest), None)


def _node_row(node: NodeAnswer, fleets: dict[FleetId, Fleet]) -> _Row:
    """Without what every renewal changes: leases and confirmations are no news."""
    connection = evolve(node.connection, lease_expires_at=None, clock_offset_seconds=None)
    inventory = node.inventory and evolve(node.inventory, observed_at=None)
    value = evolve(node, connection=connection, inventory=inventory)
    return _Row(value, node.connection.state, fleets.get(node.fleet))


def _job_row(job: Job | JobSummary, fleets: dict[FleetId, Fleet]) -> _Row:
    fleet = fleets.get(job.fleet)
    return _Row(job, job.state.value, fleet, JobAccess(owner=job.owner, project=job.project, fleet=fleet))
