"""What chance decides: one seeded generator, how often each fault happens in this run, and the history of what happened."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

import trio
from attrs import define, field, frozen

BASE = datetime(2030, 1, 1, tzinfo=UTC)  # the true time when the simulated world begins
HISTORY_KEPT = 20000  # lines: a whole run of a seed
MOMENT_SECONDS = 0.002  # what a local step takes
FAULTS = (
    "storage-delay",
    "storage-down",
    "storage-lost",
    "poke-lost",
    "engine-slow",
    "engine-down",
    "engine-lost",
    "engine-late",
    "engine-hang",
    "engine-lie",
    "engine-refuse",
    "engine-restart",
    "disk-full",
    "disk-lost-answer",
    "disk-gone",
    "die-at-step",
    "crash-worker",
    "crash-gateway",
    "crash-node",
    "leave",
    "reboot",
    "cut",
    "clock-step",
    "database-away",
    "control-delay",
    "forget",
    "drain",
    "cordon",
    "power-cut",
    "disk-image",
    "name-taken",
    "read-logs",
    "declare-lost",
    "retry",
)
ON_REQUEST = ("database-restored", "answer-late")  # only in runs that are about it: no healing undoes the first


class Violation(Exception):
    """An invariant does not hold. The message says which, of whom, when."""


@define(eq=False)
class History:
    """Who did what, when. Formatted only when somebody reads it."""

    lines: deque[tuple[float, str, str, tuple[object, ...]]] = field(factory=lambda: deque(maxlen=HISTORY_KEPT))

    def add(self, who: str, what: str, *args: object) -> None:
        self.lines.append((trio.current_time(), who, what, args))

    def text(self, last: int = HISTORY_KEPT) -> str:
        shown = list(self.lines)[-last:]
        return "\n".join(f"{at:10.3f}  {who:14} {what.format(*args)}" for at, who, what, args in shown)


@frozen(kw_only=True)
class Focus:
    """What a run is about, when it is not about everything: see ``mutants``."""

    odds: Mapping[str, float] | None = None  # these faults and no others; above 1: more often than it gets by itself
    timings: Mapping[str, float] = field(factory=dict)  # in place of those of ``world.TIMINGS``
    workers: int = 1  # at least
    images: bool = False  # every machine has its image from the start: no pull stands before the faults of later steps
    stop_share: float = 0.4  # of the jobs are stopped by their user
    stop_seconds: float = 25.0  # after their submission, in the mean
    rest_seconds: float = 900.0  # phase two: holds, leases, deadlines and back-offs all run out within this


EVERYTHING = Focus()


@define(eq=False)
class Fate:
    """Seeded. ``calm`` ends all faults: phase two has begun."""

    seed: int
    focus: Focus = EVERYTHING
    random: random.Random = field(init=False)
    history: History = field(factory=History)
    calm: bool = False
    violation: Violation | None = None
    failed: trio.Event = field(factory=trio.Event)  # there is a violation
    odds: dict[str, float] = field(init=False)  # fault -> 0 (not in this run) to 1 (as often as it gets)

    def __attrs_post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.odds = {name: self._draw_odds() for name in FAULTS} | dict.fromkeys(ON_REQUEST, 0.0)
        if self.focus.odds is not None:
            self.odds = dict.fromkeys(self.odds, 0.0) | dict(self.focus.odds)

    def _draw_odds(self) -> float:
        """Each run has its own mixture: a fault that drowns all others hides them (swarm testing)."""
        return 0.0 if self.random.random() < 0.5 else self.random.random() ** 2

    def strikes(self, fault: str, most: float) -> bool:
        """Whether ``fault`` happens now; ``most`` is its probability in a run in which it is at its worst."""
        odds = self.odds[fault]
        return not self.calm and odds > 0 and self.random.random() < odds * most

    def soon(self, mean: float) -> float:
        """A waiting time: exponential, never more than eight means."""
        return min(self.random.expovariate(1.0 / mean), 8 * mean)

    def judge(self, holds: bool, what: str, *args: object) -> None:
        """Raise (and remember: some actor may catch it) unless ``holds``."""
        if not holds and self.violation is None:
            raise self.note_violation(what.format(*args))

    def note_violation(self, text: str) -> Violation:
        """The first one counts."""
        if self.violation is None:
            self.violation = Violation(text)
            self.history.add("VIOLATION", "{}", text)
            self.failed.set()
        return self.violation


@define(eq=False)
class Life:
    """One life of one process. Dead, it has no power over anything outside: its requests go nowhere, its disk is a copy.

    The actors of a killed process still unwind (their clean-up is shielded); what they do then must not be seen.
    """

    process: str
    fate: Fate
    alive: bool = True
    skew_seconds: float = 0.0
    died: trio.Event = field(factory=trio.Event)

    async def gate(self) -> None:
        """Before anything that leaves the process."""
        if not self.alive:
            await trio.sleep_forever()

    def die(self, why: str) -> None:
        if self.alive:
            self.fate.history.add(self.process, "dies: {}", why)
            self.alive = False
            self.died.set()

    def clock(self) -> datetime:
        """The wall clock of this process's machine, which may be set at any moment."""
        return BASE + timedelta(seconds=trio.current_time() + self.skew_seconds)


LIFE: ContextVar[Life] = ContextVar("LIFE")


def true_now() -> datetime:
    return BASE + timedelta(seconds=trio.current_time())
