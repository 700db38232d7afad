"""An hour without a gateway costs next to nothing: few dials, few lines, hardly any CPU (L-B15)."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
import trio

from tests.nodeside.harness import private
from tests.support.process import free_port
from tests.support.sessions import FLEET, hello, make_certificates
from tuneplane.actors import ChildSpec, SupervisorSpec, open_system
from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.ids import NodeId
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.node_member import Grants
from tuneplane.domain.node_ports import Engine, Network
from tuneplane.domain.timings import PRODUCTION
from tuneplane.nodeside.board import Board
from tuneplane.nodeside.core import NodeCore
from tuneplane.nodeside.journal import open_journal
from tuneplane.nodeside.logs import LogStore
from tuneplane.nodeside.machine import LinuxMachine
from tuneplane.nodeside.runner import run_inline
from tuneplane.nodeside.session import Dial, SessionActor
from tuneplane.wire.link import SessionEnded, run_node_session
from tuneplane.wire.tls import client_context

HOUR_SECONDS = 3600.0
MOST_LINES = 120
MOST_DIALS = 400  # half of the cap of 30 s on average, and the quick ones of the beginning
CPU_SHARE = 0.01
MEASURED_DIALS = 20


@asynccontextmanager
async def daemon_without_gateway(directory: Path, run: Callable[..., Awaitable[None]]) -> AsyncIterator[None]:
    """The session's actor with a real journal, at production's durations; ``run`` is every dial."""
    with make_certificates() as certificates:
        tls = client_context(trust_pem=certificates.trust_pem)
    dial = Dial(target="gateway.example:8443", tls=tls, credential="good-node-1", address="127.0.0.1", run=run)
    async with open_journal(private(directory / "state"), run_inline) as journal:
        core = NodeCore(
            node=NodeId("node-1"),
            fleet=FLEET,
            state_dir=directory / "state",
            journal=journal,
            engine=cast(Engine, None),
            machine=LinuxMachine(),
            network=cast(Network, None),
            logs=LogStore(directory / "state" / "logs", run_inline),
            disk=run_inline,
            timings=PRODUCTION,
            grants=Grants(budgets=Budgets()),
        )
        session = ChildSpec(name="session", factory=lambda: SessionActor(core, Board(), dial))
        async with open_system("node", SupervisorSpec(name="root", children=(session,))):
            yield


@pytest.mark.parametrize("reasons", [("unreachable",), ("unreachable", "unreachable", "tls-failed", "greeting-overdue")], ids="+".join)
async def test_hour_without_a_gateway_is_quiet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: object, reasons: tuple[str, ...]
) -> None:
    """L-B15: fewer than 120 lines, also when the reasons take turns; and few dials, whose CPU the next test measures."""
    dials = []

    async def fail(**arguments: object) -> None:
        dials.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        code = reasons[len(dials) % len(reasons)]
        raise SessionEnded(code, f"dial {len(dials)} failed")

    caplog.set_level(logging.INFO)
    async with daemon_without_gateway(tmp_path, fail):
        await trio.sleep(HOUR_SECONDS)
    assert len(caplog.records) < MOST_LINES, [record.getMessage() for record in caplog.records[:5]]
    assert HOUR_SECONDS / PRODUCTION.reconnect_most < len(dials) < MOST_DIALS
    waits = [later - former for former, later in pairwise(dials)]
    assert max(waits) <= PRODUCTION.reconnect_most, "it goes on trying"


async def test_dials_of_an_hour_without_a_gateway_cost_less_than_a_hundredth_of_a_core() -> None:
    """L-B15: what one real dial to a closed port costs, times the most of an hour."""
    with make_certificates() as certificates:
        tls = client_context(trust_pem=certificates.trust_pem)

    async def body(link: object) -> None:
        raise AssertionError("nobody listens there")

    port = free_port()
    async with open_bridge():
        began = time.process_time()
        for _ in range(MEASURED_DIALS):
            with pytest.raises(SessionEnded, match="unreachable"):
                await run_node_session(
                    target=f"127.0.0.1:{port}", tls=tls, credential="good-node-1", hello=hello(), timings=PRODUCTION, body=body
                )
        each = (time.process_time() - began) / MEASURED_DIALS
    assert each * MOST_DIALS < CPU_SHARE * HOUR_SECONDS
