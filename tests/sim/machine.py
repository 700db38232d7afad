"""A simulated machine: boot, clocks, disk, container runtime. It outlives the daemons that run on it.

The runtime executes what it was asked for at a time of its own: an answer may be lost, come never, or come while the
effect happens much later; a request that was sent survives the death of its sender. What really ran, and how it ended, is
kept in :class:`Container`, and judged against what everybody claims.
"""

from __future__ import annotations

from datetime import datetime
from math import inf
from pathlib import Path
from typing import Protocol

import trio
from attrs import define, field

from tuneplane.domain.ids import MemberId, NodeId
from tuneplane.domain.inventory import Interface
from tuneplane.domain.node_member import LABEL_FENCE, LABEL_MEMBER
from tuneplane.domain.node_ports import ContainerSpec, ContainerState, EngineRefused, Refusal
from tuneplane.domain.node_ports import Life as ContainerLife

from .disk import SimDisk
from .fate import Fate, Life, true_now

IMAGE_PULL_SECONDS = 4.0
BROKEN_IMAGE = "broken"  # in a command: the engine refuses to start it
NATURAL, KILLED, UNWITNESSED = "natural", "killed", "unwitnessed"  # how a container really ended


@define(eq=False)
class Container:
    """The truth about one container."""

    id: str
    spec: ContainerSpec
    starts: int = 0
    started_at: datetime | None = None
    ends_at: float | None = None  # of the Trio clock; None: not started
    exit_code: int = 0
    oom: bool = False
    ending: str = NATURAL
    deaf: bool = False  # does not heed SIGTERM
    removed: bool = False
    changed: trio.Event = field(factory=trio.Event)

    @property
    def member(self) -> MemberId:
        """ "" for a container that is none of ours."""
        return MemberId(self.spec.labels.get(LABEL_MEMBER, ""))

    @property
    def is_foreign(self) -> bool:
        return not self.member

    @property
    def is_fence(self) -> bool:
        return bool(self.spec.labels.get(LABEL_FENCE))

    @property
    def running(self) -> bool:
        return not self.removed and self.ends_at is not None and self.ends_at > trio.current_time()

    @property
    def succeeded(self) -> bool:
        """It ran to its own end, seen by the runtime that started it, with exit code 0."""
        over = self.ends_at is not None and self.ends_at <= trio.current_time()
        return over and self.ending == NATURAL and self.exit_code == 0 and not self.oom

    def end(self, exit_code: int, ending: str, after: float = 0.0) -> None:
        at = trio.current_time() + after
        if self.running and self.ends_at is not None and at < self.ends_at:
            self.ends_at, self.exit_code, self.ending, self.oom = at, exit_code, ending, False
            self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def state(self) -> ContainerState:
        life = ContainerLife.CREATED if self.ends_at is None else ContainerLife.RUNNING if self.running else ContainerLife.ENDED
        ended = life is ContainerLife.ENDED
        return ContainerState(
            id=self.id,
            name=self.spec.name,
            labels=self.spec.labels,
            life=life,
            started_at=self.started_at,
            ended_at=true_now() if ended else None,
            exit_code=self.exit_code if ended else None,
            oom_killed=self.oom if ended else False,
        )


class Watcher(Protocol):
    """Whoever judges what is asked of the runtime, and what it does."""

    def start_begun(self, machine: SimMachine, container: str) -> None:
        """A daemon has made up its mind to start the container."""

    def start_sent(self, machine: SimMachine, container: str) -> None:
        """The request is on its way: whatever is answered, it may be executed."""

    def create_sent(self, machine: SimMachine, spec: ContainerSpec) -> None: ...

    def started(self, machine: SimMachine, container: Container) -> None: ...


