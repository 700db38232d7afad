"""Inventories: budgets become capacity, cards become grants, and each cordon is set or lifted by its own owner."""

from __future__ import annotations

from datetime import datetime

from tuneplane.bridge.postgres import Connection
from tuneplane.domain.fleets import Delivery
from tuneplane.domain.ids import NodeId
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.ports import Topic

from .cards import write_cards
from .database import Aggregate, clean, hold_epoch, poke, to_json
from .nodes import set_cordon


class Inventories(Aggregate):
    """The inventory part of SessionStore (domain/ports.py)."""

    async def record_inventory(self, node: NodeId, epoch: int, inventory: Inventory, digest: str, now: datetime) -> None:
        await self._db.write("record_inventory", _record, node, epoch, inventory, digest, now)

    async def inventory_stale(self, node: NodeId, epoch: int, now: datetime) -> None:
        await self._db.write("inventory_stale", _stale, node, epoch)


async def _record(connection: Connection, node: NodeId, epoch: int, inventory: Inventory, digest: str, now: datetime) -> None:
    sql = "SELECT delivery, inventory_epoch FROM node JOIN fleet ON fleet.id = fleet_id WHERE node.id = $1 FOR NO KEY UPDATE OF node"
    fleet = await connection.fetchrow(sql, node)
    await hold_epoch(connection, node, epoch)  # a removed Node, whose Fleet may be gone too, has no live epoch
    if fleet["inventory_epoch"] != epoch:  # nobody knows how the mount was meanwhile
        await connection.execute("UPDATE cordon SET clear_since = NULL WHERE node_id = $1 AND owner = 'storage'", node)
    await write_inventory(connection, node, inventory, Delivery(fleet["delivery"]), now)
    await connection.execute("UPDATE node SET inventory_digest = $2, inventory_epoch = $3 WHERE id = $1", node, clean(digest), epoch)
    await poke(connection, Topic.JOBS, Topic.CONSOLE)


async def _stale(connection: Connection, node: NodeId, epoch: int) -> None:
    sql = "UPDATE node SET inventory_epoch = 0 WHERE id = $1 AND inventory_epoch = $2 RETURNING id"
    if await connection.fetchrow(sql, node, epoch) is not None:
        await poke(connection, Topic.CONSOLE)


async def write_inventory(connection: Connection, node: NodeId, inventory: Inventory, delivery: Delivery, now: datetime) -> None:
    """Store it and what follows from it. The Node's row is locked. It does not make the Node healthy: a session does."""
    sql = "UPDATE node SET inventory = $2, inventory_observed_at = $3 WHERE id = $1"
    await connection.execute(sql, node, to_json(inventory), now)
    budgets = inventory.budgets
    sql = (
        "UPDATE node_capacity SET cpu_millis_budget = $2, memory_bytes_budget = $3, staging_bytes_budget = $4, gpus_declared = $5"
        " WHERE node_id = $1"
    )
    declared = budgets.gpu_indexes is not None
    await connection.execute(sql, node, budgets.cpu_millis, budgets.memory_bytes, budgets.staging_bytes, declared)
    await _set_storage_cordon(connection, node, _storage_reason(inventory, delivery), now)
    await write_cards(connection, node, inventory, now)


def _storage_reason(inventory: Inventory, delivery: Delivery) -> str | None:
    if delivery is not Delivery.SHARED_MOUNT or inventory.storage_root_seen:
        return None
    return f"the storage root {inventory.storage_root or '(none was given)'} is not seen on this machine"


async def _set_storage_cordon(connection: Connection, node: NodeId, reason: str | None, now: datetime) -> None:
    """Set at once. Lifted at once only if it stands since enrolment: what was never trusted cannot flap. Else a look around
    lifts it (storage/sight.py) once the root has been seen without a break for ``storage_steady``."""
    if reason is not None:
        await set_cordon(connection, node, "storage", reason, now)
        return
    sql = "DELETE FROM cordon USING node WHERE node.id = node_id AND node_id = $1 AND owner = 'storage' AND since = created_at"
    await connection.execute(sql, node)
    sql = "UPDATE cordon SET clear_since = $2, reason = $3 WHERE node_id = $1 AND owner = 'storage' AND clear_since IS NULL"
    await connection.execute(sql, node, now, clears(now))


def clears(now: datetime) -> str:
    """Why a storage cordon still stands while the root is seen."""
    return f"the storage root is seen again since {now:%Y-%m-%d %H:%M:%SZ}; work comes once it has stayed so for a while"
