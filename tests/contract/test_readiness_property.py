"""No order of events makes a Node ready without a live lease and an inventory of this very session (R-PLC-04, R-SES-05, R-LIV-03, P-19)."""

from __future__ import annotations

from datetime import datetime, timedelta

import trio
from attrs import define, evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.storage_world import GATEWAY, START, World, a_fleet, an_inventory
from tests.sim.twin import Twin
from tuneplane.domain.errors import Fenced
from tuneplane.domain.fleets import Delivery
from tuneplane.domain.ids import NodeId
from tuneplane.domain.liveness import Presence, liveness, readiness
from tuneplane.domain.nodes import NodeState
from tuneplane.domain.timings import PRODUCTION

N1 = NodeId("n1")
EVENTS = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([1.0, 14.0, 16.0, 31.0, 46.0, 301.0])),
    st.tuples(st.just("renew"), st.just(0)),
    st.tuples(st.just("restart-gateway"), st.just(0)),
    st.tuples(st.just("connect"), st.just(0)),
    st.tuples(st.just("close"), st.integers(0, 1)),
    st.tuples(st.just("inventory"), st.sampled_from(["good", "ill", "no-root"])),
    st.tuples(st.just("old-inventory"), st.just(0)),
    st.tuples(st.just("stale"), st.just(0)),
    st.tuples(st.just("state"), st.sampled_from(list(NodeState))),
    st.tuples(st.just("machine-drain"), st.booleans()),
    st.tuples(st.just("look"), st.booleans()),
)
REPORTS = {"good": {}, "ill": {"problems": ("no runtime",)}, "no-root": {"storage_root_seen": False}}


@define
class Told:
    """What the events say, kept apart from what the storage made of them."""

    epoch: int = 0
    open: bool = False
    lease_until: datetime = START
    good: bool = False  # the newest inventory of this session, and confirmed
    root_since: datetime | None = None  # since when it is seen without a break, in this session
    state: NodeState = NodeState.ACTIVE
    machine: bool = False


async def _play(events: list[tuple[str, object]]) -> None:
    world, told = World(Twin()), Told()
    await world.storage.create_fleet(evolve(a_fleet(), delivery=Delivery.SHARED_MOUNT))
    await world.token("t")
    await world.join("n1", token="t", key="k")
    for name, value in events:
        await _happen(world, told, name, value)
        await _check(world, told)


async def _happen(world: World, told: Told, name: str, value: object) -> None:
    storage, lease = world.storage, timedelta(seconds=PRODUCTION.gateway_lease)
    if name == "wait":
        world.later(float(str(value)))
    elif name == "renew":
        if await storage.renew_gateway(GATEWAY, world.now + lease):
            told.lease_until = world.now + lease
    elif name == "restart-gateway":
        await storage.register_gateway(GATEWAY, "127.0.0.1", 1, world.now, world.now + lease)
        told.lease_until, told.open = world.now + lease, False
    elif name == "connect":
        told.epoch = (await world.connect()).epoch
        told.open, told.good, told.root_since = True, False, None
    elif name == "close":
        await storage.close_session(N1, told.epoch - int(str(value)), "cut", world.now)
        told.open = told.open and value == 1
    elif name == "state":
        told.state = NodeState(value)
        await storage.set_node_state(N1, told.state, "", world.now)
    elif name == "look":
        await storage.look_around(bool(value), world.now)
    else:
        await _say(world, told, name, value)


async def _say(world: World, told: Told, name: str, value: object) -> None:
    """What a Node says, in its session or after it."""
    epoch = told.epoch - (name == "old-inventory")
    try:
        if name == "stale":
            await world.storage.inventory_stale(N1, epoch, world.now)
            told.good, told.root_since = False, None
        elif name == "machine-drain":
            await world.storage.set_machine_drain(N1, epoch, bool(value), "", world.now)
            told.machine = bool(value)
        else:
            changes = REPORTS.get(str(value), {})
            seen = an_inventory(**{"storage_root_seen": True, **changes})
            await world.storage.record_inventory(N1, epoch, seen, "d", world.now)
            told.good = value != "ill"
            told.root_since = None if value == "no-root" else told.root_since or world.now
    except Fenced:
        assert not told.open or name == "old-inventory"


async def _check(world: World, told: Told) -> None:
    node, fleet = await world.storage.get_node(N1, world.now), await world.storage.get_fleet(NodeId("lab"))  # type: ignore[arg-type]
    assert node is not None
    assert fleet is not None
    ready = readiness(node, fleet, world.now)
    live = told.open and told.lease_until > world.now
    if ready.value:
        assert live, "a live session on a gateway whose lease is fresh"
        assert told.good, "an inventory without problems, of this session, still confirmed"
        assert told.root_since is not None, "the storage root is seen"
        assert (told.state, told.machine) == (NodeState.ACTIVE, False), "wanted by operator and machine"
    assert ready.value or ready.reasons
    silent = liveness(node, fleet, await world.storage.load_sight(world.now), world.now, PRODUCTION)
    assert (silent.presence is Presence.LIVE) == live


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=25))
def test_no_order_of_events_makes_a_node_ready_without_a_live_lease_and_a_fresh_inventory(events: list[tuple[str, object]]) -> None:
    """R-PLC-04, R-SES-05, R-LIV-03, R-LIV-04."""
    trio.run(_play, events)


def test_the_shortest_way_to_readiness_is_found_ready() -> None:
    """The property is not empty: this order makes a Node ready, and each step of it is needed."""

    async def ready_after(events: list[tuple[str, object]]) -> bool:
        world, told = World(Twin()), Told()
        await world.storage.create_fleet(evolve(a_fleet(), delivery=Delivery.SHARED_MOUNT))
        await world.token("t")
        await world.join("n1", token="t", key="k")
        for name, value in events:
            await _happen(world, told, name, value)
        node, fleet = await world.storage.get_node(N1, world.now), await world.storage.get_fleet(NodeId("lab"))  # type: ignore[arg-type]
        assert node is not None
        assert fleet is not None
        return readiness(node, fleet, world.now).value

    way: list[tuple[str, object]] = [("restart-gateway", 0), ("connect", 0), ("inventory", "good")]
    assert trio.run(ready_after, way)
    assert not any(trio.run(ready_after, [*way[:gap], *way[gap + 1 :]]) for gap in (0, 2))
