"""The journal as the command line sees it: only read, whether or not a daemon has it open."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.ids import MemberId
from tuneplane.domain.inventory import EpochHold
from tuneplane.domain.member_table import ENDED, REPORTED, NodePhase
from tuneplane.domain.nodes import Left

from .journal import FILE_NAME, read_hold


def look_for_members(state_dir: Path) -> tuple[Left, ...]:
    """The members that have not ended, by id; () when there is no journal yet. InvalidInput for a file that is none."""
    path = state_dir / FILE_NAME
    if not path.exists():
        return ()
    with _opened(path) as database:
        if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'member'").fetchone() is None:
            return ()
        rows = database.execute("SELECT member, phase FROM member ORDER BY member").fetchall()
    phases = [(MemberId(member), NodePhase(phase)) for member, phase in rows]
    return tuple(Left(member=member, phase=REPORTED[phase]) for member, phase in phases if phase in REPORTED and phase not in ENDED)


def look_for_hold(state_dir: Path) -> EpochHold | None:
    """Why the commands of the control plane are held (P-07); None when they are not. InvalidInput as above."""
    path = state_dir / FILE_NAME
    if not path.exists():
        return None
    with _opened(path) as database:
        try:
            return read_hold(database)
        except sqlite3.OperationalError:  # written by a daemon from before there were holds
            return None


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            yield database
    except sqlite3.Error as error:
        raise InvalidInput(str(path), f"is not readable: {error}") from None
