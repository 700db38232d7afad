"""A container runtime in memory behind the Engine port: instant, honest, and stuck exactly where a test wants it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime

import trio
from attrs import define, field

from tuneplane.domain.ids import MemberId, container_name
from tuneplane.domain.inventory import Interface
from tuneplane.domain.node_ports import (
    ContainerSpec,
    ContainerState,
    EngineInfo,
    EngineRefused,
    Life,
    PullProgress,
    Refusal,
)

WAIT_SECONDS = 30.0  # as the engine client bounds its own waits
SIGNALS = {"SIGTERM": 15, "SIGKILL": 9, "SIGINT": 2}
PROGRESS_SECONDS = 0.5  # between the reports of a pull that does not end


@define(eq=False)
class PlayContainer:
    """``chunks`` is what it has written: shared objects, so that a flood costs no memory here."""

    id: str
    spec: ContainerSpec
    life: Life = Life.CREATED
    exit_code: int | None = None
    deaf: bool = False  # to everything but SIGKILL
    stuck: bool = False  # the kernel holds it: no signal ever returns
    chunks: list[bytes] = field(factory=list)
    changed: trio.Event = field(factory=trio.Event)

    def write(self, *chunks: bytes) -> None:
        self.chunks.extend(chunks)
        self._wake()

    def end(self, exit_code: int) -> None:
        if self.life is Life.RUNNING:
            self.life, self.exit_code = Life.ENDED, exit_code
            self._wake()

    def start(self) -> None:
        self.life = Life.RUNNING
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def state(self) -> ContainerState:
        return ContainerState(
            id=self.id,
            name=self.spec.name,
            labels=self.spec.labels,
            life=self.life,
            exit_code=self.exit_code if self.life is Life.ENDED else None,
            ended_at=datetime.now(UTC) if self.life is Life.ENDED else None,
        )


@define(eq=False)
class PlayEngine:
    """``on_start`` sees every container as it starts: it may end it, or have it write. ``slow`` images never arrive."""

    on_start: Callable[[PlayContainer], None] = lambda container: None
    slow: set[str] = field(factory=set)
    containers: dict[str, PlayContainer] = field(factory=dict)
    pulling: int = 0
    _numbers: itertools.count[int] = field(factory=itertools.count)

    def of(self, member: MemberId) -> PlayContainer:
        found = self._find(container_name(member))
        assert found is not None, f"{member} has no container"
        return found

    async def info(self) -> EngineInfo:
        return EngineInfo(kind="podman", version="play", gpu_runtime=False)

    async def instance(self) -> str:
        await trio.lowlevel.checkpoint()
        return "play"

    async def has_image(self, image: str) -> bool:
        await trio.lowlevel.checkpoint()
        return image not in self.slow

    async def any_image(self) -> str | None:
        return "any"

    async def pull(self, image: str, progress: Callable[[PullProgress], None]) -> None:
        self.pulling += 1
        try:
            for done in itertools.count():
                progress(PullProgress(done_bytes=done, total_bytes=1 << 40))
                await trio.sleep(PROGRESS_SECONDS)
        finally:
            self.pulling -= 1

    async def create(self, spec: ContainerSpec) -> str:
        await trio.lowlevel.checkpoint()
        if self._find(spec.name) is not None:
            raise EngineRefused("creating", Refusal.NAME_TAKEN, "the name is taken")
        made = PlayContainer(f"c{next(self._numbers):063d}", spec)
        self.containers[made.id] = made
        return made.id

    async def start(self, container: str) -> None:
        await trio.lowlevel.checkpoint()
        found = self._must(container)
        if found.life is Life.CREATED:
            found.start()
            self.on_start(found)

    async def inspect(self, container: str) -> ContainerState | None:
        await trio.lowlevel.checkpoint()
        found = self._find(container)
        return found.state() if found is not None else None

    async def wait_ended(self, container: str, *, soon: bool = False) -> None:
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(WAIT_SECONDS):
            while (found := self._find(container)) is not None and found.life is Life.RUNNING:
                await found.changed.wait()

    async def signal(self, container: str, signal: str) -> None:
        await trio.lowlevel.checkpoint()
        found = self._must(container)
        if found.stuck:
            await trio.sleep_forever()
        if found.life is not Life.RUNNING:
            raise EngineRefused("signalling", Refusal.NOT_RUNNING, "it does not run")
        if signal == "SIGKILL" or not found.deaf:
            found.end(128 + SIGNALS[signal])

    async def remove(self, container: str) -> None:
        await trio.lowlevel.checkpoint()
        found = self._find(container)
        if found is not None:
            found.end(137)
            del self.containers[found.id]

    async def list_labelled(self, label: str, value: str) -> list[ContainerState]:
        await trio.lowlevel.checkpoint()
        return [one.state() for one in self.containers.values() if one.spec.labels.get(label) == value]

    @asynccontextmanager
    async def open_logs(self, container: str, *, follow: bool) -> AsyncIterator[AsyncIterator[bytes]]:
        await trio.lowlevel.checkpoint()
        async with aclosing(self._output(self._must(container), follow)) as pieces:
            yield pieces

    async def _output(self, container: PlayContainer, follow: bool) -> AsyncGenerator[bytes, None]:
        at = 0
        while True:
            while at < len(container.chunks):
                at += 1
                yield container.chunks[at - 1]
            if not follow or container.life is not Life.RUNNING:
                return
            await container.changed.wait()

    def _find(self, container: str) -> PlayContainer | None:
        if container in self.containers:
            return self.containers[container]
        return next((one for one in self.containers.values() if one.spec.name == container), None)

    def _must(self, container: str) -> PlayContainer:
        found = self._find(container)
        if found is None:
            raise EngineRefused("asking", Refusal.NO_CONTAINER, "no such container")
        return found


class PlayNetwork:
    """The Network port: this machine's own loopback, and nothing foreign that listens."""

    async def interfaces(self) -> tuple[Interface, ...]:
        await trio.lowlevel.checkpoint()
        return (Interface(name="lo", addresses=("127.0.0.1",)),)

    async def source_towards(self, address: str) -> str:
        await trio.lowlevel.checkpoint()
        return "127.0.0.1"

    async def taken(self, ports: tuple[int, ...]) -> tuple[int, ...]:
        await trio.lowlevel.checkpoint()
        return ()

    async def resolve(self, name: str) -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        return ("127.0.0.1",)
