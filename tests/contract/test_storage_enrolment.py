"""Join Tokens and joining (EnrolmentStore): R-ENR-01, R-ENR-03, R-ENR-05, R-ENR-07 to R-ENR-09, P-14, P-18."""

from __future__ import annotations

import pytest
import trio
from attrs import evolve

from tests.contract.storage_world import FLEET, OpenWorld, World, a_fleet, an_inventory
from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.fleets import FleetKind, Visibility
from tuneplane.domain.ids import FleetId, NodeId, TokenId
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.nodes import Node


async def refused(world: World, **changes: object) -> str:
    with pytest.raises(Refused) as caught:
        await world.join(**changes)
    return caught.value.code


async def test_join_creates_a_node_that_has_never_connected(open_world: OpenWorld) -> None:
    """R-ENR-05: the inventory of the join is there; R-SES-05: it does not make the Node ready."""
    async with open_world() as world:
        await world.fleet()
        await world.token()
        node = await world.join(inventory=an_inventory(("GPU-a",)))
        assert (node.id, node.fleet, node.address, node.connection.state) == ("n1", FLEET, "host", "never")
        assert node.inventory == an_inventory(("GPU-a",))
        assert not node.inventory_healthy
        assert node.free_gpu_uuids == ("GPU-a",)
        identity = await world.storage.authenticate("credential-n1-1", world.now)
        assert (identity.node, identity.fleet) == ("n1", FLEET)
        (token,) = await world.storage.list_join_tokens(FLEET)
        assert (token.used_by, token.used_at) == ("n1", world.now)


async def test_two_machines_racing_with_one_token_exactly_one_joins(open_world: OpenWorld) -> None:
    """R-ENR-03."""
    async with open_world() as world:
        await world.fleet()
        await world.token()
        joined: list[Node] = []
        codes: list[str] = []

        async def race(number: int) -> None:
            try:
                joined.append(await world.join(f"n{number}", key=f"k{number}"))
            except Refused as error:
                codes.append(error.code)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(race, number)
        assert len(joined) == 1
        assert codes == ["token-used"] * 9
        assert len(await world.storage.placement_nodes(FLEET, world.now)) == 1


async def test_join_again_with_the_same_key_gives_the_same_node_and_revokes_the_first_credential(open_world: OpenWorld) -> None:
    """P-14."""
    async with open_world() as world:
        await world.fleet()
        await world.token()
        first = await world.join()
        again = await world.join("n2", try_=2, address="other")
        assert (again.id, again.address) == (first.id, "other")
        assert await world.storage.get_node(NodeId("n2"), world.now) is None
        with pytest.raises(Refused) as caught:
            await world.storage.authenticate("credential-n1-1", world.now)
        assert caught.value.code == "credential-revoked"
        assert (await world.storage.authenticate("credential-n2-2", world.now)).node == "n1"


@pytest.mark.parametrize("try_", [1, 2])
async def test_join_by_a_late_earlier_try_is_refused_and_undoes_nothing(open_world: OpenWorld, try_: int) -> None:
    """P-14: lower ordinals, and a repeat of the same one, are refused under the row lock."""
    async with open_world() as world:
        await world.fleet()
        await world.token()
        await world.join(try_=2)
        assert await refused(world, node="n9", try_=try_) == "stale-try"
        assert (await world.storage.authenticate("credential-n1-2", world.now)).node == "n1"


