"""One seed: a world is built, users and faults have their way, then everything heals and must come to rest."""

from __future__ import annotations

import gc
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import structlog
import trio
from attrs import define, evolve, field, frozen

import tuneplane.nodeside.storage_probe
from tuneplane.actors import CleanUpOverdue
from tuneplane.domain.faultpoint import install_fault_hook
from tuneplane.domain.fleets import Capability, Delivery, Fleet, FleetKind
from tuneplane.domain.ids import NodeId, TokenId
from tuneplane.domain.inventory import Budgets, Inventory
from tuneplane.domain.jobs import JoinRequest, JoinToken
from tuneplane.domain.nodes import NodeState
from tuneplane.domain.secrets import secret_hash
from tuneplane.domain.timings import Timings

from .clock import SimClock, sleep
from .disk import SimDisk, watched_fsync
from .fate import EVERYTHING, LIFE, Fate, Focus, Life, true_now
from .judge import Judge
from .loop import seeded
from .machine import SimMachine
from .processes import FLEET, Gateway, Ground, NodeDaemon, Process, Steps, Worker, make_root, simulated_child
from .stream import Network, installed
from .troubles import Troubles
from .twin import Database, Twin
from .users import ADA, IMAGE, Users
from .weather import Outages

DISKS = Path("/dev/shm")  # journals live a second, and fsync there costs nothing
TIMINGS = Timings(
    prepare_deadline=60.0,
    hold=120.0,
    commit_margin=5.0,
    commit_deadline=40.0,
    engine_call=20.0,
    earmark_after=15.0,
    retry_first=2.0,
    retry_most=30.0,
    poll=6.0,
)  # shorter than production where only waiting would be simulated; the relations hold
TROUBLE_SECONDS = 150.0  # phase one, at most
IDLE_SECONDS = 20.0  # late messages, early Forgets and returning machines still find something in that time
LOOK_SECONDS = 5.0


@frozen
class Outcome:
    """What one seed came to. ``failure`` is "" when all held."""

    seed: int
    failure: str
    history: str
    jobs: int
    starts: int
    virtual_seconds: float


class _CrashReports(logging.Handler):
    """An actor that crashed: no injected fault may do that."""

    def __init__(self, fate: Fate) -> None:
        super().__init__(logging.ERROR)
        self.fate = fate

    def emit(self, record: logging.LogRecord) -> None:
        life = LIFE.get(None)
        error = record.exc_info[1] if record.exc_info else None
        if life is not None and life.alive and not _only_overdue(error):
            self.fate.note_violation(f"an actor crashed: {self.format(record)}")


