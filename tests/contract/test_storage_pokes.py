"""Pokes (PokeStore): they carry no data, come coalesced, and a poll finds what they hid."""

from __future__ import annotations

import pytest
import trio

from tests.contract.storage_world import USER, OpenWorld, World
from tuneplane.domain.accounts import AccountChange
from tuneplane.domain.ids import JobId, UserName
from tuneplane.domain.launch_table import AttemptEvent, AttemptState, MemberPhase
from tuneplane.domain.ports import Topic

ALL = frozenset(Topic)


async def heard(turns: object, wanted: set[Topic]) -> None:
    """Take turns until all of ``wanted`` have come, long before the poll would bring them."""
    with trio.fail_after(1.5):
        while wanted:
            wanted = wanted - await anext(turns)


async def test_pokes_begin_with_all_topics(open_world: OpenWorld) -> None:
    async with open_world() as world, world.storage.open_pokes((Topic.JOBS, Topic.CONSOLE)) as turns:
        with trio.fail_after(5):
            assert await anext(turns) == {Topic.JOBS, Topic.CONSOLE}


async def test_pokes_come_back_by_polling_when_nothing_is_heard(open_world: OpenWorld) -> None:
    async with open_world() as world, world.storage.open_pokes((Topic.JOBS,)) as turns:
        await anext(turns)
        with trio.fail_after(10):
            assert await anext(turns) == {Topic.JOBS}


async def _prepared(world: World) -> None:
    await world.node()
    await world.launched(until=AttemptState.PREPARING)


async def _disable(world: World) -> None:
    for name in ("root", "eve"):
        await world.storage.create_user(UserName(name), "admin", None, world.now)
    await world.storage.update_user(UserName("eve"), AccountChange(disabled=True), UserName("root"), world.now)


ACTS = {
    "a submission": ({Topic.JOBS, Topic.CONSOLE}, lambda world: world.submit("job-b")),
    "a stop": ({Topic.COMMANDS, Topic.ATTEMPTS, Topic.CONSOLE}, lambda world: world.storage.request_stop(JobId("job-a"), USER, world.now)),
    "an observation": ({Topic.ATTEMPTS, Topic.CONSOLE}, lambda world: world.see("job-a-1-0", MemberPhase.PREPARED)),
    "an end": ({Topic.ATTEMPTS, Topic.JOBS}, lambda world: world.see("job-a-1-0", MemberPhase.ABORTED)),
    "a session": ({Topic.SESSIONS, Topic.CONSOLE}, lambda world: world.connect()),
    "a disabled account": ({Topic.ACCOUNTS, Topic.CONSOLE}, lambda world: _disable(world)),
    "a removal": ({Topic.SESSIONS, Topic.ATTEMPTS, Topic.JOBS}, lambda world: world.storage.delete_node("n1", True, USER, world.now)),
}


@pytest.mark.parametrize("what", ACTS)
async def test_write_pokes_who_waits_for_it(open_world: OpenWorld, what: str) -> None:
    wanted, act = ACTS[what]
    async with open_world() as world:
        await _prepared(world)
        async with world.storage.open_pokes(tuple(Topic)) as turns:
            assert await anext(turns) == ALL
            await act(world)
            await heard(turns, set(wanted))


async def test_placement_and_step_poke_consumers_and_gateways(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.node()
        await world.submit()
        async with world.storage.open_pokes((Topic.UNCLAIMED, Topic.COMMANDS)) as turns:
            await anext(turns)
            await world.place()
            await heard(turns, {Topic.UNCLAIMED})
            await world.step(await world.claim(), AttemptEvent.CLAIMED)
            await heard(turns, {Topic.COMMANDS})
