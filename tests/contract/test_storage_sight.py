"""What workers see of the Nodes, and storage cordons that a look lifts, on every storage (SightStore; P-16, P-19, R-LIV-03, L-F4, L-F5)."""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations

import pytest
from attrs import evolve

from tests.contract.storage_world import GATEWAY, USER, OpenWorld, World, a_fleet, an_inventory
from tuneplane.domain.fleets import Delivery
from tuneplane.domain.ids import NodeId
from tuneplane.domain.nodes import NodeState
from tuneplane.domain.sight import Census, Sight
from tuneplane.domain.timings import PRODUCTION

N1 = NodeId("n1")
STEADY = PRODUCTION.storage_steady


async def look(world: World, seconds: float = 0.0) -> Sight:
    return await world.storage.look_around(False, world.later(seconds))


async def cut(world: World, *names: str) -> None:
    for name in names:
        await world.storage.close_session(NodeId(name), 1, "cut", world.now)


# ---------------------------------------------------------------- sight


async def test_nobody_has_looked_until_somebody_looks(open_world: OpenWorld) -> None:
    async with open_world() as world:
        assert await world.storage.load_sight(world.now) is None
        began = world.later(1)
        seen = await look(world)
        assert (seen.seen_since, seen.looked_at, seen.gateways_since) == (began, began, None)
        assert await world.storage.load_sight(world.now) == seen


async def test_looks_of_any_worker_are_one_sight_and_a_gap_begins_it_anew(open_world: OpenWorld) -> None:
    """L-B8, P-16."""
    async with open_world() as world:
        await world.node()
        began = world.now
        for _ in range(3):
            seen = await look(world, PRODUCTION.claim_renew)
        assert (seen.seen_since, seen.gateways_since, seen.census) == (began + timedelta(seconds=5), began, Census(live=1, vanished=0))
        back = await look(world, 600.0)
        assert (back.seen_since, back.blind_from) == (world.now, seen.looked_at)
        missed = await world.storage.look_around(True, world.later(6.0))
        assert missed.seen_since == world.now
        assert await world.storage.load_sight(world.now) == missed


async def test_brake_is_kept_and_released_and_an_operator_can_take_nodes_out(open_world: OpenWorld) -> None:
    """P-19: a mass failure, and what counts as evidence against it."""
    async with open_world() as world:
        names = [f"n{number}" for number in range(4)]
        for name in names:
            await world.node(name)
        await look(world)
        await cut(world, *names[1:])
        braked = await look(world, 5.0)
        assert braked.brake is not None
        assert (braked.brake.since, braked.brake.vanished, braked.brake.population) == (world.now, 3, 4)
        assert (await look(world, 5.0)).brake == braked.brake
        for name in names[1:3]:  # still gone: an operator says so
            await world.storage.set_node_state(NodeId(name), NodeState.DRAINING, "burnt", world.now)
        released = await look(world, 5.0)
        assert (released.brake, released.released_at, released.census) == (None, world.now, Census(live=1, vanished=1))
        assert await world.storage.load_sight(world.now) == released


async def test_what_was_gone_long_before_is_no_mass_failure(open_world: OpenWorld) -> None:
    async with open_world() as world:
        names = [f"n{number}" for number in range(5)]
        for name in names:
            await world.node(name)
        await look(world)
        for name in names[:4]:  # one after the other, minutes apart
            await cut(world, name)
            for _ in range(20):
                seen = await look(world, PRODUCTION.claim_renew)
            assert seen.brake is None
            assert seen.census.vanished == 0


async def test_a_gateway_that_falls_silent_takes_its_nodes_with_it_and_the_brake_goes_on(open_world: OpenWorld) -> None:
    """P-19: leases run out together; machines that are back with another gateway are live."""
    async with open_world() as world:
        for number in range(3):
            await world.node(f"n{number}")
        await look(world)
        await world.storage.renew_gateway(GATEWAY, world.now + timedelta(seconds=3))
        assert (await look(world, 5.0)).brake is not None
        await world.storage.renew_gateway(GATEWAY, world.now + timedelta(seconds=15))
        seen = await look(world, 5.0)
        assert (seen.brake, seen.census.live) == (None, 3)


