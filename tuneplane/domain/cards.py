"""Which cards of one Node a workload gets: pure, and the same answer for the same Node (L-D14)."""

from __future__ import annotations

from .nodes import Node


def choose_cards(node: Node, count: int) -> tuple[str, ...] | None:
    """The UUIDs of ``count`` free cards of ``node``; None when it has not that many."""
    free = node.free_gpu_uuids
    return free[:count] if count <= len(free) else None
