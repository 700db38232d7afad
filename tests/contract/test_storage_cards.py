"""Cards in the database and in its twin: bindings, budgets by UUID, cards put aside (L-D1, L-D4, L-D8, L-D12, L-D13)."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from tuneplane.domain.card_grants import change_id, sight_of
from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.ids import MemberId, NodeId
from tuneplane.domain.inventory import Budgets, CardBinding, CardFault, Gpu, Inventory, MigInstance
from tuneplane.domain.launch_table import MemberPhase
from tuneplane.domain.nodes import Node, NodeState

from .storage_world import GB, START, USER, OpenWorld, World, an_inventory, audit_lines

N1 = NodeId("n1")


async def get(world: World) -> Node:
    node = await world.storage.get_node(N1, world.now)
    assert node is not None
    return node


async def report(world: World, epoch: int, inventory: Inventory) -> Node:
    await world.storage.record_inventory(N1, epoch, inventory, "d", world.later(1))
    return await get(world)


def swapped(**changes: Any) -> Inventory:
    return an_inventory(("GPU-b", "GPU-a"), **changes)


# ---------------------------------------------------------------- per card (L-D13)


async def test_cordoned_card_takes_no_new_work_what_runs_goes_on_and_the_rest_is_free(open_world: OpenWorld) -> None:
    """L-D13: card 2 of 4: 3 are left; the inventory, a new session and an active Node do not lift it."""
    async with open_world() as world:
        opened = await world.node(cards=("GPU-0", "GPU-1", "GPU-2", "GPU-3"))
        await world.launched(cards=("GPU-2",))
        await world.storage.set_card_cordon(N1, "GPU-2", "it runs hot", USER, world.later(1))
        node = await get(world)
        (card,) = [card for card in node.cards if card.cordons]
        assert (card.uuid, card.index, card.member) == ("GPU-2", 2, "job-a-1-0")
        assert [(cordon.owner, cordon.reason) for cordon in card.cordons] == [("operator", "it runs hot")]
        await world.see(MemberId("job-a-1-0"), MemberPhase.TERMINATED, epoch=opened.epoch)
        assert (await get(world)).free_gpu_uuids == ("GPU-0", "GPU-1", "GPU-3")
        await world.storage.set_node_state(N1, NodeState.ACTIVE, "", world.now)
        again = await world.connect()
        node = await report(world, again.epoch, an_inventory(("GPU-0", "GPU-1", "GPU-2", "GPU-3"), card_faults=()))
        assert node.free_gpu_uuids == ("GPU-0", "GPU-1", "GPU-3")
        assert node.cards[2].cordons == card.cordons
        assert node.cordons == ()  # the Node itself takes work
        node = await world.storage.set_card_cordon(N1, "GPU-2", None, USER, world.now)
        assert "GPU-2" in node.free_gpu_uuids


async def test_cordon_of_a_card_is_audited_in_its_unit_and_of_no_card_not_found(open_world: OpenWorld) -> None:
    """R-ADM-02, P-09."""
    async with open_world() as world:
        await world.node(cards=("GPU-a",))
        await world.storage.set_card_cordon(N1, "GPU-a", "noise", USER, world.now)
        await world.storage.set_card_cordon(N1, "GPU-a", None, USER, world.now)
        lines = [line for line in await audit_lines(world.storage) if line[1].startswith("card.")]
        assert lines == [
            (USER, "card.cordon", "GPU-a", "on Node n1: noise", False),
            (USER, "card.uncordon", "GPU-a", "on Node n1: lifted", False),
        ]
        with pytest.raises(NotFound):
            await world.storage.set_card_cordon(N1, "GPU-x", "noise", USER, world.now)
        with pytest.raises(NotFound):
            await world.storage.set_card_cordon(NodeId("n9"), "GPU-a", "noise", USER, world.now)


async def test_placement_that_raced_a_cordon_is_refused(open_world: OpenWorld) -> None:
    """R-PLC-05: the planner looked before the cordon was set."""
    async with open_world() as world:
        await world.node(cards=("GPU-a",))
        await world.submit()
        await world.storage.set_card_cordon(N1, "GPU-a", "noise", USER, world.now)
        assert not await world.place(cards=("GPU-a",))
        await world.storage.set_card_cordon(N1, "GPU-a", None, USER, world.now)
        assert await world.place(cards=("GPU-a",))


# ---------------------------------------------------------------- health (L-D12)


def ill(*cards: str, whole_node: bool = False, code: str = "xid-48") -> tuple[CardFault, ...]:
    return tuple(CardFault(card=card, code=code, detail="the kernel says", whole_node=whole_node, since=START) for card in cards)


async def test_fault_puts_its_card_aside_until_the_node_tells_that_it_is_mended(open_world: OpenWorld) -> None:
    """L-D12, L-F4: the health table lifts its own cordon alone; a Node that does not tell clears nothing."""
    async with open_world() as world:
        opened = await world.node(cards=("GPU-a", "GPU-b"))
        both = ("GPU-a", "GPU-b")
        node = await report(world, opened.epoch, an_inventory(both, card_faults=ill("GPU-b", "GPU-unknown")))
        assert node.free_gpu_uuids == ("GPU-a",)
        assert [(cordon.owner, cordon.reason) for cordon in node.cards[1].cordons] == [("health", "xid-48: the kernel says")]
        assert node.cordons == ()
        since = node.cards[1].cordons
        await world.storage.set_card_cordon(N1, "GPU-b", "mine too", USER, world.now)
        await world.storage.set_card_cordon(N1, "GPU-b", None, USER, world.now)
        assert (await get(world)).cards[1].cordons == since
        assert (await report(world, opened.epoch, an_inventory(both))).cards[1].cordons == since
        unknown = an_inventory((), card_faults=ill("GPU-b"), cards_known=False, budgets=Budgets(gpu_indexes=(0, 1)))
        assert (await report(world, opened.epoch, unknown)).cards[1].cordons == since
        assert (await report(world, opened.epoch, an_inventory(both, card_faults=()))).free_gpu_uuids == both


async def test_card_off_the_bus_cordons_the_node_by_the_health_table_alone(open_world: OpenWorld) -> None:
    """L-D12: Xid 79."""
    async with open_world() as world:
        opened = await world.node(cards=("GPU-a",))
        node = await report(world, opened.epoch, an_inventory(("GPU-a",), card_faults=ill("GPU-a", whole_node=True, code="xid-79")))
        assert [cordon.owner for cordon in node.cordons] == ["health"]
        assert "xid-79 of card GPU-a" in node.cordons[0].reason
        assert (await world.storage.set_node_state(N1, NodeState.ACTIVE, "", world.now)).cordons == node.cordons
        assert (await report(world, opened.epoch, an_inventory(("GPU-a",), card_faults=()))).cordons == ()


# ---------------------------------------------------------------- what the driver does not tell (L-D4)


async def test_driver_that_does_not_answer_changes_nothing_of_what_is_known(open_world: OpenWorld) -> None:
    """L-D4: unknown is not zero. The budget still counts, so jobs wait and are not refused."""
    async with open_world() as world:
        opened = await world.node(cards=("GPU-a", "GPU-b"))
        before = await get(world)
        mute = an_inventory((), cards_known=False, problems=("mute",), budgets=Budgets(cpu_millis=1000, memory_bytes=1, gpu_indexes=(0, 1)))
        node = await report(world, opened.epoch, mute)
        assert (node.cordons, node.cards, node.free_gpu_uuids) == ((), before.cards, ("GPU-a", "GPU-b"))
        assert node.capacity is not None
        assert node.capacity.gpus == 2
        assert not node.inventory_healthy


async def test_fewer_cards_than_granted_cordon_with_the_uuid_that_is_missing(open_world: OpenWorld) -> None:
    """L-D8: grant 0-7, show 7."""
    async with open_world() as world:
        cards = tuple(f"GPU-{at}" for at in range(8))
        opened = await world.node(cards=cards)
        left = tuple(card for card in cards if card != "GPU-3")
        node = await report(world, opened.epoch, an_inventory(left, budgets=an_inventory(cards).budgets))
        assert [cordon.reason for cordon in node.cordons] == ["expects 8 cards, sees 7: GPU-3 (index 3) is missing"]
        assert (await report(world, opened.epoch, an_inventory(cards))).cordons == ()


# ---------------------------------------------------------------- by UUID (L-D1, L-D6)


async def test_cards_granted_by_uuid_follow_the_card_and_a_mig_instance_is_one(open_world: OpenWorld) -> None:
    """L-D1, L-D6: no index is bound, so nothing can be remapped."""
    async with open_world() as world:
        part = MigInstance(uuid="MIG-1", name="MIG 1g.5gb", memory_bytes=5 * GB)
        parted = Gpu(index=1, uuid="GPU-p", name="A100", memory_bytes=40 * GB, mig=True, instances=(part,))
        budgets = Budgets(cpu_millis=1000, memory_bytes=GB, gpu_indexes=(), gpu_uuids=("MIG-1", "GPU-a"))
        opened = await world.node(cards=())
        first = evolve(an_inventory(("GPU-a",), budgets=budgets), gpus=(*an_inventory(("GPU-a",)).gpus, parted))
        node = await report(world, opened.epoch, first)
        assert (node.free_gpu_uuids, node.cordons) == (("GPU-a", "MIG-1"), ())
        assert [(card.uuid, card.index, card.granted) for card in node.cards] == [("GPU-a", None, True), ("MIG-1", None, True)]
        moved = evolve(first, gpus=(evolve(parted, index=0), evolve(first.gpus[0], index=1)))
        assert (await report(world, opened.epoch, moved)).free_gpu_uuids == ("GPU-a", "MIG-1")
        node = await report(world, opened.epoch, evolve(first, gpus=first.gpus[:1]))
        assert node.free_gpu_uuids == ("GPU-a",)
        assert [cordon.reason for cordon in node.cordons] == ["expects 2 cards by UUID, sees 1: MIG-1 is missing"]


# ---------------------------------------------------------------- a change accepted (L-D1)


async def test_accepted_change_binds_anew_ends_the_session_and_is_told_in_the_next(open_world: OpenWorld) -> None:
    """L-D1, protocol.md gpu_grant: rebinding is an audited act. What holds a card keeps it, by UUID."""
    async with open_world() as world:
        opened = await world.node(cards=("GPU-a", "GPU-b"))
        await world.launched(cards=("GPU-a",))
        remembers = (CardBinding(index=0, uuid="GPU-a"), CardBinding(index=1, uuid="GPU-b"))
        node = await report(world, opened.epoch, swapped(card_bindings=remembers))
        change = change_id(sight_of(swapped()))
        assert change in node.cordons[0].reason
        node = await world.storage.accept_cards(N1, change, USER, world.now)
        assert node.connection.state == "disconnected"
        assert [cordon.owner for cordon in node.cordons] == ["cards"]  # the Node does not know yet
        again = await world.connect()
        assert again.accepted_cards == change
        node = await report(world, again.epoch, swapped(card_bindings=tuple(evolve(one, index=1 - one.index) for one in remembers)))
        assert node.cordons == ()
        assert [(card.index, card.uuid, card.member) for card in node.cards] == [(0, "GPU-b", None), (1, "GPU-a", "job-a-1-0")]
        assert node.free_gpu_uuids == ("GPU-b",)
        lines = [line for line in await audit_lines(world.storage) if line[1] == "node.accept-cards"]
        assert lines == [(USER, "node.accept-cards", "n1", f"{change}: index 0: GPU-a -> GPU-b, index 1: GPU-b -> GPU-a", False)]
        with pytest.raises(Refused) as caught:
            await world.storage.accept_cards(N1, change, USER, world.now)
        assert caught.value.code == "no-such-change"


async def test_accepting_another_change_than_the_one_shown_is_refused(open_world: OpenWorld) -> None:
    """The cards may have changed again between the look and the word."""
    async with open_world() as world:
        opened = await world.node(cards=("GPU-a", "GPU-b"))
        change = change_id(sight_of(swapped()))
        for inventory in (an_inventory(("GPU-a", "GPU-b")), an_inventory(("GPU-a", "GPU-c"))):
            await report(world, opened.epoch, inventory)
            with pytest.raises(Refused):
                await world.storage.accept_cards(N1, change, USER, world.now)
        assert {card.uuid: card.index for card in (await get(world)).cards} == {"GPU-a": 0, "GPU-b": 1}
        with pytest.raises(NotFound):
            await world.storage.accept_cards(NodeId("n9"), change, USER, world.now)


async def test_replaced_card_accepted_leaves_the_old_one_without_an_index(open_world: OpenWorld) -> None:
    """A card that was swapped by a technician; should it come back elsewhere, its index is another's."""
    async with open_world() as world:
        opened = await world.node(cards=("GPU-a", "GPU-b"))
        new = an_inventory(("GPU-a", "GPU-c"))
        await report(world, opened.epoch, new)
        await world.storage.accept_cards(N1, change_id(sight_of(new)), USER, world.now)
        again = await world.connect()
        node = await report(world, again.epoch, new)
        assert (node.cordons, node.free_gpu_uuids) == ((), ("GPU-a", "GPU-c"))
        assert [(card.uuid, card.index, card.granted) for card in node.cards] == [
            ("GPU-a", 0, True),
            ("GPU-c", 1, True),
            ("GPU-b", None, False),
        ]
