"""The simulated disk can find what it is for: a commit or a file that was believed and not fsynced."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from trio.testing import MockClock

from tuneplane.nodeside.files import sync_directory, write_durably
from tuneplane.nodeside.journal import Journal, open_journal
from tuneplane.nodeside.runner import run_inline

from .disk import SimDisk, watched_fsync
from .fate import Fate

START = datetime(2026, 1, 1, tzinfo=UTC)
POWER_CUTS = 12  # of each kind: chance decides what of the rest survives
POINT = "node.plan.write"


async def _epochs_after_power_cut(root: Path, seed: int, pragma: str) -> tuple[int, int]:
    """The session epoch that was committed last, and the one that is there after the power cut."""
    disk = SimDisk("node-0", Fate(seed), root)
    async with open_journal(disk.state_dir, run_inline) as journal:
        journal._database.execute(f"PRAGMA synchronous = {pragma}")
        disk.journal_opened(_synchronous(journal))
        for epoch in range(1, 6):
            await journal.open_session(epoch, START)
            disk.journal_committed()
        disk.survive_power_cut()
    async with open_journal(disk.state_dir, run_inline) as after:
        return 5, after.session_epoch


def _synchronous(journal: Journal) -> int:
    return int(journal._database.execute("PRAGMA synchronous").fetchone()[0])


@pytest.mark.parametrize("seed", range(POWER_CUTS))
async def test_commit_with_full_synchronous_survives_every_power_cut(tmp_path: Path, autojump_clock: MockClock, seed: int) -> None:
    committed, found = await _epochs_after_power_cut(tmp_path, seed, "FULL")
    assert found == committed


@pytest.mark.parametrize("pragma", ["NORMAL", "OFF"])
async def test_commit_with_less_may_be_lost_and_the_journal_is_whole(tmp_path: Path, autojump_clock: MockClock, pragma: str) -> None:
    found = set()
    for seed in range(POWER_CUTS):
        (tmp_path / str(seed)).mkdir()
        found.add((await _epochs_after_power_cut(tmp_path / str(seed), seed, pragma))[1])
    assert min(found) < 5


async def test_production_journal_asks_for_full(tmp_path: Path, autojump_clock: MockClock) -> None:
    disk = SimDisk("node-0", Fate(0), tmp_path)
    async with open_journal(disk.state_dir, run_inline) as journal:
        disk.journal_opened(_synchronous(journal))
    assert disk.full_sync


async def test_file_written_durably_survives_and_a_careless_one_need_not(tmp_path: Path, autojump_clock: MockClock) -> None:
    careless = set()
    for seed in range(POWER_CUTS):
        (tmp_path / str(seed)).mkdir()
        disk = SimDisk("node-0", Fate(seed), tmp_path / str(seed))
        with watched_fsync([disk]):
            sync_directory(disk.state_dir.parent)
            write_durably(disk.state_dir / "kept", b"all of it", point=POINT)
            (disk.state_dir / "careless").write_bytes(b"all of it")
        disk.survive_power_cut()
        assert (disk.state_dir / "kept").read_bytes() == b"all of it"
        path = disk.state_dir / "careless"
        careless.add(path.read_bytes() if path.exists() else None)
    assert careless > {None, b"all of it"}


async def test_name_that_was_not_made_durable_may_be_gone(tmp_path: Path, autojump_clock: MockClock) -> None:
    """``write_durably`` fsyncs the directory: without that the new name is lost with the power."""
    left = set()
    for seed in range(POWER_CUTS):
        (tmp_path / str(seed)).mkdir()
        disk = SimDisk("node-0", Fate(seed), tmp_path / str(seed))
        with watched_fsync([disk]), (disk.state_dir / "named").open("wb") as file:
            file.write(b"all of it")
            file.flush()
            os.fsync(file.fileno())
        disk.survive_power_cut()
        left.add((disk.state_dir / "named").exists())
    assert left == {True, False}
