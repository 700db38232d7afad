"""Field lessons about machines that fall silent, on real storage and real links: L-C2."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.control.plane import open_plane
from tests.control.test_attempts import SHORT, come, held
from tuneplane.domain.ids import MemberId
from tuneplane.domain.launch_table import JobState

pytestmark = [pytest.mark.postgres, pytest.mark.seconds(90)]


async def test_job_of_a_silent_machine_is_held_and_gets_no_replacement_on_any(database: str, tmp_path: Path) -> None:
    """L-C2, R-LCH-03: one container throughout, though another machine is free all the while and retries are left."""
    async with open_plane(database, tmp_path, timings=SHORT) as plane, plane.gateway() as gateway, plane.worker():
        machines = [await come(plane, gateway) for _ in range(2)]
        job = await plane.submit(retries=3)
        await plane.wait_job(job, JobState.RUNNING)
        member = MemberId(f"{job}-1-0")
        [(owner, cut)] = [(node, scope) for node, scope in machines if node.started]
        [other] = [node for node, _ in machines if node is not owner]
        cut.cancel()
        await trio.sleep(2 * SHORT.prepare_deadline)  # time alone must not replace it: that is what is tested
        assert await held(plane, owner) == (member,)
        assert (owner.started, other.started) == ([member], [])
        await owner.finish(member, 0)
        plane.nursery.start_soon(owner.run)
        assert (await plane.wait_job(job)).state is JobState.SUCCEEDED
        assert (owner.started, other.started) == ([member], [])
