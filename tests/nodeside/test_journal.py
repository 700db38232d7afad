"""The journal: durable, in order, idempotent, and refusing what it does not know."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
from attrs import evolve

from tests.nodeside.harness import commit, forget, make_plan, prepare, stop
from tuneplane.domain import codec
from tuneplane.domain.faultpoint import AnswerLost, install_fault_hook
from tuneplane.domain.frames import Command, CommandKind
from tuneplane.domain.ids import MemberId, NodeId, OperationId
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.member_table import MemberAction, MemberEvent, NodePhase
from tuneplane.domain.node_member import NOTHING_FOUND, PROGRESS_TICKS, Facts, Grants, Place
from tuneplane.domain.plan import plan_bytes
from tuneplane.nodeside.journal import FILE_NAME, SCHEMA_VERSION, Journal, JournalUnusable, open_journal
from tuneplane.nodeside.journal_peek import look_for_hold
from tuneplane.nodeside.machine import LinuxMachine
from tuneplane.nodeside.runner import ThreadRunner, run_inline

GRANTS = Grants(budgets=Budgets(cpu_millis=64_000, memory_bytes=64 << 30, gpu_indexes=()))
NOW = datetime(2026, 1, 1, tzinfo=UTC)
IMAGE = "registry/x@sha256:0"
GOLDEN = Path(__file__).parents[1] / "golden" / "journal-1.sql"


def place(**changes: object) -> Place:
    values = {"node": NodeId("node-1"), "boot_id": "boot-a", "boot_seconds": 1.0, "engine": "podman", "now": LinuxMachine().now()}
    return Place(**{**values, **changes})  # type: ignore[arg-type]


async def test_journal_opened_again_knows_what_was_written(tmp_path: Path) -> None:
    """R-LCH-04: on the thread of a real daemon, and inline as a simulator runs it."""
    plan = make_plan(IMAGE, ("true",))
    async with open_journal(tmp_path, ThreadRunner()) as journal:
        await journal.open_session(3, NOW)
        accepted = await journal.accept(prepare(plan, epoch=3), place(), GRANTS)
        assert accepted is not None
        assert accepted.action is MemberAction.PREPARE
        await journal.advance(plan.member, MemberEvent.READY, NOTHING_FOUND, place())
        first = (journal.journal_id, journal.sequence, journal.session_epoch, journal.members())
    async with open_journal(tmp_path, run_inline) as journal:
        assert (journal.journal_id, journal.sequence, journal.session_epoch, journal.members()) == first
        assert await journal.plan(plan.member) == plan_bytes(plan)
        assert journal.members()[0].phase is NodePhase.PREPARED


async def test_journal_is_private_and_every_commit_is_synced(tmp_path: Path) -> None:
    async with open_journal(tmp_path, run_inline) as journal:
        assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
        assert journal._database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert journal._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_same_operation_gets_the_first_answer_and_changes_nothing(tmp_path: Path) -> None:
    """R-LCH-02."""
    plan = make_plan(IMAGE, ("true",))
    async with open_journal(tmp_path, run_inline) as journal:
        early = await journal.accept(commit(plan), place(), GRANTS)
        assert early is not None
        assert (early.answer.accepted, early.answer.code) == (False, "unknown-member")
        await journal.accept(prepare(plan), place(), GRANTS)
        sequence = journal.sequence
        again = await journal.accept(prepare(plan), place(), GRANTS)
        assert again is not None
        assert (again.repeated, again.answer.accepted, journal.sequence) == (True, True, sequence)


async def test_command_of_an_older_session_is_ignored(tmp_path: Path) -> None:
    """P-06."""
    plan = make_plan(IMAGE, ("true",))
    async with open_journal(tmp_path, run_inline) as journal:
        assert await journal.open_session(5, NOW)
        assert await journal.accept(prepare(plan, epoch=4), place(), GRANTS) is None
        assert journal.members() == ()


async def test_epoch_that_is_not_newer_begins_a_hold_that_only_its_acceptance_lifts(tmp_path: Path) -> None:
    """P-07: not a newer epoch, not a restart of the daemon, not the acceptance of another hold."""
    async with open_journal(tmp_path, run_inline) as journal:
        assert await journal.open_session(5, NOW)
        assert not await journal.open_session(5, NOW)
        hold = journal.hold
        assert hold is not None
        assert (hold.known_epoch, hold.told_epoch, hold.since) == (5, 5, NOW)
    assert look_for_hold(tmp_path) == hold
    async with open_journal(tmp_path, run_inline) as journal:
        assert journal.hold == hold
        assert [await journal.open_session(epoch, NOW) for epoch in (4, 6, 7)] == [False, False, False]
        assert not await journal.open_session(8, NOW, "hold-of-another-day")
        assert not await journal.open_session(5, NOW, hold.id)  # accepted, and yet not newer: a database that went back again
        assert (journal.hold, journal.session_epoch) == (hold, 5)
        assert await journal.open_session(6, NOW, hold.id)
        assert (journal.hold, journal.session_epoch) == (None, 6)
        assert not await journal.open_session(6, NOW, hold.id)  # the next hold has another id
        assert journal.hold is not None
        assert journal.hold.id != hold.id


async def test_held_node_obeys_no_command_but_a_stop_of_what_the_database_has_ended(tmp_path: Path) -> None:
    """P-07."""
    plan = make_plan(IMAGE, ("true",))
    async with open_journal(tmp_path, run_inline) as journal:
        await journal.open_session(5, NOW)
        await journal.accept(prepare(plan, epoch=5), place(), GRANTS)
        assert not await journal.open_session(4, NOW)
        for command in (commit(plan, epoch=4), stop(plan, epoch=4)):
            assert await journal.accept(command, place(), GRANTS) is None
        settled = await journal.accept(evolve(stop(plan, epoch=4), ended=True), place(), GRANTS)
        assert settled is not None
        assert settled.answer.accepted


async def test_journal_of_version_1_is_opened_with_every_record_and_is_then_of_the_present_version(tmp_path: Path) -> None:
    """R-LCH-04: the golden journal was written by the first version: a member in each phase, answers and plans."""
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.executescript(GOLDEN.read_text())
        rows = {name: (json.loads(record), plan) for name, record, plan in database.execute("SELECT member, record, plan FROM member")}
    database.close()
    assert look_for_hold(tmp_path) is None
    for _ in range(2):  # the second time it is of the present version
        async with open_journal(tmp_path, run_inline) as journal:
            assert (journal.session_epoch, journal.sequence, journal.hold) == (7, 37, None)
            assert {record.phase for record in journal.members()} == frozenset(NodePhase) - {NodePhase.ABSENT, NodePhase.FORGOTTEN}
            for record in journal.members():
                former, plan = rows.pop(record.member, (None, None))
                kept = codec.encode(record)
                assert former is None or (former.items() <= kept.items() and await journal.plan(record.member) == plan)
            assert rows == {}
            again = await journal.accept(command_of(journal.members()[4].member), place(), GRANTS)
            assert again is not None
            assert again.repeated
            assert journal._database.execute("SELECT schema_version FROM meta").fetchone() == (SCHEMA_VERSION,)


def command_of(member: str) -> Command:
    """The Commit that the golden journal has answered."""
    operation = OperationId(f"{member}:commit")
    return Command(operation=operation, kind=CommandKind.COMMIT, member=MemberId(member), session_epoch=7, claim_epoch=1)


async def test_record_of_a_newer_version_makes_the_journal_unusable(tmp_path: Path) -> None:
    async with open_journal(tmp_path, run_inline) as journal:
        await journal.accept(prepare(make_plan(IMAGE, ("true",))), place(), GRANTS)
        journal._database.execute("UPDATE member SET record = json_set(record, '$.later', 1)")
    with pytest.raises(JournalUnusable, match="later"):
        async with open_journal(tmp_path, run_inline):
            pass


async def test_transaction_whose_answer_is_lost_is_read_again(tmp_path: Path) -> None:
    """P-09: an exception from a COMMIT means unknown; memory follows the disk, before and after the COMMIT alike."""
    plan = make_plan(IMAGE, ("true",))

    def lose(wanted: str) -> None:
        def hook(name: str, moment: str) -> None:
            if moment == wanted and name == "node.journal.preparing":
                raise AnswerLost(name)

        install_fault_hook(hook)

    try:
        async with open_journal(tmp_path, run_inline) as journal:
            lose("before")
            with pytest.raises(AnswerLost):
                await journal.accept(prepare(plan), place(), GRANTS)
            assert journal.members() == ()
            lose("after")
            with pytest.raises(AnswerLost):
                await journal.accept(prepare(plan), place(), GRANTS)
            assert [record.phase for record in journal.members()] == [NodePhase.PREPARING]
            again = await journal.accept(prepare(plan), place(), GRANTS)
            assert again is not None
            assert again.repeated
    finally:
        install_fault_hook(None)


async def test_stop_whose_commit_raised_and_could_not_be_read_again_is_still_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P-01, P-09: the disk holds the stop, memory does not; the driver's next step must not write over it."""
    plan = make_plan(IMAGE, ("true",))
    reload = Journal._reload

    def fail_once(journal: Journal) -> None:
        monkeypatch.setattr(Journal, "_reload", reload)
        raise sqlite3.OperationalError("disk I/O error")

    def lose(name: str, moment: str) -> None:
        if moment == "after":
            raise AnswerLost(name)

    async with open_journal(tmp_path, run_inline) as journal:
        await journal.accept(prepare(plan), place(), GRANTS)
        await journal.advance(plan.member, MemberEvent.READY, NOTHING_FOUND, place())
        await journal.accept(commit(plan), place(), GRANTS)
        monkeypatch.setattr(Journal, "_reload", fail_once)
        install_fault_hook(lose)
        try:
            with pytest.raises(sqlite3.OperationalError):
                await journal.accept(stop(plan), place(), GRANTS)
        finally:
            install_fault_hook(None)
        changed, action = await journal.advance(plan.member, MemberEvent.FOUND_READY, Facts(container_id="c1"), place())
        assert (changed.phase, action) == (NodePhase.WITHDRAWN, MemberAction.REMOVE), "no start after an accepted stop"


