"""The simulated processes: each runs the production tree of its kind, is killed or asked to leave, and starts again."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

from tuneplane.actors import SupervisorSpec, SystemFailed, open_system
from tuneplane.control.gateway import gateway_root
from tuneplane.control.worker import worker_root
from tuneplane.domain.faultpoint import AnswerLost
from tuneplane.domain.ids import FleetId, GatewayId, WorkerId
from tuneplane.domain.inventory import Budgets, Gpu
from tuneplane.domain.jobs import Claim
from tuneplane.domain.launch_table import AttemptAction, AttemptState, Cause, LaunchView, Verdict
from tuneplane.domain.node_member import Grants
from tuneplane.domain.node_ports import Cards
from tuneplane.domain.timings import Timings
from tuneplane.nodeside.config import NodeConfig
from tuneplane.nodeside.core import NodeCore
from tuneplane.nodeside.daemon import node_root
from tuneplane.nodeside.journal import open_journal
from tuneplane.nodeside.logs import LogStore
from tuneplane.nodeside.runner import run_inline
from tuneplane.nodeside.session import Dial
from tuneplane.wire.link import run_node_session

from .clock import SimClock, sleep, sleep_until
from .engine import SimEngine
from .fate import LIFE, Fate, Life
from .machine import SimClocks, SimMachine, SimNetwork
from .stream import TLS, Network
from .twin import Database, Twin
from .weather import Outages, Storm

FLEET = FleetId("lab")
STORAGE_ROOT = "/srv/shared"
GATEWAY_PORT, RELAY_PORT = 8443, 9000
GB = 10**9
CPU_MILLIS, MEMORY_BYTES = 8000, 32 * GB  # a simulated machine
TRACE_OFF = 0


Deciding = Callable[[LaunchView, AttemptState, datetime], None]


@define(eq=False)
class WatchedTwin(Twin):
    """Tells ``deciding`` on which view a step is decided, before anything happens to it."""

    deciding: Deciding = lambda view, target, now: None

    async def advance(
        self,
        claim: Claim,
        view: LaunchView,
        target: AttemptState,
        action: AttemptAction,
        cause: Cause,
        verdict: Verdict | None,
        now: datetime,
    ) -> bool:
        self.deciding(view, target, now)
        return await super().advance(claim, view, target, action, cause, verdict, now)


@define(eq=False)
class Ground:
    """What all processes stand on."""

    fate: Fate
    clock: SimClock
    timings: Timings
    database: Database
    network: Network
    outages: Outages
    nursery: trio.Nursery
    deciding: Deciding

    def twin(self, life: Life) -> Twin:
        return WatchedTwin(self.database, Storm(self.fate, life, self.outages), self.timings, self.deciding)

    def entropy(self, count: int) -> bytes:
        return self.fate.random.randbytes(count)


@define(eq=False)
class Process:
    """Restarted for ever, as systemd would. Subclasses say what one life holds."""

    name: str
    ground: Ground
    life: Life = field(init=False)
    down_until: float = 0.0
    lives: int = 0
    leave: Callable[[], None] = field(default=lambda: None)  # asks the present life to end in good order

    async def run(self) -> None:
        while True:
            await sleep_until(self.down_until)
            life = self.life = Life(self.name, self.ground.fate, skew_seconds=self._skew())
            self.lives += 1
            ended = trio.Event()
            self.ground.nursery.start_soon(self._live, life, ended)
            async with trio.open_nursery() as first:
                for event in (life.died, ended):
                    first.start_soon(_cancel_after, event, first.cancel_scope)
            self.down_until = max(self.down_until, trio.current_time() + self.ground.fate.soon(1.0))

    async def _live(self, life: Life, ended: trio.Event) -> None:
        LIFE.set(life)
        self.ground.fate.history.add(self.name, "starts, life {}", self.lives)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, life.died, nursery.cancel_scope)
                async with self.opened(life) as root:
                    await self._run_tree(life, root)
                nursery.cancel_scope.cancel()
        except* SystemFailed as failed:
            self.ground.fate.judge(not life.alive, "{} gave up: {}", self.name, failed.exceptions[0])
        life.alive = False
        ended.set()

    async def _run_tree(self, life: Life, root: SupervisorSpec) -> None:
        seed = self.ground.fate.random.getrandbits(32)
        tree = SupervisorSpec(name="root", children=(root,))
        async with open_system(self.name, tree, seed=seed, trace_size=TRACE_OFF) as system:
            self.leave = system.stop
            await system.wait()

    @asynccontextmanager
    async def opened(self, life: Life) -> AsyncIterator[SupervisorSpec]:
        raise NotImplementedError
        yield

    def crash(self, why: str) -> None:
        """SIGKILL."""
        if self.life.alive:
            self.at_death()
            self.life.die(why)
            self.ground.network.drop_process(self.name)

    def at_death(self) -> None:
        """What must be kept of this very instant."""

    def _skew(self) -> float:
        fate = self.ground.fate
        return fate.random.uniform(-5.0, 5.0) if fate.strikes("clock-step", 1.0) else 0.0


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


@define(eq=False)
class Worker(Process):
    @asynccontextmanager
    async def opened(self, life: Life) -> AsyncIterator[SupervisorSpec]:
        ground = self.ground
        yield worker_root(ground.twin(life), WorkerId(self.name), ground.timings, life.clock, ground.entropy, storage_root=STORAGE_ROOT)


@define(eq=False)
class Gateway(Process):
    @asynccontextmanager
    async def opened(self, life: Life) -> AsyncIterator[SupervisorSpec]:
        ground = self.ground
        yield gateway_root(
            ground.twin(life),
            GatewayId(self.name),
            ground.timings,
            life.clock,
            ground.entropy,
            listen=(self.name, GATEWAY_PORT),
            tls=TLS,
            relay=(self.name, RELAY_PORT),
            relay_tls=TLS,
        )


@define(eq=False)
class NodeDaemon(Process):
    """The daemon of one machine: production journal on a real file, production actors."""

    machine: SimMachine = field(kw_only=True)
    credential: str = field(kw_only=True)
    core: NodeCore | None = None
    core_since: float = 0.0

    @asynccontextmanager
    async def opened(self, life: Life) -> AsyncIterator[SupervisorSpec]:
        machine, ground = self.machine, self.ground
        state_dir = machine.disk.state_dir
        clocks = SimClocks(machine, life)
        budgets = Budgets(cpu_millis=CPU_MILLIS, memory_bytes=MEMORY_BYTES, gpu_indexes=tuple(range(machine.gpus)))
        config = NodeConfig(state_dir=state_dir, budgets=budgets, storage_root=STORAGE_ROOT, timings=ground.timings)
        async with open_journal(state_dir, run_inline) as journal:
            machine.disk.journal_opened(journal._database.execute("PRAGMA synchronous").fetchone()[0])
            self.core = NodeCore(
                node=machine.node,
                fleet=FLEET,
                state_dir=state_dir,
                journal=journal,
                engine=SimEngine(machine, life, ground.clock),
                machine=clocks,
                network=SimNetwork(machine),
                logs=LogStore(state_dir / "logs", run_inline),
                disk=run_inline,
                timings=ground.timings,
                grants=Grants(budgets=budgets, storage_root=STORAGE_ROOT),
            )
            self.core_since = trio.current_time()
            dial = Dial(
                target=f"gateways:{GATEWAY_PORT}",
                tls=TLS,
                credential=self.credential,
                address=self.name,
                run=partial(run_node_session, clock=clocks.now),
            )
            yield node_root(self.core, config, dial, self._read_cards)

    async def _read_cards(self) -> Cards:
        gpus = tuple(Gpu(index=n, uuid=f"GPU-{self.name}-{n}", name="H100", memory_bytes=80 * GB) for n in range(self.machine.gpus))
        return Cards(gpus=gpus, driver_version="1")

    def at_death(self) -> None:
        self.machine.disk.survive_kill()

    def cut_power(self, why: str) -> None:
        """The whole machine stops and boots again; what was not fsynced may be lost."""
        self.down_until = trio.current_time() + 2.0 + self.ground.fate.soon(10.0)
        if self.life.alive:
            self.life.die(why)
            self.ground.network.drop_process(self.name)
        self.ground.fate.history.add(self.name, "machine reboots")
        self.machine.disk.survive_power_cut()
        self.machine.reboot()


@define(eq=False)
class Steps:
    """The fault hook: kills the process that passes a step, or fails its disk, before or after."""

    fate: Fate
    processes: dict[str, Process]
    passing: Callable[[str, str, str], None]  # process, fault point, moment: before they are harmed

    def __call__(self, name: str, moment: str) -> None:
        life = LIFE.get(None)
        if life is None or not life.alive:
            return
        self.passing(life.process, name, moment)
        process = self.processes[life.process]
        if isinstance(process, NodeDaemon) and not self._journalled(process, name, moment):
            return
        if self.fate.strikes("die-at-step", 0.02):
            self._end(process, f"{moment} {name}")
            return
        if not name.startswith("node.") or name == "node.journal.create":
            return
        if moment == "before" and self.fate.strikes("disk-full", 0.05):
            self.fate.history.add(life.process, "disk: full at {}", name)
            raise sqlite3.OperationalError("database or disk is full") if "journal" in name else OSError(28, "No space left on device")
        if moment == "after" and self.fate.strikes("disk-lost-answer", 0.05):
            self.fate.history.add(life.process, "disk: error after {}", name)
            raise AnswerLost(name)

    def _journalled(self, daemon: NodeDaemon, name: str, moment: str) -> bool:
        """Tell the disk of a commit. False: the power went while its frames were on their way to the disk."""
        if moment == "before" or not name.startswith("node.journal."):
            return True
        if self.fate.strikes("power-cut", 0.02):
            daemon.cut_power(f"power cut in the COMMIT of {name}")
            return False
        daemon.machine.disk.journal_committed()
        return True

    def _end(self, process: Process, why: str) -> None:
        if isinstance(process, NodeDaemon) and self.fate.strikes("power-cut", 0.5):
            process.cut_power(f"power cut {why}")
        else:
            process.crash(why)


def simulated_child(fate: Fate) -> Callable[..., Any]:
    """In place of ``storage_probe.run_killable``: the storage root answers, or a command fails."""

    async def run_killable(command: list[str], seconds: float, what: str) -> None:
        await LIFE.get().gate()
        await sleep(fate.soon(2.0) if fate.strikes("engine-slow", 0.1) else 0.001)

    return run_killable


def make_root(base: Path, seed: int) -> Path:
    """A directory of its own: one that a killed run left behind may have had the same process id."""
    return Path(tempfile.mkdtemp(prefix=f"tuneplane-sim-{os.getpid()}-{seed}-", dir=base))
