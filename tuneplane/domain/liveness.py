"""Whether a Node may take new work, and every reason why not (R-PLC-04, R-LIV-06)."""

from __future__ import annotations

from datetime import datetime

from attrs import field, frozen

from .fleet_config import why_other_root
from .fleets import Fleet, FleetState
from .nodes import Node, NodeState


@frozen(kw_only=True)
class Readiness:
    """Derived from all of the above, with every reason (R-LIV-06)."""

    value: bool
    reasons: tuple[str, ...] = field(default=())


STRANGE = "it is Tuneplane's, and unknown here; only an operator may stop it"


def readiness(node: Node, fleet: Fleet, now: datetime) -> Readiness:
    """Whether ``node`` may take new work at ``now`` (R-PLC-04), and every reason why not."""
    reasons: list[str] = []
    if fleet.state is not FleetState.ACTIVE:
        reasons.append(f"its Fleet is {fleet.state.value}")
    if node.state is not NodeState.ACTIVE:
        reasons.append(f"an operator set it to {node.state.value}")
    reasons += [f"cordoned by {cordon.owner}: {cordon.reason}" for cordon in node.cordons]
    lease = node.connection.lease_expires_at
    if node.connection.state != "connected" or lease is None or lease <= now:
        reasons.append("no live control session")
    elif node.inventory is None or not node.inventory_healthy:
        problems = node.inventory.problems if node.inventory else ()
        reasons += problems or ("no fresh inventory in this session",)
    other_root = why_other_root(fleet.config, node.inventory.storage_root) if node.inventory is not None else ""
    reasons += [other_root] if other_root else []
    reasons += [f"what {one.name or one.container} uses cannot be told: {STRANGE}" for one in node.strangers if not one.is_known]
    return Readiness(value=not reasons, reasons=tuple(reasons))
