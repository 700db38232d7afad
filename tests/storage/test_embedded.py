"""The embedded server as a supervised process (R-OPS-03): started, killed, orphaned, owned once, refused in one sentence."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from tests.support.postgres import FAST, private_directory
from tests.support.waiting import eventually
from tuneplane.bridge.loop import open_bridge
from tuneplane.bridge.postgres import Pool, PostgresUnavailable, open_pool
from tuneplane.storage import cluster
from tuneplane.storage.cluster import EmbeddedFailed
from tuneplane.storage.embedded import EmbeddedPostgres, open_embedded

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root must give the server to another account")


@pytest.fixture
def place() -> Iterator[Path]:
    with private_directory("tp-emb-") as directory:
        yield directory


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def owner(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def a_stranger(uid: int) -> subprocess.Popen[bytes]:
    """A process of ``uid``: PostgreSQL takes one of its own account for a postmaster, whatever it is."""
    return subprocess.Popen(["sleep", "60"], **({"user": uid} if os.geteuid() == 0 else {}))


async def answers(pool: Pool) -> bool:
    try:
        return bool(await pool.fetchval("SELECT 1") == 1)
    except PostgresUnavailable:
        return False


async def test_embedded_server_serves_without_a_port_and_stops_with_its_block(place: Path) -> None:
    """R-OPS-03: port 5432 may be taken; the socket is private."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # taken by somebody else: as good
            taken.bind(("127.0.0.1", 5432))
        taken.listen()
        async with open_embedded(place / "pg", settings=FAST, sync=False) as server, open_bridge():
            async with open_pool(server.dsn, size=1) as pool:
                assert await pool.fetchval("SHOW listen_addresses") == ""
                assert await pool.fetchval("SHOW server_encoding") == "UTF8"
                assert await pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'") == 1
            assert server.process is not None
            pid = server.process.pid
            assert cluster.socket_directory(place / "pg").stat().st_mode & 0o077 == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not (place / "pg" / "pgdata" / "postmaster.pid").exists()


@pytest.mark.seconds(60)
async def test_killed_server_is_started_again_and_keeps_what_was_committed(place: Path) -> None:
    async with open_embedded(place / "pg", settings=FAST, sync=False) as server, open_bridge(), open_pool(server.dsn, size=2) as pool:
        await pool.execute("CREATE TABLE t AS SELECT 7 AS i")
        for round_ in range(2, 4):
            assert server.process is not None
            os.kill(server.process.pid, signal.SIGKILL)
            await eventually(lambda wanted=round_: server.starts >= wanted, "another start")
            await eventually(lambda: answers(pool), "an answer")
        assert await pool.fetchval("SELECT i FROM t") == 7


PARENT = """
import sys, trio
from pathlib import Path
from tuneplane.storage.embedded import open_embedded
async def main():
    async with open_embedded(Path(sys.argv[1]), sync=False) as server:
        print(server.process.pid, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


def start_parent(directory: Path) -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(directory)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@pytest.mark.seconds(60)
async def test_orphan_of_a_killed_parent_is_stopped_before_a_new_start(place: Path) -> None:
    """SIGKILL of the control plane leaves a server behind; the next one owns the directory alone, and loses nothing."""
    parent, orphan = await trio.to_thread.run_sync(start_parent, place / "pg")
    with parent:
        dsn = cluster.dsn(place / "pg")
        async with open_bridge(), open_pool(dsn, size=1) as pool:
            await pool.execute("CREATE TABLE t AS SELECT 7 AS i")
        parent.kill()
        parent.wait()
        assert alive(orphan)
        async with open_embedded(place / "pg", sync=False) as server, open_bridge(), open_pool(server.dsn, size=1) as pool:
            assert server.process is not None
            assert server.process.pid != orphan
            assert await pool.fetchval("SELECT i FROM t") == 7
            await eventually(lambda: not alive(orphan), "the orphan's end")


@pytest.mark.seconds(60)
async def test_second_process_on_a_running_cluster_is_refused_and_harms_nothing(place: Path) -> None:
    parent, pid = await trio.to_thread.run_sync(start_parent, place / "pg")
    with parent:
        try:
            with pytest.raises(EmbeddedFailed, match=f"pid {parent.pid}"):
                async with open_embedded(place / "pg"):
                    pass
            assert alive(pid)
        finally:
            parent.terminate()
            parent.wait()
            os.kill(pid, signal.SIGINT)
    await eventually(lambda: not alive(pid), "the server's end")


async def test_stale_pid_file_naming_a_stranger_kills_nobody(place: Path) -> None:
    """The number of a dead server may belong to anyone now."""
    async with open_embedded(place / "pg", settings=FAST, sync=False):
        pass
    stranger = a_stranger((place / "pg" / "pgdata").stat().st_uid)
    try:
        file = place / "pg" / "pgdata" / "postmaster.pid"
        file.write_text(f"{stranger.pid}\n{file.parent}\n1\n5432\n\n\n\nready\n")
        if os.geteuid() == 0:
            os.chown(file, file.parent.stat().st_uid, -1)
        async with open_embedded(place / "pg", settings=FAST, sync=False) as server:
            assert server.process is not None
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_long_directory_gets_its_socket_elsewhere_in_private(place: Path) -> None:
    """A socket's path ends at 107 bytes."""
    deep = place / ("d" * 100)
    async with open_embedded(deep, settings=FAST, sync=False) as server, open_bridge(), open_pool(server.dsn, size=1) as pool:
        assert await answers(pool)
        directory = cluster.socket_directory(deep)
        assert place not in directory.parents
        assert directory.stat().st_mode & 0o077 == 0
    directory.rmdir()


