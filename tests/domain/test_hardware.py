"""The hardware registry: names to series, and what a pinned series does to placement (R-ENR-06, R-PLC-02)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.strategies import EPOCH
from tuneplane.domain.admission import admission_reasons
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.fleets import Capability, Delivery, Fleet, FleetKind
from tuneplane.domain.hardware import (
    MOST_CARD_NAMES,
    Registry,
    Series,
    card_key,
    check_series,
    only_series,
    series_by_card,
    series_of,
    unknown_cards_of,
)
from tuneplane.domain.ids import FleetId, MemberId, NodeId, SeriesId
from tuneplane.domain.inventory import Budgets, Gpu, Inventory, MigInstance
from tuneplane.domain.jobspec import JobBody, JobSpec, Metadata, Pool, Resources, RuntimeRef, WorkKind, check_job_spec
from tuneplane.domain.nodes import Capacity, Card, Connection, Node, NodeState
from tuneplane.domain.placement import MustWait, Placed, place

H100, A100 = SeriesId("h100"), SeriesId("a100")
REGISTRY = Registry((Series(series=H100, card_names=("NVIDIA H100 80GB HBM3",)), Series(series=A100, card_names=("A100-SXM4-40GB",))))
FLEET = Fleet(id=FleetId("lab"), kind=FleetKind.NODE, delivery=Delivery.SHARED_MOUNT, capabilities=(Capability.TRAIN,), created_at=EPOCH)


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("NVIDIA H100 80GB HBM3", H100),
        ("nvidia  h100 80gb hbm3 ", H100),
        ("H100 80GB HBM3", H100),  # as drivers before R495 would say it
        ("NVIDIA A100-SXM4-40GB", A100),
        ("NVIDIA H100", None),  # no guessing: part of a name is another card
        ("NVIDIA H100 80GB HBM3e", None),
        ("", None),
    ],
)
def test_series_of_compares_names_as_people_read_them(name: str, series: str | None) -> None:
    """R-ENR-06."""
    assert series_of(name, REGISTRY) == series


@given(st.text(max_size=40))
def test_card_key_of_a_key_is_that_key_but_for_the_vendor(name: str) -> None:
    key = card_key(name)
    assert card_key(key) in (key, key.removeprefix("nvidia "))
    assert card_key(f"  {key.upper()}\t") in (key, card_key(key.upper()))


@pytest.mark.parametrize(
    ("series", "names", "field"),
    [
        ("H100", ("NVIDIA H100",), "series"),
        ("", ("NVIDIA H100",), "series"),
        ("h100", (), "card_names"),
        ("h100", tuple(map(str, range(MOST_CARD_NAMES + 1))), "card_names"),
        ("h100", ("NVIDIA H100", "  "), "card_names[1]"),
        ("h100", ("x" * 257,), "card_names[0]"),
        ("h100", ("H100\x1b[2J",), "card_names[0]"),
    ],
)
def test_check_series_names_the_field(series: str, names: tuple[str, ...], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_series(Series(series=SeriesId(series), card_names=names))
    assert caught.value.field == field


def test_check_series_keeps_the_first_spelling_of_each_name() -> None:
    checked = check_series(Series(series=H100, card_names=("NVIDIA  H100 PCIe", "nvidia h100 pcie", "H100 NVL")))
    assert checked.card_names == ("NVIDIA H100 PCIe", "H100 NVL")


def machine(name: str, cards: list[str], *, free: int | None = None, registry: Registry = REGISTRY) -> Node:
    """Ready; ``cards`` by name, the first ``free`` of them free."""
    gpus = tuple(Gpu(index=at, uuid=f"GPU-{name}-{at}", name=card, memory_bytes=80 * 10**9) for at, card in enumerate(cards))
    budgets = Budgets(cpu_millis=64000, memory_bytes=512 * 10**9, gpu_indexes=tuple(range(len(cards))))
    inventory = Inventory(hostname=name, node_version="1", cpu_count=64, memory_bytes=512 * 10**9, gpus=gpus, budgets=budgets)
    return Node(
        id=NodeId(name),
        fleet=FLEET.id,
        address=name,
        state=NodeState.ACTIVE,
        connection=Connection(state="connected", epoch=1, lease_expires_at=EPOCH + timedelta(hours=1)),
        inventory=inventory,
        inventory_observed_at=EPOCH,
        inventory_healthy=True,
        capacity=Capacity(cpu_millis=64000, cpu_millis_used=0, memory_bytes=512 * 10**9, memory_bytes_used=0, gpus=len(cards), gpus_used=0),
        free_gpu_uuids=tuple(gpu.uuid for gpu in gpus[:free]),
        card_series=series_by_card(inventory, registry),
        created_at=EPOCH,
    )


def pinned(series: str | None, gpus: int = 1, nodes: int = 1) -> JobSpec:
    pool = Pool(nodes=nodes, gpus_per_node=gpus, cpus=1, memory_gb=1, series=series)
    body = JobBody(command=("true",), runtime=RuntimeRef(image="registry/train:1"), resources=Resources(pools=(pool,)))
    return JobSpec(apiVersion="tuneplane/v1", kind=WorkKind.TRAINING_JOB, metadata=Metadata(name="demo"), spec=body)


MIXED = ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "NVIDIA B300"]


def test_only_series_leaves_the_cards_of_that_series() -> None:
    node = only_series(machine("n1", MIXED), "h100")
    assert node.free_gpu_uuids == ("GPU-n1-0", "GPU-n1-2")
    assert node.capacity is not None
    assert (node.capacity.gpus, node.capacity.gpus_used) == (2, 0)
    assert only_series(machine("n1", MIXED), None) == machine("n1", MIXED)


def test_only_series_counts_no_card_outside_the_budget() -> None:
    node = machine("n1", MIXED, free=1)
    assert node.inventory is not None
    budgets = evolve(node.inventory.budgets, gpu_indexes=(0,))
    less = only_series(evolve(node, inventory=evolve(node.inventory, budgets=budgets)), "h100")
    assert less.capacity is not None
    assert (less.capacity.gpus, less.capacity.gpus_used) == (1, 0)


def test_only_series_tells_held_cards_from_those_set_aside() -> None:
    """Of three cards one is free, one is held and one is cordoned: a held one comes back by itself."""
    node = machine("n1", ["NVIDIA H100 80GB HBM3"] * 3, free=1)
    cards = tuple(Card(uuid=f"GPU-n1-{at}", index=at, granted=True, member=MemberId("job-a-1-0") if at == 1 else None) for at in range(3))
    less = only_series(evolve(node, cards=cards), "h100")
    assert less.capacity is not None
    assert (less.capacity.gpus, less.capacity.gpus_used, len(less.free_gpu_uuids)) == (3, 1, 1)


def test_instances_of_a_card_in_mig_mode_are_cards_of_their_own_name() -> None:
    """L-D7: a job that pins a whole card's series never gets a part of one."""
    node = machine("n1", ["NVIDIA H100 80GB HBM3"])
    assert node.inventory is not None
    names = ("MIG 1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb")  # with and without the card's, as drivers differ
    parts = tuple(MigInstance(uuid=f"MIG-{at}", name=name, memory_bytes=10**10) for at, name in enumerate(names))
    split = evolve(node.inventory.gpus[0], mig=True, instances=parts)
    inventory = evolve(node.inventory, gpus=(split,), budgets=evolve(node.inventory.budgets, gpu_indexes=(), gpu_uuids=("MIG-0", "MIG-1")))
    grown = Registry((Series(series=SeriesId("h100-1g"), card_names=("H100 80GB HBM3 MIG 1g.10gb",)), *REGISTRY.series))
    for registry, known in ((REGISTRY, {}), (grown, {"MIG-0": "h100-1g", "MIG-1": "h100-1g"})):
        seen = evolve(node, inventory=inventory, free_gpu_uuids=("MIG-0", "MIG-1"), card_series=series_by_card(inventory, registry))
        assert seen.card_series == known
        assert unknown_cards_of(seen) == (() if known else ("NVIDIA H100 80GB HBM3 MIG 1g.10gb",))
        assert only_series(seen, "h100").free_gpu_uuids == ()
        part = only_series(seen, "h100-1g")
        assert part.capacity is not None
        assert (part.free_gpu_uuids, part.capacity.gpus) == (tuple(known), len(known))


