"""The schema: applied once whoever asks how often, and refused when it is not ours."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.support.postgres import Postgres, database_name
from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.faultpoint import AnswerLost, install_fault_hook
from tuneplane.storage import SchemaMismatch, migrate, migrations, open_storage

ROOT = Path(__file__).parents[2]
COUNT = len(migrations.known())


async def ping(dsn: str) -> None:
    async with open_storage(dsn, size=1) as storage:
        await storage.ping()


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [migration.number for migration in migrations.known()] == list(range(1, COUNT + 1))


async def test_migrate_twice_applies_once(blank_database: str) -> None:
    async with open_bridge():
        assert await migrate(blank_database) == COUNT
        assert await migrate(blank_database) == 0
        await ping(blank_database)


async def test_migrate_by_eight_processes_at_once_applies_once(blank_database: str) -> None:
    """The advisory lock: one applies, the others find nothing to do."""
    applied: list[int] = []

    async def one() -> None:
        applied.append(await migrate(blank_database))

    async with open_bridge(), trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(one)
    assert sorted(applied) == [0] * 7 + [COUNT]


async def test_gateway_refuses_an_unmigrated_database(blank_database: str) -> None:
    """R-SES-09."""
    async with open_bridge():
        with pytest.raises(StorageUnavailable, match="run tuneplane migrate"):
            await ping(blank_database)


async def test_changed_text_of_an_applied_migration_refuses(database: str, postgres: Postgres) -> None:
    postgres.sql("UPDATE schema_migration SET digest = 'sha256:other' WHERE number = 2", database_name(database))
    async with open_bridge():
        with pytest.raises(SchemaMismatch, match="migration 2"):
            await migrate(database)
        with pytest.raises(StorageUnavailable, match="migration 2"):
            await ping(database)


async def test_newer_schema_than_ours_refuses(database: str, postgres: Postgres) -> None:
    postgres.sql("INSERT INTO schema_migration (number, name, digest) VALUES (9999, 'later', 'x')", database_name(database))
    async with open_bridge():
        with pytest.raises(SchemaMismatch, match="newer"):
            await migrate(database)
        with pytest.raises(StorageUnavailable, match="newer"):
            await ping(database)


async def test_missing_last_migration_is_applied_alone(blank_database: str, postgres: Postgres) -> None:
    async with open_bridge():
        await migrate(blank_database)
        last = migrations.known()[-1]
        postgres.sql(f"DELETE FROM schema_migration WHERE number = {last.number}", database_name(blank_database))
        with pytest.raises(StorageUnavailable, match="lacks 1"):
            await ping(blank_database)


async def test_failing_migration_leaves_the_database_as_it_was(
    blank_database: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = (*migrations.known(), migrations.Migration(COUNT + 1, "broken", "CREATE TABLE half (i int); SELECT * FROM nowhere"))
    monkeypatch.setattr(migrations, "known", lambda: broken)
    async with open_bridge():
        with pytest.raises(Exception, match="nowhere"):
            await migrate(blank_database)
    assert (
        postgres.sql("SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'", database_name(blank_database)) == "0"
    )


async def test_migrate_whose_answer_was_lost_is_unknown_and_then_done(blank_database: str) -> None:
    """P-09: committed, but raised."""

    def hook(name: str, moment: str) -> None:
        if (name, moment) == ("storage.migrate", "after"):
            raise AnswerLost("lost")

    async with open_bridge():
        install_fault_hook(hook)
        try:
            with pytest.raises(StorageUnavailable):
                await migrate(blank_database)
        finally:
            install_fault_hook(None)
        assert await migrate(blank_database) == 0


@pytest.mark.seconds(120)
def test_built_package_carries_the_migrations(tmp_path: Path) -> None:
    """An installed Tuneplane has no checkout beside it."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in ("tuneplane", "schemas"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    wheel = tmp_path / done.stdout.strip().splitlines()[-1]
    listed = subprocess.run([sys.executable, "-m", "zipfile", "-l", str(wheel)], capture_output=True, text=True, check=True).stdout
    for migration in migrations.known():
        assert f"tuneplane/storage/sql/{migration.number:04d}_{migration.name}.sql" in listed