async def test_action_of_a_command_is_given_out_once_and_only_with_its_revision(tmp_path: Path) -> None:
    """P-01: who finds a committed member without it takes it for one after a crash, and looks."""
    plan = make_plan(IMAGE, ("true",))
    async with open_journal(tmp_path, run_inline) as journal:
        await journal.accept(prepare(plan), place(), GRANTS)
        before, _ = await journal.advance(plan.member, MemberEvent.READY, NOTHING_FOUND, place())
        await journal.accept(commit(plan), place(), GRANTS)
        now = journal.member(plan.member)
        assert now is not None
        assert journal.take_fresh(before) is None
        assert journal.take_fresh(now) is MemberAction.CREATE
        assert journal.take_fresh(now) is None


async def test_stop_in_an_empty_journal_is_a_tombstone_that_refuses_the_late_prepare(tmp_path: Path) -> None:
    """P-02."""
    plan = make_plan(IMAGE, ("true",))
    async with open_journal(tmp_path, run_inline) as journal:
        first = await journal.accept(stop(plan), place(), GRANTS)
        late = await journal.accept(prepare(plan), place(), GRANTS)
        assert first is not None
        assert late is not None
        assert (first.answer.accepted, late.answer.accepted, late.answer.code) == (True, False, "stopped")


async def test_forgotten_member_leaves_no_row_behind(tmp_path: Path) -> None:
    """P-06."""
    plan = make_plan(IMAGE, ("true",))
    async with open_journal(tmp_path, run_inline) as journal:
        await journal.accept(stop(plan), place(), GRANTS)
        early = await journal.accept(forget(plan), place(), GRANTS)
        assert early is not None
        assert early.answer.code == "still-live"
        await journal.advance(plan.member, MemberEvent.FENCED, NOTHING_FOUND, place())
        again = await journal.accept(_renamed(forget(plan)), place(), GRANTS)
        assert again is not None
        assert again.answer.accepted
        await journal.advance(plan.member, MemberEvent.GONE, NOTHING_FOUND, place())
        assert journal.members() == ()
        counts = [journal._database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("member", "operation")]
        assert counts == [0, 0]


