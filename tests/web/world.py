"""Rows of a small world, written through the storage ports as gateways and workers write them."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from datetime import timedelta
from typing import Any

from attrs import evolve

from tuneplane.control.api import ProjectDraft
from tuneplane.domain import codec
from tuneplane.domain.errors import Refused
from tuneplane.domain.frames import Hello, Observation
from tuneplane.domain.ids import (
    FleetId,
    GatewayId,
    JobId,
    JournalId,
    MemberId,
    NodeId,
    ProjectId,
    UserName,
    WorkerId,
    attempt_id,
    member_id,
)
from tuneplane.domain.inventory import Budgets, Inventory
from tuneplane.domain.jobs import JoinRequest, NodeIdentity, PlacedMember
from tuneplane.domain.jobspec import cpu_millis, memory_bytes
from tuneplane.domain.launch_table import MemberPhase, observe
from tuneplane.domain.timings import PRODUCTION
from tuneplane.domain.verdict import decide

from .support import Running, now

WORKER = WorkerId("worker-test")
INVENTORY = Inventory(
    hostname="gpu-01",
    node_version="0.1.0",
    cpu_count=16,
    memory_bytes=64 * 10**9,
    runtime="podman 4.3.1",
    storage_root="/srv/tuneplane",
    storage_root_seen=True,
    budgets=Budgets(cpu_millis=8000, memory_bytes=32 * 10**9, gpu_indexes=()),
)


def join_body(token: str, **changes: Any) -> dict[str, Any]:
    """The body of a join, as a Node sends it."""
    request = JoinRequest(
        token=token,
        join_key=secrets.token_urlsafe(24),
        try_=1,
        address="gpu-01.lab",
        node_version="0.1.0",
        protocol=1,
        inventory=INVENTORY,
    )
    return {**codec.encode(request), **changes}


async def make_fleet(running: Running, fleet: str = "lab", **changes: Any) -> FleetId:
    """A public ``node`` Fleet that can train."""
    from tuneplane.control.api import FleetDraft

    caller = await running.api.accounts.user_of_token(running.admin_token)
    if changes.get("project"):
        await make_project(running, changes["project"])
    draft = codec.decode(FleetDraft, {"id": fleet, "kind": "node", "capabilities": ["train"], **changes})
    await running.api.fleets.create(caller, draft)
    return FleetId(fleet)


async def make_project(running: Running, project: str, *members: str) -> None:
    """The project, unless it is there, with these members besides those that it has."""
    ada = await running.api.accounts.user_of_token(running.admin_token)
    with suppress(Refused):
        await running.api.projects.create(ada, ProjectDraft(id=project))
    for member in members:
        await running.api.projects.add_member(ada, ProjectId(project), UserName(member))


async def join_node(running: Running, fleet: FleetId, **changes: Any) -> NodeId:
    """A machine that joined and was never connected."""
    caller = await running.api.accounts.user_of_token(running.admin_token)
    minted = await running.api.fleets.mint_join_token(caller, fleet)
    return (await running.api.nodes.join(fleet, codec.decode(JoinRequest, join_body(minted.token, **changes)))).id


async def connect_node(running: Running, fleet: FleetId, node: NodeId, inventory: Inventory = INVENTORY) -> int:
    """Open a session on a gateway whose lease lives an hour, and report the inventory; the session's epoch."""
    storage = running.storage
    gateway = GatewayId(f"gateway-of-{node}")  # one each: registering a gateway again closes its sessions
    await storage.register_gateway(gateway, "127.0.0.1", 1, now(), now() + timedelta(hours=1))
    identity = NodeIdentity(node=node, fleet=fleet, credential_expires_at=now() + timedelta(days=30))
    hello = Hello(
        protocol=1,
        node=node,
        fleet=fleet,
        boot_id=f"boot-{node}",
        machine_id=f"machine-{node}",
        journal_id=JournalId(f"journal-{node}"),
        journal_sequence=1,
        node_version="0.1.0",
        address="gpu-01.lab",
        sent_at=now(),
    )
    opened = await storage.open_session(identity, gateway, hello, now())
    await storage.record_inventory(node, opened.epoch, inventory, codec.digest(codec.canonical(inventory)), now())
    return opened.epoch


async def ready_node(running: Running, fleet: FleetId, **changes: Any) -> tuple[NodeId, int]:
    """A connected machine that takes work, and its session's epoch."""
    node = await join_node(running, fleet, **changes)
    return node, await connect_node(running, fleet, node)


async def place_job(running: Running, job: JobId, node: NodeId, number: int = 1, root: str = "") -> MemberId:
    """Write attempt ``number`` of ``job`` with one member on ``node``, planned with the storage root ``root``."""
    found = await running.storage.get_job(job)
    assert found is not None
    attempt = attempt_id(job, number)
    member = member_id(attempt, 0)
    plan = json.dumps({"output_dir": f"{root}/jobs/{job}/{attempt}"} if root else {}).encode()
    placed = PlacedMember(
        member=member,
        node=node,
        rank=0,
        plan=plan,
        plan_digest=codec.digest(b"{}"),  # as drive() reports it, whatever the plan says
        cpu_millis=cpu_millis(found.spec.pool),
        memory_bytes=memory_bytes(found.spec.pool),
    )
    assert await running.storage.place(job, attempt, number, [placed], now())
    return member


async def drive(running: Running, node: NodeId, epoch: int, member: MemberId, *phases: MemberPhase, **facts: Any) -> None:
    """Report ``phases`` of ``member`` in turn, letting the launch protocol take its step after each; ``facts`` go with the last."""
    for number, phase in enumerate(phases):
        await look(running)
        await _deliver(running, node, epoch)
        last = number == len(phases) - 1
        seen = Observation(member=member, revision=_revision(), phase=phase, plan_digest=codec.digest(b"{}"), boot_id=f"boot-{node}")
        assert await running.storage.observe(node, epoch, evolve(seen, **(facts if last else {})), now())
    await look(running)


async def _deliver(running: Running, node: NodeId, epoch: int) -> None:
    """Send what is to be sent, and have it accepted."""
    for outgoing in await running.storage.outgoing_commands(GatewayId(f"gateway-of-{node}"), 100):
        operation = outgoing.command.operation
        assert await running.storage.mark_sent(operation, node, epoch, now())
        await running.storage.answer_command(operation, node, epoch, True, "", "", now())


_revisions = iter(range(1, 1_000_000))


def _revision() -> int:
    return next(_revisions)


async def look(running: Running) -> None:
    """What a launch consumer does when it looks."""
    until = now() + timedelta(hours=1)
    for claim in await running.storage.claim_attempts(WORKER, 10, now() + timedelta(days=1), until):
        for _ in range(4):
            view = await running.storage.load_launch(claim)
            event = observe(view, now(), PRODUCTION) if view is not None else None
            if view is None or event is None:
                break
            step = decide(view, event)
            await running.storage.advance(claim, view, step.target, step.action, step.cause, step.verdict, now())
