"""Log reads from another process: across the relay, bounded, and nobody's pace is anybody else's (P-22, P-23, R-LCH-13)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.control.plane import ADA, Gateway, Plane, now, open_plane
from tests.control.scripted_node import ScriptedNode
from tuneplane.control import followers
from tuneplane.domain.errors import Refused
from tuneplane.domain.frames import LOG_CHUNK_BYTES, LogChunk, LogPiece, LogQuery
from tuneplane.domain.ids import JobId, MemberId, NodeId
from tuneplane.domain.launch_table import JobState

pytestmark = [pytest.mark.postgres, pytest.mark.seconds(60)]


async def test_read_a_bounded_log_through_the_relay(database: str, tmp_path: Path) -> None:
    """P-23: the bytes come from the gateway that holds the session; any bytes are bytes."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node, job = await _running(plane, gateway)
        node.log = bytes(range(256)) * 700
        pieces = await _read(plane, _query(node, job))
        assert b"".join(piece.data for piece in pieces) == node.log
        assert pieces[-1].end
        assert not pieces[-1].error
        assert sum(piece.gap for piece in pieces) == 0


async def test_read_from_an_offset(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node, job = await _running(plane, gateway)
        node.log = b"0123456789"
        pieces = await _read(plane, _query(node, job, offset=4, max_bytes=3))
        assert b"".join(piece.data for piece in pieces) == b"456"
        assert pieces[0].offset == 4
        assert node.reads[0].max_bytes == 3


async def test_follow_goes_on_until_the_reader_leaves_and_the_node_is_told(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node, job = await _running(plane, gateway)
        async with plane.reader().open_log(_query(node, job, follow=True)) as pieces:
            assert (await anext(pieces)).data == b"hello\n"
            await _append(node, 6, b"more\n")
            assert (await anext(pieces)).data == b"more\n"
        await node.wait_for(lambda node: node.cancels, "the cancel")
        assert node.cancels[0].request == node.reads[0].request


async def test_read_of_a_node_that_is_not_connected_says_who_and_since_when(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        never = await plane.enrol(gateway.target)
        with pytest.raises(Refused, match=f"Node {never.node} has never been connected") as refused:
            await _read(plane, _query(never, JobId("job-x")))
        assert refused.value.code == "node-unreachable"
        with pytest.raises(Refused, match="has been removed"):
            await _read(plane, LogQuery(node=NodeId("node-none"), member=MemberId("m")))
        node = await plane.enrol(gateway.target)
        scope = trio.CancelScope()
        plane.nursery.start_soon(_run_in, scope, node)
        await node.wait_for(lambda node: node.link, "the session")
        scope.cancel()
        await plane.wait_until(lambda: _gone(plane, node), "the end of the session")
        with pytest.raises(Refused, match=r"is not connected \(since 20"):
            await _read(plane, _query(node, JobId("job-x")))


async def test_follow_ends_with_an_error_when_the_session_ends(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node, job = await _running(plane, gateway)
        async with plane.reader().open_log(_query(node, job, follow=True)) as pieces:
            await anext(pieces)
            await plane.storage.delete_node(node.node, True, ADA, now())
            last = await _last(pieces)
        assert last.end
        assert "ended" in last.error


async def test_follow_a_slow_reader_gets_gap_marks_and_holds_nobody_else(database: str, tmp_path: Path) -> None:
    """P-22, R-SES-07: while one reader takes nothing, 16 MiB flow past it to another, and a stop gets through."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node, job = await _running(plane, gateway)
        node.log = b""
        chunks, size = 256, LOG_CHUNK_BYTES
        async with (
            plane.reader().open_log(_query(node, job, follow=True)) as slow,
            plane.reader().open_log(_query(node, job, follow=True)) as quick,
        ):
            await node.wait_for(lambda node: len(node.reads) == 2, "both reads")
            first, second = (read.request for read in node.reads)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_pour, node, (first, second), chunks)
                nursery.start_soon(_count, quick, chunks * size)
                await plane.storage.request_stop(job, ADA, now())
                assert (await plane.wait_job(job)).state is JobState.STOPPED
            read, lost = await _count(slow, chunks * size)
            assert read + lost == chunks * size
            assert lost > 0


async def test_follow_beyond_the_bound_of_a_node_is_refused_in_words_and_a_bounded_read_is_not(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-SES-07: followers have their own capacity, and bounded reads theirs."""
    most = 8
    monkeypatch.setattr(followers, "MAX_LOG_FOLLOWS", most)
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node, job = await _running(plane, gateway)
        async with trio.open_nursery() as nursery:
            for _ in range(most):
                await nursery.start(_hold, plane, _query(node, job, follow=True))
            (refused,) = await _read(plane, _query(node, job, follow=True))
            assert "try again later" in refused.error
            assert (await _read(plane, _query(node, job)))[0].data == node.log
            nursery.cancel_scope.cancel()
        await node.wait_for(lambda node: len(node.cancels) == most, "every cancel")


# ---------------------------------------------------------------- helpers


async def _running(plane: Plane, gateway: Gateway) -> tuple[ScriptedNode, JobId]:
    node = await plane.connect(gateway)
    job = await plane.submit()
    await plane.wait_job(job, JobState.RUNNING)
    return node, job


def _query(node: ScriptedNode, job: JobId, **changes: object) -> LogQuery:
    return LogQuery(node=node.node, member=MemberId(f"{job}-1-0"), **changes)  # type: ignore[arg-type]


async def _read(plane: Plane, query: LogQuery) -> list[LogPiece]:
    async with plane.reader().open_log(query) as pieces:
        return [piece async for piece in pieces]


async def _last(pieces: AsyncIterator[LogPiece]) -> LogPiece:
    piece = await anext(pieces)
    while not piece.end:
        piece = await anext(pieces)
    return piece


async def _hold(plane: Plane, query: LogQuery, *, task_status: trio.TaskStatus[None]) -> None:
    async with plane.reader().open_log(query) as pieces:
        await anext(pieces)
        task_status.started()
        await trio.sleep_forever()


async def _count(pieces: AsyncIterator[LogPiece], size: int) -> tuple[int, int]:
    """Read until ``size`` bytes are read or told lost."""
    read, lost = 0, 0
    while read + lost < size:
        piece = await anext(pieces)
        read, lost = read + len(piece.data), lost + piece.gap
    return read, lost


async def _append(node: ScriptedNode, offset: int, data: bytes) -> None:
    assert node.link is not None
    await node.link.send(LogChunk(request=node.reads[-1].request, offset=offset, data=data))


async def _pour(node: ScriptedNode, requests: tuple[int, ...], chunks: int) -> None:
    assert node.link is not None
    for number in range(chunks):
        for request in requests:
            await node.link.send(LogChunk(request=request, offset=number * LOG_CHUNK_BYTES, data=b"x" * LOG_CHUNK_BYTES))


async def _gone(plane: Plane, node: ScriptedNode) -> tuple[bool, object]:
    found = await plane.storage.get_node(node.node, now())
    assert found is not None
    return found.connection.state == "disconnected", found.connection


async def _run_in(scope: trio.CancelScope, node: ScriptedNode) -> None:
    with scope:
        await node.run()
