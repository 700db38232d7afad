"""Child processes of the demo: started with their own log file, watched while we wait, stopped in reverse order."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from attrs import define

T = TypeVar("T")

STOP_SECONDS = 40.0  # the processes bound their own stop well below this
LOOK_SECONDS = 0.1
TAIL_LINES = 15


class DemoFailed(Exception):
    """The demo cannot go on; the sentence says what was waited for and what was last seen."""


@define(eq=False)
class Child:
    """One process; ``log`` holds both of its streams."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise DemoFailed when it has ended by itself."""
        if (code := self.process.poll()) is not None:
            raise DemoFailed(f"{self.name} ended with status {code}; its last lines:\n{self.tail()}")

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line[:300]}" for line in lines[-TAIL_LINES:])

    def stop(self) -> None:
        """SIGTERM, then SIGKILL when it takes too long."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_child(name: str, command: list[str], env: Mapping[str, str], directory: Path) -> Child:
    """Start ``command`` in a session of its own (a terminal's Ctrl-C is for us, we stop in our order)."""
    log = directory / f"{name.replace(' ', '-')}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=dict(env), cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    return Child(name, process, log)


def wait_until(what: str, look: Callable[[], tuple[T | None, str]], seconds: float, *children: Child) -> T:
    """Look until there is a value; DemoFailed with what was last seen when time is up or a child ended."""
    ends = time.monotonic() + seconds
    seen = "nothing yet"
    while time.monotonic() < ends:
        found, seen = look()
        if found is not None:
            return found
        for child in children:
            child.check()
        time.sleep(LOOK_SECONDS)
    raise DemoFailed(f"waited {seconds:g} s for {what}; last seen: {seen}")
