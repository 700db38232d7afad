"""Fleets, readiness and budgets (R-FLT-02, R-FLT-03, R-PLC-04, R-LIV-06)."""

from __future__ import annotations

from datetime import timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.strategies import EPOCH, fleets, nodes
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.fleets import DEFAULT_DELIVERY, Delivery, Fleet, FleetKind, check_slug
from tuneplane.domain.ids import SLUG, AttemptId, JobId, attempt_id, container_name, member_id, operation_id, spell_id
from tuneplane.domain.liveness import readiness
from tuneplane.domain.nodes import Node, NodeState
from tuneplane.domain.timings import PRODUCTION


@given(fleets(), nodes(0, EPOCH))
def test_readiness_ready_means_no_reason_and_not_ready_names_one(fleet: Fleet, node: Node) -> None:
    """R-LIV-06: the answer is derived, with every reason."""
    ready = readiness(node, fleet, EPOCH)
    assert ready.value == (not ready.reasons)
    lease = node.connection.lease_expires_at
    if ready.value:
        assert node.state is NodeState.ACTIVE
        assert not node.cordons
        assert node.inventory_healthy
        assert lease is not None
        assert lease > EPOCH


@given(fleets(), nodes(0, EPOCH))
def test_readiness_an_expired_lease_is_never_ready(fleet: Fleet, node: Node) -> None:
    """R-PLC-04."""
    expired = attrs.evolve(node.connection, lease_expires_at=EPOCH - timedelta(seconds=1))
    assert not readiness(attrs.evolve(node, connection=expired), fleet, EPOCH).value


def test_delivery_defaults_from_the_kind() -> None:
    """R-FLT-02."""
    assert DEFAULT_DELIVERY[FleetKind.NODE] is Delivery.SHARED_MOUNT
    assert set(DEFAULT_DELIVERY) == set(FleetKind)


@given(st.text(max_size=70))
def test_slug_what_passes_is_a_dns_label(name: str) -> None:
    if SLUG.match(name):
        check_slug(name, "id")
        assert 1 <= len(name) <= 63
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert name.strip("-") == name
    else:
        with pytest.raises(InvalidInput):
            check_slug(name, "id")


@given(st.binary(min_size=10, max_size=20))
def test_ids_are_deterministic_slugs(entropy: bytes) -> None:
    """R-LCH-02: every worker names the same attempt, member, operation and container."""
    job = JobId(spell_id("job", entropy))
    check_slug(job, "job")
    attempt = attempt_id(job, 2)
    member = member_id(AttemptId(attempt), 3)
    assert member == f"{job}-2-3"
    assert operation_id(member, "commit") == f"{member}:commit"
    assert container_name(member) == f"tuneplane-{member}"


@given(st.floats(0.001, 10))
def test_timings_scaling_keeps_every_relation(factor: float) -> None:
    scaled = PRODUCTION.scaled(factor)
    assert scaled.session_idle > 2 * scaled.heartbeat
    assert scaled.inventory_fresh >= 2.9 * scaled.inventory_confirm
    assert scaled.gateway_lease >= 2.9 * scaled.gateway_renew
    assert scaled.claim_lease >= 2.9 * scaled.claim_renew
    assert scaled.hold > scaled.prepare_deadline + scaled.commit_margin
    assert scaled.judging_grace >= scaled.reconnect_most + scaled.gateway_lease + 2 * scaled.heartbeat  # L-B12
    assert scaled.retry_first < scaled.retry_most
