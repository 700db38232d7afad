"""Logs: bounded files, absolute offsets, gaps that say so, tails of any line length, and captures that go on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuneplane.domain.ids import MemberId
from tuneplane.domain.node_ports import ContainerState, EngineRefused, EngineUnclear, Life, Refusal
from tuneplane.nodeside.capture import ROTATED, Capture, Seam
from tuneplane.nodeside.engine_http import Demux
from tuneplane.nodeside.logs import LogStore, MemberLog, read_log
from tuneplane.nodeside.runner import run_inline


def small_log(directory: Path, segment: int = 10, total: int = 40) -> MemberLog:
    log = MemberLog(directory, run_inline, segment_bytes=segment, member_bytes=total)
    log._load()
    return log


async def read_all(log: MemberLog, **how: Any) -> tuple[bytes, int]:
    """Bytes and gap of a read; checks that the pieces are in order and that the last one says so."""
    arguments = {"offset": 0, "tail_lines": None, "max_bytes": 1 << 30, "follow": False, **how}
    pieces = [piece async for piece in read_log(log, **arguments)]
    assert [piece.end for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    return b"".join(piece.data for piece in pieces), sum(piece.gap for piece in pieces)


async def test_log_beyond_its_cap_drops_the_oldest_segments_and_reads_say_the_gap(tmp_path: Path) -> None:
    """L-E1, L-E5."""
    log = small_log(tmp_path / "m")
    for number in range(30):
        await log.append(f"{number:04d}\n".encode())
    assert (log.first, log.end) == (110, 150)
    assert await read_all(log) == (b"".join(f"{n:04d}\n".encode() for n in range(22, 30)), 110)
    assert await read_all(log, offset=145) == (b"0029\n", 0)
    beyond = [piece async for piece in read_log(log, offset=999, tail_lines=None, max_bytes=9, follow=False)]
    assert [(piece.offset, piece.data, piece.gap, piece.end) for piece in beyond] == [(150, b"", 0, True)]
    assert len(list((tmp_path / "m").glob("*.log"))) == 4


async def test_log_opened_again_goes_on_at_its_last_byte(tmp_path: Path) -> None:
    log = small_log(tmp_path / "m")
    await log.append(b"x" * 25)
    again = small_log(tmp_path / "m")
    assert (again.first, again.end, again.complete) == (0, 25, False)
    await again.append(b"y" * 5)
    await again.finish()
    assert await read_all(small_log(tmp_path / "m")) == (b"x" * 25 + b"y" * 5, 0)
    assert small_log(tmp_path / "m").complete


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.binary(max_size=12), max_size=8), st.integers(0, 6))
def test_tail_of_any_bytes_is_the_last_lines(tmp_path: Path, lines: list[bytes], count: int) -> None:
    """R-LCH-13: whatever the bytes, over segment borders."""
    text = b"\n".join(lines)

    async def run() -> bytes:
        directory = tmp_path / str(trio.current_time())
        log = small_log(directory, segment=7, total=1000)
        await log.append(text)
        return (await read_all(log, tail_lines=count))[0]

    complete = text.split(b"\n")
    if complete and complete[-1] == b"":
        complete.pop()
        wanted = b"".join(line + b"\n" for line in complete[-count:]) if count else b""
    else:
        wanted = b"\n".join(complete[-count:]) if count else b""
    assert trio.run(run) == wanted


async def test_tail_of_one_endless_line_is_bounded_by_what_was_asked(tmp_path: Path) -> None:
    """L-E6."""
    log = small_log(tmp_path / "m", segment=100_000, total=1_000_000)
    await log.append(b"a" * 500_000)
    data, gap = await read_all(log, tail_lines=1, max_bytes=1000)
    assert (data, gap) == (b"a" * 1000, 0)


async def test_read_is_bounded_by_max_bytes_and_tells_where_to_go_on(tmp_path: Path) -> None:
    log = small_log(tmp_path / "m")
    await log.append(bytes(range(40)))
    pieces = [piece async for piece in read_log(log, offset=3, tail_lines=None, max_bytes=15, follow=False)]
    assert b"".join(piece.data for piece in pieces) == bytes(range(3, 18))
    assert pieces[-1].offset == 18


async def test_follower_gets_what_comes_and_ends_with_the_log(tmp_path: Path) -> None:
    log = small_log(tmp_path / "m")
    got: list[bytes] = []

    async def follow() -> None:
        got.append((await read_all(log, offset=0, follow=True))[0])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        for number in range(3):
            await log.append(b"%d" % number)
        await log.finish()
    assert got == [b"012"]


async def test_forgotten_log_ends_its_followers_and_leaves_no_file(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "logs", run_inline)
    member = MemberId("job-a-1-0")
    log = await store.log(member)
    await log.append(b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.wait_grown, 1)
        await trio.testing.wait_all_tasks_blocked()
        await store.forget(member)
    assert list((tmp_path / "logs").iterdir()) == []


# ---------------------------------------------------------------- capture


class PlayedEngine:
    """An engine's log endpoint: what each opening of the stream yields, and whether the container runs by then."""

    def __init__(self, plays: list[tuple[list[bytes], str]]) -> None:
        self.plays: Iterator[tuple[list[bytes], str]] = iter(plays)
        self.follows: list[bool] = []
        self.ended = False

    async def inspect(self, container: str) -> ContainerState:
        return ContainerState(id=container, name="n", labels={}, life=Life.ENDED if self.ended else Life.RUNNING)

    @asynccontextmanager
    async def open_logs(self, container: str, *, follow: bool) -> AsyncIterator[AsyncIterator[bytes]]:
        self.follows.append(follow)
        pieces, end = next(self.plays)
        if end == "gone":
            raise EngineRefused("reading", Refusal.NO_CONTAINER, "gone")

        async def play() -> AsyncGenerator[bytes, None]:
            for piece in pieces:
                yield piece
            if end == "broken":
                raise EngineUnclear("broke")

        async with aclosing(play()) as stream:
            yield stream
        self.ended = end == "ended"


