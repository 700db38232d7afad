"""The whole daemon against a real gateway link and a real Podman: greet, report, run, read logs, stop, reconnect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from attrs import evolve

from tests.nodeside.harness import commit, containers_of, make_plan, prepare, private, stop
from tests.support.podman import Podman
from tests.support.sessions import Certificates, ScriptedDoor, make_certificates, now
from tuneplane.actors import System, open_system
from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.frames import (
    Command,
    CommandAnswer,
    InventoryReport,
    LogCancel,
    LogChunk,
    LogRead,
    Observation,
    ObservationAck,
    ReconcileDone,
)
from tuneplane.domain.ids import FleetId, MemberId, NodeId
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.launch_table import MemberPhase
from tuneplane.domain.node_ports import Cards
from tuneplane.domain.plan import MemberPlan
from tuneplane.domain.timings import Timings
from tuneplane.nodeside.config import NodeConfig
from tuneplane.nodeside.daemon import open_node
from tuneplane.nodeside.identity import Identity, load_identity, save_identity
from tuneplane.wire.link import GatewayLink, serve_gateway

pytestmark = pytest.mark.container
TIMINGS = Timings(heartbeat=0.5, session_idle=3.0, reconnect_first=0.05, reconnect_most=0.2, inventory_confirm=0.5, poll=0.2)
T = TypeVar("T")


async def no_cards() -> Cards:
    return Cards()


class Gateway:
    """A gateway whose frames a test reads: level-triggered waits over everything that came."""

    def __init__(self, door: ScriptedDoor) -> None:
        self.door = door

    @property
    def link(self) -> GatewayLink:
        return self.door.sessions["node-1"].link

    def frames(self, kind: type[T]) -> list[T]:
        seen = self.door.sessions.get("node-1")
        return [frame for frame in (seen.frames if seen else []) if isinstance(frame, kind)]

    async def until(self, found: Callable[[], T | None], what: str, seconds: float = 15.0) -> T:
        with trio.move_on_after(seconds):
            async with self.door.changed:
                while (result := found()) is None:
                    await self.door.changed.wait()
                return result
        raise AssertionError(f"{what}: not within {seconds:g} s; frames {self.door.sessions['node-1'].frames[-5:]}")

    async def phase(self, member: MemberId, phase: MemberPhase, **facts: Any) -> Observation:
        def found() -> Observation | None:
            for each in reversed(self.frames(Observation)):
                if each.member == member and each.phase is phase and all(getattr(each, k) == v for k, v in facts.items()):
                    return each
            return None

        return await self.until(found, f"{member} {phase.value}")

    async def answer(self, command: Command) -> CommandAnswer:
        def found() -> CommandAnswer | None:
            return next((each for each in self.frames(CommandAnswer) if each.operation == command.operation), None)

        await self.link.send(command)
        return await self.until(found, f"answer to {command.operation}")


class LogWatch:
    """Log chunks as they arrive."""

    def __init__(self, link: GatewayLink) -> None:
        self.chunks: list[LogChunk] = []
        self._came = trio.Event()
        link.log_sink = self._take

    def _take(self, chunk: LogChunk) -> None:
        self.chunks.append(chunk)
        self._came.set()
        self._came = trio.Event()

    @property
    def data(self) -> bytes:
        return b"".join(chunk.data for chunk in self.chunks)

    async def until(self, holds: Callable[[LogWatch], bool], seconds: float = 10.0) -> bytes:
        with trio.move_on_after(seconds):
            while not holds(self):
                await self._came.wait()
            return self.data
        raise AssertionError(f"log: not within {seconds:g} s; last seen {self.chunks[-3:]}")

    async def until_end(self) -> bytes:
        return await self.until(lambda watch: any(chunk.end for chunk in watch.chunks))


def acknowledge(link: GatewayLink, frame: Any) -> None:
    if isinstance(frame, Observation):
        link.send_nowait(ObservationAck(member=frame.member, revision=frame.revision))


@asynccontextmanager
async def open_gateway(certificates: Certificates, door: ScriptedDoor, port: int = 0) -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[int]) -> None:
            await serve_gateway(host="127.0.0.1", port=port, tls=certificates.server(), door=door, timings=TIMINGS, task_status=task_status)

        yield await nursery.start(serve)
        nursery.cancel_scope.cancel()


def enrol(state_dir: Path, certificates: Certificates, port: int) -> None:
    save_identity(
        private(state_dir),
        Identity(
            node=NodeId("node-1"),
            fleet=FleetId("lab"),
            server="https://console.example",
            address="127.0.0.1",
            credential="good-node-1",
            credential_expires_at=now(),
            gateway_target=f"127.0.0.1:{port}",
            gateway_trust_pem=certificates.trust_pem,
        ),
    )


def config_of(state_dir: Path, podman: Podman, **changes: Any) -> NodeConfig:
    values: dict[str, Any] = {
        "state_dir": state_dir,
        "budgets": Budgets(cpu_millis=4000, memory_bytes=4 << 30, gpu_indexes=()),
        "runtime_socket": podman.socket,
        "timings": TIMINGS,
    }
    return NodeConfig(**{**values, **changes})


@asynccontextmanager
async def open_daemon(config: NodeConfig) -> AsyncIterator[System]:
    async with open_node(config, cards=no_cards) as root, open_system("node-test", root) as system:
        yield system


@asynccontextmanager
async def open_pair(tmp_path: Path, podman: Podman, *, epoch: int = 0, accepted_hold: str = "", **changes: Any) -> AsyncIterator[Gateway]:
    """A gateway and a daemon in session with it."""
    async with open_bridge():
        door = ScriptedDoor(timings=TIMINGS, answer=acknowledge, epoch=epoch, accepted_hold=accepted_hold)
        async with _open_pair(tmp_path, podman, door, changes) as gateway:
            yield gateway


@asynccontextmanager
async def _open_pair(tmp_path: Path, podman: Podman, door: ScriptedDoor, changes: dict[str, Any]) -> AsyncIterator[Gateway]:
    with make_certificates() as certificates:
        async with open_gateway(certificates, door) as port:
            enrol(tmp_path / "state", certificates, port)
            async with open_daemon(config_of(tmp_path / "state", podman, **changes)):
                gateway = Gateway(door)
                await gateway.until(lambda: next(iter(gateway.frames(ReconcileDone)), None), "reconcile")
                yield gateway


def _evolved(command: Command, epoch: int) -> Command:
    return evolve(command, session_epoch=epoch)


async def run_member(gateway: Gateway, plan: MemberPlan) -> None:
    assert (await gateway.answer(_evolved(prepare(plan), gateway.link.epoch))).accepted
    await gateway.phase(plan.member, MemberPhase.PREPARED)
    assert (await gateway.answer(_evolved(commit(plan), gateway.link.epoch))).accepted


async def test_daemon_in_session_runs_a_job_and_answers_reads_of_its_log(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-LCH-05, R-LCH-13, R-SES-01: commands, reports and log bytes over one outbound stream."""
    plan = make_plan(image, ("sh", "-c", "for i in 1 2 3 4 5; do echo line $i; done; exit 4"))
    async with open_pair(tmp_path, podman) as gateway:
        report = await gateway.until(lambda: next(iter(gateway.frames(InventoryReport)), None), "inventory")
        assert report.inventory.problems == ()
        assert report.inventory.runtime.startswith("podman ")
        await run_member(gateway, plan)
        ended = await gateway.phase(plan.member, MemberPhase.TERMINATED, cleaned=True)
        assert (ended.exit_code, ended.oom_killed, ended.reason_code) == (4, False, "")
        logs = LogWatch(gateway.link)
        await gateway.link.send(LogRead(request=7, member=plan.member, tail_lines=2))
        assert await logs.until_end() == b"line 4\nline 5\n"
        assert containers_of(podman, plan) == []


