"""An operator's stop of a stranger in the twin (P-07)."""

from __future__ import annotations

from datetime import datetime

from attrs import evolve

from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.frames import Command, CommandKind, Observation
from tuneplane.domain.ids import GatewayId, MemberId, NodeId, OperationId, UserName, stranger_operation
from tuneplane.domain.jobs import OutgoingCommand
from tuneplane.domain.launch_table import ENDED_PHASES
from tuneplane.domain.nodes import Node
from tuneplane.domain.ports import Topic
from tuneplane.storage.strangers import STRANGER_GRACE_SECONDS

from .base import Client, audit, poke
from .nodes import view
from .rows import Book, CommandRow, StrangerRow


class Strangers(Client):
    """The part of NodeStore about strangers (domain/ports.py)."""

    async def stop_stranger(self, node: NodeId, container: str, member: MemberId, by: UserName, now: datetime) -> Node:
        return await self.write("stop_stranger", _stop, node, container, member, by, now)


def _stop(book: Book, node: NodeId, container: str, member: MemberId, by: UserName, now: datetime) -> Node:
    row = book.nodes.get(node)
    if row is None or row.removed_at is not None:
        raise NotFound("Node", node)
    told = row.inventory.strangers if row.inventory is not None else ()
    if (container, member) not in {(one.container, one.member) for one in told}:
        raise Refused("no-such-stranger", f"Node {node} does not report a stranger of this container and member")
    former = book.stranger_commands.get(stranger_operation(container, member, "stop"))
    if former is None or former.accepted is False:
        _put(book, node, container, member, CommandKind.STOP, by, now)
    audit(book, by, "node.stop-stranger", node, now, f"{member} {container}")
    poke(book, Topic.COMMANDS, Topic.CONSOLE)
    return view(book, node, now)


def _put(book: Book, node: NodeId, container: str, member: MemberId, kind: CommandKind, by: str, now: datetime) -> None:
    operation = stranger_operation(container, member, kind.value)
    made = StrangerRow(operation=operation, node=node, member=member, container=container, kind=kind, asked_by=by, created_at=now)
    book.stranger_commands.put(operation, made)


def outgoing(book: Book, gateway: GatewayId) -> list[tuple[CommandRow | StrangerRow, OutgoingCommand]]:
    """In no order: the caller sorts them among those of members."""
    found: list[tuple[CommandRow | StrangerRow, OutgoingCommand]] = []
    for row in book.stranger_commands:
        session = book.sessions.get(row.node)
        if session is None or session.gateway != gateway or session.closed_at is not None or row.answered_at is not None:
            continue
        if row.sent_epoch is None or row.sent_epoch < session.epoch:
            found.append((row, OutgoingCommand(node=row.node, command=_frame(row, session.epoch))))
    return found


def _frame(row: StrangerRow, epoch: int) -> Command:
    stop = row.kind is CommandKind.STOP
    return Command(
        operation=row.operation,
        kind=row.kind,
        member=row.member,
        session_epoch=epoch,
        claim_epoch=0,
        stop_signal="SIGTERM" if stop else "",
        stop_grace_seconds=STRANGER_GRACE_SECONDS if stop else 0.0,
        reason=f"stopped by {row.asked_by}: nobody claims it" if stop else "",
        stranger=True,
        container=row.container,
    )


def mark_sent(book: Book, operation: OperationId, node: NodeId, epoch: int) -> bool:
    row = book.stranger_commands.get(operation)
    if row is None or row.node != node or row.answered_at is not None:
        return False
    book.stranger_commands.put(operation, evolve(row, sent_epoch=epoch))
    return True


def answer(book: Book, operation: OperationId, node: NodeId, accepted: bool, now: datetime) -> None:
    row = book.stranger_commands.get(operation)
    if row is None or row.node != node or row.answered_at is not None:
        return
    book.stranger_commands.put(operation, evolve(row, answered_at=now, accepted=accepted))
    if row.kind is CommandKind.FORGET and accepted:
        for other in [other for other in book.stranger_commands if (other.node, other.member) == (node, row.member)]:
            book.stranger_commands.drop(other.operation)


def settle(book: Book, node: NodeId, seen: Observation, now: datetime) -> bool:
    stops = [row for row in book.stranger_commands if (row.node, row.member) == (node, seen.member) and row.accepted]
    if seen.phase not in ENDED_PHASES or not seen.cleaned or not stops:
        return False
    stop = stops[0]
    if stranger_operation(stop.container, seen.member, "forget") not in book.stranger_commands:
        _put(book, node, stop.container, seen.member, CommandKind.FORGET, stop.asked_by, now)
    poke(book, Topic.COMMANDS)
    return True
