"""Liveness: what a Node's silence means for each capability, and whether a Node may take new work (R-LIV-01, R-LIV-02, R-PLC-04).

Three consequences, not three states. Each capability answers for itself after its own time of silence; the Node is ``gone``
only by the most generous of its Fleet's. New work is another question (:func:`readiness`): it needs a live control session
and an inventory observed within 45 s, whatever the capability, and no brake suspends that.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from attrs import field, frozen

from . import sight as eyes
from .fleet_config import why_other_root
from .fleets import Capability, Fleet, FleetState
from .nodes import Node, NodeState
from .sight import Sight
from .timings import Timings


class Consequence(str, Enum):
    """What follows from a Node's silence, for one capability."""

    NO_NEW_WORK = "no-new-work"  # running work is reconciled separately
    NOT_READY = "not-ready"  # revisions on it are not Ready, the deployment reports degraded
    NO_CANDIDATE = "no-candidate"  # its address is given to nobody; episodes in flight fail on their own time-out


@frozen(kw_only=True)
class Rule:
    """``limit`` is the name of the duration in :class:`Timings`."""

    limit: str
    consequence: Consequence

    def seconds(self, timings: Timings) -> float:
        return float(getattr(timings, self.limit))


LIVENESS_TABLE: dict[Capability, Rule] = {
    Capability.TRAIN: Rule(limit="quiet_train", consequence=Consequence.NO_NEW_WORK),
    Capability.EVAL: Rule(limit="quiet_train", consequence=Consequence.NO_NEW_WORK),
    Capability.SERVE: Rule(limit="quiet_serve", consequence=Consequence.NOT_READY),
    Capability.ENV: Rule(limit="quiet_env", consequence=Consequence.NO_CANDIDATE),
}


class Presence(str, Enum):
    LIVE = "live"
    QUIET = "quiet"
    GONE = "gone"  # quiet for longer than the most generous of its Fleet's capabilities allows


@frozen(kw_only=True)
class Answer:
    """What one capability says of a Node: whether its ``consequence`` has come, and after how many quiet seconds it does."""

    capability: Capability
    consequence: Consequence
    after_seconds: float
    in_force: bool


@frozen(kw_only=True)
class Liveness:
    """A Node's silence, judged. ``quiet_seconds`` are only those in which somebody could have heard it."""

    presence: Presence
    quiet_since: datetime | None
    quiet_seconds: float
    answers: tuple[Answer, ...]  # one a capability of its Fleet
    suspended: str  # why no silence counts just now (blindness, the mass-failure brake); "" when it does

    def allows(self, capability: Capability) -> bool:
        """Whether no consequence has come for ``capability``; False for one that its Fleet does not have."""
        return any(answer.capability is capability and not answer.in_force for answer in self.answers)


def liveness(node: Node, fleet: Fleet, sight: Sight | None, now: datetime, timings: Timings) -> Liveness:
    """Judge the silence of ``node`` at ``now``, by what the control plane could see."""
    since = quiet_since(node, now)
    quiet = 0.0 if since is None else eyes.silence(sight, since, now, timings)
    answers = tuple(_answer(capability, since is not None, quiet, timings) for capability in Capability if capability in fleet.capabilities)
    if since is None:
        presence = Presence.LIVE
    else:
        presence = Presence.GONE if all(answer.in_force for answer in answers) else Presence.QUIET
    suspended = eyes.why_suspended(sight, now, timings)
    return Liveness(presence=presence, quiet_since=since, quiet_seconds=quiet, answers=answers, suspended=suspended)


def _answer(capability: Capability, quiet: bool, quiet_seconds: float, timings: Timings) -> Answer:
    rule = LIVENESS_TABLE[capability]
    after = rule.seconds(timings)
    return Answer(capability=capability, consequence=rule.consequence, after_seconds=after, in_force=quiet and quiet_seconds >= after)


def has_live_session(node: Node, now: datetime) -> bool:
    """Its session is open and its gateway's lease is fresh."""
    lease = node.connection.lease_expires_at
    return node.connection.state == "connected" and lease is not None and lease > now


def quiet_since(node: Node, now: datetime) -> datetime | None:
    """Since when nothing is heard of it; None while its session lives."""
    if has_live_session(node, now):
        return None
    link = node.connection
    if link.state == "connected":  # as it was when the row was read
        return link.lease_expires_at or link.since or node.created_at
    return link.since or node.created_at


# ---------------------------------------------------------------- new work


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
    owners = {cordon.owner for cordon in node.cordons}
    if node.state is not NodeState.ACTIVE and ("operator" in owners or "machine" not in owners):
        reasons.append(f"an operator set it to {node.state.value}")
    reasons += [f"cordoned by {cordon.owner}: {cordon.reason}" for cordon in node.cordons]
    if not has_live_session(node, now):
        reasons.append("no live control session")
    elif node.inventory is None or not node.inventory_healthy:
        problems = node.inventory.problems if node.inventory else ()
        reasons += problems or ("no fresh inventory in this session",)
    other_root = why_other_root(fleet.config, node.inventory.storage_root) if node.inventory is not None else ""
    reasons += [other_root] if other_root else []
    reasons += [f"what {one.name or one.container} uses cannot be told: {STRANGE}" for one in node.strangers if not one.is_known]
    return Readiness(value=not reasons, reasons=tuple(reasons))