def _renamed(command):  # type: ignore[no-untyped-def]
    from attrs import evolve

    return evolve(command, operation=command.operation + "-2")


async def test_acknowledgement_is_kept_and_written_once(tmp_path: Path) -> None:
    """P-06."""
    plan = make_plan(IMAGE, ("true",))
    async with open_journal(tmp_path, run_inline) as journal:
        await journal.accept(stop(plan), place(), GRANTS)
        record, _ = await journal.advance(plan.member, MemberEvent.FENCED, Facts(), place())
        await journal.acknowledge(plan.member, record.revision * PROGRESS_TICKS)
        sequence = journal.sequence
        await journal.acknowledge(plan.member, record.revision * PROGRESS_TICKS)
        assert journal.sequence == sequence
    async with open_journal(tmp_path, run_inline) as journal:
        assert journal.members()[0].acknowledged == record.revision


async def test_journal_of_an_unknown_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    async with open_journal(tmp_path, run_inline):
        pass
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("UPDATE meta SET schema_version = 99")
    database.close()
    with pytest.raises(JournalUnusable, match="version 99"):
        async with open_journal(tmp_path, run_inline):
            pass


async def test_damaged_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 1000)
    with pytest.raises(JournalUnusable):
        async with open_journal(tmp_path, run_inline):
            pass