async def test_daemon_asked_to_follow_a_log_sends_what_comes_until_cancelled(tmp_path: Path, podman: Podman, image: str) -> None:
    plan = make_plan(image, ("sh", "-c", "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"))
    async with open_pair(tmp_path, podman) as gateway:
        await run_member(gateway, plan)
        await gateway.phase(plan.member, MemberPhase.RUNNING)
        logs = LogWatch(gateway.link)
        await gateway.link.send(LogRead(request=1, member=plan.member, offset=0, follow=True))
        assert (await logs.until(lambda watch: len(watch.data) >= 20)).startswith(b"0\n1\n2\n")
        await gateway.link.send(LogCancel(request=1))
        await gateway.answer(_evolved(stop(plan), gateway.link.epoch))
        stopped = await gateway.phase(plan.member, MemberPhase.TERMINATED, cleaned=True)
        assert stopped.reason_code == "stopped"


async def test_daemon_that_leaves_and_returns_finds_its_job_and_its_exit_code(tmp_path: Path, podman: Podman, image: str) -> None:
    """L-C21: the daemon's stop touches no workload; R-LCH-05: what ended meanwhile is learnt."""
    flag = tmp_path / "storage"
    flag.mkdir()
    plan = make_plan(image, ("sh", "-c", f"while ! [ -e {flag}/go ]; do sleep 0.05; done; echo done; exit 6"), storage_root=str(flag))
    async with open_pair(tmp_path, podman, storage_root=str(flag)) as gateway:
        await run_member(gateway, plan)
        await gateway.phase(plan.member, MemberPhase.RUNNING)
    assert [c["State"] for c in podman.containers(f"io.tuneplane.member={plan.member}")] == ["running"]
    (flag / "go").touch()
    async with open_pair(tmp_path, podman, epoch=10, storage_root=str(flag)) as gateway:
        ended = await gateway.phase(plan.member, MemberPhase.TERMINATED, cleaned=True)
        assert (ended.exit_code, ended.reason_code) == (6, "")
        logs = LogWatch(gateway.link)
        await gateway.link.send(LogRead(request=1, member=plan.member, offset=0))
        assert await logs.until_end() == b"done\n"


