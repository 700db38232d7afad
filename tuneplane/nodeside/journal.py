"""The Node's durable memory: SQLite, one writer on its own thread, every commit on the disk before it is believed.

``synchronous=FULL`` with a write-ahead log: one fsync a commit (the rollback journal needs three), and readers such as
``tuneplane-node status`` never block the writer. Each public method is one transaction. A transaction that raises may
have committed all the same (P-09), so the cached records are read again before the error goes on.

Every change raises ``sequence``: a journal that went back in time is noticed by the control plane (P-02).
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import trio
from attrs import define, field, frozen

from tuneplane.domain import codec
from tuneplane.domain.errors import InvalidInput, TuneplaneError
from tuneplane.domain.faultpoint import fault_point
from tuneplane.domain.frames import Command, CommandAnswer, CommandKind
from tuneplane.domain.ids import JournalId, MemberId, spell_id
from tuneplane.domain.inventory import EpochHold
from tuneplane.domain.member_table import LOOKS, UNSEEN, MemberAction, MemberEvent, NodePhase
from tuneplane.domain.node_member import Decision, Facts, Grants, NodeMember, Place, acknowledged, advance, decide
from tuneplane.domain.node_ports import Runner

T = TypeVar("T")
# Raised with every change of a table or of a record's keys: the codec refuses keys that it does not know, and a daemon that
# finds a newer version says so and leaves the file alone. Keys that older versions lack have defaults.
SCHEMA_VERSION = 2
CLOSE_SECONDS = 5.0  # a last checkpoint of the WAL; without it the next start does it
BUSY_MILLISECONDS = 5000  # a reader that checkpoints may hold the file for a moment
FILE_NAME = "journal.sqlite3"

SCHEMA = """
CREATE TABLE meta (
  only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
  schema_version INTEGER NOT NULL,
  journal_id TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  session_epoch INTEGER NOT NULL
) STRICT;
CREATE TABLE member (
  member TEXT PRIMARY KEY,
  phase TEXT NOT NULL,
  revision INTEGER NOT NULL,
  record TEXT NOT NULL,
  plan BLOB NOT NULL
) STRICT;
CREATE TABLE operation (
  operation TEXT PRIMARY KEY,
  member TEXT NOT NULL,
  answer TEXT NOT NULL
) STRICT;
CREATE INDEX operation_of_member ON operation (member);
"""
HOLD_TABLE = """
CREATE TABLE IF NOT EXISTS hold (
  only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
  record TEXT NOT NULL
) STRICT;
"""
# From each older version to the next. Some journals of version 1 have the table, and records with some keys of version 2.
UPGRADES = {1: HOLD_TABLE}


class JournalUnusable(TuneplaneError):
    """The journal file cannot be used; it is left untouched."""

    code = "journal-unusable"


@frozen
class Accepted:
    """A command's answer, and what its driver is to do. ``repeated``: it was answered before, nothing changed."""

    answer: CommandAnswer
    record: NodeMember | None
    action: MemberAction
    repeated: bool = False


@frozen
class _Change:
    """One statement of a transaction, and what becomes true in memory once it has committed."""

    what: str  # names the fault point of a transaction that ends with it
    statement: str
    values: tuple[object, ...] = ()
    record: NodeMember | None = None
    action: MemberAction | None = None  # of a command
    dropped: MemberId | None = None
    epoch: int | None = None
    hold: EpochHold | None = None
    lifts_hold: bool = False


