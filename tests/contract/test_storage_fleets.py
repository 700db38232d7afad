"""Fleets (FleetStore): R-FLT-01, R-FLT-02, R-FLT-06."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from attrs import evolve

from tests.contract.storage_world import FLEET, USER, OpenWorld, World, a_fleet
from tuneplane.domain.errors import NotFound, Refused
from tuneplane.domain.fleets import Capability, FleetState, Visibility
from tuneplane.domain.ids import FleetId, JobId, NodeId
from tuneplane.domain.jobs import Page
from tuneplane.domain.launch_table import AttemptEvent
from tuneplane.domain.nodes import NodeState
from tuneplane.storage.fleets import NAMED_IN_REFUSAL


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


async def test_delete_fleet_names_some_of_each_that_is_left_and_counts_all(open_world: OpenWorld) -> None:
    """R-FLT-06: the refusal stays readable, whatever lives there."""
    async with open_world() as world:
        await world.fleet()
        for number in range(NAMED_IN_REFUSAL + 2):
            await world.submit(f"job-{number:02}")
        await world.token()
        await world.join()
        with pytest.raises(Refused) as caught:
            await world.storage.delete_fleet(FLEET)
        assert f"1 Nodes and {NAMED_IN_REFUSAL + 2} jobs" in str(caught.value)
        assert [reason.code for reason in caught.value.reasons] == ["node"] + ["job"] * NAMED_IN_REFUSAL


async def test_delete_fleet_takes_its_join_tokens_along(open_world: OpenWorld) -> None:
    """Of a Fleet that is created again under the same name, an old token is none."""
    async with open_world() as world:
        await world.fleet()
        await world.token()
        await world.storage.delete_fleet(FLEET)
        await world.fleet()
        assert await world.storage.list_join_tokens(FLEET) == []
        with pytest.raises(Refused) as caught:
            await world.join()
        assert caught.value.code == "token-unknown"


@pytest.mark.parametrize("rival", ["join", "submit", "retry", "mint"])
async def test_race_of_a_deletion_leaves_nothing_without_its_fleet(open_world: OpenWorld, rival: str) -> None:
    """R-FLT-06: whoever comes first wins, the other is told why; there is never a Node or a live job of no Fleet."""
    async with open_world() as world:
        for turn in range(4):
            name = f"lab-{turn}"
            await world.fleet(name)
            call, job = await _rival(world, rival, name)
            outcomes: dict[str, str] = {}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_run, outcomes, "delete", partial(world.storage.delete_fleet, FleetId(name)))
                nursery.start_soon(_run, outcomes, rival, call)
            lives = await world.storage.get_fleet(FleetId(name)) is not None
            assert lives == (outcomes["delete"] == "fleet-in-use"), outcomes
            assert outcomes[rival] in (("done",) if lives else RIVAL_TOLD[rival]), outcomes
            if not lives:
                assert await world.storage.placement_nodes(FleetId(name), world.now) == []
                left = await world.storage.list_jobs(Page(), fleet=FleetId(name))
                assert [one.id for one in left[0] if one.ended_at is None] == []
                assert job is None or (await world.storage.get_job(job)).ended_at is not None


RIVAL_TOLD = {"join": ("token-unknown",), "submit": ("not-found",), "retry": ("fleet-gone",), "mint": ("not-found", "done")}


async def _rival(world: World, rival: str, fleet: str) -> tuple[Callable[[], Awaitable[object]], JobId | None]:
    if rival == "join":
        await world.token(f"t-{fleet}", fleet=fleet)
        return partial(world.join, f"n-{fleet}", token=f"t-{fleet}", key=fleet, fleet=fleet), None
    if rival == "submit":
        return partial(world.submit, f"job-{fleet}", fleet=fleet), None
    if rival == "mint":
        return partial(world.token, f"t-{fleet}", fleet=fleet), None
    job = await _failed_job(world, fleet)
    return partial(world.storage.retry, job, USER, world.now), job


async def _failed_job(world: World, fleet: str) -> JobId:
    """Its Node was removed by force, so its attempt has ended, and it may be tried again."""
    await world.token(f"t-{fleet}", fleet=fleet)
    node = (await world.join(f"n-{fleet}", token=f"t-{fleet}", key=fleet, fleet=fleet)).id
    job = await world.submit(f"job-{fleet}", fleet=fleet)
    assert await world.place(job, node)
    claim = await world.claim(job=job)
    await world.storage.delete_node(node, True, USER, world.now)
    assert await world.step(claim, AttemptEvent.CLAIMED)
    assert await world.step(claim, AttemptEvent.MEMBER_FAILED)
    assert await world.step(claim, AttemptEvent.ALL_ENDED)
    return job


async def _run(outcomes: dict[str, str], name: str, call: Callable[[], Awaitable[object]]) -> None:
    try:
        await call()
        outcomes[name] = "done"
    except (Refused, NotFound) as error:
        outcomes[name] = error.code