async def test_daemon_whose_gateway_vanishes_dials_again_and_reports_everything(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-SES-03, P-06: a new epoch, and all members again."""
    plan = make_plan(image, ("sleep", "100"))
    with make_certificates() as certificates:
        async with open_bridge():
            first = ScriptedDoor(timings=TIMINGS, answer=acknowledge)
            async with trio.open_nursery() as nursery:
                async with open_gateway(certificates, first) as port:
                    enrol(tmp_path / "state", certificates, port)

                    async def daemon(task_status: trio.TaskStatus[None]) -> None:
                        async with open_daemon(config_of(tmp_path / "state", podman)):
                            task_status.started()
                            await trio.sleep_forever()

                    await nursery.start(daemon)
                    gateway = Gateway(first)
                    await gateway.until(lambda: next(iter(gateway.frames(ReconcileDone)), None), "reconcile")
                    await run_member(gateway, plan)
                    await gateway.phase(plan.member, MemberPhase.RUNNING)
                second = ScriptedDoor(timings=TIMINGS, answer=acknowledge, epoch=10)
                async with open_gateway(certificates, second, port):
                    gateway = Gateway(second)
                    await gateway.until(lambda: next(iter(gateway.frames(ReconcileDone)), None), "reconcile again")
                    await gateway.phase(plan.member, MemberPhase.RUNNING)
                    await gateway.answer(_evolved(stop(plan), gateway.link.epoch))
                    await gateway.phase(plan.member, MemberPhase.TERMINATED, cleaned=True)
                    nursery.cancel_scope.cancel()


async def test_daemon_told_an_epoch_that_went_back_holds_commands_and_raises_an_alarm(tmp_path: Path, podman: Podman, image: str) -> None:
    """P-07."""
    plan = make_plan(image, ("true",))
    async with open_pair(tmp_path, podman):
        pass  # epoch 1 is now in the journal
    async with open_pair(tmp_path, podman) as gateway:  # a door that begins at epoch 1 again

        def alarmed() -> bool | None:
            reports = gateway.frames(InventoryReport)
            return True if reports and any("went back in time" in text for text in reports[-1].inventory.problems) else None

        await gateway.link.send(_evolved(prepare(plan), gateway.link.epoch))
        await gateway.until(alarmed, "alarm")
        assert gateway.frames(CommandAnswer) == []
    async with open_pair(tmp_path, podman, epoch=10) as gateway:  # newer again, and held all the same
        await gateway.until(alarmed, "alarm after a restart")
        await gateway.link.send(_evolved(prepare(plan), gateway.link.epoch))
        hold = gateway.frames(InventoryReport)[-1].inventory.hold
        assert gateway.frames(CommandAnswer) == []
    async with open_pair(tmp_path, podman, epoch=20, accepted_hold=hold.id) as gateway:
        await gateway.until(lambda: None if alarmed() or not gateway.frames(InventoryReport) else True, "the alarm to be lifted")
        assert (await gateway.answer(_evolved(prepare(plan), gateway.link.epoch))).accepted


async def test_daemon_on_a_machine_without_budgets_names_the_variables(tmp_path: Path, podman: Podman) -> None:
    """R-ENR-09."""
    async with open_pair(tmp_path, podman, budgets=Budgets()) as gateway:
        report = await gateway.until(lambda: next(iter(gateway.frames(InventoryReport)), None), "inventory")
        text = " ".join(report.inventory.problems)
        for variable in ("TUNEPLANE_NODE_CPUS", "TUNEPLANE_NODE_MEMORY_GB", "TUNEPLANE_NODE_GPU_IDS"):
            assert variable in text


async def test_second_daemon_on_the_state_directory_or_runtime_is_refused_with_its_name(tmp_path: Path, podman: Podman) -> None:
    """R-ENR-10."""
    async with open_pair(tmp_path, podman):
        with pytest.raises(Refused, match="already serves"):
            async with open_daemon(config_of(tmp_path / "state", podman)):
                pass
        other = private(tmp_path / "other")
        save_identity(other, load_identity(tmp_path / "state"))
        with pytest.raises(Refused, match=str(tmp_path / "state")):
            async with open_daemon(config_of(other, podman)):
                pass


async def test_daemon_on_a_machine_that_is_not_enrolled_says_so(tmp_path: Path, podman: Podman) -> None:
    with pytest.raises(NotFound, match="enrolment"):
        async with open_daemon(config_of(private(tmp_path / "state"), podman)):
            pass


def test_identity_file_is_private_and_refuses_an_unknown_version(tmp_path: Path) -> None:
    """R-ENR-04."""
    from tuneplane.domain.errors import InvalidInput
    from tuneplane.nodeside.identity import load_identity

    with make_certificates() as certificates:
        enrol(tmp_path / "state", certificates, 1)
    path = tmp_path / "state" / "identity.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_identity(tmp_path / "state").credential == "good-node-1"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    with pytest.raises(InvalidInput, match="version"):
        load_identity(tmp_path / "state")
