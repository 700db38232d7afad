"""A journal that cannot take the session's epoch costs that session, and nothing else (L-J8, P-06)."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, cast

from tests.nodeside.harness import private
from tests.support.sessions import FAST, FLEET, ScriptedDoor, open_gateway
from tuneplane.actors import ChildSpec, SupervisorSpec, open_system
from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.faultpoint import install_fault_hook
from tuneplane.domain.frames import ReconcileDone
from tuneplane.domain.ids import NodeId
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.node_member import Grants
from tuneplane.domain.node_ports import Engine, Network
from tuneplane.nodeside.board import Board
from tuneplane.nodeside.core import NodeCore
from tuneplane.nodeside.journal import open_journal
from tuneplane.nodeside.logs import LogStore
from tuneplane.nodeside.machine import LinuxMachine
from tuneplane.nodeside.runner import ThreadRunner
from tuneplane.nodeside.session import Dial, SessionActor
from tuneplane.wire.link import run_node_session

FAILURES = 3


def fail_epochs(times: int) -> list[str]:
    """The next ``times`` commits of an epoch find the disk full. Gives the list of what was passed."""
    passed: list[str] = []

    def hook(name: str, moment: str) -> None:
        if (name, moment) == ("node.journal.epoch", "before"):
            passed.append(name)
            if len(passed) <= times:
                raise sqlite3.OperationalError("database or disk is full")

    install_fault_hook(hook)
    return passed


async def test_session_whose_epoch_cannot_be_journalled_ends_with_that_reason_and_the_next_one_works(tmp_path: Path) -> None:
    passed = fail_epochs(FAILURES)
    door = ScriptedDoor()
    try:
        async with open_bridge(), open_gateway(door) as gateway, open_journal(private(tmp_path / "state"), ThreadRunner()) as journal:
            core = NodeCore(
                node=NodeId("node-1"),
                fleet=FLEET,
                state_dir=tmp_path / "state",
                journal=journal,
                engine=cast(Engine, None),  # a session asks nothing of the runtime
                machine=LinuxMachine(),
                network=cast(Network, None),  # nor of the network
                logs=LogStore(tmp_path / "logs", ThreadRunner()),
                disk=ThreadRunner(),
                timings=FAST,
                grants=Grants(budgets=Budgets()),
            )
            dial = Dial(
                target=f"127.0.0.1:{gateway.port}",
                tls=gateway.certificates.client(),
                credential="good-node-1",
                address="127.0.0.1",
                run=run_node_session,
            )
            actors: list[Any] = []

            def make() -> SessionActor:
                actors.append(SessionActor(core, Board(), dial))
                return cast(SessionActor, actors[-1])

            async with open_system("node", SupervisorSpec(name="root", children=(ChildSpec(name="session", factory=make),))):
                seen = await door.wait("node-1", lambda seen: any(isinstance(f, ReconcileDone) for f in seen.frames), seconds=15.0)
                assert seen.link.epoch == FAILURES + 1
                assert journal.session_epoch == FAILURES + 1
            assert len(actors) == 1, "the actor was not restarted"
            assert len(passed) == FAILURES + 1
    finally:
        install_fault_hook(None)
