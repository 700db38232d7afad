"""Copies a container's output into its member's log, from its first byte, across restarts of daemon and engine.

The engine's stream can only be had from its beginning (Podman's timestamps are whole seconds), so a resumed capture
skips as many bytes as it has. Whether the skipped bytes are the captured ones is checked by comparing the last of
them: an engine that rotated its log away in between is noticed, said in the log, and nothing new is skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio
from attrs import define, field

from tuneplane.domain.node_ports import Engine, EngineDown, EngineRefused, EngineUnclear, Life, LogRotated, Refusal

from .logs import MemberLog

VERIFY_BYTES = 4096  # compared at the seam; equal by chance only in a log that repeats itself, where it matters little
SETTLE_SECONDS = 0.1  # for a stream to end after its container: what is cut is read again, and a file's never ends
RETRY_FIRST_SECONDS = 0.1
RETRY_MOST_SECONDS = 5.0  # an engine being restarted is back within this, and nobody waits for log bytes meanwhile
ROTATED = b"\n[tuneplane: output was lost here: the container runtime rotated its log away]\n"


@define(eq=False)
class Capture:
    """One container's capture. ``run`` returns when all output is in the log; cancelled, it can be run again."""

    engine: Engine
    container: str
    log: MemberLog
    _following: trio.CancelScope | None = field(default=None, init=False)
    _ended: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Follow until the container has ended (or is gone) and its log is complete."""
        wait = RETRY_FIRST_SECONDS
        while not self.log.complete:
            try:
                if await self._follow_to_its_end():
                    await self.log.finish()
                    return
                wait = RETRY_FIRST_SECONDS  # it ended, most likely: copy what following has missed
                continue
            except LogRotated:
                wait = RETRY_FIRST_SECONDS  # the sooner, the less is lost to the next rotation
            except (EngineDown, EngineUnclear, EngineRefused, OSError):
                pass  # an engine restart, or a full disk: what is there stays, go on later
            await trio.sleep(wait)
            wait = min(wait * 2, RETRY_MOST_SECONDS)

    async def _follow_to_its_end(self) -> bool:
        """As :meth:`_follow_once`; a container that is gone has nothing more to give."""
        try:
            return await self._follow_once()
        except EngineRefused as error:
            if error.kind is Refusal.NO_CONTAINER:
                return True
            raise

    async def _follow_once(self) -> bool:
        """Follow a running container until its stream ends; of an ended one copy the rest. True: all of it is there."""
        state = await self.engine.inspect(self.container)
        running = state is not None and state.life is Life.RUNNING and not self._ended
        with trio.CancelScope() as scope:
            self._following = scope if running else None
            async with self.engine.open_logs(self.container, follow=running) as pieces:
                await self._copy_or_mark(pieces)
        return not running

    async def _copy_or_mark(self, pieces: AsyncIterator[bytes]) -> None:
        """Copy; where the engine has rotated its log away, say so in ours, and let the next try begin anew from there."""
        try:
            await self._copy(pieces)
        except LogRotated:
            await self.log.append(ROTATED)  # noqa: ASYNC120 - cancelled, the next capture finds that it does not fit
            await self.log.rebase()  # noqa: ASYNC120
            raise

    def note_ended(self) -> None:
        """The container has ended. Podman may miss that while it begins to follow, and then follows for ever: a stream that
        does not end soon is left, and the rest is copied."""
        self._ended = True
        if self._following is not None:
            self._following.deadline = trio.current_time() + SETTLE_SECONDS

    async def _copy(self, pieces: AsyncIterator[bytes]) -> None:
        seam = Seam(self.log.end - self.log.base, await self.log.read_back(VERIFY_BYTES))
        async for data in pieces:
            fresh = seam.feed(data)
            if seam.broken:
                break
            if fresh:
                await self.log.append(fresh)
        if seam.broken or seam.left:
            raise LogRotated(f"the log of container {self.container[:12]} does not begin as it did")


@define
class Seam:
    """Skips the first ``left`` bytes of a stream and checks that they end with ``expected``."""

    left: int
    expected: bytes
    broken: bool = False
    _recent: bytearray = field(factory=bytearray, init=False)

    def feed(self, data: bytes) -> bytes:
        """The part of ``data`` that is new."""
        if not self.left:
            return data
        skipped, fresh = data[: self.left], data[self.left :]
        self.left -= len(skipped)
        self._recent = (self._recent + skipped)[-len(self.expected) :] if self.expected else self._recent
        if not self.left and bytes(self._recent) != self.expected:
            self.broken = True
            return b""
        return fresh