def test_place_gives_only_cards_of_the_pinned_series() -> None:
    """R-ENR-06: also on a machine with several kinds of cards."""
    answer = place(pinned("a100"), FLEET, [machine("n1", MIXED)], EPOCH)
    assert isinstance(answer, Placed)
    assert answer.members[0].gpu_uuids == ("GPU-n1-1",)


def test_place_waits_for_cards_of_the_series_while_others_are_free() -> None:
    """R-PLC-03: the reason counts only cards that would do."""
    answer = place(pinned("h100", 2), FLEET, [machine("n1", MIXED, free=2)], EPOCH)
    assert isinstance(answer, MustWait)
    (reason,) = answer.reasons
    assert (reason.code, reason.subject) == ("insufficient-gpus", "n1")
    assert "has 1 GPUs of series h100 free" in reason.detail


def test_unknown_card_takes_no_job_that_pins_a_series_and_is_named() -> None:
    """R-ENR-06: until the registry knows it; a job that pins none is placed."""
    node = machine("n1", ["NVIDIA B300"])
    assert unknown_cards_of(node) == ("NVIDIA B300",)
    (reason,) = admission_reasons(pinned("b300"), FLEET, [node])
    assert reason.code == "series"
    assert "'NVIDIA B300'" in reason.detail
    waits = place(pinned("b300"), FLEET, [node], EPOCH)
    assert isinstance(waits, MustWait)
    assert [one.code for one in waits.reasons] == ["series"]
    assert isinstance(place(pinned(None), FLEET, [node], EPOCH), Placed)
    known = Registry((Series(series=SeriesId("b300"), card_names=("nvidia b300",)),))
    assert not admission_reasons(pinned("b300"), FLEET, [machine("n1", ["NVIDIA B300"], registry=known)])
    assert isinstance(place(pinned("b300"), FLEET, [machine("n1", ["NVIDIA B300"], registry=known)], EPOCH), Placed)


