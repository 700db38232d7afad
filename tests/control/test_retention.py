"""What ended long ago is forgotten on the Node by an explicit command (P-06)."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from tests.control.plane import TIMINGS, open_plane
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import MemberId
from tuneplane.domain.launch_table import JobState

pytestmark = [pytest.mark.postgres, pytest.mark.seconds(60)]


async def test_retention_forgets_a_cleaned_member_once_and_no_living_one(database: str, tmp_path: Path) -> None:
    timings = attrs.evolve(TIMINGS, forget_after=0.5)
    async with open_plane(database, tmp_path, timings=timings) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        ended, living = await plane.submit(), await plane.submit()
        for job in (ended, living):
            await plane.wait_job(job, JobState.RUNNING)
        await node.finish(MemberId(f"{ended}-1-0"), 0)
        await plane.wait_job(ended)
        command = await node.wait_command(CommandKind.FORGET)
        assert command.member == f"{ended}-1-0"
        await node.wait_for(lambda node: list(node.members) == [f"{living}-1-0"], "the member to be forgotten")
        await node.finish(MemberId(f"{living}-1-0"), 0)
        await node.wait_command(CommandKind.FORGET, 2)
        assert node.count(CommandKind.FORGET) == 2
