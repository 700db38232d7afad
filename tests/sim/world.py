"""One seed: a world is built, users and faults have their way, then everything heals and must come to rest."""

from __future__ import annotations

import gc
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
import trio
from attrs import define, evolve, field, frozen

import tuneplane.nodeside.storage_probe
from tuneplane.actors import CleanUpOverdue
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.faultpoint import install_fault_hook
from tuneplane.domain.fleets import Budgets, Capability, Delivery, Fleet, FleetKind, Inventory, NodeState
from tuneplane.domain.ids import JobId, NodeId, TokenId, TraceId, UserName
from tuneplane.domain.jobs import JoinRequest, JoinToken
from tuneplane.domain.jobspec import JobBody, JobSpec, Metadata, Pool, Resources, RuntimeRef, StopPolicy, WorkKind
from tuneplane.domain.secrets import secret_hash
from tuneplane.domain.timings import Timings

from .clock import SimClock, sleep
from .fate import EVERYTHING, LIFE, Fate, Focus, Life, true_now
from .judge import Judge
from .loop import seeded
from .machine import BROKEN_IMAGE, SimMachine
from .processes import FLEET, Gateway, Ground, NodeDaemon, Process, Steps, Worker, make_root, simulated_child
from .stream import Network, installed
from .twin import Database, Twin
from .weather import Outages

