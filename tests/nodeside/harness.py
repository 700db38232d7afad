"""A Node's core over a real journal and a real runtime, without sessions: commands in, records out."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field

from tests.support.engine import PlayNetwork
from tests.support.podman import Podman
from tuneplane.domain.frames import Command, CommandAnswer, CommandKind
from tuneplane.domain.ids import AttemptId, FleetId, JobId, MemberId, NodeId, OperationId, TraceId, container_name
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.member_table import NodePhase
from tuneplane.domain.node_member import Grants, NodeMember
from tuneplane.domain.node_ports import Engine, Machine, Network
from tuneplane.domain.plan import MemberPlan, plan_bytes, plan_digest
from tuneplane.domain.timings import Timings
from tuneplane.nodeside.core import NodeCore
from tuneplane.nodeside.driver import MemberDriver
from tuneplane.nodeside.engine import EngineClient, open_engine
from tuneplane.nodeside.journal import open_journal
from tuneplane.nodeside.logs import LogStore, read_log
from tuneplane.nodeside.machine import LinuxMachine
from tuneplane.nodeside.members import Members
from tuneplane.nodeside.network import LinuxNetwork
from tuneplane.nodeside.runner import ThreadRunner

WAIT_SECONDS = 20.0
_numbers = itertools.count(1)


@define(eq=False)
class NurseryDrivers:
    """Runs drivers in a test's nursery."""

    core: NodeCore
    nursery: trio.Nursery
    running: dict[MemberId, MemberDriver] = field(factory=dict)

    async def wake(self, member: MemberId) -> None:
        driver = self.running.get(member)
        if driver is None:
            driver = self.running[member] = MemberDriver(self.core, member)
            self.nursery.start_soon(self._drive, driver)
        driver.poke()

    async def _drive(self, driver: MemberDriver) -> None:
        await driver.drive()
        del self.running[driver.member]


@define(eq=False)
class TestNode:
    """What a test holds of a running Node."""

    __test__ = False
    core: NodeCore
    members: Members
    nursery: trio.Nursery

    async def send(self, command: Command) -> CommandAnswer:
        answer = await self.members.accept(command)
        assert answer is not None
        return answer

    def record(self, member: MemberId) -> NodeMember | None:
        return self.core.journal.member(member)

    async def until(self, member: MemberId, holds: Callable[[NodeMember], bool], seconds: float = WAIT_SECONDS) -> NodeMember:
        """Wait for a report after which the record holds; says what it last saw."""
        found = await self._until(member, lambda record: record is not None and holds(record), seconds)
        assert found is not None
        return found

    async def _until(self, member: MemberId, holds: Callable[[NodeMember | None], bool], seconds: float) -> NodeMember | None:
        with trio.move_on_after(seconds):
            while True:
                changed = self.core.outbox.changed()
                if holds(record := self.record(member)):
                    return record
                await changed.wait()
        raise AssertionError(f"{member}: not reached within {seconds:g} s; last seen {self.record(member)}")

    async def until_phase(self, member: MemberId, phase: NodePhase, seconds: float = WAIT_SECONDS) -> NodeMember:
        return await self.until(member, lambda record: record.phase is phase, seconds)

    async def until_clean(self, member: MemberId, seconds: float = WAIT_SECONDS) -> NodeMember:
        return await self.until(member, lambda record: record.cleaned, seconds)

    async def until_gone(self, member: MemberId, seconds: float = WAIT_SECONDS) -> None:
        await self._until(member, lambda record: record is None, seconds)

    async def log_bytes(self, member: MemberId) -> bytes:
        log = await self.core.logs.log(member)
        return b"".join([p.data async for p in read_log(log, offset=0, tail_lines=None, max_bytes=1 << 30, follow=False)])


@asynccontextmanager
async def open_node(
    state_dir: Path,
    podman: Podman,
    *,
    node: str = "node-1",
    storage_root: str = "",
    machine: Machine | None = None,
    network: Network | None = None,
    engine: Callable[[EngineClient], Engine] = lambda client: client,
    budgets: Budgets | None = None,
    timings: Timings | None = None,
    call_seconds: float = 20.0,
) -> AsyncIterator[TestNode]:
    """Start over whatever the journal and the runtime hold; leaving is a daemon that dies (nothing is stopped)."""
    async with (
        open_engine(runtime="", socket_path=podman.socket, insecure_registries=frozenset(), call_seconds=call_seconds) as client,
        open_node_on(
            state_dir,
            engine(client),
            node=node,
            network=network or LinuxNetwork(podman.socket),
            storage_root=storage_root,
            machine=machine,
            budgets=budgets,
            timings=timings,
        ) as opened,
    ):
        yield opened


