"""An engine that restarts between *which instance are you* and *how did it end* proves nothing (P-04, L-C6)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio.testing
from attrs import define

from tests.nodeside.harness import make_plan, private
from tests.sim.engine import SimEngine
from tests.sim.fate import Fate, Life
from tests.sim.machine import UNWITNESSED, Container, SimClocks, SimMachine, SimNetwork
from tuneplane.domain.ids import FleetId, NodeId
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.member_table import MemberEvent, NodePhase
from tuneplane.domain.node_member import Grants, NodeMember
from tuneplane.domain.node_ports import ContainerSpec, ContainerState, EngineUnclear
from tuneplane.domain.timings import Timings
from tuneplane.nodeside.core import NodeCore
from tuneplane.nodeside.effects import do_look, workload_spec
from tuneplane.nodeside.journal import open_journal
from tuneplane.nodeside.logs import LogStore
from tuneplane.nodeside.runner import run_inline


@define(eq=False)
class RestartsOnce(SimEngine):
    """Restarts, and takes its containers with it, just before the first inspection."""

    restarts: int = 1

    async def inspect(self, container: str) -> ContainerState | None:
        if self.restarts:
            self.restarts -= 1
            self.machine.instance += 1
            for each in self.machine.containers.values():
                each.end(0, UNWITNESSED)
        return await super().inspect(container)


class _Nobody:
    """Watches nothing."""

    def start_begun(self, machine: SimMachine, container: str) -> None: ...

    def start_sent(self, machine: SimMachine, container: str) -> None: ...

    def create_sent(self, machine: SimMachine, spec: ContainerSpec) -> None: ...

    def started(self, machine: SimMachine, container: Container) -> None: ...


async def test_look_across_a_restart_of_the_engine_is_unclear_and_the_next_one_unproven(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    fate = Fate(1, calm=True)
    life = Life("node-1", fate)
    machine = SimMachine(NodeId("node-1"), fate, tmp_path / "machine", 0, _Nobody())
    plan = make_plan("train@sha256:1", ("train",))
    machine.images.add(plan.image)
    async with open_journal(private(tmp_path / "state"), run_inline) as journal:
        core = NodeCore(
            node=machine.node,
            fleet=FleetId("lab"),
            state_dir=tmp_path / "state",
            journal=journal,
            engine=RestartsOnce(machine, life, nursery),
            machine=SimClocks(machine, life),
            network=SimNetwork(machine),
            logs=LogStore(tmp_path / "logs", run_inline),
            disk=run_inline,
            timings=Timings(),
            grants=Grants(budgets=Budgets()),
        )
        record = NodeMember(
            member=plan.member, phase=NodePhase.RUNNING, start_boot_id=core.machine.boot_id(), start_engine=await core.engine.instance()
        )
        machine.start(machine.create(workload_spec(core, record, plan)))
        with pytest.raises(EngineUnclear):
            await do_look(core, record)
        outcome = await do_look(core, record)
        assert outcome.event is MemberEvent.FOUND_UNPROVEN
