"""The cards of Nodes: what their indexes mean, which are granted, and which are put aside by whom (L-D1, L-D8, L-D12, L-D13)."""

from __future__ import annotations

from datetime import datetime

from attrs import evolve

from tuneplane.bridge.postgres import Connection, Row
from tuneplane.domain.card_grants import change_id, judge_cards, sight_of
from tuneplane.domain.card_health import cards_aside, node_aside
from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.ids import NodeId, UserName
from tuneplane.domain.inventory import CardBinding, Inventory
from tuneplane.domain.nodes import Node
from tuneplane.domain.ports import Topic

from .database import Aggregate, audit, clean, from_json, poke
from .nodes import set_cordon, view

BIND = (
    "INSERT INTO gpu_grant (node_id, idx, gpu_uuid, granted) VALUES ($1, $2, $3, false)"
    " ON CONFLICT (node_id, gpu_uuid) DO UPDATE SET idx = excluded.idx WHERE gpu_grant.idx IS NULL"
)


class Cards(Aggregate):
    """What operators do about cards (NodeStore, domain/ports.py)."""

    async def set_card_cordon(self, node: NodeId, card: str, reason: str | None, by: UserName, now: datetime) -> Node:
        """Set, or with None lift, the operator's own cordon of one card."""
        return await self._db.write("set_card_cordon", _set_cordon, node, card, None if reason is None else clean(reason), by, now)

    async def accept_cards(self, node: NodeId, change: str, by: UserName, now: datetime) -> Node:
        """The operator's word that the cards are right as they are now; nothing else binds an index anew (L-D1)."""
        return await self._db.write("accept_cards", _accept, node, change, by, now)


async def write_cards(connection: Connection, node: NodeId, inventory: Inventory, now: datetime) -> None:
    """What follows from an inventory for the cards of its Node, whose row is locked. What it does not tell changes nothing."""
    rows = await _grants(connection, node)
    if inventory.cards_known:
        await set_cordon(connection, node, "cards", await _grant(connection, node, rows, inventory), now)
    taken = [clean(uuid) for one in inventory.strangers for uuid in one.gpu_uuids or ()]
    await _flag(connection, node, "occupied", taken)
    if inventory.card_faults is not None:
        await set_cordon(connection, node, "health", node_aside(inventory), now)
        await _put_aside(connection, node, cards_aside(inventory), now)


async def _grants(connection: Connection, node: NodeId) -> list[Row]:
    sql = "SELECT idx, gpu_uuid FROM gpu_grant WHERE node_id = $1 ORDER BY gpu_uuid FOR NO KEY UPDATE"
    rows: list[Row] = await connection.fetch(sql, node)
    return rows


async def _grant(connection: Connection, node: NodeId, rows: list[Row], inventory: Inventory) -> str | None:
    """Bind what is seen for the first time; a card that does not match is a reason."""
    judged = judge_cards(inventory, {row["idx"]: row["gpu_uuid"] for row in rows if row["idx"] is not None})
    await _bind(connection, node, judged.new)
    named = sorted(judged.granted & set(inventory.budgets.gpu_uuids) - {row["gpu_uuid"] for row in rows})
    await connection.executemany(BIND, [(node, None, uuid) for uuid in named])
    await _flag(connection, node, "granted", sorted(judged.granted))
    return judged.reason


async def _bind(connection: Connection, node: NodeId, bindings: tuple[CardBinding, ...]) -> None:
    await connection.executemany(BIND, [(node, one.index, one.uuid) for one in sorted(bindings, key=lambda one: one.uuid)])


async def _flag(connection: Connection, node: NodeId, column: str, cards: list[str]) -> None:
    """``granted`` or ``occupied`` of exactly these cards."""
    sql = f"UPDATE gpu_grant SET {column} = (gpu_uuid = ANY($2::text[])) WHERE node_id = $1 AND {column} <> (gpu_uuid = ANY($2::text[]))"  # noqa: S608
    await connection.execute(sql, node, cards)


async def _put_aside(connection: Connection, node: NodeId, aside: dict[str, str], now: datetime) -> None:
    """The health table's cordons; ``since`` is kept while one lasts. Of cards that no budget ever named there are none."""
    sql = "DELETE FROM card_cordon WHERE node_id = $1 AND owner = 'health' AND NOT gpu_uuid = ANY($2::text[])"
    await connection.execute(sql, node, sorted(aside))
    sql = (
        "INSERT INTO card_cordon (node_id, gpu_uuid, owner, reason, since) SELECT node_id, gpu_uuid, 'health', $3, $4 FROM gpu_grant"
        " WHERE node_id = $1 AND gpu_uuid = $2 ON CONFLICT (node_id, gpu_uuid, owner) DO UPDATE SET reason = excluded.reason"
    )
    await connection.executemany(sql, [(node, card, clean(reason), now) for card, reason in sorted(aside.items())])


