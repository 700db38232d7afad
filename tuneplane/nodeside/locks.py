"""One daemon per state directory, and one state directory per container runtime (R-ENR-10).

Both locks are ``flock``s: the kernel drops them when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuneplane.domain.errors import Refused

SHARED = Path("/run/lock")  # where every daemon of the machine looks, whatever its state directory
LOCK_NAME = "daemon.lock"
MAX_NAME_BYTES = 4096  # a path


@contextmanager
def hold_state_dir(state_dir: Path) -> Iterator[None]:
    """Hold the state directory. Refused(code="state-dir-in-use") when another daemon has it."""
    with _held(state_dir / LOCK_NAME, str(os.getpid())) as holder:
        if holder is not None:
            raise Refused("state-dir-in-use", f"another tuneplane-node (process {holder or '?'}) already serves {state_dir}")
        yield


@contextmanager
def hold_runtime(socket: Path, state_dir: Path, shared: Path | None = None) -> Iterator[None]:
    """Hold the container runtime behind ``socket``. Refused(code="runtime-in-use") naming the other state directory."""
    real = socket.resolve()
    name = f"tuneplane-node-{hashlib.sha256(str(real).encode()).hexdigest()[:16]}.lock"
    with _held((shared or _shared_directory()) / name, str(state_dir.resolve())) as holder:
        if holder is not None:
            detail = f"the container runtime at {real} is already managed from the state directory {holder or '(unknown)'}"
            raise Refused("runtime-in-use", detail)
        yield


def _shared_directory() -> Path:
    return SHARED if os.access(SHARED, os.W_OK) else Path(tempfile.gettempdir())


@contextmanager
def _held(path: Path, text: str) -> Iterator[str | None]:
    """Yields None while held, else what the holder wrote. The file goes with its lock."""
    descriptor = _lock(path)
    if descriptor is None:
        yield _read(path)
        return
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
        yield None
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """The locked file, or None when somebody else holds it. A file that its holder removed meanwhile is opened anew."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.close(descriptor)


def _read(path: Path) -> str:
    try:
        return path.read_bytes()[:MAX_NAME_BYTES].decode(errors="replace").strip()
    except OSError:
        return ""
