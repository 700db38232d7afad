"""The bounded ring of a log reader, and the reads of one session (P-22, R-LCH-13)."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tuneplane.control.followers import Followers
from tuneplane.control.rings import MAX_PIECES, MAX_READ_BYTES, Ring, ring_bytes
from tuneplane.domain.errors import Refused
from tuneplane.domain.frames import MAX_LOG_READS, LogCancel, LogChunk, LogPiece, LogQuery
from tuneplane.domain.ids import MemberId, NodeId


def _query(**changes: object) -> LogQuery:
    return LogQuery(node=NodeId("n"), member=MemberId("m"), **changes)  # type: ignore[arg-type]


def _chunk(offset: int, data: bytes, *, request: int = 1, gap: int = 0, end: bool = False) -> LogChunk:
    return LogChunk(request=request, offset=offset, data=data, gap=gap, end=end)


async def _read_all(ring: Ring) -> list[LogPiece]:
    return [piece async for piece in ring]


async def test_ring_a_slow_reader_gets_gap_marks() -> None:
    """P-22: the newest bytes stay, and the gap says how many were lost."""
    ring = Ring(limit=10)
    for number in range(5):
        ring.put(_chunk(number * 4, b"%d..." % number))
    ring.put(_chunk(20, b"", end=True))
    pieces = await _read_all(ring)
    assert b"".join(piece.data for piece in pieces) == b"3...4..."
    assert pieces[0].gap == 12
    assert pieces[0].offset == 12


async def test_ring_a_flood_of_empty_chunks_is_bounded() -> None:
    """P-22: a hostile Node's chunks without data cost no credit; they must not pile up behind a slow reader either."""
    ring = Ring(limit=10)
    for _ in range(MAX_PIECES * 2):
        ring.put(_chunk(0, b"", gap=1))
    ring.put(_chunk(0, b"", end=True))
    pieces = await _read_all(ring)
    assert len(pieces) <= MAX_PIECES
    assert sum(piece.gap for piece in pieces) == MAX_PIECES * 2


async def test_ring_a_reader_waits_for_the_first_piece(nursery: trio.Nursery) -> None:
    ring = Ring(limit=10)
    got: list[LogPiece] = []

    async def read() -> None:
        got.extend(await _read_all(ring))

    nursery.start_soon(read)
    await trio.testing.wait_all_tasks_blocked()
    ring.put(_chunk(0, b"late", end=True))
    await trio.testing.wait_all_tasks_blocked()
    assert [piece.data for piece in got] == [b"late"]


async def test_ring_the_end_of_a_session_is_told_after_what_came() -> None:
    ring = Ring(limit=10)
    ring.put(_chunk(0, b"all"))
    ring.end("the session ended")
    ring.put(_chunk(3, b"too late"))
    pieces = await _read_all(ring)
    assert [(piece.data, piece.error) for piece in pieces] == [(b"all", ""), (b"", "the session ended")]


def test_ring_holds_the_whole_of_a_bounded_read() -> None:
    """R-LCH-13: a bounded read never meets a gap, however slow its reader."""
    assert ring_bytes(_query(max_bytes=1 << 40)) > MAX_READ_BYTES
    assert ring_bytes(_query(max_bytes=1 << 40, follow=True)) < MAX_READ_BYTES


@given(st.lists(st.tuples(st.binary(max_size=8), st.integers(0, 5), st.booleans()), max_size=40), st.integers(1, 30))
def test_ring_every_byte_is_read_or_counted(script: list[tuple[bytes, int, bool]], limit: int) -> None:
    ring, offset, put = Ring(limit=limit), 0, 0
    got: list[LogPiece] = []

    async def run() -> None:
        nonlocal offset, put
        for data, gap, read_one in script:
            offset += gap
            ring.put(_chunk(offset, data, gap=gap))
            put += len(data) + gap
            offset += len(data)
            if read_one:
                got.append(await anext(ring))
        ring.put(_chunk(offset, b"", end=True))
        got.extend(await _read_all(ring))

    trio.run(run)
    assert sum(len(piece.data) + piece.gap for piece in got) == put
    position = 0
    for piece in got:
        assert piece.offset == position + piece.gap
        position = piece.offset + len(piece.data)


def test_followers_one_reader_s_chunks_are_not_another_s() -> None:
    followers = Followers()
    rings = [Ring(limit=100), Ring(limit=100)]
    reads = [followers.open(_query(), ring) for ring in rings]
    followers.arrived(_chunk(0, b"for two", request=reads[1].request, end=True))
    assert rings[1].ended
    assert not rings[0].ended


def test_followers_beyond_the_bound_are_refused() -> None:
    followers = Followers()
    for _ in range(MAX_LOG_READS):
        followers.open(_query(), Ring(limit=1))
    with pytest.raises(Refused, match="try again later"):
        followers.open(_query(), Ring(limit=1))


def test_followers_an_abandoned_read_is_cancelled_once_and_its_chunks_are_dropped() -> None:
    followers = Followers()
    ring = Ring(limit=100)
    read = followers.open(_query(follow=True), ring)
    ring.abandoned = True
    followers.arrived(_chunk(0, b"x", request=read.request))
    assert followers.sweep() == [LogCancel(request=read.request)]
    assert followers.sweep() == []
    followers.arrived(_chunk(1, b"y", request=read.request))


def test_followers_a_read_that_ended_frees_its_place() -> None:
    followers = Followers()
    for _ in range(MAX_LOG_READS * 2):
        read = followers.open(_query(), Ring(limit=1))
        followers.arrived(_chunk(0, b"", request=read.request, end=True))


@pytest.mark.parametrize(("asked", "follow", "sent"), [(1 << 40, False, MAX_READ_BYTES), (0, False, 1), (1 << 40, True, 1 << 40)])
def test_followers_a_bounded_read_is_bounded_here_too(asked: int, follow: bool, sent: int) -> None:
    assert Followers().open(_query(max_bytes=asked, follow=follow), Ring(limit=1)).max_bytes == sent