async def test_socket_directory_made_by_a_stranger_is_refused(place: Path) -> None:
    deep = place / ("d" * 100)
    directory = cluster.socket_directory(deep)
    directory.mkdir(mode=0o755)
    try:
        with pytest.raises(EmbeddedFailed, match="not a private directory of ours"):
            async with open_embedded(deep, settings=FAST, sync=False):
                pass
    finally:
        directory.rmdir()


async def test_cluster_of_another_major_version_is_refused(place: Path) -> None:
    async with open_embedded(place / "pg", settings=FAST, sync=False):
        pass
    (place / "pg" / "pgdata" / "PG_VERSION").write_text("16\n")
    with pytest.raises(EmbeddedFailed, match="written by PostgreSQL 16"):
        async with open_embedded(place / "pg", settings=FAST, sync=False):
            pass


@pytest.mark.seconds(60)
async def test_server_that_cannot_start_says_what_it_said(place: Path) -> None:
    with pytest.raises(EmbeddedFailed, match="shared_buffers"):
        async with open_embedded(place / "pg", settings={"shared_buffers": "nonsense"}, sync=False):
            pass


async def test_half_made_cluster_of_a_crash_is_made_again(place: Path) -> None:
    """initdb goes beside the final place; a kill before the rename leaves nothing that counts."""
    (place / "pg" / "pgdata.new" / "base").mkdir(parents=True)
    (place / "pg").chmod(0o700)
    async with open_embedded(place / "pg", settings=FAST, sync=False) as server:
        assert server.process is not None


async def test_server_inherits_none_of_our_secrets(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-CRD-05: they would be in its process list entry for all to read."""
    monkeypatch.setenv("TUNEPLANE_SECRET_ENC_KEY", "do-not-leak")
    async with open_embedded(place / "pg", settings=FAST, sync=False) as server:
        assert server.process is not None
        assert b"do-not-leak" not in environment(server.process.pid)


async def test_run_cancelled_before_it_is_ready_leaves_no_process(place: Path) -> None:
    server = EmbeddedPostgres(place / "pg", settings=FAST, sync=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        await eventually(lambda: server.process is not None, "a process")
        assert server.process is not None
        pid = server.process.pid
        nursery.cancel_scope.cancel()
    assert not alive(pid)


# ---------------------------------------------------------------- as root


@AS_ROOT
async def test_as_root_the_server_runs_as_another_account(place: Path) -> None:
    async with open_embedded(place / "pg", settings=FAST, sync=False) as server:
        assert server.process is not None
        uid = owner(server.process.pid)
        assert uid != 0
        assert pwd.getpwuid(uid).pw_name in {*cluster.ACCOUNTS, "nobody"}


@AS_ROOT
async def test_as_root_below_a_closed_directory_is_refused_in_one_sentence(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedFailed) as caught:
        async with open_embedded(closed / "pg", settings=FAST, sync=False):
            pass
    assert f"may not enter {closed}: " in str(caught.value)
    assert f"chmod o+x {closed}" in str(caught.value)
    assert not (closed / "pg" / "pgdata").exists()


@AS_ROOT
async def test_as_root_a_directory_with_other_things_in_it_is_not_given_away(place: Path) -> None:
    directory = place / "pg"
    directory.mkdir(mode=0o700)
    (directory / "thesis.tex").write_text("")
    with pytest.raises(EmbeddedFailed, match=f"may not enter {directory}"):
        async with open_embedded(directory, settings=FAST, sync=False):
            pass
    assert directory.stat().st_uid == 0


@AS_ROOT
@pytest.mark.seconds(60)
async def test_as_root_with_binaries_out_of_reach_they_are_copied_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout in root's home: the account cannot reach the package's binaries."""
    monkeypatch.setattr(cluster, "_usable", _only_in(place, cluster._usable))
    for _ in range(2):
        async with open_embedded(place / "pg", settings=FAST, sync=False) as server, open_bridge(), open_pool(server.dsn, size=1) as pool:
            assert await answers(pool)
            assert server.process is not None
            assert Path(os.readlink(f"/proc/{server.process.pid}/exe")).is_relative_to(place / "pg" / "binaries")
            copied = (place / "pg" / "binaries").stat().st_ino
    assert (place / "pg" / "binaries").stat().st_ino == copied


def _only_in(place: Path, real: object) -> object:
    return lambda install, account: install.is_relative_to(place) and real(install, account)


def test_initdb_that_fails_is_told_with_its_cause_not_its_clean_up() -> None:
    """A full disk is named: the last line only says that initdb swept up behind itself."""
    full = "running ... 2026-11-30 UTC [1] FATAL:  could not extend file: No space left on device\nHINT: x\ninitdb: removing data directory"
    assert cluster._cause(full) == "could not extend file: No space left on device"
    assert cluster._cause("initdb: error: could not access directory\ninitdb: removing contents") == "could not access directory"
    assert cluster._cause("\n") == "it said nothing"
