"""Small files that must survive a power cut whole: written beside, fsynced, renamed over, directory fsynced."""

from __future__ import annotations

import os
from pathlib import Path

from tuneplane.domain.faultpoint import fault_point


def write_durably(path: Path, data: bytes, *, mode: int = 0o600, point: str) -> None:
    """Replace ``path`` with ``data`` or leave it as it was. OSError (a full disk, say) leaves no trace (L-J8)."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(descriptor, mode)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with fault_point(point):
            os.replace(scratch, path)
            sync_directory(path.parent)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    """Make the entries of ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
