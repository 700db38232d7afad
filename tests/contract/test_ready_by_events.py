"""No order of events makes a Node ready without a live lease and a fresh, healthy inventory (R-PLC-04, R-LIV-03, R-SES-05).

Random histories of one Node on the twin, whose behaviour the contract suite holds against PostgreSQL; beside it a model that
knows only what was accepted.
"""

from __future__ import annotations

from datetime import timedelta

import trio
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.storage_world import FLEET, START, World, an_inventory
from tests.sim.twin import Database, Twin
from tuneplane.domain.errors import Fenced
from tuneplane.domain.ids import GatewayId, NodeId
from tuneplane.domain.liveness import readiness
from tuneplane.domain.nodes import NodeState

N1 = NodeId("n1")
GATEWAYS = (GatewayId("gateway-1"), GatewayId("gateway-2"))
LEASE_SECONDS = 15.0
EVENTS = st.one_of(
    st.tuples(st.just("connect"), st.sampled_from(GATEWAYS), st.sampled_from(["j1", "j1", "j1", "j2"])),
    st.tuples(st.just("close"), st.integers(0, 1)),
    st.tuples(st.just("inventory"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("stale"), st.integers(0, 1)),
    st.tuples(st.just("renew"), st.sampled_from(GATEWAYS)),
    st.tuples(st.just("restart"), st.sampled_from(GATEWAYS)),
    st.tuples(st.just("later"), st.sampled_from([1.0, 7.0, 20.0, 60.0])),
    st.tuples(st.just("state"), st.sampled_from(NodeState)),
)


@define
class Model:
    """What a person with a notebook would know."""

    epoch: int = 0
    gateway: GatewayId | None = None  # of the open session
    fresh: bool = False  # a healthy inventory was accepted in this session, and not called stale since
    leases: dict[GatewayId, float] = field(factory=dict)
    seconds: float = 0.0
    state: NodeState = NodeState.ACTIVE

    @property
    def may_be_ready(self) -> bool:
        live = self.gateway is not None and self.leases.get(self.gateway, 0.0) > self.seconds
        return live and self.fresh and self.state is NodeState.ACTIVE


async def _act(world: World, model: Model, event: tuple) -> None:
    name, *args = event
    if name == "later":
        world.later(args[0])
        model.seconds += args[0]
    elif name == "state":
        await world.storage.set_node_state(N1, args[0], "", world.now)
        model.state = args[0]
    elif name in ("renew", "restart"):
        await _gateway(world, model, name, args[0])
    elif name == "connect":
        if model.leases.get(args[0], 0.0) > model.seconds:
            opened = await world.connect(gateway=args[0], journal=args[1])
            model.epoch, model.gateway, model.fresh = opened.epoch, args[0], False
    else:
        await _session_event(world, model, name, model.epoch - args[0], *args[1:])


async def _gateway(world: World, model: Model, name: str, gateway: GatewayId) -> None:
    until = world.now + timedelta(seconds=LEASE_SECONDS)
    if name == "restart":
        await world.storage.register_gateway(gateway, "127.0.0.1", 9000, world.now, until)
        model.gateway = None if model.gateway == gateway else model.gateway
        model.leases[gateway] = model.seconds + LEASE_SECONDS
    elif await world.storage.renew_gateway(gateway, until):
        model.leases[gateway] = model.seconds + LEASE_SECONDS


async def _session_event(world: World, model: Model, name: str, epoch: int, healthy: bool = True) -> None:
    ours = epoch == model.epoch and model.gateway is not None
    try:
        if name == "close":
            await world.storage.close_session(N1, epoch, "bye", world.now)
            model.gateway = None if ours else model.gateway
        elif name == "stale":
            await world.storage.inventory_stale(N1, epoch, world.now)
            model.fresh = model.fresh and not ours
        else:
            seen = an_inventory(problems=() if healthy else ("no container runtime answers",))
            await world.storage.record_inventory(N1, epoch, seen, f"sha256:{healthy}", world.now)
            model.fresh = healthy if ours else model.fresh
    except Fenced:
        assert not ours


async def _history(events: list[tuple]) -> int:
    world, model, ready_times = World(Twin(Database(clock=lambda: START))), Model(), 0
    world.storage.database.clock = lambda: world.now  # type: ignore[attr-defined]
    fleet = await world.fleet(FLEET)
    await world.token()
    await world.join()
    for event in events:
        await _act(world, model, event)
        node = await world.storage.get_node(N1, world.now)
        assert node is not None
        ready = readiness(node, fleet, world.now)
        assert ready.value == (not ready.reasons)
        assert not ready.value or model.may_be_ready, (event, model, node)
        ready_times += ready.value
    return ready_times


@settings(max_examples=60)
@given(st.lists(EVENTS, max_size=40))
def test_no_order_of_events_makes_a_node_ready_without_lease_and_inventory(events: list[tuple]) -> None:
    """R-PLC-04, R-LIV-03."""
    trio.run(_history, events)


def test_an_ordinary_history_makes_it_ready() -> None:
    """Or the property would hold of nothing."""
    ordinary = [("restart", GATEWAYS[0]), ("connect", GATEWAYS[0], "j1"), ("inventory", 0, True), ("later", 7.0), ("renew", GATEWAYS[0])]
    assert trio.run(_history, ordinary) == 3
    ends = (("later", 60.0), ("stale", 0), ("close", 0), ("restart", GATEWAYS[0]), ("connect", GATEWAYS[0], "j1"), ("inventory", 0, False))
    for last in ends:
        assert trio.run(_history, [*ordinary, last]) == 3
