"""Errors out of a nursery that is only our own affair: the caller sees what was raised, not our wrapping."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unwrapped() -> Iterator[None]:
    """A group of one comes out as the one; any other group as it is (several things went wrong, or several were cancelled)."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        raise group.exceptions[0] from group.exceptions[0].__cause__