@define(eq=False)
class Journal:
    """The open journal. Reads of records are from memory; every method that changes anything awaits the disk."""

    journal_id: JournalId
    _database: sqlite3.Connection
    _run: Runner
    _sequence: int = 0
    _session_epoch: int = 0
    _hold: EpochHold | None = None
    _records: dict[MemberId, NodeMember] = field(factory=dict)
    _fresh: dict[MemberId, tuple[int, MemberAction]] = field(factory=dict)
    _staged: list[_Change] = field(factory=list)
    _unseen: set[MemberId] = field(factory=set)  # nobody has looked for its container since the journal was opened
    _stale: bool = False  # a COMMIT raised and the file could not be read again: what is in memory may be old (P-09)

    @property
    def sequence(self) -> int:
        return self._sequence

    @property
    def session_epoch(self) -> int:
        return self._session_epoch

    @property
    def hold(self) -> EpochHold | None:
        """Why the commands of the control plane are held, until an operator accepts it (P-07)."""
        return self._hold

    def member(self, member: MemberId) -> NodeMember | None:
        return self._records.get(member)

    def members(self) -> tuple[NodeMember, ...]:
        """All records, tombstones included, by member id."""
        records = self._records.copy()  # one step: the writer's thread may change it meanwhile
        return tuple(records[member] for member in sorted(records))

    async def open_session(self, epoch: int, now: datetime, accepted_hold: str = "") -> bool:
        """Make a Welcome's session epoch durable (P-06). False: the commands of this session are to be held (P-07).

        A hold begins with an epoch that is not a newer one, and is on the disk before this returns. It ends with a newer
        epoch in a Welcome that names it as accepted, and with nothing else.
        """
        return await self._write(lambda: self._do_open_session(epoch, now, accepted_hold))

    async def accept(self, command: Command, place: Place, grants: Grants) -> Accepted | None:
        """Journal a command and its answer. None: it belongs to an older session and is ignored (P-06)."""
        return await self._write(lambda: self._do_accept(command, place, grants))

    async def advance(
        self, member: MemberId, event: MemberEvent, facts: Facts, place: Place, *, looked_at: int | None = None
    ) -> tuple[NodeMember, MemberAction]:
        """Apply an outcome to the record as it is now. KeyError when the record is gone; IllegalTransition.

        ``looked_at``: the outcome only tells what the runtime showed under that revision. It says nothing of a record that
        a command has moved meanwhile, whose own next action is due then: KEEP, and nothing is written (P-03).
        """
        return await self._write(lambda: self._do_advance(member, event, facts, place, looked_at))

    def heeds(self, command: Command) -> bool:
        """Whether it may be obeyed: one of an older session is not, but for what is obeyed while commands are held."""
        return command.session_epoch >= self._session_epoch or self._obeys_in_hold(command)

    async def acknowledge(self, member: MemberId, revision: int) -> None:
        """The control plane has stored a report of ``revision``."""
        record = self._records.get(member)
        if record is not None and acknowledged(record, revision) != record:
            await self._write(lambda: self._do_acknowledge(member, revision))

    def take_fresh(self, record: NodeMember) -> MemberAction | None:
        """The action of the command that moved the member to this very revision in this process; given out once.

        None: do what a restart would do. Kept here, next to the record, because a driver may see the record change
        before anybody could have told it why.
        """
        revision, action = self._fresh.get(record.member, (-1, MemberAction.KEEP))
        if revision > record.revision:
            return None  # of a revision that the caller has not seen yet
        self._fresh.pop(record.member, None)
        return action if revision == record.revision else None

    async def plan(self, member: MemberId) -> bytes:
        """The plan bytes as they came; b"" when there are none."""
        return await self._run(lambda: self._read_plan(member))

    # ------------------------------------------------ on the writer's thread

    async def _write(self, work: Callable[[], T]) -> T:
        return await self._run(lambda: self._transaction(work))

    def _transaction(self, work: Callable[[], T]) -> T:
        """``work`` decides over the records in memory and stages what is to be written; nothing staged, nothing written."""
        self._staged.clear()
        if self._stale:
            self._reload()
        result = work()
        if not self._staged:
            return result
        try:
            self._commit()
        except BaseException:
            self._stale = True
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            self._reload()
            self._adopt_actions()
            raise
        self._adopt()
        return result

    def _commit(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        for change in self._staged:
            self._database.execute(change.statement, change.values)
        self._database.execute("UPDATE meta SET sequence = sequence + 1")
        with fault_point(f"node.journal.{self._staged[-1].what}"):
            self._database.execute("COMMIT")

    def _adopt(self) -> None:
        self._sequence += 1
        for change in self._staged:
            if change.record is not None:
                if change.action is not None:  # first: whoever sees the record finds its action
                    self._fresh[change.record.member] = (change.record.revision, change.action)
                self._records[change.record.member] = change.record
            if change.dropped is not None:
                self._records.pop(change.dropped, None)
                self._fresh.pop(change.dropped, None)
            if change.epoch is not None:
                self._session_epoch = change.epoch
            if change.hold is not None or change.lifts_hold:
                self._hold = change.hold

    def _adopt_actions(self) -> None:
        """The COMMIT raised and took place all the same: what it leads to was not begun, and still may be."""
        for change in self._staged:
            if change.record is not None and change.action is not None and self._records.get(change.record.member) == change.record:
                self._fresh[change.record.member] = (change.record.revision, change.action)

    def _do_open_session(self, epoch: int, now: datetime, accepted_hold: str) -> bool:
        older = epoch <= self._session_epoch
        if older and self._hold is None:
            hold = EpochHold(id=spell_id("hold", secrets.token_bytes(10)), known_epoch=self._session_epoch, told_epoch=epoch, since=now)
            self._staged.append(_Change("hold", "INSERT INTO hold VALUES (1, ?)", (json.dumps(codec.encode(hold)),), hold=hold))
        if older or (self._hold is not None and self._hold.id != accepted_hold):
            return False
        if self._hold is not None:
            self._staged.append(_Change("epoch", "DELETE FROM hold", lifts_hold=True))
        self._staged.append(_Change("epoch", "UPDATE meta SET session_epoch = ?", (epoch,), epoch=epoch))
        return True

    def _do_accept(self, command: Command, place: Place, grants: Grants) -> Accepted | None:
        if not self.heeds(command):
            return None
        row = self._database.execute("SELECT answer FROM operation WHERE operation = ?", (command.operation,)).fetchone()
        record = self._records.get(command.member)
        if row is not None:
            return Accepted(codec.decode(CommandAnswer, json.loads(row[0])), record, MemberAction.KEEP, repeated=True)
        unseen = command.member in self._unseen
        decision = decide(record, command, place, grants, self._records.values(), unseen=unseen)
        self._keep(command, decision)
        return Accepted(decision.answer, decision.record, decision.action)

    def _obeys_in_hold(self, command: Command) -> bool:
        return self._hold is not None and command.kind is CommandKind.STOP and (command.ended or command.stranger)

    def _keep(self, command: Command, decision: Decision) -> None:
        if decision.record is not None:  # answers of forgotten members go with them
            answer = json.dumps(codec.encode(decision.answer))
            values = (command.operation, command.member, answer)
            self._staged.append(_Change("answer", "INSERT INTO operation VALUES (?, ?, ?)", values))
        if decision.record is not None and decision.record != self._records.get(command.member):
            plan = command.plan if command.kind is CommandKind.PREPARE else None
            self._store(decision.record.phase.value, decision.record, plan, decision.action)

    def _do_advance(
        self, member: MemberId, event: MemberEvent, facts: Facts, place: Place, looked_at: int | None
    ) -> tuple[NodeMember, MemberAction]:
        record = self._records[member]
        if looked_at not in (None, record.revision):
            return record, MemberAction.KEEP
        if event in LOOKS:
            self._unseen.discard(member)
        changed, action = advance(record, event, facts, place)
        if changed.phase is NodePhase.ABSENT:
            self._staged.append(_Change("gone", "DELETE FROM operation WHERE member = ?", (member,)))
            self._staged.append(_Change("gone", "DELETE FROM member WHERE member = ?", (member,), dropped=member))
        elif changed != record:
            self._store("cleaned" if changed.cleaned and not record.cleaned else changed.phase.value, changed)
        return changed, action

    def _do_acknowledge(self, member: MemberId, revision: int) -> None:
        record = self._records.get(member)
        if record is not None:
            self._store("acknowledged", acknowledged(record, revision))

    def _store(self, what: str, record: NodeMember, plan: bytes | None = None, action: MemberAction | None = None) -> None:
        data = json.dumps(codec.encode(record))
        statement = (
            "INSERT INTO member VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (member) DO UPDATE SET phase = ?2, revision = ?3, record = ?4"
        )
        values = (record.member, record.phase.value, record.revision, data, plan or b"")
        self._staged.append(_Change(what, statement, values, record=record, action=action))

    def _read_plan(self, member: MemberId) -> bytes:
        row = self._database.execute("SELECT plan FROM member WHERE member = ?", (member,)).fetchone()
        return bytes(row[0]) if row else b""

    def _reload(self) -> None:
        self._sequence, self._session_epoch = self._database.execute("SELECT sequence, session_epoch FROM meta").fetchone()
        self._hold = read_hold(self._database)
        rows = self._database.execute("SELECT member, record FROM member").fetchall()
        self._records = {MemberId(name): codec.decode(NodeMember, json.loads(data), name) for name, data in rows}
        self._stale = False


@asynccontextmanager
async def open_journal(state_dir: Path, run: Runner) -> AsyncIterator[Journal]:
    """Open or create the journal below ``state_dir``. Raises JournalUnusable for a damaged or unknown one."""
    journal = await run(lambda: _open(state_dir / FILE_NAME, run))
    try:
        yield journal
    finally:
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await run(journal._database.close)


def _open(path: Path, run: Runner) -> Journal:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        journal = _prepare(database, path, run)
    except sqlite3.DatabaseError as error:
        database.close()
        raise JournalUnusable(f"journal {path}: {error}") from error
    except BaseException:
        database.close()
        raise
    return journal


def _prepare(database: sqlite3.Connection, path: Path, run: Runner) -> Journal:
    database.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    path.chmod(0o600)
    if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        _create(database)
    problem = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise JournalUnusable(f"journal {path} is damaged: {problem}")
    version, journal_id = database.execute("SELECT schema_version, journal_id FROM meta").fetchone()
    if version != SCHEMA_VERSION and version not in UPGRADES:
        raise JournalUnusable(f"journal {path} has schema version {version}; this version of Tuneplane knows {SCHEMA_VERSION}")
    if version != SCHEMA_VERSION:
        _upgrade(database, version)
    journal = Journal(JournalId(journal_id), database, run)
    try:
        journal._reload()
    except (InvalidInput, json.JSONDecodeError) as error:
        raise JournalUnusable(f"journal {path} has a record that this version of Tuneplane does not know: {error}") from error
    journal._unseen.update(record.member for record in journal.members() if record.phase in UNSEEN)
    return journal


def _create(database: sqlite3.Connection) -> None:
    journal_id = spell_id("jrn", secrets.token_bytes(10))
    with fault_point("node.journal.create"):
        database.executescript(
            f"BEGIN; {SCHEMA} {HOLD_TABLE} INSERT INTO meta VALUES (1, {SCHEMA_VERSION}, '{journal_id}', 0, 0); COMMIT;"  # noqa: S608 - base32
        )


def _upgrade(database: sqlite3.Connection, version: int) -> None:
    """To the present version, in one transaction; every record is kept. An older daemon then refuses the file."""
    steps = "".join(UPGRADES[each] for each in range(version, SCHEMA_VERSION))
    with fault_point("node.journal.upgrade"):
        database.executescript(f"BEGIN IMMEDIATE; {steps} UPDATE meta SET schema_version = {SCHEMA_VERSION}; COMMIT;")  # noqa: S608 - ours


def read_hold(database: sqlite3.Connection) -> EpochHold | None:
    row = database.execute("SELECT record FROM hold").fetchone()
    return codec.decode(EpochHold, json.loads(row[0]), "hold") if row else None
