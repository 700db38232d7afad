"""Podman's own log file of a container (k8s-file), read directly where this daemon may read it.

Why not through its API: when a container ends, Podman 4.3.1 stops the reader of a followed log and from then on drops, at
random, lines that its client has not taken yet. What arrives then has holes in it, which nothing in the stream tells.
It also sends a line at a time, some ten times slower than a job may write. The file has every byte, and is read in bulk.

A line of it is ``TIME stdout|stderr F|P TEXT``; F says that the container wrote a newline behind it, P that it did not.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import trio
from attrs import define, field

from tuneplane.domain.node_ports import EngineUnclear

READ_BYTES = 256 * 1024
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

    EngineUnclear when the file is replaced by a new one (conmon does, at its size limit). Not to be used by two tasks.
    """

    path: Path
    follow: bool
    _file: BinaryIO
    _unwrap: Unwrap = field(factory=Unwrap)
    _wait: float = LOOK_FIRST_SECONDS

    def close(self) -> None:
        self._file.close()

    def __aiter__(self) -> LogFile:
        return self

    async def __anext__(self) -> bytes:
        while True:
            data = await trio.to_thread.run_sync(self._file.read, READ_BYTES)
            if data:
                self._wait = LOOK_FIRST_SECONDS
                if text := self._unwrap.feed(data):
                    return text
            elif not self.follow:
                raise StopAsyncIteration
            else:
                self._check_same()
                await trio.sleep(self._wait)
                self._wait = min(self._wait * 2, LOOK_MOST_SECONDS)

    def _check_same(self) -> None:
        ours = os.fstat(self._file.fileno())
        try:
            theirs = self.path.stat()
        except OSError:
            return  # removed with its container: nothing more will come, and our copy is still open
        if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino) or theirs.st_size < self._file.tell():
            raise EngineUnclear(f"{self.path} was replaced")


def open_log_file(path: Path, *, follow: bool) -> LogFile | None:
    """None where it is not there or not for us to read; then the engine has to be asked."""
    try:
        return LogFile(path, follow, path.open("rb", buffering=0))
    except OSError:
        return None
