"""Nodes of the twin: their view, the operator's state, removal, inventories."""

from __future__ import annotations

from datetime import datetime

from attrs import evolve

from tuneplane.domain.errors import Fenced, NotFound, Reason, Refused
from tuneplane.domain.fleets import Delivery, Fleet
from tuneplane.domain.hardware import series_by_card
from tuneplane.domain.ids import FleetId, MemberId, NodeId, UserName
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.jobs import Page, User
from tuneplane.domain.launch_table import ENDED_PHASES, MemberPhase
from tuneplane.domain.nodes import MOST_VIOLATIONS, Capacity, Connection, Cordon, Left, Node, NodeState, state_under
from tuneplane.domain.ports import Topic
from tuneplane.domain.visibility import may_see
from tuneplane.storage.database import clean
from tuneplane.storage.inventories import clears
from tuneplane.storage.nodes import left_behind

from .base import Client, audit, note, page_of, poke
from .cards import cards_of, granted, placeable, write_cards
from .hardware import registry_of
from .rows import Book, MemberRow, NodeRow, SessionRow


class Nodes(Client):
    """NodeStore, the planner's look, and the inventory part of SessionStore (domain/ports.py)."""

    async def get_node(self, node: NodeId, now: datetime) -> Node | None:
        return await self.read("get_node", lambda book: view(book, node, now) if _enrolled(book, node) else None)

    async def fleet_of_node(self, node: NodeId) -> Fleet | None:
        def unit(book: Book) -> Fleet | None:
            row = _enrolled(book, node)
            return book.fleets.get(row.fleet) if row is not None else None

        return await self.read("fleet_of_node", unit)

    async def list_nodes(
        self, fleet: FleetId | None, page: Page, now: datetime, *, seen_by: User | None = None
    ) -> tuple[list[Node], str | None]:
        return await self.read("list_nodes", _list, fleet, page, now, seen_by)

    async def placement_nodes(self, fleet: FleetId, now: datetime) -> list[Node]:
        return await self.read("placement_nodes", _placement, fleet, now)

    async def set_node_state(self, node: NodeId, state: NodeState, reason: str, now: datetime, *, by: UserName | None = None) -> Node:
        return await self.write("set_node_state", _set_state, node, state, clean(reason), now, by)

    async def accept_epoch(self, node: NodeId, hold: str, by: UserName, now: datetime) -> Node:
        return await self.write("accept_epoch", _accept_epoch, node, hold, by, now)

    async def delete_node(self, node: NodeId, force: bool, by: UserName, now: datetime) -> None:
        await self.write("delete_node", _delete, node, force, by, now)

    async def record_inventory(self, node: NodeId, epoch: int, inventory: Inventory, digest: str, now: datetime) -> None:
        await self.write("record_inventory", _record, node, epoch, inventory, now)

    async def inventory_stale(self, node: NodeId, epoch: int, now: datetime) -> None:
        await self.write("inventory_stale", _stale, node, epoch)


def _enrolled(book: Book, node: NodeId) -> NodeRow | None:
    row = book.nodes.get(node)
    return row if row is not None and row.removed_at is None else None


def hold_epoch(book: Book, node: NodeId, epoch: int) -> None:
    """Raise Fenced unless ``epoch`` is the Node's open session (P-06)."""
    session = book.sessions.get(node)
    if session is None or session.epoch != epoch or session.closed_at is not None:
        raise Fenced(f"session epoch {epoch} of Node {node} is not the live one")


def release(book: Book, member: MemberId) -> None:
    """Give back all that ``member`` holds."""
    hold = book.holds.get(member)
    if hold is None:
        return
    node = book.nodes[hold.node]
    book.nodes.put(hold.node, evolve(node, cpu_used=node.cpu_used - hold.cpu_millis, memory_used=node.memory_used - hold.memory_bytes))
    for uuid in hold.gpu_uuids:
        book.gpu_holds.drop(uuid)
    for port in hold.ports:
        book.port_holds.drop((hold.node, port))
    book.holds.drop(member)


# ---------------------------------------------------------------- the view


