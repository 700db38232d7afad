"""Observations (SessionStore): R-LCH-05, R-LCH-15, R-SES-02, P-06, P-07, P-11."""

from __future__ import annotations

import pytest

from tests.contract.storage_world import OpenWorld, World
from tuneplane.domain.errors import Fenced
from tuneplane.domain.frames import Progress
from tuneplane.domain.ids import JobId, MemberId, NodeId
from tuneplane.domain.jobs import Job, MemberRecord
from tuneplane.domain.launch_table import (
    AttemptState,
    MemberPhase,
)
from tuneplane.domain.log_archive import NOTE

N1 = NodeId("n1")
JOB = JobId("job-a")
MEMBER = MemberId("job-a-1-0")


async def job(world: World, name: JobId = JOB) -> Job:
    found = await world.storage.get_job(name)
    assert found is not None
    return found


async def member(world: World) -> MemberRecord:
    return (await job(world)).attempts[-1].members[0]


# ---------------------------------------------------------------- observations


async def test_older_or_repeated_revision_is_acknowledged_and_ignored(open_world: OpenWorld) -> None:
    """R-LCH-05."""
    async with open_world() as world:
        await world.node()
        await world.launched()
        world._revisions[MEMBER] = 0
        assert await world.see(MEMBER, MemberPhase.PREPARED)
        assert await world.see(MEMBER, MemberPhase.ABORTED)
        assert (await member(world)).phase is MemberPhase.RUNNING


async def test_observation_of_an_old_epoch_is_fenced(open_world: OpenWorld) -> None:
    """P-06, R-SES-02."""
    async with open_world() as world:
        await world.node()
        await world.launched()
        await world.connect()
        with pytest.raises(Fenced):
            await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=0)
        assert (await member(world)).phase is MemberPhase.RUNNING
        with pytest.raises(Fenced):
            await world.see(MEMBER, MemberPhase.TERMINATED, epoch=9)


async def test_observation_of_a_stranger_is_not_ours(open_world: OpenWorld) -> None:
    """P-07: reported, never killed."""
    async with open_world() as world:
        await world.node()
        await world.node("n2")
        await world.launched()
        assert not await world.see(MemberId("nobody"), MemberPhase.RUNNING)
        assert not await world.see(MEMBER, MemberPhase.TERMINATED, node="n2", exit_code=0)
        assert not await world.see(MEMBER, MemberPhase.TERMINATED, plan_digest="sha256:other", exit_code=0)
        assert (await member(world)).phase is MemberPhase.RUNNING


async def test_observation_carries_progress_and_any_text(open_world: OpenWorld) -> None:
    """R-LCH-15."""
    async with open_world() as world:
        await world.node()
        await world.launched(until=AttemptState.PREPARING)
        progress = Progress(phase="pull", done=5, total=10)
        await world.see(MEMBER, MemberPhase.PREPARING, progress=progress)
        assert (await member(world)).progress == progress
        await world.see(MEMBER, MemberPhase.ABORTED, reason_code="image-unavailable", reason_detail="no\0such\ud800" + "x" * 10**6)
        seen = await member(world)
        assert seen.progress is None
        assert seen.reason_detail.startswith("no\ufffdsuch?xxx")
        assert seen.ended_at == world.now


async def test_member_on_a_silent_node_is_shown_as_such(open_world: OpenWorld) -> None:
    """P-11: a hold is shown as held by a named silent Node since a time."""
    async with open_world() as world:
        opened = await world.node()
        await world.launched()
        assert (await member(world)).node_silent_since is None
        await world.storage.close_session(N1, opened.epoch, "idle", world.now)
        assert (await member(world)).node_silent_since == world.now


async def test_clean_up_whose_log_was_not_archived_says_so_once_and_leaves_the_cause_alone(open_world: OpenWorld) -> None:
    """R-LCH-13, R-LCH-14: on the member, and as an event of the launch; how it ended is settled all the same."""
    async with open_world() as world:
        await world.node()
        await world.launched()
        said = f"{NOTE}the storage root is full"
        ended = {"exit_code": 3, "reason_code": "stopped", "reason_detail": "stopped by ada"}
        assert await world.see(MEMBER, MemberPhase.TERMINATED, **ended)
        for _ in range(2):
            await world.see(MEMBER, MemberPhase.TERMINATED, cleaned=True, exit_code=0, reason_detail=f"something else; {said}")
        seen = await member(world)
        assert (seen.exit_code, seen.reason_code, seen.reason_detail) == (3, "stopped", f"stopped by ada; {said}")
        events = [event.detail for event in await world.storage.timeline(JOB, 100) if event.kind == "member.cleaned"]
        assert events == [said]
