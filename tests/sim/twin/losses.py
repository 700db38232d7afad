"""What an operator's word ends in the twin (P-11)."""

from __future__ import annotations

from datetime import datetime

from attrs import evolve

from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.ids import MemberId, NodeId, UserName
from tuneplane.domain.launch_table import ENDED_PHASES, MemberPhase
from tuneplane.domain.ports import Topic
from tuneplane.domain.verdict import DECLARED_LOST
from tuneplane.storage.database import clean

from .base import Client, audit, note, poke
from .nodes import release
from .rows import Book
from .sessions import UNANSWERED, insert_stop, was_sent, withdraw


class Losses(Client):
    """The part of NodeStore that declares members lost (domain/ports.py)."""

    async def declare_lost(self, node: NodeId, member: MemberId, by: UserName, reason: str, now: datetime) -> None:
        await self.write("declare_lost", _declare_lost, node, member, by, clean(reason), now)


def _declare_lost(book: Book, node: NodeId, name: MemberId, by: UserName, reason: str, now: datetime) -> None:
    enrolled = book.nodes.get(node)
    if enrolled is None or enrolled.removed_at is not None:
        raise NotFound("Node", node)
    member = book.members.get(name)
    if member is None or member.node != node:
        raise NotFound("member", name)
    _end_silent_session(book, node, name, now)
    if member.phase in ENDED_PHASES:
        raise Refused("member-ended", f"{name} has ended already ({member.phase.value})")
    detail = f"declared lost by {by} while Node {node} was silent and this was {member.phase.value} on it: {reason}"
    phase = MemberPhase.ABORTED if member.phase is MemberPhase.PENDING else MemberPhase.TERMINATED
    book.members.put(name, evolve(member, phase=phase, ended_at=now, reason_code=DECLARED_LOST, reason_detail=detail))
    release(book, name)
    withdraw(book, name, UNANSWERED, now)
    if was_sent(book, name):
        insert_stop(book, name, DECLARED_LOST, now, again=True)
    else:
        book.members.put(name, evolve(book.members[name], cleaned=True))
    note(book, member.job, now, "member.declared-lost", name, detail)
    audit(book, by, "member.declare-lost", name, now, f"on Node {node}: {reason}", forced=True)
    poke(book, Topic.SESSIONS, Topic.ATTEMPTS, Topic.JOBS, Topic.COMMANDS, Topic.CONSOLE)


def _end_silent_session(book: Book, node: NodeId, name: MemberId, now: datetime) -> None:
    session = book.sessions.get(node)
    gateway = book.gateways.get(session.gateway) if session is not None and session.closed_at is None else None
    if session is None or gateway is None:
        return
    if gateway.lease_until > now:
        raise Refused("node-live", f"Node {node} is connected: stop the job, and it will confirm the end of {name} itself")
    book.sessions.put(node, evolve(session, closed_at=gateway.lease_until))
