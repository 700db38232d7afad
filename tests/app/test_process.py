"""A process root: it stops in order on SIGTERM, says why it ended, and a second signal cuts it off."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

END_SECONDS = 20.0

SCRIPT = """
import trio
from attrs import define
from tuneplane.actors import Actor, Budget, ChildSpec, SupervisorSpec
from tuneplane.app.process import run_process, run_system

MODE = {mode!r}

@define
class Child(Actor):
    async def on_start(self, context):
        if MODE == "slow-start":
            print("starting", flush=True)
            await trio.sleep(60)

    async def run(self, context):
        if MODE == "crash":
            raise RuntimeError("on purpose")
        await context.wait_stopping()

    async def on_stop(self, context):
        print("child stopped", flush=True)
        if MODE == "stuck":
            with trio.CancelScope(shield=True):
                await trio.sleep(60)

root = SupervisorSpec(
    name="root",
    budget=Budget(restarts=1, seconds=30),
    children=(ChildSpec(name="child", factory=Child, start_seconds=30.0, cleanup_seconds=60.0),),
)

async def ready():
    print("ready", flush=True)

async def main(stopping):
    await run_system("test", root, stopping, ready)

run_process("test", main)
"""


class Run:
    """The script as a child; lines of standard output are read as they come."""

    def __init__(self, mode: str) -> None:
        command = [sys.executable, "-c", SCRIPT.format(mode=mode)]
        self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.errors = ""
        self._reader = threading.Thread(target=self._read_errors)
        self._reader.start()

    def _read_errors(self) -> None:
        assert self.child.stderr is not None
        self.errors = self.child.stderr.read()

    def line(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def end(self) -> int:
        try:
            return self.child.wait(END_SECONDS)
        finally:
            self.child.kill()
            self.child.wait()
            self._reader.join(END_SECONDS)
            for stream in (self.child.stdout, self.child.stderr):
                assert stream is not None
                stream.close()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.errors.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_asked_to_stop_runs_the_ladder_and_ends_with_zero(number: signal.Signals) -> None:
    run = Run("calm")
    assert run.line() == "ready"
    run.child.send_signal(number)
    assert run.line() == "child stopped"
    assert run.end() == 0
    assert [event["event"] for event in run.events()][-2:] == ["stopping", "down"]


def test_process_asked_to_stop_while_starting_ends_with_zero() -> None:
    run = Run("slow-start")
    assert run.line() == "starting"
    run.child.send_signal(signal.SIGTERM)
    assert run.end() == 0


def test_process_whose_tree_gives_up_ends_with_its_reason() -> None:
    run = Run("crash")
    assert run.end() == 1
    assert "on purpose" in run.errors


def test_process_with_a_second_signal_is_cut_off() -> None:
    run = Run("stuck")
    assert run.line() == "ready"
    run.child.send_signal(signal.SIGTERM)
    run.child.send_signal(signal.SIGTERM)  # by a wrapper and its group, at once: the same request
    assert run.line() == "child stopped"
    assert run.child.poll() is None
    ends = time.monotonic() + END_SECONDS
    while run.child.poll() is None and time.monotonic() < ends:
        run.child.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    assert run.end() == 3
    assert any("cut off" in event["event"] for event in run.events())