async def test_join_again_after_the_first_session_is_refused(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        assert await refused(world, token="t-n1", key="n1", try_=2) == "token-used"
        assert (await world.storage.authenticate("credential-n1-1", world.now)).node == "n1"


async def test_join_with_a_bad_token_says_why_and_burns_nothing(open_world: OpenWorld) -> None:
    """R-ENR-03."""
    async with open_world() as world:
        await world.fleet()
        await world.fleet("other")
        await world.token()
        assert await refused(world, token="no-such") == "token-unknown"
        assert await refused(world, fleet="other") == "token-unknown"
        await world.token("old", lives=60)
        await world.token("gone")
        assert await world.storage.revoke_join_token(FLEET, TokenId("gone"), world.now)
        assert await refused(world, token="gone") == "token-revoked"
        world.later(61)
        assert await refused(world, token="old") == "token-expired"
        assert (await world.join()).id == "n1"
        assert await refused(world, node="n2", key="k2") == "token-used"


async def test_join_with_an_expired_token_is_refused_to_its_own_machine_too(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.fleet()
        await world.token(lives=60)
        await world.join()
        world.later(60)
        assert await refused(world, try_=2) == "token-expired"


async def test_join_a_fleet_of_another_kind_is_refused(open_world: OpenWorld) -> None:
    """R-ENR-08."""
    async with open_world() as world:
        await world.fleet("k8s", FleetKind.KUBERNETES)
        await world.token("k", fleet="k8s")
        assert await refused(world, token="k", fleet="k8s") == "not-a-node-fleet"


async def test_mint_a_token_of_a_fleet_that_was_just_deleted_is_not_found(open_world: OpenWorld) -> None:
    """L-C16: whoever looked before the delete is told, and leaves nothing behind."""
    async with open_world() as world:
        await world.fleet()
        await world.storage.delete_fleet(FLEET)
        with pytest.raises(NotFound, match="Fleet"):
            await world.token()


async def test_revoke_join_token_of_another_fleet_is_false(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.fleet()
        await world.token()
        assert not await world.storage.revoke_join_token(FleetId("other"), TokenId("t"), world.now)
        assert (await world.join()).id == "n1"


async def test_join_without_budgets_gives_no_capacity(open_world: OpenWorld) -> None:
    """R-ENR-09."""
    async with open_world() as world:
        await world.fleet()
        await world.token()
        node = await world.join(inventory=an_inventory(("GPU-a",), budgets=Budgets(cpu_millis=1000)))
        assert node.capacity is None
        assert node.free_gpu_uuids == ()


async def test_nodes_at_address_counts_connected_others_only(open_world: OpenWorld) -> None:
    """R-ENR-07."""
    async with open_world() as world:
        await world.fleet()
        await world.token()
        await world.join("n0")  # never connected
        opened = await world.node("n1")
        assert await world.storage.nodes_at_address(FLEET, "host", NodeId("n2")) == ["n1"]
        assert await world.storage.nodes_at_address(FLEET, "host", NodeId("n1")) == []
        assert await world.storage.nodes_at_address(FLEET, "elsewhere", NodeId("n2")) == []
        await world.storage.close_session(NodeId("n1"), opened.epoch, "bye", world.now)
        assert await world.storage.nodes_at_address(FLEET, "host", NodeId("n2")) == []


async def test_nodes_at_address_are_of_every_fleet_that_the_machine_may_hear_of(open_world: OpenWorld) -> None:
    """R-ENR-07, R-FLT-08: one machine's cards are counted twice also across Fleets; a hidden Fleet's Nodes are not told of."""
    async with open_world() as world:
        await world.node("n1")
        projects = {"vision": "p1", "vision-2": "p1", "speech": "p2"}
        for name, project in projects.items():
            await world.storage.create_fleet(evolve(a_fleet(name), visibility=Visibility.PROJECT, project=project))
        await world.token("t-v", fleet="vision")
        await world.join("n-v", token="t-v", key="v", fleet="vision", address="HOST")
        await world.connect("n-v")
        expected = {FLEET: ["n1"], "vision": ["n-v", "n1"], "vision-2": ["n-v", "n1"], "speech": ["n1"]}
        for fleet, nodes in expected.items():
            assert await world.storage.nodes_at_address(FleetId(fleet), "host", NodeId("new")) == nodes, fleet


async def test_authenticate_an_expired_credential_says_so_and_the_clock_may_come_back(open_world: OpenWorld) -> None:
    """P-18, L-A2: nothing was deleted because a clock passed."""
    async with open_world() as world:
        await world.fleet()
        await world.token()
        await world.join()
        late = world.now.replace(year=world.now.year + 2)
        with pytest.raises(Refused) as caught:
            await world.storage.authenticate("credential-n1-1", late)
        assert caught.value.code == "credential-expired"
        assert (await world.storage.authenticate("credential-n1-1", world.now)).node == "n1"
        with pytest.raises(Refused) as caught:
            await world.storage.authenticate("nobody's", world.now)
        assert caught.value.code == "credential-unknown"
