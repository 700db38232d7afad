"""Hundreds of Nodes that lose their gateway in the same second, three times; and what they cost the database while they are idle.

The gateway is the real process on a real PostgreSQL. The Nodes are the session's own client and back-off, all of them in this
process: what they would do besides is not about sessions. ``TUNEPLANE_HERD`` is how many.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
from attrs import define, field

from tests.control.scripted_node import ScriptedNode, inventory
from tests.support.system import FLEET, WholeSystem, open_system_of_processes
from tests.support.waiting import eventually
from tests.support.zygote import open_zygote
from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.ids import FleetId, NodeId, TokenId, UserName
from tuneplane.domain.jobs import JoinRequest, JoinToken
from tuneplane.domain.ports import Storage
from tuneplane.domain.secrets import secret_hash
from tuneplane.domain.timings import PRODUCTION
from tuneplane.nodeside.session import Patience
from tuneplane.storage import open_storage
from tuneplane.wire.tls import client_context

pytestmark = [pytest.mark.e2e, pytest.mark.seconds(300)]

HERD = int(os.environ.get("TUNEPLANE_HERD") or 150)
FACTOR = 0.25
TIMINGS = PRODUCTION.scaled(FACTOR)  # heartbeat 1.75 s, idle 5 s, first redial within 0.125 s, back-off up to 7.5 s
KILLS = 3
BACK_SECONDS = PRODUCTION.reconnect_most * FACTOR + 60.0  # of 99 %: the back-off's cap; the rest is room on a very busy machine
MOST_DIALS = 12  # of a Node after one kill, on average: a herd that keeps itself out dials without end
IDLE_SECONDS = 6.0
ADMIN = UserName("admin")


@define(eq=False)
class Herd:
    """Every Node dials for ever with production's back-off."""

    nodes: list[ScriptedNode]
    dials: int = 0
    known: dict[NodeId, int] = field(factory=dict)  # session epochs that do not count any more

    def connected(self) -> int:
        """Those with a session that is newer than the last kill."""
        return sum(node.link is not None and node.link.welcome.session_epoch > self.known.get(node.node, 0) for node in self.nodes)

    def forget(self) -> None:
        """Only sessions opened from now on count, and only dials from now on."""
        self.known = {node.node: node.link.welcome.session_epoch for node in self.nodes if node.link is not None}
        self.dials = 0

    async def live(self, node: ScriptedNode) -> None:
        patience = Patience(TIMINGS)
        while True:
            began = trio.current_time()
            self.dials += 1
            ended = await node.session()
            asked = ended.retry_after_seconds if ended is not None else 0.0
            lived = trio.current_time() - began
            await trio.sleep(patience.next_wait(random.random(), lived_seconds=lived, asked_seconds=asked, settled=False))

    async def wait_connected(self, share: float) -> float:
        """How long it took until ``share`` of all were there."""
        began, wanted = trio.current_time(), round(share * len(self.nodes))
        await eventually(lambda: self.connected() >= wanted, f"{wanted} of {len(self.nodes)} sessions", BACK_SECONDS)
        return trio.current_time() - began


@pytest.fixture(scope="module")
def lab() -> Iterator[WholeSystem]:
    with open_zygote() as zygote, open_system_of_processes(factor=str(FACTOR), spawn=zygote.spawn, node=False) as system:
        system.enrol("node")  # never started: it brings the gateway's trust
        yield system


@asynccontextmanager
async def open_herd(lab: WholeSystem) -> AsyncIterator[Herd]:
    """All enrolled and connected."""
    identity = json.loads((lab.directory / "node-state" / "identity.json").read_text())
    tls = client_context(trust_pem=identity["gateway_trust_pem"])
    prefix = f"herd-{random.randrange(1 << 30)}"
    async with open_bridge():
        async with open_storage(lab.dsn) as storage:
            for number in range(HERD):
                await _enrol(storage, f"{prefix}-{number}")
        names = [f"{prefix}-{number}" for number in range(HERD)]
        herd = Herd([_node(name, lab.settings["TUNEPLANE_NODE_GATEWAY_TARGET"], tls) for name in names])
        async with trio.open_nursery() as nursery:
            for node in herd.nodes:
                nursery.start_soon(herd.live, node)
            await herd.wait_connected(1.0)
            yield herd
            nursery.cancel_scope.cancel()


