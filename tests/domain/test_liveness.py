"""The liveness table of fleets.txt, row by row, and who is ready (R-LIV-01, R-LIV-02, R-PLC-04, P-19)."""

from __future__ import annotations

from datetime import datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.strategies import EPOCH
from tuneplane.domain.fleets import Capability, Delivery, Fleet, FleetKind, FleetState
from tuneplane.domain.ids import FleetId, NodeId
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.liveness import LIVENESS_TABLE, Consequence, Liveness, Presence, liveness, readiness
from tuneplane.domain.nodes import Connection, Cordon, Node, NodeState
from tuneplane.domain.sight import Brake, Sight
from tuneplane.domain.timings import PRODUCTION

T, V, S, N = Capability.TRAIN, Capability.EVAL, Capability.SERVE, Capability.ENV
LONG = 1e6


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


SEEN = Sight(seen_since=at(-LONG), looked_at=at(LONG), gateways_since=at(-LONG))


def fleet(*capabilities: Capability, state: FleetState = FleetState.ACTIVE) -> Fleet:
    return Fleet(
        id=FleetId("lab"), kind=FleetKind.NODE, delivery=Delivery.OBJECT_PULL, capabilities=capabilities, state=state, created_at=EPOCH
    )


def node(lease: float | None, closed: float | None = None, **changes: object) -> Node:
    """Its gateway's lease lasts until ``lease``, or its session was closed at ``closed``."""
    link = Connection(state="connected", since=at(-LONG), lease_expires_at=at(lease)) if lease is not None else None
    if closed is not None:
        link = Connection(state="disconnected", since=at(closed))
    made = Node(
        id=NodeId("n"),
        fleet=FleetId("lab"),
        address="n",
        state=NodeState.ACTIVE,
        connection=link or Connection(state="never"),
        inventory=Inventory(hostname="n", node_version="1", cpu_count=1, memory_bytes=1),
        inventory_healthy=True,
        created_at=EPOCH,
    )
    return attrs.evolve(made, **changes)


def judged(quiet: float, *capabilities: Capability, sight: Sight | None = SEEN) -> Liveness:
    """A Node whose session was closed at 0, ``quiet`` seconds later."""
    return liveness(node(None, 0.0), fleet(*capabilities), sight, at(quiet), PRODUCTION)


def in_force(seen: Liveness) -> set[Capability]:
    return {answer.capability for answer in seen.answers if answer.in_force}


def test_the_table_is_the_page() -> None:
    """fleets.txt: 300, 45 and 45 seconds; eval follows train."""
    rows = {capability.value: (rule.seconds(PRODUCTION), rule.consequence) for capability, rule in LIVENESS_TABLE.items()}
    assert rows == {
        "train": (300.0, Consequence.NO_NEW_WORK),
        "eval": (300.0, Consequence.NO_NEW_WORK),
        "serve": (45.0, Consequence.NOT_READY),
        "env": (45.0, Consequence.NO_CANDIDATE),
    }


@pytest.mark.parametrize(("capability", "limit"), [(T, 300.0), (V, 300.0), (S, 45.0), (N, 45.0)])
def test_each_row_comes_into_force_at_its_limit_and_not_before(capability: Capability, limit: float) -> None:
    """R-LIV-01."""
    before, then = judged(limit - 0.1, capability), judged(limit, capability)
    assert (in_force(before), before.presence, before.allows(capability)) == (set(), Presence.QUIET, True)
    assert (in_force(then), then.presence, then.allows(capability)) == ({capability}, Presence.GONE, False)
    assert then.quiet_since == at(0.0)


@pytest.mark.parametrize(
    ("capabilities", "quiet", "expected", "presence"),
    [
        ((T, S, N), 44.9, set(), Presence.QUIET),
        ((T, S, N), 45.0, {S, N}, Presence.QUIET),
        ((T, S, N), 299.9, {S, N}, Presence.QUIET),
        ((T, S, N), 300.0, {T, S, N}, Presence.GONE),
        ((V, S), 45.0, {S}, Presence.QUIET),
        ((S, N), 45.0, {S, N}, Presence.GONE),
        ((S,), 45.0, {S}, Presence.GONE),
    ],
)
def test_gone_by_the_most_generous_and_the_tighter_rules_answer_for_themselves(
    capabilities: tuple[Capability, ...], quiet: float, expected: set[Capability], presence: Presence
) -> None:
    """R-LIV-02: three consequences, not three states."""
    seen = judged(quiet, *capabilities)
    assert (in_force(seen), seen.presence) == (expected, presence)
    assert {answer.capability for answer in seen.answers} == set(capabilities)


