"""Touching the storage root without risking the daemon: every access runs in a child process with a deadline (L-J1).

A dead network mount puts a process into uninterruptible sleep, from where even SIGKILL does not fetch it. So the child
is killed at the deadline and then left behind: nothing here waits for it again. How many are left behind is bounded:
while so many still hang, the root is known to be dead, and no further child is sent after them.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import trio
from attrs import frozen

from tuneplane.domain.errors import TuneplaneError
from tuneplane.domain.faultpoint import fault_point
from tuneplane.domain.log_archive import FOLDER

PROBE_SECONDS = 10.0  # a healthy mount answers in milliseconds, a busy one in seconds
MAKE_SECONDS = 30.0
REAP_SECONDS = 1.0  # for a killed child that can die; one that cannot is left behind
MAX_LEFT_BEHIND = 8  # a probe, an archive and some preparations at once; a mount that is dead for days gets no more of them
MAX_COMPLAINT_BYTES = 2000  # one line of an error message, not a flood
# Write, fsync and read back a file of our own: a mount that only answers stat() may still be dead (L-J2). Workloads write here
# too, and this runs on the machine itself: a link or a pipe that stands in our file's place is removed, never written through.
PROBE = (
    'set -e; d=$1; test -d "$d"; f="$d/.tuneplane-probe-$2"; rm -f "$f"; '
    'echo "$2" | dd of="$f" conv=excl,fsync oflag=nofollow status=none; '
    'test "$(dd if="$f" iflag=nofollow,nonblock status=none)" = "$2"; rm -f "$f"'
)

# Our own folder, then one folder after the other below the root. A workload may have put a link in the place of any of them:
# what the kernel says that we are in must be what was spelled, before anything is made there.
MAKE = (
    'set -e; CDPATH=; cd -- "$1"; mkdir -p -- "$2"; shift 2; at=$(pwd -P); for part; do mkdir -p -- "./$part"; cd -P -- "./$part"; '
    'at="${at%/}/$part"; test "$(pwd -P)" = "$at" || { echo "$at leads elsewhere" >&2; exit 1; }; done'
)


_left_behind: list[trio.Process] = []  # of this process: at most MAX_LEFT_BEHIND and those that run at once


class StorageTrouble(TuneplaneError):
    """The storage root did not do what was asked, or not in time."""

    code = "storage-unavailable"


@frozen
class StorageSight:
    """Whether the storage root is seen, and why not."""

    seen: bool
    problem: str = ""


async def probe_storage(root: str, mark: str) -> StorageSight:
    """Write, fsync, read and delete a small file in ``root``; ``mark`` names this Node's file."""
    try:
        await run_killable(["sh", "-c", PROBE, "sh", root, mark], PROBE_SECONDS, f"the storage root {root}")
    except StorageTrouble as error:
        return StorageSight(False, str(error))
    return StorageSight(True)


async def make_output_directory(root: str, directory: str) -> None:
    """Create ``directory`` below ``root``, through no link, and the folder of our own. Raises StorageTrouble."""
    path = Path(directory)
    if ".." in path.parts or not path.is_relative_to(root) or path == Path(root):
        raise StorageTrouble(f"output directory {directory} is not below the storage root {root}")
    with fault_point("node.storage.mkdir"):
        await run_killable(["sh", "-c", MAKE, "sh", root, FOLDER, *path.relative_to(root).parts], MAKE_SECONDS, f"making {directory}")


async def run_killable(command: list[str], seconds: float, what: str) -> None:
    """Run to a zero exit within ``seconds``; raise StorageTrouble saying ``what``. Cancelled: the child is killed."""
    _left_behind[:] = [child for child in _left_behind if child.poll() is None]
    if len(_left_behind) >= MAX_LEFT_BEHIND:
        raise StorageTrouble(f"{what}: {len(_left_behind)} earlier accesses to the storage root still hang")
    try:
        child = await trio.lowlevel.open_process(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, cwd="/"
        )
    except OSError as error:
        raise StorageTrouble(f"{what}: {error}") from error
    text = b""
    try:
        with trio.move_on_after(seconds):
            text = await _read_some(child)
            await child.wait()
    finally:
        if child.poll() is None:
            _kill(child)
            with trio.move_on_after(REAP_SECONDS, shield=True):
                await child.wait()
            if child.poll() is None:
                _left_behind.append(child)
        if child.stderr is not None:
            with trio.move_on_after(REAP_SECONDS, shield=True):
                await child.stderr.aclose()
    if child.returncode is None or child.returncode == -9:
        raise StorageTrouble(f"{what} did not answer within {seconds:g} s")
    if child.returncode != 0:
        raise StorageTrouble(f"{what} is not usable: {text.decode(errors='replace').strip() or f'exit {child.returncode}'}")


def _kill(child: trio.Process) -> None:
    """The child and what it has started: it leads a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


async def _read_some(child: trio.Process) -> bytes:
    """The beginning of its complaints, read to their end so that it never blocks on them."""
    assert child.stderr is not None
    text = b""
    async for piece in child.stderr:
        text = (text + piece)[:MAX_COMPLAINT_BYTES]
    return text