@asynccontextmanager
async def open_node_on(
    state_dir: Path,
    engine: Engine,
    *,
    node: str = "node-1",
    storage_root: str = "",
    machine: Machine | None = None,
    network: Network | None = None,
    budgets: Budgets | None = None,
    timings: Timings | None = None,
) -> AsyncIterator[TestNode]:
    """The same over any container runtime."""
    grants = Grants(budgets=budgets or Budgets(cpu_millis=64_000, memory_bytes=64 << 30, gpu_indexes=()), storage_root=storage_root)
    async with open_journal(private(state_dir), ThreadRunner()) as journal, trio.open_nursery() as nursery:
        core = NodeCore(
            node=NodeId(node),
            fleet=FleetId("lab"),
            state_dir=state_dir,
            journal=journal,
            engine=engine,
            machine=machine or LinuxMachine(),
            network=network or PlayNetwork(),
            logs=LogStore(state_dir / "logs", ThreadRunner()),
            disk=ThreadRunner(),
            timings=timings or Timings(),
            grants=grants,
        )
        members = Members(core, NurseryDrivers(core, nursery))
        await members.resume()
        yield TestNode(core, members, nursery)
        nursery.cancel_scope.cancel()


def private(directory: Path) -> Path:
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def make_plan(image: str, command: tuple[str, ...], *, node: str = "node-1", storage_root: str = "", **changes: object) -> MemberPlan:
    """A plan of one member with an identity of its own."""
    number = next(_numbers)
    job = f"job-t{number}"
    values: dict[str, object] = {
        "member": MemberId(f"{job}-1-0"),
        "attempt": AttemptId(f"{job}-1"),
        "attempt_number": 1,
        "job": JobId(job),
        "job_name": "test",
        "fleet": FleetId("lab"),
        "node": NodeId(node),
        "rank": 0,
        "world": 1,
        "image": image,
        "command": command,
        "env": {"WHO": "me"},
        "workdir": None,
        "cpu_millis": 1000,
        "memory_bytes": 64 << 20,
        "gpu_uuids": (),
        "ports": (),
        "orchestrator": "process-group",
        "main_address": "127.0.0.1",
        "main_port": 20000,
        "address": "127.0.0.1",
        "interface": None,
        "storage_root": storage_root,
        "output_dir": f"{storage_root}/out/{job}" if storage_root else "",
        "stop_signal": "SIGTERM",
        "stop_grace_seconds": 1.0,
        "max_runtime_seconds": None,
        "trace": TraceId("trace"),
    }
    return MemberPlan(**{**values, **changes})  # type: ignore[arg-type]


def prepare(plan: MemberPlan, *, hold_seconds: float = 600.0, epoch: int = 0) -> Command:
    data = plan_bytes(plan)
    return Command(
        operation=OperationId(f"{plan.member}:prepare"),
        kind=CommandKind.PREPARE,
        member=plan.member,
        session_epoch=epoch,
        claim_epoch=1,
        plan=data,
        plan_digest=plan_digest(data),
        hold_seconds=hold_seconds,
    )


def commit(plan: MemberPlan, *, operation: str = "commit", epoch: int = 0) -> Command:
    return Command(
        operation=OperationId(f"{plan.member}:{operation}"),
        kind=CommandKind.COMMIT,
        member=plan.member,
        session_epoch=epoch,
        claim_epoch=1,
        plan_digest=plan_digest(plan_bytes(plan)),
    )


def stop(plan: MemberPlan, *, grace_seconds: float = 1.0, signal: str = "SIGTERM", epoch: int = 0) -> Command:
    return Command(
        operation=OperationId(f"{plan.member}:stop"),
        kind=CommandKind.STOP,
        member=plan.member,
        session_epoch=epoch,
        claim_epoch=1,
        stop_signal=signal,
        stop_grace_seconds=grace_seconds,
        reason="stopped by a test",
    )


def forget(plan: MemberPlan) -> Command:
    return Command(
        operation=OperationId(f"{plan.member}:forget"), kind=CommandKind.FORGET, member=plan.member, session_epoch=0, claim_epoch=1
    )


def containers_of(podman: Podman, plan: MemberPlan) -> list[str]:
    """Names of all containers that exist for the member, asked of the runtime itself."""
    return [str(name) for c in podman.containers() for name in c["Names"] if str(name) == container_name(plan.member)]  # type: ignore[attr-defined]


async def run_to_end(node: TestNode, plan: MemberPlan) -> NodeMember:
    """Prepare, commit, and wait until it has ended and is clean."""
    assert (await node.send(prepare(plan))).accepted
    await node.until(plan.member, lambda record: record.phase is not NodePhase.PREPARING)
    await node.send(commit(plan))
    return await node.until_clean(plan.member)
