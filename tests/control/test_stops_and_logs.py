"""Stops and logs in their own mailboxes on both sides: the production Node, gateway and worker on real sockets (R-SES-07)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.control.plane import ADA, TIMINGS, Plane, now, open_plane
from tests.control.real_node import RealNode, member_of, open_real_node
from tests.support.engine import PlayContainer, PlayEngine
from tuneplane.domain.frames import LogQuery
from tuneplane.domain.ids import JobId
from tuneplane.domain.launch_table import JobState, MemberPhase
from tuneplane.domain.member_table import HOLDING
from tuneplane.nodeside import effects

pytestmark = [pytest.mark.postgres, pytest.mark.seconds(180)]

CALM = TIMINGS.scaled(10)  # what is proved here is who waits for whom, not how long: production durations
SLOW = "registry.example/slow@sha256:" + "1" * 64
WAIT_SECONDS = 90.0
MEGABYTE = b"0123456789abcde\n" * 65536


@asynccontextmanager
async def a_node(database: str, place: Path, engine: PlayEngine) -> AsyncIterator[tuple[Plane, RealNode]]:
    async with (
        open_plane(database, place, timings=CALM) as plane,
        plane.gateway() as gateway,
        open_real_node(plane, gateway, engine, place) as node,
        plane.worker(storage_root=str(place / "root")),
    ):
        yield plane, node


async def until(plane: Plane, jobs: list[JobId], phase: MemberPhase) -> None:
    async def reached() -> tuple[bool, object]:
        found = [await plane.job(job) for job in jobs]
        phases = [job.attempts[-1].members[0].phase if job.attempts else None for job in found]
        return all(each is phase for each in phases), phases

    await plane.wait_until(reached, f"{len(jobs)} members to be {phase.value}", WAIT_SECONDS)


async def until_stopped(plane: Plane, jobs: list[JobId]) -> None:
    async def reached() -> tuple[bool, object]:
        states = [(await plane.job(job)).state for job in jobs]
        return all(state is JobState.STOPPED for state in states), states

    await plane.wait_until(reached, f"{len(jobs)} jobs to be stopped", WAIT_SECONDS)


def follow(node: RealNode, job: JobId) -> LogQuery:
    return LogQuery(node=node.node, member=member_of(job), offset=0, max_bytes=1 << 40, follow=True)


async def hold_unread(plane: Plane, query: LogQuery, *, task_status: trio.TaskStatus[None]) -> None:
    """A reader that takes nothing."""
    async with plane.reader().open_log(query):
        task_status.started()
        await trio.sleep_forever()


async def test_stops_get_through_while_prepares_and_logs_are_blocked_entirely(database: str, tmp_path: Path) -> None:
    """L-E10, R-SES-07, P-22: no prepare ends, no follower takes a byte, every log is full; all stops are carried out."""

    def on_start(container: PlayContainer) -> None:
        container.write(*[MEGABYTE] * 8)

    async with a_node(database, tmp_path, PlayEngine(on_start=on_start, slow={SLOW})) as (plane, node):
        jobs = [await plane.submit() for _ in range(8)]
        await until(plane, jobs, MemberPhase.RUNNING)
        slow = [await plane.submit(pinned=SLOW) for _ in range(8)]
        await until(plane, slow, MemberPhase.PREPARING)
        async with trio.open_nursery() as readers:
            for job in jobs * 3:
                await readers.start(hold_unread, plane, follow(node, job))
            for job in jobs[:5] + slow[:3]:
                await plane.storage.request_stop(job, ADA, now())
            await until_stopped(plane, jobs[:5] + slow[:3])
            await until(plane, jobs[5:], MemberPhase.RUNNING)
            await until(plane, slow[3:], MemberPhase.PREPARING)
            readers.cancel_scope.cancel()


async def test_stop_that_the_kernel_holds_is_shown_unconfirmed_and_holds_up_no_other(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-E9: the engine call of one stop never returns. Twenty others end; that one keeps its capacity and says why."""
    monkeypatch.setattr(effects, "KILL_CONFIRM_SECONDS", 0.5)
    async with a_node(database, tmp_path, PlayEngine()) as (plane, node):
        jobs = [await plane.submit() for _ in range(21)]
        await until(plane, jobs, MemberPhase.RUNNING)
        stuck, others = jobs[0], jobs[1:]
        node.engine.of(member_of(stuck)).stuck = True
        for job in jobs:
            await plane.storage.request_stop(job, ADA, now())
        await until_stopped(plane, others)

        async def shown() -> tuple[bool, object]:
            [member] = (await plane.job(stuck)).attempts[-1].members
            return member.progress is not None and member.progress.phase == "stop-unconfirmed", member

        await plane.wait_until(shown, "the stop to be shown as unconfirmed", WAIT_SECONDS)
        found = await plane.job(stuck)
        assert (found.state, found.attempts[-1].members[0].phase) == (JobState.STOPPING, MemberPhase.STOPPING)
        record = node.core.journal.member(member_of(stuck))
        assert record is not None
        assert record.phase in HOLDING
        machine = await plane.storage.get_node(node.node, now())
        assert machine is not None
        assert machine.members == (member_of(stuck),)


