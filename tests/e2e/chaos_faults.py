"""What strikes the system in the chaos test: kills, freezes and cuts at random, each followed by its end some time later."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable, Iterator

from attrs import define, field

from tests.support.podman import Podman
from tests.support.process import Process
from tests.support.relay import Relay
from tests.support.system import WholeSystem

PAUSE_SECONDS = 0.6  # mean, between two strikes
LONGEST_SECONDS = 8.0  # of a fault: longer than a session's idle time (5 s) and than a lease (4 s)
MOST_AT_ONCE = 3
START_LOOK_SECONDS = 0.02


@define(order=True)
class _Due:
    at: float
    number: int
    what: str = field(eq=False)
    act: Callable[[], None] = field(eq=False)


@define(eq=False)
class Weather:
    """Single-threaded: ``blow`` strikes until its time is over, ``heal`` ends every fault."""

    system: WholeSystem
    chance: random.Random
    history: list[str] = field(factory=list)
    began: float = field(factory=time.monotonic)
    _ends: list[_Due] = field(factory=list)
    _struck: set[str] = field(factory=set)
    _numbers: Iterator[int] = field(factory=itertools.count)

    def blow(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        next_strike = time.monotonic()
        while (now := time.monotonic()) < until:
            self._check_alive()
            if self._ends and self._ends[0].at <= now:
                self._end(heapq.heappop(self._ends))
            elif next_strike <= now and len(self._ends) < MOST_AT_ONCE:
                self._strike()
                next_strike = time.monotonic() + self.chance.expovariate(1 / PAUSE_SECONDS)
            else:
                time.sleep(START_LOOK_SECONDS)

    def heal(self) -> None:
        while self._ends:
            self._end(heapq.heappop(self._ends))

    def _strike(self) -> None:
        relays, podmans = (f"relay-{name}" for name in self.system.relays), (f"podman-{name}" for name in self.system.podmans)
        target = self.chance.choice([*self.system.processes, *relays, *podmans, "postgres"])
        if target in self._struck:
            return
        name, act, undo = self._fault(target)
        for_seconds = LONGEST_SECONDS * self.chance.random() ** 2  # most are short
        self._note(f"{name} {target} for {for_seconds:.2f} s")
        self._struck.add(target)
        act()
        heapq.heappush(self._ends, _Due(time.monotonic() + for_seconds, next(self._numbers), target, undo))

    def _end(self, due: _Due) -> None:
        self._note(f"{due.what} is whole again")
        due.act()
        self._struck.discard(due.what)

    def _fault(self, target: str) -> tuple[str, Callable[[], None], Callable[[], None]]:
        if target == "postgres":
            return "kill", self.system.postgres.kill, self.system.postgres.start
        kind, _, node = target.partition("-")
        if kind == "podman":
            return self._podman_fault(self.system.podmans[node])
        if kind == "relay":
            return self._relay_fault(self.system.relays[node])
        return self._process_fault(self.system.processes[target])

    def _process_fault(self, process: Process) -> tuple[str, Callable[[], None], Callable[[], None]]:
        if self.chance.random() < 0.35:
            return "freeze", process.freeze, process.thaw
        return "kill", lambda: self.system.kill(process.name), process.start

    def _podman_fault(self, podman: Podman) -> tuple[str, Callable[[], None], Callable[[], None]]:
        if self.chance.random() < 0.4:
            return "freeze", podman.pause, podman.resume
        return "kill", podman.kill, podman.start

    def _relay_fault(self, relay: Relay) -> tuple[str, Callable[[], None], Callable[[], None]]:
        backend = self.chance.choice([None, 0, 1])
        kind = self.chance.choice(["freeze", "blackhole", "reset", "delay"])
        acts: dict[str, Callable[[], None]] = {
            "freeze": relay.freeze,
            "blackhole": lambda: relay.blackhole(backend),
            "reset": lambda: relay.reset(backend),
            "delay": lambda: relay.delay(0.3, backend),
        }
        return f"{kind} ({'both' if backend is None else backend})", acts[kind], relay.heal

    def _check_alive(self) -> None:
        for process in self.system.processes.values():
            if process.child is not None and process.child.poll() is not None:
                raise AssertionError(f"{process.name} ended by itself with status {process.child.returncode}: {process.tail()}")

    def _note(self, text: str) -> None:
        self.history.append(f"{time.monotonic() - self.began:7.2f}  {text}")
