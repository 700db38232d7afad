"""What every unit of the twin stands on: weather, one atomic step, triggers, pokes, pages."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import trio
from attrs import define, field

from tuneplane.domain.accounts import AuditLine
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.faultpoint import AnswerLost, fault_point
from tuneplane.domain.ids import JobId, UserName
from tuneplane.domain.jobs import Page, TimelineEvent
from tuneplane.domain.launch_table import ENDED_PHASES, FINAL_JOB_STATES, AttemptState, JobState
from tuneplane.domain.ports import Topic
from tuneplane.domain.timings import PRODUCTION, Timings
from tuneplane.storage.database import clean, keys_of

from .rows import AttemptRow, Book, Change, CommandRow, MemberRow

P = ParamSpec("P")
T = TypeVar("T")
STATES = tuple(AttemptState)  # in the order in which an attempt goes through them


class Weather(Protocol):
    """What happens to a request on its way to the database and back. Both methods may wait, and raise StorageUnavailable."""

    async def arrive(self, name: str) -> None:
        """Before the step; raising means that nothing happened."""

    async def depart(self, name: str) -> None:
        """After the step; raising means *committed but raised* (P-09)."""

    def loses_poke(self) -> bool: ...

    async def wait_news(self, news: trio.Event, seconds: float) -> None:
        """Until ``news`` is set, or ``seconds`` have passed (it may then be set all the same)."""


class Calm:
    """Every request takes one turn of the scheduler."""

    async def arrive(self, name: str) -> None:
        await trio.lowlevel.checkpoint()

    async def depart(self, name: str) -> None:
        await trio.lowlevel.checkpoint()

    def loses_poke(self) -> bool:
        return False

    async def wait_news(self, news: trio.Event, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await news.wait()


@define(eq=False)
class Database:
    """The one state that any number of clients share. ``clock`` is the database's own; ``watchers`` see every commit."""

    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    book: Book = field(factory=Book)
    watchers: list[Callable[[str, list[Change]], None]] = field(factory=list)
    asked: tuple[object, ...] = ()  # the arguments of the unit that is being committed, for watchers
    listeners: dict[Turns, None] = field(factory=dict)  # in the order of their coming


@define(eq=False)
class Client:
    """One process's connection: base of the twin's parts."""

    database: Database = field(factory=Database)
    weather: Weather = field(factory=Calm)
    timings: Timings = PRODUCTION

    @property
    def book(self) -> Book:
        return self.database.book

    async def write(self, name: str, unit: Callable[Concatenate[Book, P], T], *args: P.args, **named: P.kwargs) -> T:
        """One linearizable step: all of it or nothing, at one moment between call and return."""
        await self.weather.arrive(name)
        result = self._commit(name, unit, *args, **named)
        await self.weather.depart(name)
        return result

    async def read(self, name: str, unit: Callable[Concatenate[Book, P], T], *args: P.args, **named: P.kwargs) -> T:
        await self.weather.arrive(name)
        result = unit(self.book, *args, **named)
        await self.weather.depart(name)
        return result

    def _commit(self, name: str, unit: Callable[..., T], *args: Any, **named: Any) -> T:
        lost: AnswerLost | None = None
        try:
            result = unit(self.book, *args, **named)
            check_triggers(self.book.log)
            check_evidence(self.book)
            with fault_point(f"storage.{name}"):
                pass
        except AnswerLost as error:
            lost = error
        except BaseException:
            self.book.roll_back()
            raise
        changes, touched = self.book.close_unit()
        self.database.asked = (*args, *named.values())
        for watcher in self.database.watchers:
            watcher(name, changes)
        for listener in tuple(self.database.listeners):
            listener.hear(touched)
        if lost is not None:
            raise StorageUnavailable(f"{name}: committed, but the answer was lost") from lost
        return result

    @asynccontextmanager
    async def open_pokes(self, topics: Sequence[Topic]) -> AsyncIterator[AsyncIterator[frozenset[Topic]]]:
        await trio.lowlevel.checkpoint()
        turns = Turns(frozenset(topics), self.timings.poll, self.weather)
        self.database.listeners[turns] = None
        try:
            yield turns
        finally:
            del self.database.listeners[turns]

    async def ping(self) -> None:
        await self.read("ping", lambda book: None)


@define(eq=False)
class Turns:
    """One LISTEN: coalesced, all topics at first and after every poll interval in which nothing was heard."""

    topics: frozenset[Topic]
    poll_seconds: float
    weather: Weather
    _heard: set[Topic] = field(init=False)
    _news: trio.Event = field(factory=trio.Event)

    _names: dict[str, Topic] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._heard = set(self.topics)
        self._names = {topic.value: topic for topic in self.topics}
        self._news.set()

    def hear(self, touched: set[str]) -> None:
        if self._names.keys().isdisjoint(touched):
            return
        heard = {topic for name, topic in self._names.items() if name in touched}
        if not self.weather.loses_poke():
            self._heard |= heard
            self._news.set()

    def __aiter__(self) -> Turns:
        return self

    async def __anext__(self) -> frozenset[Topic]:
        await self.weather.wait_news(self._news, self.poll_seconds)
        heard, self._heard, self._news = frozenset(self._heard) or self.topics, set(), trio.Event()
        return heard


