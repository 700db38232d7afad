"""The files of a TLS identity: ``<directory>/current/`` with certificate and key, 0600, there as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from attrs import frozen

from tuneplane.domain.faultpoint import fault_point

CACHED_CERTIFICATE = "tls.crt"
CACHED_KEY = "tls.key"
UNFINISHED = ".new-"


class IncompleteCache(Exception):
    """One of the two files is missing: somebody has been here, so nothing is repaired silently (R-TLS-03)."""


@frozen(repr=False)
class Pair:
    certificate_pem: str
    key_pem: str


def current_directory(directory: Path) -> Path:
    return directory / "current"


def read_cache(directory: Path) -> Pair | None:
    """The pair, or None when there is no ``current``. Raises IncompleteCache, OSError."""
    place = current_directory(directory)
    if not place.exists():
        return None
    missing = [name for name in (CACHED_CERTIFICATE, CACHED_KEY) if not (place / name).is_file()]
    if missing:
        raise IncompleteCache(f"{place} is incomplete: {' and '.join(missing)} missing")
    return Pair((place / CACHED_CERTIFICATE).read_text(), (place / CACHED_KEY).read_text())


def write_cache(directory: Path, pair: Pair) -> Pair:
    """Write both files and rename their directory into place. Another process that was faster wins: its pair is answered.

    A crash leaves an unfinished directory behind, private and never read. It is not swept: it may be another process's.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=directory))
    _write_private(unfinished / CACHED_CERTIFICATE, pair.certificate_pem)
    _write_private(unfinished / CACHED_KEY, pair.key_pem)
    _sync(unfinished)
    try:
        with fault_point("control.cache-identity"):
            unfinished.rename(current_directory(directory))
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        found = read_cache(directory)
        if found is None:
            raise
        return found
    _sync(directory)
    return pair


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
