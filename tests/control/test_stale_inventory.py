"""An inventory marked as stale comes back with its confirmation, whatever became of the mark's own answer (P-09, R-PLC-04)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import trio
from attrs import define, field

from tests.control.plane import TIMINGS, Plane, now, open_plane
from tests.control.scripted_node import ScriptedNode
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.ports import Storage

QUICK = attrs.evolve(TIMINGS, heartbeat=0.1, inventory_fresh=0.5)
NEVER = "sha256:" + "0" * 64


@define(eq=False)
class OddMarks:
    """The first mark waits for ``go`` and then loses its answer, as asked; every record is counted."""

    real: Storage
    lost: bool = False
    go: trio.Event = field(factory=trio.Event)
    begun: trio.Event = field(factory=trio.Event)
    records: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def inventory_stale(self, *args: Any) -> None:
        first = not self.begun.is_set()
        self.begun.set()
        if first:
            await self.go.wait()
        await self.real.inventory_stale(*args)
        if first and self.lost:
            raise StorageUnavailable("committed, but the answer was lost")

    async def record_inventory(self, *args: Any) -> None:
        await self.real.record_inventory(*args)
        self.records += 1


async def _wait_health(plane: Plane, node: ScriptedNode, healthy: bool) -> None:
    async def look() -> tuple[bool, object]:
        found = await plane.storage.get_node(node.node, now())
        assert found is not None
        return found.inventory_healthy is healthy, found.inventory_healthy

    await plane.wait_until(look, f"the inventory to be {'fresh' if healthy else 'stale'}")


async def _stays_healthy(plane: Plane, node: ScriptedNode) -> None:
    """Settled: several heartbeats and watches later it still is."""
    await _wait_health(plane, node, True)
    await trio.sleep(5 * QUICK.heartbeat)
    await _wait_health(plane, node, True)


async def test_mark_whose_answer_was_lost_is_undone_by_the_next_confirmation(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path, timings=QUICK) as plane:
        marks = OddMarks(plane.storage, lost=True)
        marks.go.set()
        async with plane.gateway(storage=marks) as gateway:  # type: ignore[arg-type]
            node = await plane.connect(gateway)
            assert node.link is not None
            digest, node.link.inventory_digest = node.link.inventory_digest, NEVER
            await _wait_health(plane, node, False)
            node.link.inventory_digest = digest
            await _stays_healthy(plane, node)
            assert node.ends == []


async def test_mark_that_commits_after_the_confirmation_is_undone_as_well(database: str, tmp_path: Path) -> None:
    """The confirmation's record overtakes the mark: what commits last must not be the last word."""
    async with open_plane(database, tmp_path, timings=QUICK) as plane:
        marks = OddMarks(plane.storage)
        async with plane.gateway(storage=marks) as gateway:  # type: ignore[arg-type]
            node = await plane.connect(gateway)
            assert node.link is not None
            digest, node.link.inventory_digest = node.link.inventory_digest, NEVER
            await marks.begun.wait()
            records, node.link.inventory_digest = marks.records, digest
            with trio.move_on_after(10 * QUICK.heartbeat):  # a gateway that waits with it until the mark is through is right too
                while marks.records == records:  # noqa: ASYNC110 - a counter of the wrapper
                    await trio.sleep(0.01)
            marks.go.set()
            await _stays_healthy(plane, node)
            assert node.ends == []


async def test_heartbeats_that_confirm_an_old_look_do_not_keep_it_fresh(database: str, tmp_path: Path) -> None:
    """R-PLC-04: observed within 45 s, not repeated within 45 s; the next look makes it fresh again."""
    async with open_plane(database, tmp_path, timings=QUICK) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        assert node.link is not None
        node.link.inventory_seen_at = trio.current_time()  # and never again: the look hangs, the heartbeats go on
        await _wait_health(plane, node, False)
        node.link.inventory_seen_at = None
        await _stays_healthy(plane, node)
        assert node.ends == []