class TriggerRefused(Exception):
    """The twin was asked for what PostgreSQL's triggers refuse: a bug in the twin, as it would be one in the SQL."""


def check_triggers(log: list[Change]) -> None:
    """The triggers of schemas/sql that say what never goes back."""
    for change in log:
        before, after = change.before, change.after
        if before is None or after is None:
            continue
        problem = TRIGGERS.get(change.table, lambda before, after: "")(before, after)
        if problem:
            raise TriggerRefused(f"{change.table} {change.key}: {problem}")


def check_evidence(book: Book) -> None:
    """The triggers that read other tables: an attempt ends with evidence for all its members, and follows the last one."""
    for change in book.log:
        after: Any = change.after
        if change.table == "attempts" and after is not None:
            alive = [row.id for row in book.members if row.attempt == after.id and row.phase not in ENDED_PHASES]
            _require(after.state is not AttemptState.ENDED or not alive, change, "attempt_ended_by_evidence")
            if change.before is None:
                _require(book.jobs[after.job].stop_asked_at is None, change, "attempt_after_stop")
                others = [row for row in book.attempts if row.job == after.job and row.id != after.id]
                _require(all(row.state is AttemptState.ENDED for row in others), change, "attempt_one_live")
                _require(after.number == len(others) + 1, change, "attempt_follows")
        if change.table == "jobs" and after is not None and after.state is JobState.QUEUED and change.before is not None:
            live = [row.id for row in book.attempts if row.job == after.id and row.state is not AttemptState.ENDED]
            _require(not live, change, "job_queued_after_evidence")


def _require(holds: bool, change: Change, trigger: str) -> None:
    if not holds:
        raise TriggerRefused(f"{change.table} {change.key}: {trigger}")


def _job(before: Any, after: Any) -> str:
    moved = after.state is not before.state
    if moved and before.state in FINAL_JOB_STATES and (before.state, after.state) != (JobState.FAILED, JobState.QUEUED):
        return "job_final"
    if moved and after.state is JobState.QUEUED and after.stop_asked_at is not None:
        return "job_queued_after_stop"
    return "job_stop_for_ever" if before.stop_asked_at not in (None, after.stop_asked_at) else ""


def _attempt(before: AttemptRow, after: AttemptRow) -> str:
    back = STATES.index(after.state) < STATES.index(before.state) or after.claim_epoch < before.claim_epoch
    return "attempt_forward" if back else ""


def _member(before: MemberRow, after: MemberRow) -> str:
    return "member_ended" if before.ended_at is not None and before.phase is not after.phase else ""


def _command(before: CommandRow, after: CommandRow) -> str:
    return "command_withdrawn" if before.withdrawn_at is not None and before.sent_epoch != after.sent_epoch else ""


def _session(before: Any, after: Any) -> str:
    return "session_epoch_rises" if after.epoch < before.epoch else ""


TRIGGERS: dict[str, Callable[[Any, Any], str]] = {
    "jobs": _job,
    "attempts": _attempt,
    "members": _member,
    "commands": _command,
    "sessions": _session,
}


# ---------------------------------------------------------------- inside units


def poke(book: Book, *topics: Topic) -> None:
    book.touched.update(topic.value for topic in topics)


def note(book: Book, job: JobId, now: datetime, kind: str, subject: str, detail: str = "") -> None:
    sequence = len(book.timeline) + 1
    book.timeline.put(sequence, (job, TimelineEvent(at=now, kind=kind, subject=subject, detail=detail, sequence=sequence)))


def audit(book: Book, actor: UserName | None, action: str, subject: str, now: datetime, detail: str = "", *, forced: bool = False) -> None:
    if actor is not None:
        number = len(book.audit) + 1
        line = AuditLine(sequence=number, at=now, actor=actor, action=action, subject=subject, detail=clean(detail), forced=forced)
        book.audit.put(number, line)


def page_of(rows: Sequence[T], page: Page, key: Callable[[T], tuple[datetime, str]]) -> tuple[list[T], str | None]:
    """The newest first, strictly before the cursor."""
    keys = keys_of(page)
    found = sorted((row for row in rows if page.cursor is None or key(row) < (keys.at, keys.id)), key=key, reverse=True)
    if len(found) <= page.limit:
        return found, None
    return found[: page.limit], spell_cursor(*key(found[page.limit - 1]))


def spell_cursor(at: datetime, name: object) -> str:
    return base64.urlsafe_b64encode(json.dumps([at.isoformat(), name]).encode()).decode("ascii")
