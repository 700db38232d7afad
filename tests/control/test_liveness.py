"""Liveness against running actors, real storage and real sockets: silence, blindness, the brake, drains and clocks."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from tests.control.plane import ADA, FLEET, TIMINGS, Gateway, Plane, now, open_plane
from tests.control.scripted_node import ScriptedNode
from tuneplane.domain.errors import Refused
from tuneplane.domain.fleets import Capability
from tuneplane.domain.frames import CommandKind, DrainWish
from tuneplane.domain.launch_table import JobState, MemberPhase
from tuneplane.domain.liveness import Liveness, Presence, liveness, readiness
from tuneplane.domain.nodes import NodeState

pytestmark = pytest.mark.postgres

QUICK = attrs.evolve(TIMINGS, claim_renew=0.2, quiet_serve=1.0, quiet_env=1.0, quiet_train=2.5, judging_grace=1.5, prepare_deadline=2.5)
ALL = (Capability.TRAIN, Capability.SERVE, Capability.ENV)


async def judge(plane: Plane, node: ScriptedNode) -> Liveness:
    found, fleet = await plane.storage.get_node(node.node, now()), await plane.storage.get_fleet(FLEET)
    assert found is not None
    assert fleet is not None
    return liveness(found, attrs.evolve(fleet, capabilities=ALL), await plane.storage.load_sight(now()), now(), QUICK)


async def wait_presence(plane: Plane, node: ScriptedNode, *presences: Presence, in_force: int | None = None) -> Liveness:
    async def look() -> tuple[bool, object]:
        seen = await judge(plane, node)
        forced = sum(answer.in_force for answer in seen.answers)
        return seen.presence in presences and in_force in (None, forced), seen

    await plane.wait_until(look, f"{node.node} to be {[one.value for one in presences]}")
    return await judge(plane, node)


async def come(plane: Plane, gateway: Gateway) -> tuple[ScriptedNode, trio.CancelScope]:
    """A Node that is connected until its scope is cancelled."""
    node, scope = await plane.enrol(gateway.target), trio.CancelScope()

    async def live() -> None:
        with scope:
            await node.run()

    plane.nursery.start_soon(live)
    await wait_presence(plane, node, Presence.LIVE)
    return node, scope


async def test_a_silent_node_answers_for_each_capability_and_is_gone_by_the_most_generous(database: str, tmp_path: Path) -> None:
    """R-LIV-01, R-LIV-02: the table of fleets.txt, once against the running system."""
    async with open_plane(database, tmp_path, timings=QUICK) as plane, plane.gateway() as gateway, plane.worker():
        nodes = [await come(plane, gateway) for _ in range(4)]
        silent, cut = nodes[0]
        cut.cancel()
        seen = await wait_presence(plane, silent, Presence.QUIET, in_force=2)
        assert {answer.capability for answer in seen.answers if answer.in_force} == {Capability.SERVE, Capability.ENV}
        seen = await wait_presence(plane, silent, Presence.GONE)
        assert seen.quiet_seconds >= QUICK.quiet_train
        assert [(await judge(plane, node)).presence for node, _ in nodes[1:]] == [Presence.LIVE] * 3


async def test_when_most_vanish_together_the_control_plane_suspects_itself_and_acts_on_none(database: str, tmp_path: Path) -> None:
    """P-19: their gangs run on, the placement rule holds, and the return of most is evidence."""
    async with open_plane(database, tmp_path, timings=QUICK) as plane, plane.gateway() as gateway, plane.worker():
        nodes = [await come(plane, gateway) for _ in range(4)]
        job = await plane.submit(nodes=2)
        await plane.wait_job(job, JobState.RUNNING)
        for _, cut in nodes[1:]:
            cut.cancel()

        async def braked() -> tuple[bool, object]:
            sight = await plane.storage.load_sight(now())
            return sight is not None and sight.brake is not None, sight

        await plane.wait_until(braked, "the brake")
        await trio.sleep(2 * QUICK.quiet_train)  # nothing may come of it, however long it lasts
        fleet = await plane.storage.get_fleet(FLEET)
        for node, _ in nodes[1:]:
            seen = await judge(plane, node)
            assert (seen.presence, any(answer.in_force for answer in seen.answers)) == (Presence.QUIET, False)
            assert "suspects itself" in seen.suspended
            found = await plane.storage.get_node(node.node, now())
            assert found is not None
            assert fleet is not None
            assert "no live control session" in readiness(found, fleet, now()).reasons
        assert (await plane.job(job)).state is JobState.RUNNING
        for node, _ in nodes[2:]:
            plane.nursery.start_soon(node.run)

        async def released() -> tuple[bool, object]:
            holds, sight = await braked()
            return not holds, sight

        await plane.wait_until(released, "the brake's release")
        since = trio.current_time()
        await wait_presence(plane, nodes[1][0], Presence.GONE)
        assert trio.current_time() - since >= QUICK.quiet_train - QUICK.poll  # a whole grace from the release on


async def test_after_a_start_of_the_control_plane_everybody_has_a_full_grace(database: str, tmp_path: Path) -> None:
    """L-B8: a Node that was silent for long before is not judged by what nobody saw."""
    async with open_plane(database, tmp_path, timings=QUICK) as plane:
        async with plane.gateway() as gateway, plane.worker():
            node, cut = await come(plane, gateway)
            cut.cancel()
        await trio.sleep(2 * QUICK.quiet_train)
        assert (await judge(plane, node)).presence is Presence.QUIET
        back = trio.current_time()
        async with plane.gateway("gateway-2"), plane.worker("worker-2"):
            seen = await wait_presence(plane, node, Presence.QUIET)
            assert seen.quiet_seconds <= trio.current_time() - back  # not what was before
            await wait_presence(plane, node, Presence.GONE)
            assert trio.current_time() - back >= QUICK.quiet_train


async def test_a_machine_drains_itself_through_its_session_and_work_is_finished(database: str, tmp_path: Path) -> None:
    """L-E15, R-LIV-04, R-LIV-05: it is told who is left, nothing is stopped, and then it may be removed."""
    async with open_plane(database, tmp_path, timings=QUICK) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        job = await plane.submit()
        await plane.wait_job(job, JobState.RUNNING)
        assert node.link is not None
        await node.link.send(DrainWish(revision=1, wanted=True, reason="new disks"))
        told = await node.wait_drain()
        assert (told.revision, told.state, told.drained) == (1, NodeState.DRAINING, False)
        assert [one.member for one in told.left] == [f"{job}-1-0"]
        waiting = await plane.submit()
        with pytest.raises(Refused, match="members"):
            await plane.storage.delete_node(node.node, False, ADA, now())
        await node.report(told.left[0].member, MemberPhase.TERMINATED, exit_code=0, ended_at=now(), cleaned=True)
        await plane.wait_job(job, JobState.SUCCEEDED)
        assert CommandKind.STOP not in [command.kind for command in node.commands]
        await node.link.send(DrainWish(revision=1, wanted=True))
        told = await node.wait_drain()
        assert (told.drained, told.left) == (True, ())
        assert (await plane.job(waiting)).state is JobState.QUEUED
        await node.link.send(DrainWish(revision=2, wanted=False))
        assert (await node.wait_drain()).state is NodeState.ACTIVE
        await plane.wait_job(waiting, JobState.RUNNING)


async def test_the_offset_of_a_clock_is_measured_by_round_trips(database: str, tmp_path: Path) -> None:
    """R-LIV-06."""
    async with open_plane(database, tmp_path, timings=attrs.evolve(QUICK, heartbeat=0.1)) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)

        async def measured() -> tuple[bool, object]:
            found = await plane.storage.get_node(node.node, now())
            return found is not None and found.connection.clock_error_seconds is not None, found

        await plane.wait_until(measured, "a measured offset")
        found = await plane.storage.get_node(node.node, now())
        assert found is not None
        offset, error = found.connection.clock_offset_seconds, found.connection.clock_error_seconds
        assert offset is not None
        assert error is not None
        assert abs(offset) <= error  # one clock, twice
