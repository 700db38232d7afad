"""L-D1, L-D6, L-D7, L-D8: what a budget grants of the cards that are there, and when it is no longer what it meant."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tuneplane.domain.card_grants import Sight, bind_cards, change_id, declared_cards, judge_cards
from tuneplane.domain.inventory import Budgets, CardBinding, Gpu, Inventory, MigInstance


def a_card(index: int, uuid: str, **more: Any) -> Gpu:
    return Gpu(index=index, uuid=uuid, name="H100", memory_bytes=1, **more)


def sight(*uuids: str, **budget: Any) -> Sight:
    """Cards at the indexes 0 …, all of them granted by index unless told otherwise."""
    budget.setdefault("gpu_indexes", tuple(range(len(uuids))))
    return Sight(Budgets(**budget), tuple(a_card(at, uuid) for at, uuid in enumerate(uuids)))


def test_bind_first_sight_binds_every_index_and_grants_its_card() -> None:
    found = bind_cards(sight("GPU-a", "GPU-b"), {})
    assert (found.granted, found.reason) == ({"GPU-a", "GPU-b"}, None)
    assert found.new == (CardBinding(index=0, uuid="GPU-a"), CardBinding(index=1, uuid="GPU-b"))
    assert bind_cards(sight("GPU-a", "GPU-b"), {0: "GPU-a", 1: "GPU-b"}).new == ()


def test_bind_swapped_cards_are_refused_with_both_uuids_and_the_way_out() -> None:
    """L-D1: never silently remapped."""
    swapped = sight("GPU-b", "GPU-a")
    found = bind_cards(swapped, {0: "GPU-a", 1: "GPU-b"})
    assert (found.granted, found.new) == (set(), ())
    assert found.reason is not None
    for part in ("index 0 was GPU-a and is GPU-b now", "index 1 was GPU-b and is GPU-a now", change_id(swapped), "by UUID"):
        assert part in found.reason


def test_bind_a_replaced_card_is_missing_and_the_new_one_gets_no_work() -> None:
    found = bind_cards(sight("GPU-a", "GPU-new"), {0: "GPU-a", 1: "GPU-b"})
    assert found.granted == {"GPU-a"}
    assert found.reason is not None
    assert "GPU-b (index 1) is missing" in found.reason
    assert "index 1 was GPU-b and is GPU-new now" in found.reason


def test_bind_fewer_cards_than_granted_names_the_missing_one() -> None:
    """L-D8: grant 0-7, show 7. The driver moves the others up; what is missing is the news, and no card is confused with another."""
    meant = {index: f"GPU-{index}" for index in range(8)}
    left = tuple(uuid for uuid in meant.values() if uuid != "GPU-3")
    found = bind_cards(evolve(sight(*left), budgets=Budgets(gpu_indexes=tuple(range(8)))), meant)
    assert found.reason == "expects 8 cards, sees 7: GPU-3 (index 3) is missing"
    assert found.granted == {"GPU-0", "GPU-1", "GPU-2"}
    assert bind_cards(sight("GPU-0", gpu_indexes=(0, 4)), {}).reason == "expects 2 cards, sees 1: no card has index 4"


def test_bind_a_card_in_mig_mode_is_no_whole_card() -> None:
    """L-D7: one of four."""
    seen = sight("GPU-0", "GPU-1", "GPU-2", "GPU-3")
    parted = evolve(seen, gpus=tuple(evolve(gpu, mig=gpu.index == 2) for gpu in seen.gpus))
    found = bind_cards(parted, {})
    assert found.granted == {"GPU-0", "GPU-1", "GPU-3"}
    assert found.reason == "expects 4 cards, sees 3: GPU-2 (index 2) is in MIG mode and no whole card: grant its instances by UUID"


def test_bind_mig_instances_are_granted_by_the_id_that_the_driver_reports_unless_it_is_of_the_old_form() -> None:
    """L-D6."""
    old, new = "MIG-GPU-b8f5/1/0", "MIG-c7384736-a75d-5afc-978f-d2f1294409fd"
    parts = tuple(MigInstance(uuid=uuid, name="MIG 1g.5gb", memory_bytes=1) for uuid in (new, old))
    seen = Sight(Budgets(gpu_indexes=(), gpu_uuids=(new, old, "GPU-gone", "GPU-p")), (a_card(0, "GPU-p", mig=True, instances=parts),))
    found = bind_cards(seen, {})
    assert found.granted == {new}
    assert found.reason is not None
    for part in (
        "expects 4 cards by UUID, sees 1",
        f"{old} is a MIG id of a driver before 470",
        "GPU-gone is missing",
        "GPU-p is in MIG mode",
    ):
        assert part in found.reason


def test_bind_cards_by_uuid_wherever_they_are() -> None:
    """L-D1: the way that no reordering can touch."""
    for uuids in (("GPU-a", "GPU-b"), ("GPU-b", "GPU-a")):
        found = bind_cards(sight(*uuids, gpu_indexes=(), gpu_uuids=("GPU-a",)), {})
        assert (found.granted, found.reason, found.new) == ({"GPU-a"}, None, ())


def test_judge_asks_both_memories() -> None:
    """A database restored from a backup, or a machine that joined again: either may know better."""
    seen = sight("GPU-b", "GPU-a")
    inventory = Inventory(hostname="h", node_version="1", cpu_count=1, memory_bytes=1, gpus=seen.gpus, budgets=seen.budgets)
    assert judge_cards(inventory, {}).reason is None
    remembered = evolve(inventory, card_bindings=(CardBinding(index=0, uuid="GPU-a"), CardBinding(index=1, uuid="GPU-b")))
    found = judge_cards(remembered, {})
    assert (found.granted, [one.index for one in found.new]) == (set(), [0, 1])
    assert found.reason is not None
    assert "index 0 was GPU-a and is GPU-b now" in found.reason


UUIDS = st.lists(st.sampled_from([f"GPU-{letter}" for letter in "abcdef"]), unique=True, max_size=5)


@given(UUIDS, UUIDS, st.sets(st.integers(0, 5)), st.sets(st.integers(0, 4)))
def test_bind_grants_only_what_was_meant_and_is_there(before: list[str], now: list[str], budget: set[int], parted: set[int]) -> None:
    """L-D1, L-D7: whatever moved, an index never gives another card than it first did, and less than all has a reason."""
    gpus = tuple(a_card(at, uuid, mig=at in parted) for at, uuid in enumerate(now))
    seen = Sight(Budgets(gpu_indexes=tuple(budget)), gpus)
    bound = {index: uuid for index, uuid in enumerate(before) if index in budget}
    found = bind_cards(seen, bound)
    meant = {**bound, **{one.index: one.uuid for one in found.new}}
    assert len(set(meant.values())) == len(meant)
    for uuid in found.granted:
        (card,) = [gpu for gpu in gpus if gpu.uuid == uuid]
        assert meant[card.index] == uuid
        assert card.index in budget
        assert not card.mig
    assert (found.reason is None) == (len(found.granted) == len(budget))
    assert found.granted <= declared_cards(
        Inventory(hostname="h", node_version="1", cpu_count=1, memory_bytes=1, gpus=gpus, budgets=seen.budgets)
    )