async def captured(tmp_path: Path, plays: list[tuple[list[bytes], str]], before: bytes = b"") -> bytes:
    log = small_log(tmp_path / "m", segment=1000, total=100_000)
    if before:
        await log.append(before)
    await Capture(PlayedEngine(plays), "c", log).run()  # type: ignore[arg-type]
    return (await read_all(log))[0]


async def test_capture_whose_stream_breaks_goes_on_without_losing_or_doubling(tmp_path: Path, autojump_clock: Any) -> None:
    """L-E1: the engine's stream can only be had from its beginning."""
    plays = [([b"abc", b"def"], "broken"), ([b"abcde", b"fgh"], "ended"), ([b"abcdefghi"], "ended")]
    assert await captured(tmp_path, plays) == b"abcdefghi"


async def test_capture_after_a_restart_skips_what_it_has(tmp_path: Path, autojump_clock: Any) -> None:
    assert await captured(tmp_path, [([b"abcdef"], "ended"), ([b"abcdef"], "ended")], before=b"abc") == b"abcdef"


async def test_capture_of_a_log_that_was_rotated_away_says_so_and_takes_what_is_left(tmp_path: Path, autojump_clock: Any) -> None:
    """L-E1: an explicit mark instead of silently missing lines."""
    plays = [([b"xyz", b"w"], "running"), ([b"xyz", b"w"], "ended"), ([b"xyzwv"], "ended")]
    assert await captured(tmp_path, plays, before=b"abc") == b"abc" + ROTATED + b"xyzwv"


async def test_capture_of_a_container_that_is_gone_ends(tmp_path: Path, autojump_clock: Any) -> None:
    assert await captured(tmp_path, [([], "gone")], before=b"abc") == b"abc"


@given(st.binary(max_size=50), st.integers(0, 50), st.lists(st.integers(1, 9), max_size=20))
def test_seam_skips_exactly_what_is_there_however_it_is_cut(data: bytes, have: int, cuts: list[int]) -> None:
    have = min(have, len(data))
    seam = Seam(have, data[max(0, have - 5) : have])
    fresh, at = b"", 0
    for cut in [*cuts, len(data)]:
        fresh += seam.feed(data[at : at + cut])
        at += cut
    assert (fresh, seam.broken) == (data[have:], False)


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=30)), max_size=10), st.lists(st.integers(1, 11), max_size=40))
def test_demux_gives_the_payloads_however_the_stream_is_cut(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for kind, data in frames)
    demux, out, at = Demux(), b"", 0
    for cut in [*cuts, len(stream) + 1]:
        out += demux.feed(stream[at : at + cut])
        at += cut
    assert out == b"".join(data for _, data in frames)
