"""The Engine port of one daemon's life, on a simulated machine: answers that are late, lost, missing, or not true."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import trio
from attrs import define, field

from tuneplane.domain.node_ports import (
    ContainerSpec,
    ContainerState,
    EngineDown,
    EngineInfo,
    EngineRefused,
    EngineUnclear,
    PullFailed,
    PullProgress,
    Refusal,
)

from .clock import SimClock, sleep
from .fate import MOMENT_SECONDS, Fate, Life, Violation
from .machine import IMAGE_PULL_SECONDS, SimMachine

T = TypeVar("T")
OUTPUT = b"begin\nend\n"  # of every container; the second line as it ends
BEGIN = OUTPUT.index(b"\n") + 1
WAIT_SECONDS = 30.0  # as the engine client bounds its own waits
LATE_SECONDS = 20.0  # mean time after which an engine executes what its client has given up
CALL_SECONDS = 20.0  # after this the client gives up


@define(eq=False)
class _Request:
    """What the runtime was asked. It belongs to the runtime from the moment it was sent."""

    effect: Callable[[], object]
    boot: int
    done: trio.Event = field(factory=trio.Event)
    result: object = None
    error: EngineRefused | None = None

    def execute(self) -> None:
        try:
            self.result = self.effect()
        except EngineRefused as error:
            self.error = error
        except Violation:
            pass  # noted: the world ends
        self.done.set()


@define(eq=False)
class SimEngine:
    """Requests outlive their senders."""

    machine: SimMachine
    life: Life
    clock: SimClock

    @property
    def fate(self) -> Fate:
        return self.machine.fate

    # ------------------------------------------------ getting through

    async def _reach(self, doing: str) -> None:
        await self.life.gate()
        if self.machine.engine_back_at > trio.current_time() or self.fate.strikes("engine-down", 0.2):
            await sleep(MOMENT_SECONDS)
            raise EngineDown(f"{doing}: nothing answers at the socket")
        await sleep(self.fate.soon(3.0) if self.fate.strikes("engine-slow", 0.2) else MOMENT_SECONDS)
        await self.life.gate()

    async def _ask(self, doing: str, read: Callable[[], T]) -> T:
        """A question: no effect, but its answer may be lost or never come."""
        await self._reach(doing)
        if self.fate.strikes("engine-hang", 0.02):
            await sleep(CALL_SECONDS)
            raise EngineUnclear(f"{doing}: no answer")
        if self.fate.strikes("engine-lost", 0.05):
            raise EngineUnclear(f"{doing}: the connection broke")
        if self.machine.engine_back_at > trio.current_time():
            raise EngineUnclear(f"{doing}: the engine went away before it answered")
        return read()

    async def _do(self, doing: str, effect: Callable[[], T], sent: Callable[[], None] = lambda: None) -> T:
        """An effect. Whatever the caller gets to hear, the runtime may do it now, later, or never; but once."""
        await self._reach(doing)
        sent()
        if self.fate.strikes("engine-refuse", 0.05):
            raise EngineRefused(doing, Refusal.OTHER, "internal error", 500)
        request = _Request(effect, self.machine.boot)
        if self.fate.strikes("engine-late", 0.15):
            return await self._give_up(doing, request, self.fate.soon(LATE_SECONDS))
        if self.fate.strikes("engine-hang", 0.05):
            delay = None if self.fate.random.random() < 0.5 else MOMENT_SECONDS
            return await self._give_up(doing, request, delay, waits=CALL_SECONDS)
        self._execute_in(MOMENT_SECONDS + self.fate.random.random() * 0.05, request)
        await request.done.wait()
        await sleep(MOMENT_SECONDS)
        if self.fate.strikes("engine-lost", 0.15):
            raise EngineUnclear(f"{doing}: done, but the answer was lost")
        if request.error is not None:
            raise request.error
        return request.result  # type: ignore[return-value]

    async def _give_up(self, doing: str, request: _Request, delay: float | None, waits: float = MOMENT_SECONDS) -> T:  # type: ignore[type-var]
        if delay is not None:
            self._execute_in(delay, request)
        self.fate.history.add(self.machine.node, "engine: {} gets no answer; executed in {} s", doing, delay)
        await sleep(waits)
        raise EngineUnclear(f"{doing}: no answer in time")

    def _execute_in(self, seconds: float, request: _Request) -> None:
        """The request outlives whoever sent it, but not the boot of the machine."""

        def execute() -> None:
            if request.boot == self.machine.boot:
                request.execute()

        self.clock.call_at(trio.current_time() + seconds, execute)

    # ------------------------------------------------ the port

    async def info(self) -> EngineInfo:
        return await self._ask("asking for its version", lambda: EngineInfo(kind="podman", version="4.3.1", gpu_runtime=True))

    async def instance(self) -> str:
        return await self._ask("asking for its instance", lambda: f"instance-{self.machine.instance}")

    async def has_image(self, image: str) -> bool:
        return await self._ask("looking for an image", lambda: image in self.machine.images)

    async def any_image(self) -> str | None:
        return await self._ask("looking for any image", lambda: min(self.machine.images, default=None))

    async def pull(self, image: str, progress: Callable[[PullProgress], None]) -> None:
        for part in range(3):
            await self._reach("pulling")
            progress(PullProgress(done_bytes=part, total_bytes=3))
            await sleep(self.fate.soon(IMAGE_PULL_SECONDS) / 3)
        if self.fate.strikes("engine-refuse", 0.1):
            raise PullFailed(image, "the registry said no", lasting=self.fate.random.random() < 0.2)
        await self._do("pulling", lambda: self.machine.images.add(image))

    async def create(self, spec: ContainerSpec) -> str:
        return await self._do(
            f"creating {spec.name}", lambda: self.machine.create(spec), sent=lambda: self.machine.judge.create_sent(self.machine, spec)
        )

    async def start(self, container: str) -> None:
        if self.life.alive:
            self.machine.judge.start_begun(self.machine, container)
        if self.fate.strikes("engine-lie", 0.1):
            await self._reach("starting")
            self.machine.judge.start_sent(self.machine, container)
            self.fate.history.add(self.machine.node, "engine: says that it started {}, and did not", container[:16])
            return
        await self._do(
            f"starting {container[-6:]}",
            lambda: self.machine.start(container),
            sent=lambda: self.machine.judge.start_sent(self.machine, container),
        )

    async def inspect(self, container: str) -> ContainerState | None:
        def read() -> ContainerState | None:
            found = self.machine.find(container)
            return found.state() if found is not None else None

        return await self._ask(f"inspecting {container}", read)

    async def wait_ended(self, container: str, *, soon: bool = False) -> None:
        await self._reach("waiting")
        with trio.move_on_after(WAIT_SECONDS):
            while (found := self.machine.find(container)) is not None and found.running and found.ends_at is not None:
                changed = found.changed
                with trio.move_on_at(found.ends_at):
                    await changed.wait()
        await self.life.gate()

    async def signal(self, container: str, signal: str) -> None:
        await self._do(f"sending {signal} to {container[-6:]}", lambda: self.machine.signal(container, signal))

    async def remove(self, container: str) -> None:
        await self._do(f"removing {container[-6:]}", lambda: self.machine.remove(container))

    async def list_labelled(self, label: str, value: str) -> list[ContainerState]:
        return await self._ask(
            "listing", lambda: [one.state() for one in self.machine.containers.values() if one.spec.labels.get(label) == value]
        )

    @asynccontextmanager
    async def open_logs(self, container: str, *, follow: bool) -> AsyncIterator[AsyncIterator[bytes]]:
        await self._reach("reading logs")
        found = self.machine.find(container)
        if found is None:
            raise EngineRefused("reading logs", Refusal.NO_CONTAINER, "no such container", 404)
        async with aclosing(self._output(container, follow)) as pieces:
            yield pieces

    async def _output(self, container: str, follow: bool) -> AsyncIterator[bytes]:
        yield OUTPUT[:BEGIN]
        if follow:
            await self.wait_ended(container)
        found = self.machine.find(container)
        if found is not None and not found.running:
            yield OUTPUT[BEGIN:]