# ---------------------------------------------------------------- what operators do


async def _set_cordon(connection: Connection, node: NodeId, card: str, reason: str | None, by: UserName, now: datetime) -> Node:
    """The Node's row is locked as by a placement, which sees the cordon or comes before it."""
    sql = "SELECT FROM node WHERE id = $1 AND removed_at IS NULL FOR NO KEY UPDATE"
    if await connection.fetchrow(sql, node) is None:
        raise NotFound("Node", node)
    if card not in {row["gpu_uuid"] for row in await _grants(connection, node)}:
        raise NotFound("card", card)
    if reason is None:
        await connection.execute("DELETE FROM card_cordon WHERE node_id = $1 AND gpu_uuid = $2 AND owner = 'operator'", node, card)
    else:
        sql = (
            "INSERT INTO card_cordon (node_id, gpu_uuid, owner, reason, since) VALUES ($1, $2, 'operator', $3, $4)"
            " ON CONFLICT (node_id, gpu_uuid, owner) DO UPDATE SET reason = excluded.reason"
        )
        await connection.execute(sql, node, card, reason, now)
    await audit(connection, by, "card.uncordon" if reason is None else "card.cordon", card, now, f"on Node {node}: {reason or 'lifted'}")
    await poke(connection, Topic.JOBS, Topic.CONSOLE)
    return await view(connection, node, now)


async def _accept(connection: Connection, node: NodeId, change: str, by: UserName, now: datetime) -> Node:
    """Its session is closed: the next Welcome tells the Node, which binds anew too and reports. Holds are by UUID and stay.

    A repeat, known by the change's id, changes nothing: the Node only has not reported yet.
    """
    sql = "SELECT inventory, accepted_cards FROM node WHERE id = $1 AND removed_at IS NULL FOR NO KEY UPDATE"
    row = await connection.fetchrow(sql, node)
    if row is None:
        raise NotFound("Node", node)
    inventory = from_json(Inventory, row["inventory"])
    bound = {one["idx"]: one["gpu_uuid"] for one in await _grants(connection, node) if one["idx"] is not None}
    if inventory is None or not is_changed(inventory, bound) or change != change_id(sight_of(inventory)):
        raise Refused("no-such-change", f"Node {node} does not show a change of cards of this id: look at it again")
    if change == row["accepted_cards"] and not is_changed(evolve(inventory, card_bindings=()), bound):
        return await view(connection, node, now)
    await _rebind(connection, node, inventory)
    await connection.execute("UPDATE node SET accepted_cards = $2 WHERE id = $1", node, change)
    sql = "UPDATE session SET closed_at = $2, close_reason = 'cards-accepted' WHERE node_id = $1 AND closed_at IS NULL"
    await connection.execute(sql, node, now)
    await audit(connection, by, "node.accept-cards", node, now, told_change(inventory, bound, change))
    await write_cards(connection, node, inventory, now)
    await poke(connection, Topic.SESSIONS, Topic.JOBS, Topic.CONSOLE)
    return await view(connection, node, now)


def is_changed(inventory: Inventory, bound: dict[int, str]) -> bool:
    """Whether an index means another card now than either side remembers."""
    memories = (bound, {one.index: one.uuid for one in inventory.card_bindings})
    seen = sight_of(inventory).by_index()
    return inventory.cards_known and any(memory.get(index, gpu.uuid) != gpu.uuid for memory in memories for index, gpu in seen.items())


def told_change(inventory: Inventory, bound: dict[int, str], change: str) -> str:
    """For the audit log."""
    seen = sight_of(inventory).by_index()
    return f"{change}: " + ", ".join(f"index {index}: {bound.get(index, 'none')} -> {gpu.uuid}" for index, gpu in seen.items())


async def _rebind(connection: Connection, node: NodeId, inventory: Inventory) -> None:
    seen = sight_of(inventory).by_index()
    uuids = [gpu.uuid for gpu in seen.values()]
    await connection.execute("SELECT set_config('tuneplane.rebinding', $1, true)", node)
    sql = "UPDATE gpu_grant SET idx = NULL WHERE node_id = $1 AND (idx = ANY($2::int[]) OR gpu_uuid = ANY($3::text[]))"
    await connection.execute(sql, node, sorted(seen), uuids)
    await connection.execute("SELECT set_config('tuneplane.rebinding', '', true)")
    await _bind(connection, node, tuple(CardBinding(index=index, uuid=gpu.uuid) for index, gpu in seen.items()))