def view(book: Book, node: NodeId, now: datetime) -> Node:
    row = book.nodes[node]
    session = book.sessions.get(node)
    fresh = session is not None and row.inventory_epoch == session.epoch
    return Node(
        id=row.id,
        fleet=row.fleet,
        address=row.address,
        state=state_under(row.state, cordons_of(book, node)),
        connection=_connection(book, session, now),
        cordons=cordons_of(book, node),
        inventory=row.inventory,
        inventory_observed_at=row.inventory_observed_at,
        inventory_healthy=fresh and row.inventory is not None and not row.inventory.problems,
        capacity=_capacity(book, row),
        free_gpu_uuids=tuple(uuid for uuid in placeable(book, node) if uuid not in book.gpu_holds),
        card_series=series_by_card(row.inventory, registry_of(book)),
        cards=cards_of(book, node),
        held_ports=tuple(sorted(port for holder, port in book.port_holds.rows if holder == node)),
        members=tuple(sorted(hold.member for hold in book.holds if hold.node == node)),
        left=tuple(Left(member=one.id, phase=one.phase) for one in sorted(left_on(book, node), key=lambda one: one.id)),
        violations=tuple(sorted(row.violation for row in book.members if row.node == node and row.violation))[:MOST_VIOLATIONS],
        created_at=row.created_at,
        enrolled_by=UserName(row.enrolled_by),
    )


def cordons_of(book: Book, node: NodeId) -> tuple[Cordon, ...]:
    return tuple(book.cordons[key] for key in sorted(key for key in book.cordons.rows if key[0] == node))


def left_on(book: Book, node: NodeId) -> list[MemberRow]:
    return [member for member in book.members if member.node == node and member.phase not in ENDED_PHASES]


def _connection(book: Book, session: SessionRow | None, now: datetime) -> Connection:
    if session is None:
        return Connection(state="never")
    gateway = book.gateways.get(session.gateway)
    lease = gateway.lease_until if gateway is not None and session.closed_at is None else None
    live = lease is not None and lease > now
    return Connection(
        state="connected" if live else "disconnected",
        since=session.opened_at if live else session.closed_at or lease or session.opened_at,
        gateway=session.gateway,
        epoch=session.epoch,
        lease_expires_at=lease,
        clock_offset_seconds=session.clock_offset_seconds,
        clock_error_seconds=session.clock_error_seconds,
    )


def _capacity(book: Book, row: NodeRow) -> Capacity | None:
    budgets = row.inventory.budgets if row.inventory is not None else None
    if budgets is None or budgets.cpu_millis is None or budgets.memory_bytes is None or budgets.gpu_indexes is None:
        return None
    return Capacity(
        cpu_millis=budgets.cpu_millis,
        cpu_millis_used=row.cpu_used,
        memory_bytes=budgets.memory_bytes,
        memory_bytes_used=row.memory_used,
        gpus=len(granted(book, row.id)),
        gpus_used=sum(len(hold.gpu_uuids) for hold in book.holds if hold.node == row.id),
    )


def _list(book: Book, fleet: FleetId | None, page: Page, now: datetime, seen_by: User | None) -> tuple[list[Node], str | None]:
    rows = [row for row in book.nodes if row.removed_at is None and fleet in (None, row.fleet)]
    rows = [row for row in rows if seen_by is None or may_see(seen_by, book.fleets[row.fleet])]
    found, cursor = page_of(rows, page, lambda row: (row.created_at, row.id))
    return [view(book, row.id, now) for row in found], cursor


def _placement(book: Book, fleet: FleetId, now: datetime) -> list[Node]:
    rows = [row.id for row in book.nodes if row.removed_at is None and row.fleet == fleet]
    return [evolve(view(book, node, now), cards=()) for node in sorted(rows)]  # those are for people


# ---------------------------------------------------------------- what operators do


def set_cordon(book: Book, node: NodeId, owner: str, reason: str | None, now: datetime) -> None:
    """Set or (None) lift the cordon of one owner; ``since`` is kept while it lasts (L-F4)."""
    key = (node, owner)
    if reason is None:
        book.cordons.drop(key)
        return
    former = book.cordons.get(key)
    book.cordons.put(key, Cordon(owner=owner, reason=clean(reason), since=former.since if former else now))


def _set_state(book: Book, node: NodeId, state: NodeState, reason: str, now: datetime, by: UserName | None) -> Node:
    row = _enrolled(book, node)
    if row is None:
        raise NotFound("Node", node)
    book.nodes.put(node, evolve(row, state=state))
    set_cordon(book, node, "operator", None if state is NodeState.ACTIVE else reason or f"set to {state.value}", now)
    if state is NodeState.ACTIVE:
        set_cordon(book, node, "journal", None, now)
    audit(book, by, f"node.{state.value}", node, now, reason)
    poke(book, Topic.JOBS, Topic.CONSOLE)
    return view(book, node, now)


