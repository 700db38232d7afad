"""Fleets (FleetStore): R-FLT-01, R-FLT-02, R-FLT-06."""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.contract.storage_world import FLEET, USER, OpenWorld, a_fleet
from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.fleets import Capability, FleetState, Visibility
from tuneplane.domain.ids import NodeId
from tuneplane.domain.jobs import Page
from tuneplane.domain.nodes import NodeState


async def test_create_fleet_keeps_every_field(open_world: OpenWorld) -> None:
    """R-FLT-01."""
    async with open_world() as world:
        fleet = evolve(a_fleet(), visibility=Visibility.PROJECT, project="lab", config={"storage_root": "/mnt/\0é", "odd": "1"})
        await world.storage.create_fleet(fleet)
        assert await world.storage.get_fleet(FLEET) == fleet
        assert await world.storage.list_fleets(Page()) == ([fleet], None)
        with pytest.raises(Refused) as caught:
            await world.storage.create_fleet(fleet)
        assert caught.value.code == "exists"


async def test_update_fleet_changes_what_is_given_and_keeps_the_rest(open_world: OpenWorld) -> None:
    async with open_world() as world:
        fleet = await world.fleet()
        keep = {"capabilities": None, "visibility": None, "project": None, "state": None, "config": None}
        assert await world.storage.update_fleet(FLEET, **keep) == fleet
        changed = await world.storage.update_fleet(FLEET, **{**keep, "state": FleetState.DRAINING, "capabilities": (Capability.SERVE,)})
        assert changed == evolve(fleet, state=FleetState.DRAINING, capabilities=(Capability.SERVE,))
        private = await world.storage.update_fleet(FLEET, **{**keep, "visibility": Visibility.PROJECT, "project": "lab"})
        assert (private.visibility, private.project) == (Visibility.PROJECT, "lab")
        public = await world.storage.update_fleet(FLEET, **{**keep, "visibility": Visibility.PUBLIC})
        assert (public.visibility, public.project) == (Visibility.PUBLIC, None)


async def test_update_and_delete_of_no_fleet_are_not_found(open_world: OpenWorld) -> None:
    async with open_world() as world:
        with pytest.raises(NotFound):
            await world.storage.update_fleet(FLEET, capabilities=None, visibility=None, project=None, state=None, config=None)
        with pytest.raises(NotFound):
            await world.storage.delete_fleet(FLEET)


async def test_delete_fleet_with_nodes_is_refused_naming_them(open_world: OpenWorld) -> None:
    """R-FLT-06."""
    async with open_world() as world:
        await world.fleet()
        await world.token()
        await world.join()
        with pytest.raises(Refused) as caught:
            await world.storage.delete_fleet(FLEET)
        assert caught.value.code == "fleet-in-use"
        assert [reason.subject for reason in caught.value.reasons] == ["n1"]


async def test_delete_fleet_with_a_job_that_has_not_ended_is_refused(open_world: OpenWorld) -> None:
    """R-FLT-06."""
    async with open_world() as world:
        await world.fleet()
        job = await world.submit()
        with pytest.raises(Refused) as caught:
            await world.storage.delete_fleet(FLEET)
        assert [reason.subject for reason in caught.value.reasons] == [job]
        await world.storage.request_stop(job, USER, world.now)
        await world.storage.delete_fleet(FLEET)
        assert (await world.storage.get_job(job)).fleet == FLEET  # R-FLT-09: history stays


async def test_delete_fleet_after_its_nodes_were_removed_then_create_it_again(open_world: OpenWorld) -> None:
    """R-FLT-06; the removed Node's credential still says why it is refused (P-18)."""
    async with open_world() as world:
        await world.fleet()
        await world.token()
        await world.join()
        await world.storage.set_node_state(NodeId("n1"), NodeState.CORDONED, "", world.now)
        await world.storage.delete_node(NodeId("n1"), False, USER, world.now)
        await world.storage.delete_fleet(FLEET)
        assert await world.storage.get_fleet(FLEET) is None
        await world.fleet()
        with pytest.raises(Refused) as caught:
            await world.storage.authenticate("credential-n1-1", world.now)
        assert caught.value.code == "node-removed"