def test_a_connected_node_is_live_whatever_its_inventory_says() -> None:
    ill = node(10.0, inventory_healthy=False)
    seen = liveness(ill, fleet(T, S), SEEN, at(9.9), PRODUCTION)
    assert (seen.presence, seen.quiet_since, in_force(seen)) == (Presence.LIVE, None, set())


def test_a_lease_that_runs_out_is_silence_from_then_on() -> None:
    """At 10,000 Nodes: an open session on a gateway that is silent itself is not live."""
    seen = liveness(node(10.0), fleet(S), SEEN, at(56.0), PRODUCTION)
    assert (seen.presence, seen.quiet_since, seen.quiet_seconds) == (Presence.GONE, at(10.0), 46.0)


def test_a_node_that_never_came_is_quiet_since_its_enrolment() -> None:
    seen = liveness(node(None), fleet(S), SEEN, at(46.0), PRODUCTION)
    assert (seen.presence, seen.quiet_since) == (Presence.GONE, EPOCH)


@pytest.mark.parametrize(
    "sight",
    [
        None,
        attrs.evolve(SEEN, brake=Brake(since=at(1.0), window_from=at(-60.0), vanished=9, population=10)),
        attrs.evolve(SEEN, gateways_since=None),
        attrs.evolve(SEEN, looked_at=at(0.0)),
        attrs.evolve(SEEN, seen_since=at(LONG)),
        attrs.evolve(SEEN, released_at=at(LONG)),
    ],
)
def test_who_cannot_see_judges_nobody_and_says_so(sight: Sight | None) -> None:
    """P-19, L-B8: after a start, after blindness, under the brake."""
    seen = judged(5_000.0, T, S, N, sight=sight)
    assert (seen.presence, in_force(seen)) == (Presence.QUIET, set())
    told = bool(seen.suspended)
    assert told or (sight is not None and (sight.seen_since == at(LONG) or sight.released_at == at(LONG)))


def test_the_brake_does_not_suspend_the_placement_rule() -> None:
    """P-19, R-PLC-04: new work needs a live session and a fresh inventory, whatever the control plane suspects."""
    braked = attrs.evolve(SEEN, brake=Brake(since=EPOCH, window_from=EPOCH, vanished=3, population=3))
    silent = node(None, 0.0)
    assert liveness(silent, fleet(T), braked, at(1.0), PRODUCTION).presence is Presence.QUIET
    assert readiness(silent, fleet(T), at(1.0)).reasons == ("no live control session",)


CORDONS = st.lists(st.sampled_from(["operator", "storage", "journal", "cards", "machine", "updater"]), unique=True, max_size=3)


@given(
    st.one_of(st.none(), st.integers(-50, 50)),
    st.one_of(st.none(), st.integers(-50, 0)),
    st.booleans(),
    st.sampled_from(NodeState),
    st.sampled_from(FleetState),
    CORDONS,
)
def test_ready_means_every_condition_and_each_that_fails_is_a_reason(
    lease: float | None, closed: float | None, healthy: bool, state: NodeState, fleet_state: FleetState, cordons: list[str]
) -> None:
    """R-PLC-04, R-LIV-04, R-LIV-06: one derived readiness, with all reasons."""
    fences = tuple(Cordon(owner=owner, reason=f"because of {owner}", since=EPOCH) for owner in cordons)
    made = node(lease, closed, inventory_healthy=healthy, state=state, cordons=fences)
    ready = readiness(made, fleet(T, state=fleet_state), EPOCH)
    live = lease is not None and closed is None and lease > 0
    expected = live and healthy and state is NodeState.ACTIVE and fleet_state is FleetState.ACTIVE and not cordons
    assert ready.value == expected
    assert bool(ready.reasons) != expected
    for owner in cordons:
        assert any(f"cordoned by {owner}: because of {owner}" == reason for reason in ready.reasons)
    for fault, words in ((not live, "no live control session"), (live and not healthy, "no fresh inventory in this session")):
        assert (words in ready.reasons) == fault
