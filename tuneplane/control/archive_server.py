"""Run by its path, in a process of its own: hands out blocks of one file below a root, without following any link.

Standard library only, so that it starts in milliseconds. Arguments: the root, then folders and file name below it. Each
request on standard input is a line ``OFFSET SIZE``; each answer is eight bytes of length, big-endian, and as many bytes.
Exit status 0: asked no more; 3: there is no such file; 1: it cannot be read, with a sentence on standard error.
"""

import os
import stat
import sys

MOST_BYTES = 1 << 20
ABSENT = 3
QUIET = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # not waiting for the other end of a planted FIFO


def open_below(root: str, names: list[str]) -> int:
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names[:-1]:
        at = os.open(name, QUIET | os.O_DIRECTORY, dir_fd=at)
    file = os.open(names[-1], QUIET, dir_fd=at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(f"{names[-1]} is no regular file")
    return file


def main(root: str, names: list[str]) -> None:
    file = open_below(root, names)
    for line in sys.stdin.buffer:
        offset, size = map(int, line.split())
        data = os.pread(file, min(size, MOST_BYTES), offset)
        sys.stdout.buffer.write(len(data).to_bytes(8, "big") + data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2:])
    except FileNotFoundError:
        sys.exit(ABSENT)
    except OSError as error:
        sys.exit(str(error))
