"""The embedded PostgreSQL: a server of our own as a supervised child process (R-OPS-03).

``EmbeddedPostgres.run`` is one long-lived task: it starts the server, says when it is ready, and restarts it with
back-off when it dies. A server left behind by a killed parent is stopped cleanly first, so that there is always one
owner; the owner holds a lock on the directory, so that a second process never touches a running cluster.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import trio
from attrs import define, field

from tuneplane.bridge.groups import unwrapped
from tuneplane.domain.faultpoint import fault_point

from .cluster import Cluster, EmbeddedFailed, dsn, open_cluster

log = logging.getLogger(__name__)

READY_POLL_SECONDS = 0.02  # the server announces readiness in a file only
READY_SECONDS = 300.0  # crash recovery of a large cluster; a server that died says so at once
FIRST_TRIES = 5  # of the first start: the memory of a killed server is freed a moment after it
PAUSE_FIRST_SECONDS = 0.1
PAUSE_MOST_SECONDS = 5.0
STEADY_SECONDS = 30.0  # a server that lived this long starts the back-off anew
FAST_STOP_SECONDS = 15.0  # SIGINT: disconnect everyone and write a checkpoint
IMMEDIATE_STOP_SECONDS = 5.0  # SIGQUIT: stop without a checkpoint; the next start recovers
LOG_BYTES = 4 << 20  # rotated once at a start: the server logs its own events only, a few lines a day


def _absolute(place: Path) -> Path:
    return place.resolve()


@define(eq=False)
class EmbeddedPostgres:
    """One cluster below ``directory``. ``dsn`` is valid before, during and after :meth:`run`."""

    directory: Path = field(converter=_absolute)
    settings: Mapping[str, str] = field(factory=dict, kw_only=True)
    sync: bool = field(default=True, kw_only=True)  # False: initdb need not survive a power cut (tests)
    process: trio.Process | None = field(default=None, init=False)
    starts: int = field(default=0, init=False)

    @property
    def dsn(self) -> str:
        return dsn(self.directory)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the server until cancelled, then stop it (bounded, shielded). ``started`` when it answers.

        Raises EmbeddedFailed when the cluster cannot be made ready or does not start at first.
        """
        with _locked(self.directory):
            cluster = await trio.to_thread.run_sync(lambda: open_cluster(self.directory, self.settings, sync=self.sync))
            await self._supervise(cluster, task_status)

    async def _supervise(self, cluster: Cluster, task_status: trio.TaskStatus[None]) -> None:
        pause, tries, announced = PAUSE_FIRST_SECONDS, 0, False
        while True:
            began = trio.current_time()
            await stop_orphan(cluster)
            async with _serving(self, cluster) as process:
                if await _ready(cluster, process):
                    self.starts += 1
                    if not announced:
                        task_status.started()
                        announced = True
                    await process.wait()
            tries += 1
            if not announced and tries >= FIRST_TRIES:
                raise EmbeddedFailed(f"PostgreSQL did not start in {cluster.data}: {_log_tail(cluster)}")
            pause = PAUSE_FIRST_SECONDS if trio.current_time() - began > STEADY_SECONDS else min(pause * 2, PAUSE_MOST_SECONDS)
            log.warning("embedded PostgreSQL ended with status %s; starting it again in %.1f s", process.returncode, pause)
            await trio.sleep(pause)


@asynccontextmanager
async def open_embedded(
    directory: Path, *, settings: Mapping[str, str] | None = None, sync: bool = True
) -> AsyncIterator[EmbeddedPostgres]:
    """The server for the length of a block, ready at its start and stopped at its end."""
    server = EmbeddedPostgres(directory, settings=settings or {}, sync=sync)
    with unwrapped():
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            yield server
            nursery.cancel_scope.cancel()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory for this process; the lock ends with the process, however it ends."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EmbeddedFailed(f"the data directory {directory} cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise EmbeddedFailed(f"another process (pid {holder}) runs the PostgreSQL in {directory}") from None
        os.truncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