def _node(name: str, target: str, tls: Any) -> ScriptedNode:
    return ScriptedNode(
        node=NodeId(name), fleet=FleetId(FLEET), credential=f"tpn_{name}", target=target, tls=tls, timings=TIMINGS, machine=name
    )


async def _enrol(storage: Storage, name: str) -> None:
    now, token = datetime.now(UTC), f"tpj_{name}"
    made = JoinToken(id=TokenId(token), fleet=FleetId(FLEET), created_by=ADMIN, created_at=now, expires_at=now + timedelta(days=1))
    await storage.mint_join_token(made, secret_hash(token))
    request = JoinRequest(token=token, join_key="key", try_=1, address="127.0.0.1", node_version="0.1.0", protocol=1, inventory=inventory())
    await storage.join(
        FleetId(FLEET),
        request,
        node=NodeId(name),
        token_hash=secret_hash(token),
        join_key_hash=secret_hash("key"),
        credential_hash=secret_hash(f"tpn_{name}"),
        credential_expires_at=now + timedelta(days=30),
        now=now,
    )


async def test_herd_comes_back_after_every_kill_of_its_gateway(lab: WholeSystem) -> None:
    """L-B6, R-SES-03: full jitter; all get in, the storm dies down by itself, and then nobody dials any more."""
    async with open_herd(lab) as herd:
        for kill in range(KILLS):
            herd.forget()
            await trio.to_thread.run_sync(lab.kill, "gateway")
            lab.processes["gateway"].start()
            most = await herd.wait_connected(0.99)
            every = most + await herd.wait_connected(1.0)
            print(f"kill {kill}: 99 % of {HERD} back after {most:.1f} s, all after {every:.1f} s, {herd.dials / HERD:.1f} dials a Node")
            assert herd.dials < MOST_DIALS * HERD
        herd.dials = 0
        await trio.sleep(1.5 * TIMINGS.session_idle)  # the time is the test
        assert herd.connected() == HERD
        assert herd.dials == 0, "sessions that are there stay"


async def test_idle_sessions_write_nothing(lab: WholeSystem) -> None:
    """L-B17, P-16: heartbeats and confirmed inventories of all Nodes; the gateway's own row is all that is written."""
    async with open_herd(lab) as herd:
        await eventually(lambda: _is_calm(lab), "the openings to be written", BACK_SECONDS)
        began, before = trio.current_time(), await _writes(lab)
        await trio.sleep(IDLE_SECONDS)  # the time is the test: three heartbeats of every Node
        written, took = await _writes(lab) - before, trio.current_time() - began
        assert herd.connected() == HERD
    print(f"{HERD} idle sessions, {took:.1f} s: {written} writing transactions")
    assert written <= _own_writes(took)


def _own_writes(seconds: float) -> float:
    """The gateway's lease, the worker's look around, and as much again for whatever else a control plane notes for itself; no
    Node is in it."""
    return 2 * seconds * (1 / TIMINGS.gateway_renew + 1 / TIMINGS.claim_renew) + 2


async def _is_calm(lab: WholeSystem) -> bool:
    before = await _writes(lab)
    await trio.sleep(1.0)
    return await _writes(lab) - before <= _own_writes(1.0)


async def _writes(lab: WholeSystem) -> int:
    """Transactions that wrote so far: only those get a number. (PostgreSQL's statistics of rows are ten seconds late.)"""
    sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())"
    return int(await trio.to_thread.run_sync(lab.postgres.sql, sql, urlsplit(lab.dsn).path.lstrip("/")))