DISKS = Path("/dev/shm")  # journals live a second, and fsync there costs nothing
ADA = UserName("ada")
IMAGE = "registry.example/train@sha256:" + "0" * 64
TIMINGS = Timings(
    prepare_deadline=60.0,
    hold=120.0,
    commit_margin=5.0,
    commit_deadline=40.0,
    engine_call=20.0,
    poll=6.0,
)  # shorter than production where only waiting would be simulated; the relations hold
TROUBLE_SECONDS = 150.0  # phase one
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
    jobs: list[JobId] = field(factory=list)

    # ------------------------------------------------ building

    async def build(self, root: Path) -> None:
        luck = self.fate.random
        twin = Twin(self.ground.database)
        await twin.create_fleet(
            Fleet(id=FLEET, kind=FleetKind.NODE, delivery=Delivery.SHARED_MOUNT, capabilities=(Capability.TRAIN,), created_at=true_now())
        )
        for number in range(luck.randint(1, 3)):
            await self._add_node(twin, root, NodeId(f"node-{number}"))
        for number in range(luck.randint(1, 2)):
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

    # ------------------------------------------------ phase one

    async def users(self) -> None:
        """Submit jobs, and stop some of them at any moment."""
        luck = self.fate.random
        for number in range(luck.randint(3, 10)):
            await sleep(self.fate.soon(TROUBLE_SECONDS / 15))
            job = JobId(f"job-{number}")
            self.jobs.append(job)
            self.ground.nursery.start_soon(self._one_user, job, self._spec(), luck.random() < self.fate.focus.stop_share)

    def _spec(self) -> JobSpec:
        luck = self.fate.random
        gpus = luck.choice(
            (0, luck.randint(0, max(machine.gpus for machine in self.judge.machines.values())))
        )  # admission: it fits somewhere
        pool = Pool(gpus_per_node=gpus, cpus=luck.choice((1.0, 2.0, 4.0)), memory_gb=luck.choice((1.0, 8.0, 16.0)))
        body = JobBody(
            command=(BROKEN_IMAGE,) if luck.random() < 0.05 else ("train",),
            runtime=RuntimeRef(image="train"),
            resources=Resources(pools=(pool,)),
            stop=StopPolicy(grace_seconds=luck.choice((0.0, 2.0, 10.0))),
            max_runtime_seconds=luck.choice((None, None, 20.0)),
        )
        return JobSpec(apiVersion="tuneplane/v1", kind=WorkKind.TRAINING_JOB, metadata=Metadata(name="sim"), spec=body)

    async def _one_user(self, job: JobId, spec: JobSpec, stops: bool) -> None:
        twin = self.ground.twin(Life("user", self.fate))
        await _insist(
            lambda: twin.submit(job, spec, owner=ADA, fleet=FLEET, image=IMAGE, trace=TraceId(job), idempotency_key=job, now=true_now())
        )
        self.fate.history.add("user", "{} submitted", job)
        if stops:
            await sleep(self.fate.soon(self.fate.focus.stop_seconds))
            await _insist(lambda: twin.request_stop(job, ADA, true_now()))
            self.fate.history.add("user", "{} stop accepted", job)

    async def troubles(self) -> None:
        """Faults of whole processes, machines, links and clocks."""
        acts = (
            ("crash-worker", 40.0, lambda: self._crash("worker")),
            ("crash-gateway", 40.0, lambda: self._crash("gateway")),
            ("crash-node", 25.0, lambda: self._crash("node")),
            ("leave", 60.0, self._leave),
            ("reboot", 80.0, self._reboot),
            ("engine-restart", 50.0, lambda: self._machine().restart_engine()),
            ("disk-gone", 150.0, self._lose_disk),
            ("cut", 30.0, self._cut),
            ("database-away", 60.0, self._take_database),
            ("forget", 15.0, lambda: self.ground.nursery.start_soon(self._forget)),
            ("database-restored", 50.0, lambda: self.ground.nursery.start_soon(self._restore_database)),
            ("drain", 40.0, lambda: self.ground.nursery.start_soon(self._drain)),
        )
        async with trio.open_nursery() as nursery:
            for name, mean, act in acts:
                if self.fate.odds[name] > 0:
                    nursery.start_soon(self._again_and_again, mean / max(self.fate.odds[name], 0.2), act)

    async def _again_and_again(self, mean: float, act: Any) -> None:
        while not self.fate.calm:
            await sleep(self.fate.soon(mean))
            if not self.fate.calm:
                act()

    def _machine(self) -> SimMachine:
        return self.fate.random.choice(list(self.judge.machines.values()))

    def _crash(self, kind: str) -> None:
        process = self.fate.random.choice([one for name, one in self.processes.items() if name.startswith(kind)])
        process.down_until = trio.current_time() + self.fate.soon(5.0)
        process.crash("SIGKILL")

    def _leave(self) -> None:
        process = self.fate.random.choice(list(self.processes.values()))
        if process.life.alive:
            self.fate.history.add(process.name, "is asked to leave")
            process.leave()

    def _reboot(self) -> None:
        machine = self._machine()
        daemon = self.judge.daemons[machine.node]
        daemon.down_until = trio.current_time() + 2.0 + self.fate.soon(10.0)
        daemon.crash("reboot")
        self.fate.history.add(machine.node, "machine reboots")
        machine.reboot()

    def _lose_disk(self) -> None:
        machine = self._machine()
        self.judge.daemons[machine.node].crash("its disk is replaced")
        self.fate.history.add(machine.node, "journal and logs are gone")
        machine.new_disk()
        self.judge.journal_lost(machine.node)

    def _cut(self) -> None:
        network = self.ground.network
        pair = frozenset((self._machine().node, self.fate.random.choice(network.gateways)))
        self.fate.history.add("network", "cut between {}", sorted(pair))
        network.cuts.add(pair)
        network.at(trio.current_time() + self.fate.soon(25.0), lambda: network.cuts.discard(pair))

    def _take_database(self) -> None:
        self.ground.outages.away_until = trio.current_time() + self.fate.soon(8.0)
        self.fate.history.add("database", "away until {:.1f}", self.ground.outages.away_until)

    async def _restore_database(self) -> None:
        """An operator puts a backup back: what was committed since has never been (P-07)."""
        backup = self.ground.database.book.backup()
        await sleep(self.fate.soon(20.0))
        self.fate.history.add("operator", "restores the database from a backup")
        self.judge.went_back()
        self.ground.database.book.restore(backup)

    async def _forget(self) -> None:
        """Retention, much earlier than in production: whatever arrives late meets a Node that has forgotten."""
        age = timedelta(seconds=self.fate.soon(5.0))
        count = await Twin(self.ground.database).forget_ended(true_now() - age, 100, true_now())
        self.fate.history.add("operator", "{} members are to be forgotten", count)

    async def _drain(self) -> None:
        twin, node = Twin(self.ground.database), self._machine().node
        await twin.set_node_state(node, NodeState.DRAINING, "", true_now())
        await sleep(self.fate.soon(20.0))
        await twin.set_node_state(node, NodeState.ACTIVE, "", true_now())

    async def _patrol(self) -> None:
        while True:
            await sleep(LOOK_SECONDS)
            self.judge.look_around()

    # ------------------------------------------------ phase two

    async def heal(self) -> None:
        self.fate.calm = True
        self.fate.history.add("world", "everything heals")
        self.ground.network.cuts.clear()
        self.ground.outages.away_until = 0.0
        for machine in self.judge.machines.values():
            machine.engine_back_at = 0.0

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
        self.ground.nursery.start_soon(self.users)
        self.ground.nursery.start_soon(self.troubles)
        self.ground.nursery.start_soon(self._patrol)
        with trio.move_on_after(TROUBLE_SECONDS):
            await self.fate.failed.wait()
        await self.heal()
        if self.fate.violation is None and not self.judge.seen_epochs:
            await self.converge()


async def _insist(act: Any) -> None:
    """As an API client does: the same request, with the same key, until it is answered."""
    while True:
        try:
            await act()
            return
        except StorageUnavailable:
            await sleep(0.5)


async def _simulate(fate: Fate, clock: SimClock, root: Path) -> tuple[World, float]:
    network, database = Network(fate, clock), Database(clock=true_now)
    async with trio.open_nursery() as nursery:
        timings = evolve(TIMINGS, **fate.focus.timings)
        judge = Judge(fate, database, timings)
        ground = Ground(fate, clock, timings, database, network, Outages(), nursery, judge.deciding)
        world = World(fate, ground, judge)
        database.watchers.append(world.judge.committed)
        with installed(network), _instrumented(fate, world):
            nursery.start_soon(network.run)
            await world.build(root)
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
    return Outcome(seed, failure, history, len(world.jobs) if world else 0, starts, ended)


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
