"""One process of ours as a test sees it: started, killed, frozen, started again; and the level-triggered wait for it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from attrs import define

T = TypeVar("T")

WAIT_SECONDS = 60.0
LOOK_SECONDS = 0.05
END_SECONDS = 60.0


class Running(Protocol):
    """A started process: what subprocess.Popen offers, as far as it is needed here."""

    pid: int
    returncode: Any

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> int: ...

    def send_signal(self, number: signal.Signals) -> None: ...

    def kill(self) -> None: ...


Spawn = Callable[[list[str], dict[str, str], Path, Path], Running]
"""``spawn(command, env, cwd, log)``"""


def popen(command: list[str], env: dict[str, str], cwd: Path, log: Path) -> Running:
    """As an init system starts it."""
    with log.open("ab") as output:
        return subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


@define(eq=False)
class Process:
    """One process of ours and how to start it again."""

    name: str
    command: list[str]
    env: dict[str, str]
    log: Path
    spawn: Spawn = popen
    child: Running | None = None
    log_from: int = 0  # where the present run's log begins
    frozen: bool = False

    def start(self) -> None:
        assert self.child is None, f"{self.name} runs already"
        self.log_from = self.log.stat().st_size if self.log.exists() else 0
        self.child = self.spawn(self.command, self.env, self.log.parent, self.log)

    @property
    def runs(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def freeze(self) -> None:
        """SIGSTOP: its connections stay, and nobody answers."""
        assert self.child is not None, f"{self.name} does not run"
        self.child.send_signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen and self.child is not None:
            self.child.send_signal(signal.SIGCONT)
        self.frozen = False

    def end(self, number: signal.Signals) -> int:
        """Send ``number`` and wait; the exit status. A frozen one is thawed, or it would never know."""
        child = self.child
        assert child is not None, f"{self.name} does not run"
        child.send_signal(number)
        self.thaw()
        self.child = None
        try:
            return child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(END_SECONDS)
            raise AssertionError(f"{self.name} did not end {END_SECONDS:g} s after {number.name}: {self.tail()}") from None

    def is_up(self) -> tuple[bool | None, str]:
        """Up is what its own log says; a process that ended says so at once."""
        if self.child is not None and self.child.poll() is not None:
            raise AssertionError(f"{self.name} ended with status {self.child.returncode}: {self.tail()}")
        return (True if self.says_up() else None), self.tail()

    def says_up(self) -> bool:
        return b'"event": "up"' in self._this_run()

    def events(self) -> list[dict[str, Any]]:
        """The JSON log lines of the present run."""
        return [json.loads(line) for line in self._this_run().decode(errors="replace").splitlines() if line.startswith("{")]

    def tail(self) -> str:
        return self._this_run().decode(errors="replace")[-3000:]

    def _this_run(self) -> bytes:
        with self.log.open("rb") as file:
            file.seek(self.log_from)
            return file.read()


def wait_for(what: str, look: Callable[[], tuple[T | None, object]], seconds: float = WAIT_SECONDS) -> T:
    """``look`` answers (value or None, what it saw); the value, or AssertionError with what was last seen."""
    ends = time.monotonic() + seconds
    while True:
        found, seen = look()
        if found is not None:
            return found
        if time.monotonic() > ends:
            raise AssertionError(f"waited {seconds:g} s for {what}; last seen: {seen}")
        time.sleep(LOOK_SECONDS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