@define(eq=False)
class SimMachine:
    """One host."""

    node: NodeId
    fate: Fate
    root: Path  # where its disks lie
    gpus: int
    judge: Watcher
    boot: int = 1
    booted_at: float = 0.0
    instance: int = 1
    disk: SimDisk = field(init=False)
    engine_back_at: float = 0.0
    containers: dict[str, Container] = field(factory=dict)  # as the runtime shows them, by id
    graveyard: list[Container] = field(factory=list)  # removed or forgotten ones, for the judge
    images: set[str] = field(factory=set)
    _made: int = 0

    def __attrs_post_init__(self) -> None:
        self.disk = SimDisk(self.node, self.fate, self.root)

    # ------------------------------------------------ power

    def reboot(self) -> None:
        """Everything stops; the runtime may have lost containers, and shows exit code 0 for the rest (L-C6)."""
        self.boot += 1
        self.instance += 1
        self.booted_at = trio.current_time()
        for container in self.of_ours():
            container.end(0, UNWITNESSED)
            if self.fate.random.random() < 0.3:
                self.take_away(container)

    def restart_engine(self) -> None:
        """The runtime's own process: containers live on or die with it, as it is configured."""
        self.instance += 1
        at_once = self.fate.random.random() < 0.3  # back between two questions of the daemon
        self.engine_back_at = trio.current_time() + (0.0 if at_once else self.fate.soon(4.0))
        dies = self.fate.random.random() < 0.5
        for container in self.of_ours():
            if dies:
                container.end(self.fate.random.choice((0, 137)), UNWITNESSED)

    # ------------------------------------------------ what the runtime does

    def find(self, name: str) -> Container | None:
        return self.containers.get(name) or next((one for one in self.containers.values() if one.spec.name == name), None)

    def add_foreign(self, name: str) -> Container:
        """Somebody else's container, which runs for ever."""
        self._made += 1
        spec = ContainerSpec(name=name, image="registry.example/other@sha256:" + "f" * 64, command=("serve",), labels={"app": "other"})
        made = Container(id=f"{self.node}{self._made:060x}", spec=spec, starts=1, started_at=true_now(), ends_at=inf)
        self.containers[made.id] = made
        return made

    def create(self, spec: ContainerSpec) -> str:
        if self.fate.strikes("name-taken", 0.05) and not self.of_member(MemberId(spec.labels.get(LABEL_MEMBER, ""))):
            self.fate.history.add(self.node, "somebody else has a container named {}", spec.name)
            self.add_foreign(spec.name)
        if self.find(spec.name) is not None:
            raise EngineRefused("creating", Refusal.NAME_TAKEN, f"the name {spec.name} is in use", 409)
        if spec.image not in self.images:
            raise EngineRefused("creating", Refusal.NO_IMAGE, f"no such image: {spec.image}", 404)
        self._made += 1
        made = Container(id=f"{self.node}{self._made:060x}", spec=spec)
        self.containers[made.id] = made
        self.fate.history.add(self.node, "runtime: created {}{}", spec.name, " (fence)" if made.is_fence else "")
        return made.id

    def start(self, name: str) -> None:
        found = self._must_find(name)
        if found.running:
            return
        gone = [mount.source for mount in found.spec.mounts if mount.source.startswith(str(self.root)) and not Path(mount.source).is_dir()]
        if gone:
            raise EngineRefused("starting", Refusal.OTHER, f"no such directory: {gone[0]}", 500)
        if BROKEN_IMAGE in found.spec.command:
            raise EngineRefused("starting", Refusal.OTHER, "exec format error", 500)
        found.starts += 1
        found.started_at = true_now()
        luck = self.fate.random
        found.ends_at = trio.current_time() + self.fate.soon(40.0)
        found.exit_code = luck.choice((0, 0, 0, 1, 7))
        found.oom = luck.random() < 0.05
        found.ending = NATURAL
        found.deaf = luck.random() < 0.3
        self.fate.history.add(self.node, "runtime: started {} until {:.1f}", found.spec.name, found.ends_at)
        found.wake()
        self.judge.started(self, found)

    def signal(self, name: str, signal: str) -> None:
        found = self._must_find(name)
        self.fate.judge(not found.is_foreign, "{} was sent to {}, which is none of ours", signal, found.spec.name)
        if not found.running:
            raise EngineRefused("signalling", Refusal.NOT_RUNNING, "is not running", 409)
        self.fate.history.add(self.node, "runtime: {} to {}", signal, found.spec.name)
        if signal == "SIGKILL":
            found.end(137, KILLED, 0.05)
        elif not found.deaf:
            found.end(self.fate.random.choice((0, 143)), KILLED, self.fate.soon(2.0))

    def remove(self, name: str) -> None:
        found = self.find(name)
        if found is not None:
            self.fate.judge(not found.is_foreign, "{} was removed, which is none of ours", found.spec.name)
            self.fate.history.add(self.node, "runtime: removed {}", found.spec.name)
            found.end(137, KILLED)
            self.take_away(found)

    def take_away(self, container: Container) -> None:
        container.removed = True
        self.graveyard.append(self.containers.pop(container.id))
        container.wake()

    def _must_find(self, name: str) -> Container:
        found = self.find(name)
        if found is None:
            raise EngineRefused("looking", Refusal.NO_CONTAINER, f"no such container: {name}", 404)
        return found

    # ------------------------------------------------ for the judge

    def of_ours(self) -> list[Container]:
        return [one for one in self.containers.values() if not one.is_foreign]

    def of_member(self, member: MemberId) -> list[Container]:
        """All that ever existed here for it."""
        return [one for one in (*self.graveyard, *self.containers.values()) if one.member == member]


@define(eq=False)
class SimClocks:
    """The Machine port of one daemon's life."""

    machine: SimMachine
    life: Life

    def boot_id(self) -> str:
        return f"boot-{self.machine.node}-{self.machine.boot}"

    def machine_id(self) -> str:
        return f"machine-{self.machine.node}"

    def boot_seconds(self) -> float:
        return trio.current_time() - self.machine.booted_at

    def now(self) -> datetime:
        return self.life.clock()


@define(eq=False)
class SimNetwork:
    """The Network port: one card with an address of its own, and nothing foreign that listens."""

    machine: SimMachine

    @property
    def address(self) -> str:
        return f"10.0.0.{1 + int(''.join(filter(str.isdigit, self.machine.node)) or 0) % 250}"

    async def interfaces(self) -> tuple[Interface, ...]:
        await trio.lowlevel.checkpoint()
        return (Interface(name="eth0", addresses=(self.address,)), Interface(name="lo"))

    async def source_towards(self, address: str) -> str:
        await trio.lowlevel.checkpoint()
        return self.address

    async def taken(self, ports: tuple[int, ...]) -> tuple[int, ...]:
        await trio.lowlevel.checkpoint()
        return ()

    async def resolve(self, name: str) -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        return (self.address,)
