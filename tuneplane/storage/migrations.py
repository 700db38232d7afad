"""The schema by number: applied under an advisory lock, recorded with a digest, never changed afterwards.

A recorded migration whose text has changed, or one that this version does not know, refuses: the database belongs to
another version of Tuneplane.
"""

from __future__ import annotations

import re
from functools import cache, partial
from importlib import resources

from attrs import frozen

from tuneplane.bridge.postgres import Connection, PostgresUnavailable, StatementFailed, open_pool
from tuneplane.domain import codec
from tuneplane.domain.errors import StorageUnavailable, TuneplaneError
from tuneplane.domain.faultpoint import fault_point

from .database import Database

NAME = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")
LOCK = 0x7475_6E65_0001  # "tune", 1: the schema. Advisory locks share one space of numbers a database
MIGRATE_SECONDS = 300.0  # another process may hold the lock for as long as its migrations take
UNDEFINED_TABLE = "42P01"


class SchemaMismatch(TuneplaneError):
    """The database's schema is not one that this version may touch."""

    code = "schema-mismatch"


class SchemaUnusable(StorageUnavailable):
    """PostgreSQL answers, and waiting will not help: somebody has to migrate, or to run the right version."""

    code = "schema-mismatch"


@frozen
class Migration:
    number: int
    name: str
    sql: str

    @property
    def digest(self) -> str:
        return codec.digest(self.sql.encode())


@cache
def known() -> tuple[Migration, ...]:
    """All migrations of this version in order: numbers run from 1 without a gap."""
    found = []
    for entry in resources.files(__package__).joinpath("sql").iterdir():
        match = NAME.match(entry.name)
        if match is not None:
            found.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise SchemaMismatch(f"the installation's migrations have gaps: {[migration.number for migration in found]}")
    return tuple(found)


def compare(recorded: dict[int, str]) -> tuple[Migration, ...]:
    """The migrations still to be applied on a database that has ``recorded`` (number to digest). Raises SchemaMismatch."""
    ours = {migration.number: migration for migration in known()}
    for number, digest in sorted(recorded.items()):
        if number not in ours:
            raise SchemaMismatch(f"the database has schema {number}, newer than this version of Tuneplane knows ({len(ours)}): upgrade it")
        if ours[number].digest != digest:
            raise SchemaMismatch(f"migration {number} ({ours[number].name}) was applied with another text than this version has")
    return tuple(migration for migration in known() if migration.number not in recorded)


async def migrate(dsn: str) -> int:
    """Bring the database to this version's schema; how many migrations were applied. Needs an open bridge.

    All of it is one transaction. Several processes may call it at once: one applies, the others find nothing to do.
    Raises SchemaMismatch or StorageUnavailable.
    """
    async with open_pool(dsn, size=1, command_seconds=MIGRATE_SECONDS) as pool:
        try:
            return await pool.run_bracketed(partial(fault_point, "storage.migrate"), _apply, known())
        except PostgresUnavailable as error:
            raise StorageUnavailable(str(error)) from error


async def _apply(connection: Connection, migrations: tuple[Migration, ...]) -> int:
    await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_migration ("
        " number integer PRIMARY KEY, name text NOT NULL, digest text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
    )
    rows = await connection.fetch("SELECT number, digest FROM schema_migration")
    missing = compare({row["number"]: row["digest"] for row in rows})
    for migration in missing:
        await connection.execute(migration.sql)
        sql = "INSERT INTO schema_migration (number, name, digest) VALUES ($1, $2, $3)"
        await connection.execute(sql, migration.number, migration.name, migration.digest)
    return len(missing)


async def check(database: Database) -> None:
    """Raise StorageUnavailable unless PostgreSQL answers, SchemaUnusable unless it has exactly this schema (R-SES-09)."""
    try:
        rows = await database.fetch("SELECT number, digest FROM schema_migration")
        missing = compare({row["number"]: row["digest"] for row in rows})
    except StatementFailed as error:
        if error.sqlstate != UNDEFINED_TABLE:
            raise
        missing = known()
    except SchemaMismatch as error:
        raise SchemaUnusable(str(error)) from error
    if missing:
        raise SchemaUnusable(f"the database lacks {len(missing)} migrations: run tuneplane migrate")