def _accept_epoch(book: Book, node: NodeId, hold: str, by: UserName, now: datetime) -> Node:
    row = _enrolled(book, node)
    if row is None:
        raise NotFound("Node", node)
    told = row.inventory.hold if row.inventory is not None else None
    if told is None or told.id != hold:
        raise Refused("no-such-hold", f"Node {node} does not report a hold of this id")
    book.nodes.put(node, evolve(row, accepted_hold=hold))
    session = book.sessions.get(node)
    if session is not None:
        book.sessions.put(node, evolve(session, epoch=max(session.epoch, told.known_epoch), closed_at=session.closed_at or now))
    audit(book, by, "node.accept-epoch", node, now, hold)
    poke(book, Topic.SESSIONS, Topic.CONSOLE)
    return view(book, node, now)


def _delete(book: Book, node: NodeId, force: bool, by: UserName, now: datetime) -> None:
    row = _enrolled(book, node)
    if row is None:
        raise NotFound("Node", node)
    left = left_on(book, node)
    state = state_under(row.state, cordons_of(book, node))
    alive = view(book, node, now).violations
    if not force and (left or alive or state is NodeState.ACTIVE):
        reasons = tuple(Reason("member", f"{member.id} is {member.phase.value} on it", node) for member in left)
        raise Refused("node-busy", f"Node {node} is busy", reasons=reasons or tuple(Reason("violation", one, node) for one in alive))
    session = book.sessions.get(node)
    if session is not None and session.closed_at is None:
        book.sessions.put(node, evolve(session, closed_at=now))
    for member in left:
        _give_up(book, node, member.id, now)
    _revoke(book, node, now)
    book.nodes.put(node, evolve(book.nodes[node], removed_at=now))
    audit(book, by, "node.delete", node, now, left_behind(sorted((member.id, member.phase.value) for member in left), alive), forced=force)
    poke(book, Topic.SESSIONS, Topic.ATTEMPTS, Topic.JOBS, Topic.CONSOLE)


def _give_up(book: Book, node: NodeId, member: MemberId, now: datetime) -> None:
    row = book.members[member]
    phase = MemberPhase.ABORTED if row.phase is MemberPhase.PENDING else MemberPhase.TERMINATED
    detail = f"Node {node} was removed by force while this was {row.phase.value} on it"
    book.members.put(member, evolve(row, phase=phase, ended_at=now, reason_code="node-removed", reason_detail=detail))
    release(book, member)
    note(book, row.job, now, "member.given-up", member, detail)


def _revoke(book: Book, node: NodeId, now: datetime) -> None:
    for hashed, credential in list(book.credentials.rows.items()):
        if credential.node == node and credential.revoked_at is None:
            book.credentials.put(hashed, evolve(credential, revoked_at=now))
    for command in [command for command in book.commands if command.node == node and command.open]:
        book.commands.put(command.operation, evolve(command, withdrawn_at=now))


# ---------------------------------------------------------------- inventories


def _record(book: Book, node: NodeId, epoch: int, inventory: Inventory, now: datetime) -> None:
    hold_epoch(book, node, epoch)
    if book.nodes[node].inventory_epoch != epoch:
        book.clearing.drop(node)
    write_inventory(book, node, inventory, now)
    book.nodes.put(node, evolve(book.nodes[node], inventory_epoch=epoch))
    poke(book, Topic.JOBS, Topic.CONSOLE)


def _stale(book: Book, node: NodeId, epoch: int) -> None:
    row = book.nodes[node]
    if row.inventory_epoch == epoch:
        book.nodes.put(node, evolve(row, inventory_epoch=0))
        poke(book, Topic.CONSOLE)


def write_inventory(book: Book, node: NodeId, inventory: Inventory, now: datetime) -> None:
    row = book.nodes.put(node, evolve(book.nodes[node], inventory=inventory, inventory_observed_at=now))
    shared = book.fleets[row.fleet].delivery is Delivery.SHARED_MOUNT
    unseen = "the storage root is not seen on this machine" if shared and not inventory.storage_root_seen else None
    _set_storage_cordon(book, node, unseen, now)
    for owner, reason in write_cards(book, node, inventory, now).items():
        set_cordon(book, node, owner, reason, now)


def _set_storage_cordon(book: Book, node: NodeId, reason: str | None, now: datetime) -> None:
    cordon = book.cordons.get((node, "storage"))
    if reason is not None:
        book.clearing.drop(node)
        set_cordon(book, node, "storage", reason, now)
    elif cordon is not None and cordon.since == book.nodes[node].created_at:
        book.clearing.drop(node)
        set_cordon(book, node, "storage", None, now)
    elif cordon is not None and node not in book.clearing:
        book.clearing.put(node, now)
        set_cordon(book, node, "storage", clears(now), now)
