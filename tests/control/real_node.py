"""The production Node daemon's tree over a runtime in memory, as one more actor system of a test's plane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import frozen

from tests.control.plane import FLEET, Gateway, Plane
from tests.support.engine import PlayEngine, PlayNetwork
from tuneplane.actors import SupervisorSpec, open_system
from tuneplane.domain.ids import JobId, MemberId, NodeId, attempt_id, member_id
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.node_member import Grants
from tuneplane.domain.node_ports import Cards
from tuneplane.nodeside.config import NodeConfig
from tuneplane.nodeside.core import NodeCore
from tuneplane.nodeside.daemon import node_root
from tuneplane.nodeside.journal import open_journal
from tuneplane.nodeside.logs import LogStore
from tuneplane.nodeside.machine import LinuxMachine
from tuneplane.nodeside.runner import ThreadRunner
from tuneplane.nodeside.session import Dial
from tuneplane.wire.link import run_node_session

BUDGETS = Budgets(cpu_millis=1_000_000, memory_bytes=1 << 50, gpu_indexes=())


@frozen
class RealNode:
    node: NodeId
    core: NodeCore
    engine: PlayEngine


def member_of(job: JobId) -> MemberId:
    return member_id(attempt_id(job, 1), 0)


async def _no_cards() -> Cards:
    return Cards()


@asynccontextmanager
async def open_real_node(plane: Plane, gateway: Gateway, engine: PlayEngine, place: Path) -> AsyncIterator[RealNode]:
    """Enrolled, connected and found ready. Its storage root is ``place/root``, which the worker must be told too."""
    enrolled = await plane.enrol(gateway.target)
    state_dir, root = place / "node", place / "root"
    state_dir.mkdir(mode=0o700)
    root.mkdir()
    config = NodeConfig(state_dir=state_dir, budgets=BUDGETS, storage_root=str(root), timings=plane.timings)
    async with open_journal(state_dir, ThreadRunner()) as journal:
        core = NodeCore(
            node=enrolled.node,
            fleet=FLEET,
            state_dir=state_dir,
            journal=journal,
            engine=engine,
            machine=LinuxMachine(),
            network=PlayNetwork(),
            logs=LogStore(state_dir / "logs", ThreadRunner()),
            disk=ThreadRunner(),
            timings=plane.timings,
            grants=Grants(budgets=BUDGETS, storage_root=str(root)),
        )
        dial = Dial(target=gateway.target, tls=enrolled.tls, credential=enrolled.credential, address="127.0.0.1", run=run_node_session)
        tree = SupervisorSpec(name="root", children=(node_root(core, config, dial, _no_cards),))
        async with open_system("node", tree):
            await plane.wait_until(lambda: plane._healthy(enrolled.node), "the Node to be ready", 30.0)
            yield RealNode(enrolled.node, core, engine)
