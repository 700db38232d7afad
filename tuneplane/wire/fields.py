"""Checks of single protobuf fields: a peer's numbers, lengths and texts become domain values here or are refused."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from ..domain.addresses import is_numeric
from ..domain.text import plain

MAX_ID_LENGTH = 160  # an operation id is a member id and a kind: a slug of 63 and change
MAX_CODE_LENGTH = 64
MAX_VERSION_LENGTH = 64
MAX_TEXT_BYTES = 4096  # one explanation for a person
MAX_ITEMS = 256  # cards, problems: far above any machine, far below what would cost anything
MAX_COUNT = 2**63 - 1  # what PostgreSQL's bigint holds
MAX_SECONDS = 10 * 366 * 86400.0  # no duration of the protocol is longer than a certificate's life
MAX_OFFSET_SECONDS = 200 * 366 * 86400.0  # between the earliest and the latest moment that a frame may carry
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)  # a clock that stands before is not set
LATEST = datetime(2200, 1, 1, tzinfo=UTC)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST_MICROS = (EARLIEST - _EPOCH) // timedelta(microseconds=1)
_LATEST_MICROS = (LATEST - _EPOCH) // timedelta(microseconds=1)
_MOST_OFFSET_MICROS = round(MAX_OFFSET_SECONDS * 1e6)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]*")
_CODE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
INTERFACE_NAME = re.compile(r"[!-.0-~]{1,15}")  # no blank, no slash
_PRINTABLE = re.compile(r"[ -~]*")


class FrameError(ValueError):
    """A frame of the peer breaks a rule of its format: names the field and the rule."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


def checked_id(value: str, field: str) -> str:
    """An identifier that must be there."""
    if len(value) > MAX_ID_LENGTH or not _ID.fullmatch(value):
        raise FrameError(field, f"must be an id of 1 to {MAX_ID_LENGTH} characters")
    return value


def optional_id(value: str, field: str) -> str:
    """An identifier or the empty string."""
    return checked_id(value, field) if value else value


def code(value: str, field: str) -> str:
    """A kebab-case code or the empty string."""
    if value and (len(value) > MAX_CODE_LENGTH or not _CODE.fullmatch(value)):
        raise FrameError(field, f"must be a kebab-case code of at most {MAX_CODE_LENGTH} characters")
    return value


def address(value: str, field: str) -> str:
    """A numeric IP address."""
    if len(value) > MAX_VERSION_LENGTH or not is_numeric(value):
        raise FrameError(field, "must be a numeric IP address")
    return value


def optional_address(value: str, field: str) -> str:
    """A numeric IP address or the empty string."""
    return address(value, field) if value else value


def interface_name(value: str, field: str) -> str:
    """As the kernel allows it."""
    if not INTERFACE_NAME.fullmatch(value):
        raise FrameError(field, "must be an interface name of 1 to 15 printable characters")
    return value


def word(value: str, field: str, longest: int = MAX_VERSION_LENGTH) -> str:
    """Printable ASCII: versions, units, addresses, signal names."""
    if len(value) > longest or not _PRINTABLE.fullmatch(value):
        raise FrameError(field, f"must be printable ASCII of at most {longest} characters")
    return value


def digest(value: str, field: str) -> str:
    """``sha256:…`` or the empty string."""
    if value and not _DIGEST.fullmatch(value):
        raise FrameError(field, "must be a sha256 digest")
    return value


def text(value: bytes, field: str, longest: int = MAX_TEXT_BYTES) -> str:
    """Text of any origin. What is not UTF-8 is shown with replacement characters; what a terminal or PostgreSQL minds, too."""
    if len(value) > longest:
        raise FrameError(field, f"must be at most {longest} bytes")
    return plain(value.decode("utf-8", "replace"))


def to_text(value: str, longest: int = MAX_TEXT_BYTES) -> bytes:
    """The sender's half of :func:`text`: cut at ``longest`` bytes, with a mark."""
    data = value.encode("utf-8", "replace")
    return data if len(data) <= longest else data[: longest - 3] + "…".encode()


def count(value: int, field: str, most: int = MAX_COUNT, least: int = 0) -> int:
    """A whole number within ``least`` … ``most``."""
    if not least <= value <= most:
        raise FrameError(field, f"must be {least} to {most}")
    return value


def seconds(value: float, field: str, least: float = 0.0) -> float:
    """A finite duration."""
    if not (math.isfinite(value) and least <= value <= MAX_SECONDS):
        raise FrameError(field, f"must be {least:g} to {MAX_SECONDS:g} seconds")
    return value


def offset(micros_: int, field: str) -> float:
    """Seconds between two clocks, from microseconds."""
    if abs(micros_) > _MOST_OFFSET_MICROS:
        raise FrameError(field, f"must be within {MAX_OFFSET_SECONDS:g} seconds")
    return micros_ / 1e6


def to_offset(value: float) -> int:
    """The sender's half of :func:`offset`: a clock that is off by more is off by that much."""
    return round(max(-MAX_OFFSET_SECONDS, min(MAX_OFFSET_SECONDS, value)) * 1e6)


def blob(value: bytes, field: str, longest: int) -> bytes:
    """Bytes as they are."""
    if len(value) > longest:
        raise FrameError(field, f"must be at most {longest} bytes")
    return value


def few(count_: int, field: str) -> None:
    """Refuse a list of more than MAX_ITEMS."""
    if count_ > MAX_ITEMS:
        raise FrameError(field, f"must have at most {MAX_ITEMS} items")


def moment(micros: int, field: str) -> datetime:
    """A point in time that must be there."""
    if not _EARLIEST_MICROS <= micros <= _LATEST_MICROS:
        raise FrameError(field, "must be a time between 2000 and 2200")
    return _EPOCH + timedelta(microseconds=micros)


def optional_moment(micros: int, field: str) -> datetime | None:
    """A point in time, or None for 0."""
    return moment(micros, field) if micros else None


def micros(value: datetime | None) -> int:
    """Microseconds since 1970, 0 for None."""
    return 0 if value is None else (value - _EPOCH) // timedelta(microseconds=1)
