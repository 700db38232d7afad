"""What operators do about the cards of the twin's Nodes."""

from __future__ import annotations

from datetime import datetime

from attrs import evolve

from tuneplane.domain.card_grants import change_id, sight_of
from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.ids import NodeId, UserName
from tuneplane.domain.inventory import CardBinding
from tuneplane.domain.nodes import Node
from tuneplane.domain.ports import Topic
from tuneplane.storage.cards import is_changed, told_change
from tuneplane.storage.database import clean

from .base import Client, audit, poke
from .cards import bind, bound, grants_of, put_aside, put_grant, write_cards
from .nodes import set_cordon, view
from .rows import Book, NodeRow


class CardOrders(Client):
    """The part of NodeStore about cards (domain/ports.py)."""

    async def set_card_cordon(self, node: NodeId, card: str, reason: str | None, by: UserName, now: datetime) -> Node:
        return await self.write("set_card_cordon", _set_cordon, node, card, None if reason is None else clean(reason), by, now)

    async def accept_cards(self, node: NodeId, change: str, by: UserName, now: datetime) -> Node:
        return await self.write("accept_cards", _accept, node, change, by, now)


def _node(book: Book, node: NodeId) -> NodeRow:
    row = book.nodes.get(node)
    if row is None or row.removed_at is not None:
        raise NotFound("Node", node)
    return row


def _set_cordon(book: Book, node: NodeId, card: str, reason: str | None, by: UserName, now: datetime) -> Node:
    _node(book, node)
    if (node, card) not in book.grants:
        raise NotFound("card", card)
    put_aside(book, node, card, "operator", reason, now)
    audit(book, by, "card.uncordon" if reason is None else "card.cordon", card, now, f"on Node {node}: {reason or 'lifted'}")
    poke(book, Topic.JOBS, Topic.CONSOLE)
    return view(book, node, now)


def _accept(book: Book, node: NodeId, change: str, by: UserName, now: datetime) -> Node:
    row = _node(book, node)
    inventory, before = row.inventory, bound(book, node)
    if inventory is None or not is_changed(inventory, before) or change != change_id(sight_of(inventory)):
        raise Refused("no-such-change", f"Node {node} does not show a change of cards of this id")
    if change == row.accepted_cards and not is_changed(evolve(inventory, card_bindings=()), before):
        return view(book, node, now)
    seen = sight_of(inventory).by_index()
    uuids = {gpu.uuid for gpu in seen.values()}
    for grant in grants_of(book, node):
        if grant.index in seen or grant.gpu_uuid in uuids:
            put_grant(book, evolve(grant, index=None))
    bind(book, node, tuple(CardBinding(index=index, uuid=gpu.uuid) for index, gpu in seen.items()))
    book.nodes.put(node, evolve(row, accepted_cards=change))
    session = book.sessions.get(node)
    if session is not None and session.closed_at is None:
        book.sessions.put(node, evolve(session, closed_at=now))
    audit(book, by, "node.accept-cards", node, now, told_change(inventory, before, change))
    for owner, reason in write_cards(book, node, inventory, now).items():
        set_cordon(book, node, owner, reason, now)
    poke(book, Topic.SESSIONS, Topic.JOBS, Topic.CONSOLE)
    return view(book, node, now)