def test_admission_counts_busy_cards_of_the_series_but_no_others() -> None:
    """R-PLC-02: inventory fit counts all budgets; three cards of two series are no three of one."""
    busy = machine("n1", MIXED, free=0)
    assert not admission_reasons(pinned("h100", 2), FLEET, [busy])
    (reason,) = admission_reasons(pinned("h100", 3), FLEET, [busy])
    assert reason.code == "inventory-fit"
    assert "3 GPUs of series h100" in reason.detail


def test_admission_counts_the_cards_of_a_machine_whose_driver_does_not_answer() -> None:
    """R-PLC-02, L-D4: its budget is what it was; that it names no cards just now is a reason to wait, not to refuse."""
    named = machine("n1", MIXED)
    assert named.inventory is not None
    mute = evolve(named, inventory=evolve(named.inventory, gpus=(), cards_known=False), card_series={})
    assert not admission_reasons(pinned("h100", 2), FLEET, [mute])
    assert not admission_reasons(pinned("h100", 2, nodes=2), FLEET, [mute, machine("n2", MIXED)])
    (reason,) = admission_reasons(pinned("h100", 5), FLEET, [mute])
    assert reason.code == "inventory-fit"


@pytest.mark.parametrize(("series", "gpus"), [("H100", 1), ("", 1), ("h100", 0)])
def test_jobspec_with_a_bad_series_names_the_field(series: str, gpus: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_job_spec(pinned(series, gpus))
    assert caught.value.field == "spec.resources.pools[0].series"
