"""A child process that reports by JSON lines: started, watched, killed in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field


@define(eq=False)
class Peer:
    """``events`` is what it has said so far."""

    process: trio.Process
    events: list[dict[str, Any]] = field(factory=list)
    changed: trio.Condition = field(factory=trio.Condition)

    async def read(self) -> None:
        buffer = b""
        assert self.process.stdout is not None
        async for data in self.process.stdout:
            buffer += data
            *lines, buffer = buffer.split(b"\n")
            async with self.changed:
                self.events += [json.loads(line) for line in lines]
                self.changed.notify_all()

    async def wait(self, event: str, seconds: float = 10.0, **fields: Any) -> dict[str, Any]:
        """The first event of this name with these fields, which may have come already."""

        def found() -> list[dict[str, Any]]:
            return [told for told in self.events if told["event"] == event and fields.items() <= told.items()]

        with trio.move_on_after(seconds):
            async with self.changed:
                while not found():
                    await self.changed.wait()
        assert found(), f"no {event} {fields} of the peer; its last words: {self.events[-3:]}"
        return found()[0]

    async def ask(self, line: str) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(line.encode() + b"\n")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@asynccontextmanager
async def open_peer(*arguments: str, loop: str = "") -> AsyncIterator[Peer]:
    """``python -m tests.support.session_peer ARGUMENTS``; killed on the way out."""
    command = [sys.executable, "-m", "tests.support.session_peer", *arguments]
    environment = {**os.environ, "TEST_LOOP": loop}
    async with trio.open_nursery() as nursery:
        process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        peer = Peer(process)
        nursery.start_soon(peer.read)
        try:
            yield peer
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                process.send_signal(signal.SIGCONT)
                process.kill()
                await process.wait()
            nursery.cancel_scope.cancel()
