"""A member's log as it is kept with its attempt, below the storage root: where it lies, and what its file looks like.

The Node writes it once, when the member has ended; console replicas read it when the Node is silent, gone or has
forgotten the member (R-LCH-13, R-ENR-11). One file a member: a header of HEADER_BYTES, then the bytes of its parts. A
log that is too long keeps its beginning and its end, and the hole between them reads as a gap.

``.tuneplane`` below the storage root is ours: containers, which see the whole root, find an empty read-only directory
there. Both sides open it step by step without following links all the same: what lies on shared storage is hostile.
"""

from __future__ import annotations

import json
from typing import Any

from attrs import frozen

from .errors import InvalidInput
from .ids import SLUG, AttemptId, JobId, MemberId

FOLDER = ".tuneplane"
FORMAT = 1
HEADER_BYTES = 4096
# Of one member on shared storage, for as long as its attempt is kept: a gang of eight stays below a checkpoint's size, and
# it is days of an ordinary log. The beginning tells how it was started, the end why it ended.
ARCHIVE_BYTES = 64 << 20
HEAD_BYTES = 4 << 20
MAX_PARTS = 2
NOTE = "its log is not archived: "  # begins what the Node says when it could not


def archive_path(job: JobId, attempt: AttemptId, member: MemberId) -> tuple[str, ...]:
    """Folders and file name below the storage root. Raises InvalidInput for an id that is no plain name."""
    for what, name in (("job", job), ("attempt", attempt), ("member", member)):
        if SLUG.match(name) is None:
            raise InvalidInput(what, f"{name[:100]!r} is not a name")
    return (FOLDER, "logs", job, attempt, f"{member}.log")


@frozen
class Part:
    """``size`` bytes of the log from ``offset``."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


@frozen(kw_only=True)
class ArchiveIndex:
    """Which bytes of a log of ``end`` bytes an archive holds: parts in order, apart from each other."""

    end: int
    parts: tuple[Part, ...]

    def locate(self, offset: int) -> tuple[int, int, int] | None:
        """The first kept byte at or after ``offset``: its offset, its place in the file, and how many follow; None: none."""
        place = HEADER_BYTES
        for part in self.parts:
            if offset < part.end:
                at = max(offset, part.offset)
                return at, place + at - part.offset, part.end - at
            place += part.size
        return None

    @property
    def size(self) -> int:
        """Of the file."""
        return HEADER_BYTES + sum(part.size for part in self.parts)


def choose_parts(first: int, end: int, most: int = ARCHIVE_BYTES, head: int = HEAD_BYTES) -> ArchiveIndex:
    """What to archive of a log whose bytes from ``first`` to ``end`` are there."""
    if end - first <= most:
        return ArchiveIndex(end=end, parts=(Part(first, end - first),) if end > first else ())
    return ArchiveIndex(end=end, parts=(Part(first, head), Part(end - (most - head), most - head)))


def spell_header(index: ArchiveIndex) -> bytes:
    parts = [[part.offset, part.size] for part in index.parts]
    return json.dumps({"format": FORMAT, "end": index.end, "parts": parts}).encode().ljust(HEADER_BYTES - 1) + b"\n"


def read_header(data: bytes) -> ArchiveIndex:
    """The header of a file that anybody may have written. Raises InvalidInput."""
    try:
        header = json.loads(data)
        if header["format"] != FORMAT:
            raise InvalidInput("format", f"is {header['format']!r}; this version knows {FORMAT}")
        index = ArchiveIndex(end=_count(header["end"]), parts=tuple(Part(_count(at), _count(size)) for at, size in header["parts"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidInput("header", "is not that of an archived log") from error
    ends = [part.end for part in index.parts]
    starts = [part.offset for part in index.parts]
    if len(starts) > MAX_PARTS or any(start < end for start, end in zip(starts[1:], ends, strict=False)) or (ends and ends[-1] > index.end):
        raise InvalidInput("parts", "are not in order")
    return index


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError("not a number of bytes")
    return value


def archive_note(detail: str) -> str:
    """The part of a member's reason that says why its log is not archived; "" when it does not."""
    at = detail.find(NOTE)
    return detail[at:] if at >= 0 else ""


def with_note(detail: str, note: str) -> str:
    """``detail`` and behind it ``note``, once."""
    return detail if not note or note in detail else "; ".join(text for text in (detail, note) if text)
