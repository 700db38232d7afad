"""Run by its path, in a process of its own: writes one archived log below the storage root, whole or not at all.

Standard library only, so that it starts in milliseconds. The argument is one JSON object: ``root``, ``folders`` (the first
must be there: a root that is not mounted has none), ``name``, ``header`` (text) and ``sources``, a list of
``[path, skip, count]``. No link below the root is followed. Exit status 0: the file is there, whole and durable.
"""

import json
import os
import sys
from contextlib import suppress

BLOCK = 1 << 20
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def enter(root: str, folders: list[str]) -> int:
    """A descriptor of the last folder; all but the first are made where they are missing."""
    at = os.open(root, DIRECTORY)
    for depth, name in enumerate(folders):
        if depth:
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=at)
        at = os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
    return at


def write_all(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]


def copy(sink: int, path: str, skip: int, count: int) -> None:
    with open(path, "rb", buffering=0) as source:
        source.seek(skip)
        while count:
            data = source.read(min(BLOCK, count))
            if not data:
                raise OSError(f"{path} is shorter than it was")
            write_all(sink, data)
            count -= len(data)


def is_ours(sink: int, name: str, folder: int) -> bool:
    """Whether ``name`` is still the file that was opened as ``sink``."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(sink), os.stat(name, dir_fd=folder, follow_symlinks=False))
    return False


def main(order: dict) -> None:  # type: ignore[type-arg]
    os.umask(0o022)  # a console under another user reads it
    folder = enter(order["root"], order["folders"])
    scratch = f".{order['name']}.new"
    with suppress(FileNotFoundError):
        os.unlink(scratch, dir_fd=folder)  # of a writer that was killed
    sink = os.open(scratch, FRESH, 0o644, dir_fd=folder)
    try:
        write_all(sink, order["header"].encode())
        for path, skip, count in order["sources"]:
            copy(sink, path, skip, count)
        os.fsync(sink)
        if not is_ours(sink, scratch, folder):  # of a daemon that died this writer lives on, and the next daemon has another one
            raise OSError("another writer has taken over")
        os.rename(scratch, order["name"], src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        if is_ours(sink, scratch, folder):
            os.unlink(scratch, dir_fd=folder)
        raise
    os.fsync(folder)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except OSError as error:
        sys.exit(str(error))
