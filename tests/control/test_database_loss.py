"""PostgreSQL killed with SIGKILL under a running control plane: sessions stay, nothing is doubled, the truth is learnt."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from tests.control.plane import ADA, TIMINGS, now, open_plane
from tests.support.postgres import TEMPLATE, open_postgres
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import MemberId
from tuneplane.domain.launch_table import JobState

pytestmark = [pytest.mark.postgres, pytest.mark.seconds(90)]


@pytest.fixture(scope="module")
def own_postgres():  # type: ignore[no-untyped-def]
    with open_postgres() as server:
        server.make_template()
        yield server


async def test_postgres_killed_while_a_job_runs_is_outlived_by_session_and_job(own_postgres, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """P-17, P-09: down longer than idle deadline, claim and gateway lease; the exit in that time is learnt, and a stop works."""
    with own_postgres.fresh_database(TEMPLATE) as database:
        async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
            node = await plane.connect(gateway)
            ending, stopped = await plane.submit(), await plane.submit()
            for job in (ending, stopped):
                await plane.wait_job(job, JobState.RUNNING)
            await trio.to_thread.run_sync(own_postgres.kill)
            await node.finish(MemberId(f"{ending}-1-0"), 5)
            await trio.sleep(1.5 * TIMINGS.session_idle)  # the time is the test
            assert node.ends == []
            await trio.to_thread.run_sync(own_postgres.start)
            ended = await plane.wait_job(ending)
            assert (ended.state, ended.attempts[0].members[0].exit_code) == (JobState.FAILED, 5)
            await plane.storage.request_stop(stopped, ADA, now())
            assert (await plane.wait_job(stopped)).state is JobState.STOPPED
            assert node.ends == []
            assert sorted(node.started) == [f"{ending}-1-0", f"{stopped}-1-0"]
            assert node.count(CommandKind.COMMIT) == 2


async def test_worker_that_leaves_gives_its_claims_back_at_once(database: str, tmp_path: Path) -> None:
    """Another worker need not wait for the lease to run out."""
    timings = attrs.evolve(TIMINGS, claim_lease=600.0, claim_renew=200.0)
    async with open_plane(database, tmp_path, timings=timings) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        node.deaf_to = {CommandKind.PREPARE}
        async with plane.worker("worker-1"):
            job = await plane.submit()
            prepare = await node.wait_command(CommandKind.PREPARE)
        async with plane.worker("worker-2"):
            assert node.link is not None
            node.deaf_to = set()
            await node.obey(prepare, node.link)
            await plane.wait_job(job, JobState.RUNNING)
