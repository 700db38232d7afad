"""A worker that dies at any step of an attempt, and another that goes on with the same operations (R-LCH-01, R-LCH-02, P-05, P-20)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, evolve, field

from tests.control.plane import TIMINGS, Plane, open_plane
from tests.control.scripted_node import ScriptedNode
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import JobId, MemberId
from tuneplane.domain.jobs import Job
from tuneplane.domain.launch_table import AttemptState, JobState
from tuneplane.domain.ports import Storage

pytestmark = [pytest.mark.postgres, pytest.mark.seconds(90)]

S, J = AttemptState, JobState
SHORT = evolve(TIMINGS, retry_first=0.2)


@define(eq=False)
class DyingStorage:
    """A worker's storage that is gone for ever from the first write ``name`` (an ``advance``: to ``target``), before or after it."""

    real: Storage
    name: str
    target: AttemptState | None
    moment: str
    dead: trio.Event = field(factory=trio.Event)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.real, name)
        if name == "open_pokes":
            return call

        async def dying(*args: Any, **named: Any) -> Any:
            if self.dead.is_set():
                raise StorageUnavailable(f"{name}: this worker is dead")
            hit = name == self.name and (self.target is None or self.target in args)
            if hit and self.moment == "before":
                self.dead.set()
                raise StorageUnavailable(f"{name}: this worker died before it")
            answer = await call(*args, **named)
            if hit and answer:  # an empty look is no write
                self.dead.set()
                raise StorageUnavailable(f"{name}: this worker died after it")
            return answer

        return dying


STEPS = [
    ("place", None),
    ("claim_attempts", None),
    ("advance", S.PREPARING),
    ("advance", S.COMMITTED),
    ("advance", S.RUNNING),
    ("advance", S.STOPPING),
    ("advance", S.ENDED),
]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("name", "target"), STEPS, ids=[f"{name}-{target.value}" if target else name for name, target in STEPS])
async def test_worker_that_dies_at_a_step_is_followed_by_another_that_goes_on(
    database: str, tmp_path: Path, name: str, target: AttemptState | None, moment: str
) -> None:
    """Each member is started once, by operations that are the same whoever sends them, and the claim epoch has risen."""
    async with open_plane(database, tmp_path, timings=SHORT) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        dying = DyingStorage(plane.storage, name, target, moment)
        stops = target is S.STOPPING
        async with plane.worker("worker-1", storage=dying):  # type: ignore[arg-type]
            job = await plane.submit(max_runtime_seconds=1.0 if stops else None)
            if target is S.ENDED:
                await end(plane, node, job, 0)
            with trio.fail_after(20):
                await dying.dead.wait()
            async with plane.worker("worker-2"):
                if not stops and target is not S.ENDED:
                    await end(plane, node, job, 0)
                ended = await plane.wait_job(job)
        assert (ended.state, ended.reason_code) == ((J.FAILED, "max-runtime") if stops else (J.SUCCEEDED, ""))
        check(node, job, 1, stopped=stops)
        assert ended.attempts[0].ended_at is not None


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_worker_that_dies_while_it_queues_a_job_again_leaves_one_next_attempt(database: str, tmp_path: Path, moment: str) -> None:
    """The end of the attempt and the job's return to the queue are one write: the second attempt is placed once."""
    async with open_plane(database, tmp_path, timings=SHORT) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        dying = DyingStorage(plane.storage, "advance", S.ENDED, moment)
        async with plane.worker("worker-1", storage=dying):  # type: ignore[arg-type]
            job = await plane.submit(retries=1)
            await end(plane, node, job, 7)
            with trio.fail_after(20):
                await dying.dead.wait()
            async with plane.worker("worker-2"), plane.worker("worker-3"):
                ended = await end(plane, node, job, 0, number=2)
        assert (ended.state, ended.attempt_number) == (J.SUCCEEDED, 2)
        assert [attempt.reason_code for attempt in ended.attempts] == ["exit-code", ""]
        assert node.started == [f"{job}-1-0", f"{job}-2-0"]


async def end(plane: Plane, node: ScriptedNode, job: JobId, code: int, *, number: int = 1) -> Job:
    """Let the member of attempt ``number`` end once it runs; the job as it is when it has ended, if anybody concludes it."""
    member = MemberId(f"{job}-{number}-0")
    await node.wait_for(lambda node: member in node.started, f"the start of {member}", 30.0)
    await node.finish(member, code)
    return await plane.wait_job(job) if code == 0 and number > 1 else await plane.job(job)


def check(node: ScriptedNode, job: JobId, number: int, *, stopped: bool) -> None:
    member = MemberId(f"{job}-{number}-0")
    assert node.started == [member]
    kinds = {CommandKind.PREPARE, CommandKind.COMMIT} | ({CommandKind.STOP} if stopped else set())
    assert {(command.operation, command.kind) for command in node.commands} == {(f"{member}:{kind.value}", kind) for kind in kinds}
    assert node.count(CommandKind.COMMIT) == 1
