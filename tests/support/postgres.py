"""A real PostgreSQL for tests: one embedded server a session, a fresh database a test, nothing left behind.

Fixtures (tests/conftest.py makes them known): ``postgres`` is the session's server, ``database`` the dsn of a fresh
migrated database, ``blank_database`` that of an empty one. A test that kills the server opens its own: ``open_postgres``.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from attrs import define, field

from tuneplane.bridge.loop import open_bridge
from tuneplane.storage import migrate
from tuneplane.storage.cluster import Cluster, dsn, open_cluster

from .process import wait_for

READY_SECONDS = 30.0  # measured 0.2 s; two busy cores may take longer
# A killed server loses nothing by it: what was written is in the kernel. (synchronous_commit stays on: without it the
# last commits are only in the server's own memory, and a killed one comes back to before them.)
FAST = {"fsync": "off", "full_page_writes": "off"}
HELD_SECONDS = 60.0  # locks that a test holds end by themselves, whatever becomes of the test
TEMPLATE = "migrated"
ROOM = 2 << 30  # bytes free in memory before it is used: a server and its databases take a few hundred megabytes


@define(eq=False)
class Postgres:
    """A running server. ``kill`` is SIGKILL of the postmaster, ``start`` brings it up again on the same files."""

    cluster: Cluster
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _numbers: Iterator[int] = field(factory=lambda: itertools.count(1), init=False)

    @property
    def dsn(self) -> str:
        return dsn(self.cluster.directory)

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it answers; a server just killed may need several tries to free its memory."""
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            with self.cluster.log.open("ab") as output:
                self._process = subprocess.Popen(
                    self.cluster.command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, **self.cluster.identity()
                )
            while self._process.poll() is None and time.monotonic() < until:
                if self._answers():
                    return
                time.sleep(0.01)
        raise AssertionError(f"PostgreSQL does not start: {self.cluster.log.read_text()[-2000:]}")

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End it and wait; by default quickly and cleanly."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(READY_SECONDS)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def sql(self, text: str, database: str = "postgres") -> str:
        """Run ``text`` with psql; the rows, unaligned."""
        command = [str(self.cluster.binaries / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text, dsn(self.cluster.directory, database)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @contextmanager
    def held(self, text: str, database: str) -> Iterator[None]:
        """Run ``text`` in a transaction of its own that lasts as long as the block: its locks are held."""
        mark = f"SELECT pg_sleep({HELD_SECONDS + next(self._numbers) / 1000})"  # no other one sleeps that long
        address = dsn(self.cluster.directory, database)
        command = [str(self.cluster.binaries / "psql"), "-XAtq", "-c", "BEGIN", "-c", text, "-c", mark, address]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as holder:
            asleep = f"FROM pg_stat_activity WHERE query = '{mark}' AND state = 'active'"
            wait_for("the locks to be held", lambda: (self.sql(f"SELECT 1 {asleep}") or None, holder.poll()), HELD_SECONDS)
            try:
                yield
            finally:
                self.sql(f"SELECT pg_terminate_backend(pid) {asleep}")

    @contextmanager
    def fresh_database(self, template: str = "template0") -> Iterator[str]:
        """The dsn of a new database, dropped at the end whoever is still connected."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            yield dsn(self.cluster.directory, name)
        finally:
            if self._process is not None:
                self.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def make_template(self) -> None:
        """Create the migrated database that others are copied from. Not inside a running Trio."""
        self.sql(f"CREATE DATABASE {TEMPLATE}")

        async def apply() -> None:
            async with open_bridge():
                await migrate(dsn(self.cluster.directory, TEMPLATE))

        trio.run(apply)

    def _answers(self) -> bool:
        lines = (self.cluster.data / "postmaster.pid").read_text().splitlines() if (self.cluster.data / "postmaster.pid").exists() else []
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"


def _fastest() -> str | None:
    """Memory, where there is room: a database is copied there in 15 ms, on a busy disk in 500."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM
    return str(memory) if roomy else None


@contextmanager
def private_directory(prefix: str, parent: str | None = None) -> Iterator[Path]:
    """A new directory that every account may enter (root's server runs as another one), removed at the end."""
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place)


def database_name(dsn: str) -> str:
    return dsn.split("?")[0].rsplit("/", 1)[1]


@contextmanager
def open_postgres(settings: Mapping[str, str] | None = None) -> Iterator[Postgres]:
    """A server of one's own below the temporary directory, removed at the end with its files."""
    with private_directory("tp-pg-", _fastest()) as place:
        (place / "pg").mkdir(mode=0o700)
        server = Postgres(open_cluster(place / "pg", {**FAST, **(settings or {})}, sync=False))
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The session's server. Do not stop it: use ``open_postgres`` for that."""
    with open_postgres() as server:
        server.make_template()
        yield server


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The dsn of a fresh, migrated database."""
    with postgres.fresh_database(TEMPLATE) as name:
        yield name


@pytest.fixture
def blank_database(postgres: Postgres) -> Iterator[str]:
    """The dsn of a fresh, empty database."""
    with postgres.fresh_database() as name:
        yield name