def _only_overdue(error: BaseException | None) -> bool:
    """A clean-up that the database was too slow for: its actor has ended all the same, and others finish the work."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_only_overdue, error.exceptions))
    return isinstance(error, CleanUpOverdue)


@define(eq=False)
class World:
    fate: Fate
    ground: Ground
    judge: Judge
    processes: dict[str, Process] = field(factory=dict)
    users: Users = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.users = Users(self.ground, self.judge)

    # ------------------------------------------------ building

    async def build(self, root: Path) -> None:
        luck = self.fate.random
        twin = Twin(self.ground.database)
        await twin.create_fleet(
            Fleet(id=FLEET, kind=FleetKind.NODE, delivery=Delivery.SHARED_MOUNT, capabilities=(Capability.TRAIN,), created_at=true_now())
        )
        for number in range(luck.choice((1, 1, 2, 2, 3, 4))):
            await self._add_node(twin, root, NodeId(f"node-{number}"))
        for number in range(max(luck.randint(1, 2), self.fate.focus.workers)):
            self.processes[f"worker-{number}"] = Worker(f"worker-{number}", self.ground)
        gateways = tuple(f"gateway-{number}" for number in range(luck.randint(1, 2)))
        for name in gateways:
            self.processes[name] = Gateway(name, self.ground)
        self.ground.network.gateways = gateways

    async def _add_node(self, twin: Twin, root: Path, node: NodeId) -> None:
        machine = SimMachine(node, self.fate, root, self.fate.random.randint(0, 3), self.judge)
        now, token, credential = true_now(), f"token-{node}", f"credential-{node}"
        made = JoinToken(id=TokenId(token), fleet=FLEET, created_by=ADA, created_at=now, expires_at=now + timedelta(days=1))
        await twin.mint_join_token(made, token)
        inventory = Inventory(hostname=node, node_version="1", cpu_count=8, memory_bytes=1, budgets=Budgets())
        request = JoinRequest(token=token, join_key=node, try_=1, address=node, node_version="1", protocol=1, inventory=inventory)
        await twin.join(
            FLEET,
            request,
            node=node,
            token_hash=token,
            join_key_hash=node,
            credential_hash=secret_hash(credential),
            credential_expires_at=now + timedelta(days=30),
            now=now,
        )
        daemon = NodeDaemon(node, self.ground, machine=machine, credential=credential)
        self.processes[node] = self.judge.daemons[node] = daemon
        self.judge.machines[node] = machine
        if self.fate.focus.images:
            machine.images.add(IMAGE)
        for number in range(self.fate.random.randint(0, 2)):
            machine.add_foreign(f"other-{number}")

    async def _patrol(self) -> None:
        while True:
            await sleep(LOOK_SECONDS)
            self.judge.look_around()

    async def _until_idle(self) -> None:
        """Until there is a violation, or nobody wants anything and nothing has been left over for a while: faults of a world
        that does nothing prove nothing."""
        idle = 0.0
        while self.fate.violation is None and idle < IDLE_SECONDS:
            with trio.move_on_after(LOOK_SECONDS):
                await self.fate.failed.wait()
            idle = 0.0 if self.users.busy or self.judge.left_over() else idle + LOOK_SECONDS

    # ------------------------------------------------ phase two

    async def converge(self) -> None:
        """Everything comes to rest in time; an operator lifts what only an operator may lift."""
        twin = Twin(self.ground.database)
        patience = self.fate.focus.rest_seconds
        deadline = trio.current_time() + patience
        while left := self.judge.left_over():
            if self.fate.violation is not None:
                return
            self.fate.judge(trio.current_time() < deadline, "no rest {} s after everything healed: {}", patience, "; ".join(left))
            await sleep(LOOK_SECONDS)
            for key in list(self.ground.database.book.cordons.rows):
                await twin.set_node_state(key[0], NodeState.ACTIVE, "", true_now())

    async def live(self) -> None:
        for process in self.processes.values():
            process.life = Life(process.name, self.fate, alive=False)
            self.ground.nursery.start_soon(process.run)
        troubles = Troubles(self.ground, self.judge, self.processes)
        self.ground.nursery.start_soon(self.users.run)
        self.ground.nursery.start_soon(troubles.run)
        self.ground.nursery.start_soon(self._patrol)
        with trio.move_on_after(TROUBLE_SECONDS):
            await self._until_idle()
        troubles.heal()
        if self.fate.violation is None and not self.judge.seen_epochs:
            await self.converge()


async def _simulate(fate: Fate, clock: SimClock, root: Path) -> tuple[World, float]:
    network, database = Network(fate, clock), Database(clock=true_now)
    disks: list[SimDisk] = []
    async with trio.open_nursery() as nursery:
        timings = evolve(TIMINGS, **fate.focus.timings)
        judge = Judge(fate, database, timings)
        ground = Ground(fate, clock, timings, database, network, Outages(), nursery, judge.deciding)
        world = World(fate, ground, judge)
        database.watchers.append(world.judge.committed)
        with installed(network), _instrumented(fate, world), watched_fsync(disks):
            await world.build(root)
            disks += [machine.disk for machine in world.judge.machines.values()]
            await world.live()
            ended = trio.current_time()
            nursery.cancel_scope.cancel()
            for process in world.processes.values():
                process.life.die("the simulation is over")
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
    return world, ended


@contextmanager
def _instrumented(fate: Fate, world: World) -> Iterator[None]:
    probe = tuneplane.nodeside.storage_probe
    real, probe.run_killable = probe.run_killable, simulated_child(fate)
    install_fault_hook(Steps(fate, world.processes, world.judge.passing))
    try:
        yield
    finally:
        install_fault_hook(None)
        probe.run_killable = real


def run_seed(seed: int, focus: Focus = EVERYTHING, *, tell: bool = False) -> Outcome:
    """Run one seed to its end. Deterministic: the same seed, the same history, told of a bad seed or if asked for."""
    fate = Fate(seed, focus)
    root = make_root(DISKS, seed)
    world: World | None = None
    ended = 0.0
    failure = ""
    with _quiet(fate), seeded(seed), _collector_at_rest():
        try:
            clock = SimClock()
            world, ended = trio.run(_simulate, fate, clock, root, clock=clock)
        except BaseException as error:
            if fate.violation is None:
                failure = f"{type(error).__name__}: {error}"
                if not isinstance(error, Exception):
                    raise
                import traceback

                failure += "\n" + "".join(traceback.format_exception(error)[-30:])
        finally:
            shutil.rmtree(root, ignore_errors=True)
    failure = str(fate.violation) if fate.violation is not None else failure
    history = fate.history.text() if failure or tell else ""
    starts = sum(world.judge.starts.values()) if world is not None else 0
    return Outcome(seed, failure, history, len(world.users.jobs) if world else 0, starts, ended)


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """A seed lives a fraction of a second: what it leaves in cycles is collected once, after it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _quiet(fate: Fate) -> Iterator[None]:
    """Log lines cost more than what they tell about; actor crashes are heard."""
    reports = _CrashReports(fate)
    actors = logging.getLogger("tuneplane.actors")
    ours = logging.getLogger("tuneplane")
    level, ours.level = ours.level, logging.CRITICAL
    former, actors.propagate = actors.propagate, False
    actors.setLevel(logging.ERROR)
    actors.addHandler(reports)
    config = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**config)
        actors.removeHandler(reports)
        actors.setLevel(logging.NOTSET)
        actors.propagate = former
        ours.setLevel(level)
