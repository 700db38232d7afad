"""The disk of a simulated machine: real files in memory, and what of them a power cut leaves.

A killed process loses nothing that it wrote; a machine that loses its power keeps what was fsynced, and of the rest what
chance decides. Two things are watched for that: ``os.fsync``, through which ``nodeside/files.py`` makes files and directory
entries durable, and the journal's ``PRAGMA synchronous``: only with FULL (or EXTRA) is the write-ahead log on the disk when
a COMMIT returns. Of what follows the last fsynced frame any part survives, whole or torn. With less than FULL a commit is
durable once a checkpoint has taken it over, which is all that SQLite promises then.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import define, field

from tuneplane.nodeside.journal import FILE_NAME

from .fate import Fate

FULL = 2  # PRAGMA synchronous
WAL = FILE_NAME + "-wal"
WAL_HEADER_BYTES = 32


@define(eq=False)
class SimDisk:
    """One state directory after the other: a killed daemon goes on with the one that it had, which nobody reads any more."""

    node: str
    fate: Fate
    root: Path
    number: int = 0
    full_sync: bool = False  # of the open journal
    _wal_header: bytes = b""
    _wal_synced: int = 0  # bytes of the log with that header
    _files: dict[int, tuple[int, int]] = field(factory=dict)  # inode -> size and time of change when it was last fsynced
    _entries: dict[int, frozenset[str]] = field(factory=dict)  # inode of a directory -> names when it was last fsynced

    def __attrs_post_init__(self) -> None:
        self.replace()

    @property
    def state_dir(self) -> Path:
        return self.root / f"{self.node}-{self.number}"

    def replace(self) -> None:
        """A new, empty disk."""
        self.number += 1
        self.state_dir.mkdir(mode=0o700, parents=True)

    # ------------------------------------------------ what is durable

    def journal_opened(self, synchronous: int) -> None:
        self.full_sync = synchronous >= FULL
        self.journal_committed()

    def journal_committed(self) -> None:
        """SQLite has returned from a COMMIT."""
        if self.full_sync:
            self._wal_header, self._wal_synced = self._wal_now()

    def synced(self, descriptor: int, path: Path) -> None:
        """``os.fsync`` was called."""
        state = os.fstat(descriptor)
        if path.is_dir():
            self._entries[state.st_ino] = frozenset(os.listdir(path))
        else:
            self._files[state.st_ino] = (state.st_size, state.st_mtime_ns)

    def _wal_now(self) -> tuple[bytes, int]:
        try:
            descriptor = os.open(f"{self.root}/{self.node}-{self.number}/{WAL}", os.O_RDONLY)
        except FileNotFoundError:
            return b"", 0
        try:
            return os.read(descriptor, WAL_HEADER_BYTES), os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    # ------------------------------------------------ deaths

    def survive_kill(self) -> None:
        """What a killed process leaves is what was written at this instant."""
        self._go_on_with_copy()

    def survive_power_cut(self) -> None:
        header, size = self._wal_now()
        durable = self._wal_synced if header == self._wal_header else 0
        lost = self._unsynced()
        self._go_on_with_copy()
        if header:
            self._tear(self.state_dir / WAL, durable, size)
        for path in lost:
            self._lose(self.state_dir / path)
        self._wal_header, self._wal_synced = self._wal_now()

    def keep_image(self) -> Path:
        """An image of the whole disk, as a snapshot of a virtual machine is."""
        image = self.root / f"{self.node}-image-{self.number}"
        shutil.rmtree(image, ignore_errors=True)
        shutil.copytree(self.state_dir, image, ignore=shutil.ignore_patterns("*-shm"))
        return image

    def restore_image(self, image: Path) -> None:
        self.number += 1
        shutil.copytree(image, self.state_dir)
        self._all_durable()

    def _go_on_with_copy(self) -> None:
        former, self.number = self.state_dir, self.number + 1
        shutil.copytree(former, self.state_dir, ignore=shutil.ignore_patterns("*-shm"))
        self._all_durable()

    def _all_durable(self) -> None:
        """By the time of the next power cut the kernel has written back what this life found."""
        self._files.clear()
        self._entries.clear()
        for directory, names, files in os.walk(self.state_dir):
            self._entries[os.stat(directory).st_ino] = frozenset((*names, *files))
            for name in files:
                state = os.stat(os.path.join(directory, name))
                self._files[state.st_ino] = (state.st_size, state.st_mtime_ns)
        self._wal_header, self._wal_synced = self._wal_now()

    def _unsynced(self) -> list[Path]:
        """Files whose content or whose name is not known to be on the disk. SQLite looks after its own."""
        found = []
        for directory, _, files in os.walk(self.state_dir):
            entries = self._entries.get(os.stat(directory).st_ino, frozenset())
            for name in files:
                state = os.stat(os.path.join(directory, name))
                durable = name in entries and self._files.get(state.st_ino) == (state.st_size, state.st_mtime_ns)
                if not durable and not name.startswith(FILE_NAME):
                    found.append((Path(directory) / name).relative_to(self.state_dir))
        return sorted(found)

    def _tear(self, log: Path, durable: int, size: int) -> None:
        """Of the frames after the durable ones a part reached the disk, and the last of them perhaps not whole."""
        luck = self.fate.random
        kept = luck.choice((durable, luck.randint(durable, size), size))
        with log.open("r+b") as file:
            file.truncate(kept)
            if kept > durable and luck.random() < 0.5:
                file.seek(luck.randint(durable, kept - 1))
                file.write(b"\0" * min(512, kept - file.tell()))
        if size > durable:
            self.fate.history.add(self.node, "disk: the journal's log keeps {} of {} bytes, {} were durable", kept, size, durable)

    def _lose(self, path: Path) -> None:
        luck = self.fate.random
        fate = luck.choice(("kept", "gone", "empty", "short"))
        if fate == "gone":
            path.unlink()
        elif fate != "kept":
            os.truncate(path, 0 if fate == "empty" else luck.randint(0, path.stat().st_size))
        self.fate.history.add(self.node, "disk: {} was not durable: {}", path.name, fate)


@contextmanager
def watched_fsync(disks: list[SimDisk]) -> Iterator[None]:
    """While the block runs, ``os.fsync`` tells the disk that it writes to. Descriptors elsewhere are none of its business."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        for disk in disks:
            if path.is_relative_to(disk.state_dir):
                disk.synced(descriptor, path)
                return
        if not any(path.is_relative_to(disk.root) for disk in disks):
            real(descriptor)

    os.fsync = fsync  # type: ignore[assignment]
    try:
        yield
    finally:
        os.fsync = real