async def test_removed_nodes_and_those_that_never_came_are_in_no_census(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        await world.token("t-late")
        await world.join("late", token="t-late", key="late")
        assert (await look(world)).census == Census(live=1, vanished=0)
        await cut(world, "n1")
        await world.storage.delete_node(N1, True, USER, world.now)
        assert (await look(world, 5.0)).census == Census(live=0, vanished=0)


# ---------------------------------------------------------------- storage cordons


async def mounted(world: World) -> int:
    """A Node of a shared-mount Fleet that sees the root; the epoch of its session."""
    await world.storage.create_fleet(evolve(a_fleet(), delivery=Delivery.SHARED_MOUNT))
    opened = await world.node()
    await see_root(world, opened.epoch, seen=True)
    return opened.epoch


async def see_root(world: World, epoch: int, *, seen: bool) -> None:
    await world.storage.record_inventory(N1, epoch, an_inventory(storage_root_seen=seen, storage_root="/srv"), "d", world.now)


async def owners(world: World) -> list[str]:
    found = await world.storage.get_node(N1, world.now)
    assert found is not None
    return [cordon.owner for cordon in found.cordons]


async def test_storage_cordon_is_lifted_by_itself_once_the_root_has_stayed(open_world: OpenWorld) -> None:
    """R-LIV-03."""
    async with open_world() as world:
        epoch = await mounted(world)
        assert await owners(world) == []
        world.later(5)
        await see_root(world, epoch, seen=False)
        assert await owners(world) == ["storage"]
        await look(world, 100.0)
        assert await owners(world) == ["storage"]
        await see_root(world, epoch, seen=True)
        await look(world, STEADY - 1)
        found = await world.storage.get_node(N1, world.now)
        assert found is not None
        assert "seen again since" in found.cordons[0].reason
        await look(world, 1.0)
        assert await owners(world) == []


async def test_a_mount_that_flaps_does_not_flap_placement(open_world: OpenWorld) -> None:
    """R-LIV-03: hysteresis; ``since`` is that of the first loss."""
    async with open_world() as world:
        epoch = await mounted(world)
        first = world.later(5)
        for _ in range(10):
            await see_root(world, epoch, seen=False)
            await look(world, STEADY / 3)
            await see_root(world, epoch, seen=True)
            await look(world, STEADY - 1)
            found = await world.storage.get_node(N1, world.now)
            assert found is not None
            assert [(cordon.owner, cordon.since) for cordon in found.cordons] == [("storage", first)]
        await look(world, 1.0)
        assert await owners(world) == []


async def test_how_the_mount_was_while_nobody_knew_does_not_count(open_world: OpenWorld) -> None:
    """R-LIV-03: an inventory that is stale, or of a session that ended, lifts nothing."""
    async with open_world() as world:
        epoch = await mounted(world)
        world.later(5)
        await see_root(world, epoch, seen=False)
        await see_root(world, epoch, seen=True)
        await world.storage.inventory_stale(N1, epoch, world.later(10))
        await look(world, STEADY)
        assert await owners(world) == ["storage"]
        await see_root(world, epoch, seen=True)
        await look(world, STEADY - 1)
        assert await owners(world) == ["storage"]
        epoch = (await world.connect()).epoch
        await look(world, STEADY)
        assert await owners(world) == ["storage"]
        await see_root(world, epoch, seen=True)
        await look(world, STEADY)
        assert await owners(world) == []


ACTS = ("operator", "storage", "journal")


@pytest.mark.parametrize("order", list(permutations(ACTS)), ids="-".join)
async def test_each_owner_lifts_only_its_own_cordon_in_every_order(open_world: OpenWorld, order: tuple[str, ...]) -> None:
    """L-F4, L-F5, R-LIV-03, R-SES-05: they are set, survive a reconnection and new gateways, and are lifted one by one."""
    async with open_world() as world:
        epoch = await mounted(world)
        await world.storage.set_node_state(N1, NodeState.CORDONED, "disk swap", world.later(1))
        await see_root(world, epoch, seen=False)
        await world.storage.register_gateway(GATEWAY, "127.0.0.1", 9000, world.now, world.now + timedelta(hours=1))  # it was restarted
        epoch = (await world.connect(journal="j2")).epoch
        await see_root(world, epoch, seen=False)
        left = ["journal", "operator", "storage"]
        assert await owners(world) == left
        for owner in order:
            if owner == "storage":
                await see_root(world, epoch, seen=True)
                await look(world, STEADY)
            elif owner == "operator":
                await world.storage.set_node_state(N1, NodeState.ACTIVE, "", world.later(1))
                left = [one for one in left if one != "journal"]  # ``active`` is also the operator's word on a lost journal
            else:  # a second cordon by the operator changes nothing of the others
                await world.storage.set_node_state(N1, NodeState.CORDONED, "once more", world.later(1))
                left = sorted({*left, "operator"})
                await look(world, 5.0)
                assert await owners(world) == left
                continue
            left = [one for one in left if one != owner]
            assert await owners(world) == left