@asynccontextmanager
async def _serving(server: EmbeddedPostgres, cluster: Cluster) -> AsyncIterator[trio.Process]:
    """The server process for the length of the block; at its end it is stopped, if it still runs."""
    process = await _start(cluster)
    server.process = process
    try:
        yield process
    finally:
        server.process = None
        with trio.CancelScope(shield=True):  # each step of the ladder has its own deadline
            await _stop(process.pid)
            with trio.move_on_after(IMMEDIATE_STOP_SECONDS):
                await process.wait()


async def _start(cluster: Cluster) -> trio.Process:
    _rotate(cluster.log)
    with suppress(FileNotFoundError):
        cluster.log.touch(mode=0o600)
    with cluster.log.open("ab") as output:
        try:
            with fault_point("storage.embedded_start"):
                return await trio.lowlevel.open_process(
                    cluster.command(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # a terminal's Ctrl-C is for us; we stop the server in our order
                    **cluster.identity(),
                )
        except OSError as error:
            raise EmbeddedFailed(f"{cluster.command()[0]} could not be run: {error}") from error


def _rotate(place: Path) -> None:
    with suppress(FileNotFoundError):
        if place.stat().st_size > LOG_BYTES:
            place.rename(place.with_name(place.name + ".1"))


async def _ready(cluster: Cluster, process: trio.Process) -> bool:
    """Wait until the server says so in its pid file; False when it ended instead, or took too long."""
    with trio.move_on_after(READY_SECONDS):
        while process.poll() is None:
            lines = _pid_file(cluster)
            if len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                return True
            await trio.sleep(READY_POLL_SECONDS)
    return False


def _pid_file(cluster: Cluster) -> list[str]:
    try:
        return (cluster.data / "postmaster.pid").read_text(errors="replace").splitlines()
    except OSError:
        return []


def _log_tail(cluster: Cluster) -> str:
    try:
        lines = cluster.log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return " / ".join(lines[-3:]) or "it said nothing"


# ---------------------------------------------------------------- stopping, orphans included


async def stop_orphan(cluster: Cluster) -> None:
    """Stop the server that a killed parent left behind, if there is one. Raises EmbeddedFailed when it will not go.

    A pid file that names a stranger is removed: PostgreSQL would refuse to start over it (in a container, where numbers
    come again, for ever). Our lock proves that no other owner made it, and the server itself still looks for backends.
    """
    pid = orphan_pid(cluster)
    if pid is None:
        (cluster.data / "postmaster.pid").unlink(missing_ok=True)
        return
    log.warning("stopping PostgreSQL %d, which a killed parent left behind in %s", pid, cluster.data)
    await _stop(pid)
    if orphan_pid(cluster) == pid:
        raise EmbeddedFailed(f"the PostgreSQL process {pid} in {cluster.data} does not stop")


def orphan_pid(cluster: Cluster) -> int | None:
    """The live postmaster of this very cluster. The pid file may be stale and its number used by a stranger."""
    lines = _pid_file(cluster)
    if not lines or not lines[0].strip().isdigit():
        return None
    pid = int(lines[0])
    try:
        if Path(os.readlink(f"/proc/{pid}/cwd")) == cluster.data and Path(f"/proc/{pid}/comm").read_text().strip() == "postgres":
            return pid
    except OSError:
        return None
    return None


async def _stop(pid: int) -> None:
    """Fast, then immediate, then kill; each step waits for the process to end, and no longer than its deadline."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        for number, seconds in ((signal.SIGINT, FAST_STOP_SECONDS), (signal.SIGQUIT, IMMEDIATE_STOP_SECONDS), (signal.SIGKILL, 1.0)):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
            with trio.move_on_after(seconds):
                await trio.lowlevel.wait_readable(handle)
                return
    finally:
        os.close(handle)
