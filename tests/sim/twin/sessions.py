"""Gateways, sessions and commands of the twin, and what puts a journal in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from attrs import evolve

from tuneplane.domain.errors import Refused
from tuneplane.domain.frames import Command, CommandKind, Hello
from tuneplane.domain.ids import GatewayId, MemberId, NodeId, OperationId, operation_id
from tuneplane.domain.jobs import GatewayAddress, NodeIdentity, OutgoingCommand, SessionOpened
from tuneplane.domain.launch_table import ENDED_PHASES, MemberPhase
from tuneplane.domain.ports import Topic
from tuneplane.storage.database import clean

from . import strangers
from .base import Client, note, poke
from .nodes import hold_epoch, set_cordon
from .rows import Book, CommandRow, GatewayRow, MemberRow, NodeRow, SessionRow, StrangerRow

UNANSWERED = (CommandKind.PREPARE, CommandKind.COMMIT)


class Sessions(Client):
    """SessionStore without inventories and observations (domain/ports.py)."""

    async def register_gateway(self, gateway: GatewayId, host: str, port: int, now: datetime, lease_until: datetime) -> None:
        row = GatewayRow(id=gateway, host=host, port=port, lease_until=lease_until, live_since=now)
        await self.write("register_gateway", _register, row, now)

    async def renew_gateway(self, gateway: GatewayId, lease_until: datetime) -> bool:
        present = lease_until - timedelta(seconds=self.timings.gateway_lease)
        return await self.write("renew_gateway", _renew, gateway, lease_until, present)

    async def close_gateway(self, gateway: GatewayId, now: datetime) -> None:
        await self.write("close_gateway", _close_gateway, gateway, now)

    async def authenticate(self, secret_hash: str, now: datetime) -> NodeIdentity:
        return await self.read("authenticate", _authenticate, secret_hash, now)

    async def open_session(self, identity: NodeIdentity, gateway: GatewayId, hello: Hello, now: datetime) -> SessionOpened:
        return await self.write("open_session", _open, identity, gateway, hello, now)

    async def close_session(self, node: NodeId, epoch: int, reason: str, now: datetime) -> None:
        await self.write("close_session", _close, node, epoch, now)

    async def live_epochs(self, gateway: GatewayId) -> dict[NodeId, int]:
        return await self.read(
            "live_epochs", lambda book: {row.node: row.epoch for row in book.sessions if row.gateway == gateway and row.closed_at is None}
        )

    async def gateway_of(self, node: NodeId, now: datetime) -> GatewayAddress | None:
        return await self.read("gateway_of", _gateway_of, node, now)

    async def outgoing_commands(self, gateway: GatewayId, limit: int) -> list[OutgoingCommand]:
        return await self.read("outgoing_commands", _outgoing, gateway, limit)

    async def mark_sent(self, operation: OperationId, node: NodeId, epoch: int, now: datetime) -> bool:
        return await self.write("mark_sent", _mark_sent, operation, node, epoch)

    async def answer_command(
        self, operation: OperationId, node: NodeId, epoch: int, accepted: bool, code: str, detail: str, now: datetime
    ) -> None:
        await self.write("answer_command", _answer, operation, node, epoch, accepted, clean(code), clean(detail), now)


# ---------------------------------------------------------------- gateways and sessions


def _register(book: Book, row: GatewayRow, now: datetime) -> None:
    _close_all(book, row.id, now)
    book.gateways.put(row.id, row)


def _renew(book: Book, gateway: GatewayId, lease_until: datetime, present: datetime) -> bool:
    row = book.gateways.get(gateway)
    if row is not None:
        since = present if row.lease_until < present else row.live_since
        book.gateways.put(gateway, evolve(row, lease_until=lease_until, live_since=since))
    return row is not None


def _close_gateway(book: Book, gateway: GatewayId, now: datetime) -> None:
    _close_all(book, gateway, now)
    book.gateways.drop(gateway)
    poke(book, Topic.CONSOLE)


def _close_all(book: Book, gateway: GatewayId, now: datetime) -> None:
    for row in [row for row in book.sessions if row.gateway == gateway and row.closed_at is None]:
        book.sessions.put(row.node, evolve(row, closed_at=now))


def _authenticate(book: Book, secret_hash: str, now: datetime) -> NodeIdentity:
    row = book.credentials.get(secret_hash)
    if row is None:
        raise Refused("credential-unknown", "no Node has this credential")
    node = book.nodes[row.node]
    if node.removed_at is not None:
        raise Refused("node-removed", f"Node {node.id} was removed: join again")
    if row.revoked_at is not None:
        raise Refused("credential-revoked", f"this credential of Node {node.id} was revoked")
    if row.expires_at <= now:
        raise Refused("credential-expired", f"the credential of Node {node.id} expired")
    return NodeIdentity(node=node.id, fleet=node.fleet, credential_expires_at=row.expires_at)


def _open(book: Book, identity: NodeIdentity, gateway: GatewayId, hello: Hello, now: datetime) -> SessionOpened:
    node = book.nodes.get(identity.node)
    if node is None or node.removed_at is not None:
        raise Refused("node-removed", f"Node {identity.node} was removed: join again")
    former = book.sessions.get(identity.node)
    if former is not None:
        _check_same_machine(book, former, hello, now)
    epoch = 1 if former is None else former.epoch + 1
    made = SessionRow(
        node=identity.node,
        epoch=epoch,
        gateway=gateway,
        machine_id=clean(hello.machine_id),
        boot_id=clean(hello.boot_id),
        opened_at=now,
        clock_offset_seconds=(hello.sent_at - now).total_seconds(),
    )
    book.sessions.put(identity.node, made)
    doubt = _doubt(node, former.machine_id if former is not None else "", hello)
    if doubt:
        doubt_journal(book, node.id, doubt, now)
        poke(book, Topic.ATTEMPTS, Topic.COMMANDS)
    book.nodes.put(node.id, evolve(book.nodes[node.id], journal_id=hello.journal_id, journal_sequence=hello.journal_sequence))
    poke(book, Topic.SESSIONS, Topic.CONSOLE)
    return SessionOpened(
        node=identity.node, epoch=epoch, gateway=gateway, accepted_hold=node.accepted_hold, accepted_cards=node.accepted_cards
    )


def _check_same_machine(book: Book, former: SessionRow, hello: Hello, now: datetime) -> None:
    gateway = book.gateways.get(former.gateway)
    live = former.closed_at is None and gateway is not None and gateway.lease_until > now
    if live and (former.machine_id, former.boot_id) != (clean(hello.machine_id), clean(hello.boot_id)):
        raise Refused("identity-in-use", f"Node {former.node} has a live session from another machine or boot")


def _doubt(node: NodeRow, machine: str, hello: Hello) -> str:
    if node.journal_id is None:
        return ""
    if node.journal_id != hello.journal_id:
        return f"the Node came back with another journal ({hello.journal_id}, was {node.journal_id})"
    if hello.journal_sequence < node.journal_sequence:
        return f"the Node's journal went back from {node.journal_sequence} to {hello.journal_sequence}"
    if machine and hello.machine_id and clean(hello.machine_id) != machine:
        return f"the Node's journal is on another machine ({clean(hello.machine_id)}, was {machine}): a clone, or it was moved"
    return ""


def doubt_journal(book: Book, node: NodeId, doubt: str, now: datetime) -> None:
    set_cordon(book, node, "journal", doubt, now)
    for row in sorted((row for row in book.members if row.node == node and was_sent(book, row.id)), key=lambda row: row.id):
        if operation_id(row.id, "forget") in book.commands:
            continue
        if row.phase not in ENDED_PHASES:
            make_unknown(book, row, "journal-changed", doubt, now)
            continue
        book.members.put(row.id, evolve(row, revision=0))
        if not row.cleaned:
            insert_stop(book, row.id, "journal-changed", now, again=True)


def make_unknown(book: Book, row: MemberRow, code: str, why: str, now: datetime) -> None:
    changed = evolve(row, revision=0, progress=None, hold_expires_at=None, reason_code=code, reason_detail=why)
    book.members.put(row.id, evolve(changed, phase=MemberPhase.UNKNOWN))
    withdraw(book, row.id, UNANSWERED, now)
    insert_stop(book, row.id, code, now, again=True)
    note(book, row.job, now, "member.unknown", row.id, why)


def _close(book: Book, node: NodeId, epoch: int, now: datetime) -> None:
    row = book.sessions.get(node)
    if row is not None and row.epoch == epoch and row.closed_at is None:
        book.sessions.put(node, evolve(row, closed_at=now))
        poke(book, Topic.CONSOLE)


def _gateway_of(book: Book, node: NodeId, now: datetime) -> GatewayAddress | None:
    session = book.sessions.get(node)
    row = book.gateways.get(session.gateway) if session is not None and session.closed_at is None else None
    if row is None or row.lease_until <= now:
        return None
    return GatewayAddress(gateway=row.id, host=row.host, port=row.port)


# ---------------------------------------------------------------- commands


def was_sent(book: Book, member: MemberId) -> bool:
    return any(command.member == member and command.sent_epoch is not None for command in book.commands)


def withdraw(book: Book, member: MemberId, kinds: Sequence[CommandKind], now: datetime) -> None:
    for command in [command for command in book.commands if command.member == member and command.kind in kinds and command.open]:
        book.commands.put(command.operation, evolve(command, withdrawn_at=now))


def insert(book: Book, member: MemberId, kind: CommandKind, now: datetime, **more: object) -> CommandRow:
    row = book.members[member]
    made = CommandRow(
        operation=operation_id(member, kind.value),
        member=member,
        node=row.node,
        kind=kind,
        claim_epoch=book.attempts[row.attempt].claim_epoch,
        trace=book.jobs[row.job].trace,
        created_at=now,
        **more,  # type: ignore[arg-type]
    )
    return book.commands.get(made.operation) or book.commands.put(made.operation, made)


def insert_stop(book: Book, member: MemberId, reason: str, now: datetime, *, again: bool = False) -> None:
    policy = book.jobs[book.members[member].job].spec.spec.stop
    grace = float(policy.grace_seconds)
    made = insert(book, member, CommandKind.STOP, now, reason=clean(reason), stop_signal=policy.signal, stop_grace_seconds=grace)
    if again:
        book.commands.put(made.operation, evolve(made, answered_at=None, accepted=None, sent_epoch=None, reason=clean(reason)))


def _outgoing(book: Book, gateway: GatewayId, limit: int) -> list[OutgoingCommand]:
    found: list[tuple[CommandRow | StrangerRow, OutgoingCommand]] = strangers.outgoing(book, gateway)
    for command in book.commands:
        session = book.sessions.get(command.node)
        here = session is not None and session.gateway == gateway and session.closed_at is None
        if session is not None and here and command.open and (command.sent_epoch is None or command.sent_epoch < session.epoch):
            found.append((command, OutgoingCommand(node=command.node, command=_frame(book, command, session.epoch))))
    found.sort(key=lambda one: (one[0].kind is not CommandKind.STOP, one[0].created_at, one[0].operation))
    return [outgoing for _, outgoing in found[:limit]]


def _frame(book: Book, row: CommandRow, epoch: int) -> Command:
    member = book.members[row.member]
    return Command(
        operation=row.operation,
        kind=row.kind,
        member=row.member,
        session_epoch=epoch,
        claim_epoch=row.claim_epoch,
        plan=member.plan if row.kind is CommandKind.PREPARE else b"",
        plan_digest=member.plan_digest if row.kind in UNANSWERED else "",
        hold_seconds=row.hold_seconds,
        stop_signal=row.stop_signal,
        stop_grace_seconds=row.stop_grace_seconds,
        reason=row.reason,
        trace=row.trace,
        ended=member.phase in ENDED_PHASES,
    )


def _mark_sent(book: Book, operation: OperationId, node: NodeId, epoch: int) -> bool:
    session, command = book.sessions.get(node), book.commands.get(operation)
    if session is None or session.epoch != epoch or session.closed_at is not None:
        return False
    if command is None:
        return strangers.mark_sent(book, operation, node, epoch)
    if command.node != node or not command.open:
        return False
    book.commands.put(operation, evolve(command, sent_epoch=epoch))
    return True


def _answer(book: Book, operation: OperationId, node: NodeId, epoch: int, accepted: bool, code: str, detail: str, now: datetime) -> None:
    hold_epoch(book, node, epoch)
    command = book.commands.get(operation)
    if command is None:
        strangers.answer(book, operation, node, accepted, now)
    if command is None or command.node != node or command.answered_at is not None:
        return
    book.commands.put(operation, evolve(command, answered_at=now, accepted=accepted))
    if accepted:
        return
    member = book.members[command.member]
    note(book, member.job, now, f"member.{command.kind.value}-refused", member.id, f"{code}: {detail}")
    if command.kind in UNANSWERED and member.phase not in ENDED_PHASES:
        if not member.refusal_code:
            book.members.put(member.id, evolve(member, refusal_code=code or "refused", refusal_detail=detail))
        insert_stop(book, member.id, code or "refused", now)
        poke(book, Topic.COMMANDS, Topic.CONSOLE)


def settle_stop(book: Book, member: MemberId, now: datetime) -> None:
    for command in [command for command in book.commands if command.member == member and command.kind is CommandKind.STOP]:
        if command.open:
            book.commands.put(command.operation, evolve(command, answered_at=now, accepted=True))
