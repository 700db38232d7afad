"""The fault hook of the fault tests: kills this very process at a named point, or loses one answer.

``TUNEPLANE_FAULT_PLAN=path`` names a file with one fault a line, ``name:before|after|lost`` or ``name:moment:N`` for the
N-th pass since it was armed. The first line is armed. When it strikes, the line first moves, synced, to ``path.struck``:
a restarted process goes on with the next one, and a test sees what was reached. The file is read at every pass, so that
a running process can be armed. ``TUNEPLANE_FAULT_SEEN=path`` also appends every point passed.
``TUNEPLANE_NODE_CARDS_FILE=path`` gives a Node daemon the cards that a file describes, instead of its driver's.
All are ignored unless ``TUNEPLANE_FAULT_TESTING=1``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from attrs import define, field, frozen

from tuneplane.domain.faultpoint import FAULT_POINTS, AnswerLost, install_fault_hook
from tuneplane.nodeside.card_desk import CardReader
from tuneplane.nodeside.cards import read_cards, recorded_cards

from .settings import WrongSetting

MOMENTS = ("before", "after", "lost")


def install_fault_hook_from(environ: Mapping[str, str]) -> None:
    """Install the hook that the environment asks for; nothing in production. WrongSetting for a plan that makes no sense."""
    if environ.get("TUNEPLANE_FAULT_TESTING") != "1":
        return
    plan, seen = environ.get("TUNEPLANE_FAULT_PLAN", ""), environ.get("TUNEPLANE_FAULT_SEEN", "")
    if not plan and not seen:
        return
    hook = _Hook(Path(plan) if plan else None, os.open(seen, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if seen else None)
    hook.read_plan()
    install_fault_hook(hook.passed)


def card_reader_from(environ: Mapping[str, str]) -> CardReader:
    """The machine's own cards, or those that a test declares."""
    path = environ.get("TUNEPLANE_NODE_CARDS_FILE", "") if environ.get("TUNEPLANE_FAULT_TESTING") == "1" else ""
    return recorded_cards(Path(path)) if path else read_cards


@frozen
class Fault:
    """One line of a plan."""

    name: str
    moment: str
    nth: int = 1

    @property
    def strikes_at(self) -> str:
        return "after" if self.moment == "lost" else self.moment


def read_fault(line: str) -> Fault:
    """Raises WrongSetting."""
    name, _, rest = line.partition(":")
    moment, _, nth = rest.partition(":")
    if name not in FAULT_POINTS or moment not in MOMENTS or not (nth or "1").isdigit():
        raise WrongSetting("TUNEPLANE_FAULT_PLAN", f"must hold lines like name:{'|'.join(MOMENTS)}[:N], not {line!r}")
    return Fault(name, moment, int(nth or 1))


@define
class _Hook:
    """Passed by several threads of this process; one at a time looks at the plan."""

    plan: Path | None
    seen: int | None
    _armed: str = ""
    _passes: int = 0
    _lock: threading.Lock = field(factory=threading.Lock)

    def passed(self, name: str, at: str) -> None:
        assert name in FAULT_POINTS, f"fault point {name} is not listed in domain.faultpoint"
        if self.seen is not None:
            os.write(self.seen, f"{name}:{at}\n".encode())
        with self._lock:
            fault = self._due(name, at)
        if fault is None:
            return
        if fault.moment == "lost":
            raise AnswerLost(f"fault test: the answer of {name} is lost")
        os.kill(os.getpid(), signal.SIGKILL)

    def read_plan(self) -> list[str]:
        """The lines that have not struck."""
        try:
            lines = self.plan.read_text().splitlines() if self.plan is not None else []
        except FileNotFoundError:
            lines = []
        for line in lines:
            read_fault(line)
        return lines

    def _due(self, name: str, at: str) -> Fault | None:
        lines = self.read_plan()
        if not lines:
            self._armed = ""
            return None
        if lines[0] != self._armed:
            self._armed, self._passes = lines[0], 0
        fault = read_fault(lines[0])
        if (fault.name, fault.strikes_at) != (name, at):
            return None
        self._passes += 1
        if self._passes < fault.nth:
            return None
        self._strike(lines)
        return fault

    def _strike(self, lines: list[str]) -> None:
        """Move the first line to ``.struck``, so that it is done once whatever happens next."""
        assert self.plan is not None
        self._armed = ""
        _append_synced(self.plan.with_name(self.plan.name + ".struck"), lines[0])
        partial = self.plan.with_name(self.plan.name + ".partial")
        partial.write_text("".join(f"{line}\n" for line in lines[1:]))
        os.replace(partial, self.plan)


def _append_synced(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())