async def test_two_hundred_followers_of_which_one_is_stuck(database: str, tmp_path: Path) -> None:
    """P-22: the stuck one gets a gap mark for exactly what it missed; nobody else misses a byte or waits for it."""
    size = 1 << 20
    async with a_node(database, tmp_path, PlayEngine()) as (plane, node):
        job = await plane.submit()
        await until(plane, [job], MemberPhase.RUNNING)
        done: list[tuple[int, int]] = []
        query = follow(node, job)

        async def read(*, task_status: trio.TaskStatus[None]) -> None:
            async with plane.reader().open_log(query) as pieces:
                task_status.started()
                done.append(await count(pieces, size))

        async with plane.reader().open_log(query) as stuck, trio.open_nursery() as readers:
            for _ in range(199):
                await readers.start(read)
            container = node.engine.of(member_of(job))
            for _ in range(16):
                container.write(MEGABYTE[: size // 16])
                await trio.sleep(0.05)  # as a job writes: over some time
            with trio.fail_after(WAIT_SECONDS):
                while len(done) < 199:  # noqa: ASYNC110 - bounded, and what is watched is a list
                    await trio.sleep(0.1)
            assert done == [(size, 0)] * 199
            got, lost = await count(stuck, size)
            assert got + lost == size
            assert lost > 0


async def count(pieces: AsyncIterator[object], size: int) -> tuple[int, int]:
    """Read until ``size`` bytes are read or told lost."""
    read, lost = 0, 0
    while read + lost < size:
        piece = await anext(pieces)
        read, lost = read + len(piece.data), lost + piece.gap  # type: ignore[attr-defined]
    return read, lost


async def test_thousand_follows_opened_and_left_leave_no_descriptor_anywhere(database: str, tmp_path: Path) -> None:
    """L-E6: Node, gateway and reader are one process here, so their descriptors are all counted."""
    async with a_node(database, tmp_path, PlayEngine(on_start=lambda container: container.write(MEGABYTE))) as (plane, node):
        job = await plane.submit()
        await until(plane, [job], MemberPhase.RUNNING)

        async def peek(times: int) -> None:
            for _ in range(times):
                async with plane.reader().open_log(follow(node, job)) as pieces:
                    assert (await anext(pieces)).data  # type: ignore[attr-defined]

        await peek(5)
        before = open_descriptors()
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(peek, 125)
        with trio.fail_after(WAIT_SECONDS):
            while open_descriptors() > before + 8:  # noqa: ASYNC110 - connections linger for a moment; PostgreSQL's come and go
                await trio.sleep(0.1)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
