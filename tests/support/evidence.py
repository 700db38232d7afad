"""What really happened, told by the container runtime and by the job's own side effects, never by our tables."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from attrs import field, frozen

from .podman import Podman
from .system import WholeSystem, wait_for

FENCE = "io.tuneplane.fence"  # not empty: an inert container that holds a lost member's name and is never started; "" on a workload
JOB_PREFIX = "tuneplane-"


@frozen
class Witness:
    """A job's diary below the storage root: one line a start, one a signal; the job ends when it is released."""

    directory: Path = field()

    @classmethod
    def open(cls, system: WholeSystem) -> Witness:
        directory = system.storage_root / "witness" / secrets.token_hex(6)
        directory.mkdir(parents=True)
        return cls(directory)

    def script(self, exit_code: int, *, waits: bool = True) -> str:
        """Note the start with a nonce of its own; note a SIGTERM and end with 143; else end with ``exit_code``."""
        here = self.directory
        begin = f"trap 'echo term >> {here}/signals; exit 143' TERM; cat /proc/sys/kernel/random/uuid >> {here}/starts; echo up; "
        wait = f"while [ ! -e {here}/released ]; do sleep 0.05; done; " if waits else ""
        return f"{begin}{wait}exit {exit_code}"

    def release(self) -> None:
        (self.directory / "released").touch()

    def starts(self) -> list[str]:
        return self._lines("starts")

    def signals(self) -> list[str]:
        return self._lines("signals")

    def wait_started(self) -> None:
        wait_for(f"a start noted in {self.directory}", lambda: (self.starts() or None, self.starts()))

    def _lines(self, name: str) -> list[str]:
        path = self.directory / name
        return path.read_text().splitlines() if path.exists() else []


@frozen
class History:
    """The runtime's own record of one job's containers, by event; fences (never to be started) apart."""

    events: tuple[dict[str, Any], ...]

    @property
    def created(self) -> list[str]:
        """Ids of the containers that were created for the job's workload."""
        return [event["ID"] for event in self._of("create") if not self._is_fence(event)]

    @property
    def started(self) -> list[str]:
        """Ids of the containers that were started, one entry a start."""
        return [event["ID"] for event in self._of("start")]

    @property
    def fences(self) -> list[str]:
        return [event["ID"] for event in self._of("create") if self._is_fence(event)]

    def _of(self, status: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["Status"] == status]

    @staticmethod
    def _is_fence(event: dict[str, Any]) -> bool:
        return bool((event["Attributes"] or {}).get(FENCE))


def history(podman: Podman, job: str) -> History:
    """All that this runtime remembers of the containers of ``job``."""
    return _of_job(runtime_events(podman), job)


def runtime_events(podman: Podman) -> list[dict[str, Any]]:
    """Everything that this runtime remembers."""
    lines = podman.run("events", "--stream=false", "--format", "json").splitlines()
    return [json.loads(line) for line in lines if line]


def _of_job(events: list[dict[str, Any]], job: str) -> History:
    names = f"{JOB_PREFIX}{job}-"
    return History(tuple(event for event in events if event["Type"] == "container" and event["Name"].startswith(names)))


def assert_ran_once(system: WholeSystem, job: str, witness: Witness) -> str:
    """Exactly one container, started exactly once, by runtime and side effect alike; its id."""
    told = history(system.podman, job)
    assert len(told.created) == 1, told.created
    assert told.started == told.created
    assert len(witness.starts()) == 1, witness.starts()
    assert not told.fences
    return told.created[0]


def assert_ran_at_most_once(system: WholeSystem, job: str, witness: Witness, *, runtime_killed: bool = False) -> int:
    """How often it was started: never, or once; a fence was never started.

    A runtime that was killed (``runtime_killed``) may have started a container and not have noted it: then the side effect
    is the better witness, and the record may only not say more than one.
    """
    told = history(system.podman, job)
    assert len(told.started) <= 1, told.events
    assert len(witness.starts()) <= 1, witness.starts()
    assert not set(told.fences) & set(told.started)
    if not runtime_killed:
        assert len(witness.starts()) <= len(told.started), (witness.starts(), told.started)
    return max(len(told.started), len(witness.starts()))
