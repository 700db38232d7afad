"""Podman's own log file of a container (k8s-file), read directly where this daemon may read it.

Why not through its API: when a container ends, Podman 4.3.1 stops the reader of a followed log and from then on drops, at
random, lines that its client has not taken yet. What arrives then has holes in it, which nothing in the stream tells.
It also sends a line at a time, some ten times slower than a job may write. The file has every byte, and is read in bulk.

A line of it is ``TIME stdout|stderr F|P TEXT``; F says that the container wrote a newline behind it, P that it did not.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import BinaryIO

import trio
from attrs import define, field

from tuneplane.domain.node_ports import EngineUnclear, LogRotated

READ_BYTES = 256 * 1024
# Of the file, for one container: taking the lines of a flood apart must leave the daemon time for stops (L-E5, P-22). What
# the engine rotates away meanwhile is marked. The file of a container that has ended, a gigabyte at most, takes a minute.
BYTES_PER_SECOND = 20 << 20
BURST_SECONDS = 1.0  # what a quiet container may write at once, in seconds of that rate
HEAD_BYTES = 40  # of a line: time, stream and flag
LINE_BYTES = 1 << 20  # conmon cuts at 8 KiB; a longer line is not its file
LOOK_FIRST_SECONDS = 0.05  # how soon a person sees a line
LOOK_MOST_SECONDS = 0.4  # the same for a job that has been quiet: a thousand quiet jobs must cost next to nothing


@define
class Unwrap:
    """Takes time, stream and flag off each line; holds at most one incomplete line."""

    _rest: bytes = b""

    def feed(self, data: bytes) -> bytes:
        """What the container wrote, as far as whole lines of ``data`` tell. EngineUnclear for another format."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            raise EngineUnclear("the container's log file has a line without an end")
        return b"".join(map(_text, lines))


def _text(line: bytes) -> bytes:
    head = line.split(b" ", 3)
    if len(head) != 4 or head[2] not in (b"F", b"P"):
        raise EngineUnclear(f"the container's log file has a line of another format: {line[:80]!r}")
    return head[3] + b"\n" if head[2] == b"F" else head[3]


@define(eq=False)
class LogFile:
    """What the container writes, in pieces: an async iterator. Following, it ends only by cancellation.

    LogRotated when the file is replaced by a new one (conmon does, at its size limit), or emptied and written anew under
    the same name (copy-truncate). A file that was replaced is first read to its end. Not to be used by two tasks.
    """

    path: Path
    follow: bool
    _file: BinaryIO
    _unwrap: Unwrap = field(factory=Unwrap)
    _wait: float = LOOK_FIRST_SECONDS
    _due: float = -math.inf  # on the Trio clock: when the bytes so far may have been read
    _head: bytes = b""  # its first bytes, which begin with a time to the nanosecond: another file has others

    def close(self) -> None:
        self._file.close()

    def __aiter__(self) -> LogFile:
        return self

    async def __anext__(self) -> bytes:
        while True:
            data = await trio.to_thread.run_sync(self._read)
            if data:
                self._wait = LOOK_FIRST_SECONDS
                await self._pace(len(data))
                if text := self._unwrap.feed(data):
                    return text
            elif not self.follow:
                raise StopAsyncIteration
            else:
                self._check_same()
                await trio.sleep(self._wait)
                self._wait = min(self._wait * 2, LOOK_MOST_SECONDS)

    def _read(self) -> bytes:
        """The next bytes. A file that was emptied may have grown beyond where we were by now: its head tells."""
        data = self._file.read(READ_BYTES)
        if data:
            head = os.pread(self._file.fileno(), HEAD_BYTES, 0)
            if not head.startswith(self._head):
                raise LogRotated(f"{self.path} was emptied and written anew")
            self._head = head
        return data

    async def _pace(self, size: int) -> None:
        """Fall behind a writer that is faster than BYTES_PER_SECOND; its file is bounded by the engine."""
        self._due = max(self._due, trio.current_time() - BURST_SECONDS) + size / BYTES_PER_SECOND
        await trio.sleep_until(self._due)

    def _check_same(self) -> None:
        ours = os.fstat(self._file.fileno())
        try:
            theirs = self.path.stat()
        except OSError:
            return  # removed with its container: nothing more will come, and our copy is still open
        if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino) or theirs.st_size < self._file.tell():
            raise LogRotated(f"{self.path} was replaced")


def open_log_file(path: Path, *, follow: bool) -> LogFile | None:
    """None where it is not there or not for us to read; then the engine has to be asked."""
    try:
        return LogFile(path, follow, path.open("rb", buffering=0))
    except OSError:
        return None
