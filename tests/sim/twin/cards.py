"""The cards of the twin's Nodes: bindings, grants, and who keeps which aside."""

from __future__ import annotations

from datetime import datetime

from attrs import evolve

from tuneplane.domain.card_grants import judge_cards
from tuneplane.domain.card_health import cards_aside, node_aside
from tuneplane.domain.ids import NodeId
from tuneplane.domain.inventory import CardBinding, Inventory
from tuneplane.domain.nodes import Card, Cordon
from tuneplane.storage.database import clean

from .rows import Book, GrantRow


def write_cards(book: Book, node: NodeId, inventory: Inventory, now: datetime) -> dict[str, str | None]:
    """What follows from an inventory; the Node's own cordons to set or (None) to lift, by owner."""
    cordons: dict[str, str | None] = {}
    if inventory.cards_known:
        judged = judge_cards(inventory, bound(book, node))
        bind(book, node, judged.new)
        for uuid in judged.granted & set(inventory.budgets.gpu_uuids):
            if (node, uuid) not in book.grants:
                book.grants.put((node, uuid), GrantRow(node=node, index=None, gpu_uuid=uuid, granted=False))
        for grant in grants_of(book, node):
            put_grant(book, evolve(grant, granted=grant.gpu_uuid in judged.granted))
        cordons["cards"] = judged.reason
    taken = {clean(uuid) for one in inventory.strangers for uuid in one.gpu_uuids or ()}
    for grant in grants_of(book, node):
        put_grant(book, evolve(grant, occupied=grant.gpu_uuid in taken))
    if inventory.card_faults is not None:
        cordons["health"] = node_aside(inventory)
        aside = cards_aside(inventory)
        for grant in grants_of(book, node):
            put_aside(book, node, grant.gpu_uuid, "health", aside.get(grant.gpu_uuid), now)
    return cordons


def grants_of(book: Book, node: NodeId) -> list[GrantRow]:
    """By index; those without one last."""
    grants = [grant for grant in book.grants if grant.node == node]
    return sorted(grants, key=lambda grant: (grant.index is None, grant.index or 0, grant.gpu_uuid))


def granted(book: Book, node: NodeId) -> list[GrantRow]:
    return [grant for grant in grants_of(book, node) if grant.granted]


def placeable(book: Book, node: NodeId) -> list[str]:
    return [grant.gpu_uuid for grant in granted(book, node) if not grant.occupied and not card_cordons(book, node, grant.gpu_uuid)]


def bound(book: Book, node: NodeId) -> dict[int, str]:
    return {grant.index: grant.gpu_uuid for grant in grants_of(book, node) if grant.index is not None}


def bind(book: Book, node: NodeId, bindings: tuple[CardBinding, ...]) -> None:
    for one in bindings:
        former = book.grants.get((node, one.uuid)) or GrantRow(node=node, index=None, gpu_uuid=one.uuid, granted=False)
        book.grants.put((node, one.uuid), evolve(former, index=one.index))


def put_grant(book: Book, grant: GrantRow) -> None:
    if book.grants[grant.node, grant.gpu_uuid] != grant:
        book.grants.put((grant.node, grant.gpu_uuid), grant)


def put_aside(book: Book, node: NodeId, card: str, owner: str, reason: str | None, now: datetime) -> None:
    """``since`` is kept while it lasts."""
    key = (node, card, owner)
    if reason is None:
        book.card_cordons.drop(key)
        return
    former = book.card_cordons.get(key)
    book.card_cordons.put(key, Cordon(owner=owner, reason=clean(reason), since=former.since if former else now))


def card_cordons(book: Book, node: NodeId, card: str) -> tuple[Cordon, ...]:
    if not len(book.card_cordons):  # the common case, asked for every card of every look
        return ()
    return tuple(book.card_cordons[key] for key in sorted(key for key in book.card_cordons.rows if key[:2] == (node, card)))


def cards_of(book: Book, node: NodeId) -> tuple[Card, ...]:
    return tuple(
        Card(
            uuid=grant.gpu_uuid,
            index=grant.index,
            granted=grant.granted,
            occupied=grant.occupied,
            member=book.gpu_holds.get(grant.gpu_uuid),
            cordons=card_cordons(book, node, grant.gpu_uuid),
        )
        for grant in grants_of(book, node)
    )
