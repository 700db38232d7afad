"""What containers and engines do to a log: rotation, floods, any bytes, ten million lines. All of it, or a mark."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
from attrs import define

from tests.nodeside.harness import make_plan, open_node, run_to_end
from tests.support.podman import Podman
from tuneplane.domain.node_ports import ContainerState, Life
from tuneplane.nodeside import engine_logfile, engine_specs
from tuneplane.nodeside.capture import ROTATED, Capture
from tuneplane.nodeside.engine_logfile import open_log_file
from tuneplane.nodeside.logs import MemberLog, read_log
from tuneplane.nodeside.runner import ThreadRunner

LINES = 10_000
WAIT_SECONDS = 30.0


def check_numbers(data: bytes, last: int) -> int:
    """Numbered lines: each once and in order, and wherever one is missing there is a mark. How many are missing."""
    expected, marked, missing = 0, True, 0
    for line in data.splitlines():
        if line == ROTATED.strip():
            marked = True
        elif (found := re.fullmatch(rb"line (\d+)", line)) is not None:
            number = int(found[1])
            assert number >= expected, f"line {number} comes again"
            assert number == expected or marked, f"lines {expected} to {number} are missing, and nothing says so"
            missing += number - expected
            expected, marked = number + 1, False
        else:
            marked = True  # half a line, at the edge of a rotation: said by the mark next to it
    assert expected == last or marked
    return missing + last - expected


@pytest.mark.container
@pytest.mark.seconds(90)
async def test_engine_that_rotates_every_kilobyte_loses_no_line_without_a_mark(
    tmp_path: Path, podman: Podman, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-E1: max-size=1k, one file, 10,000 numbered lines."""
    monkeypatch.setattr(engine_specs, "LOG_BYTES", 1000)
    script = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); done"
    async with open_node(tmp_path / "state", podman) as node:
        plan = make_plan(image, ("sh", "-c", script))
        assert (await run_to_end(node, plan)).exit_code == 0
        data = await node.log_bytes(plan.member)
    assert ROTATED in data
    assert check_numbers(data, LINES) > 0  # else it rotated nothing away, and the test proves nothing
    assert data.endswith(b"line %d\n" % (LINES - 1))


@pytest.mark.container
async def test_megabyte_of_random_bytes_comes_back_byte_for_byte(tmp_path: Path, podman: Podman, image: str) -> None:
    """L-E3."""
    root = tmp_path / "root"
    root.mkdir()
    plan = make_plan(image, ("sh", "-c", "head -c 1048576 /dev/urandom | tee $TUNEPLANE_OUTPUT_DIR/copy"), storage_root=str(root))
    async with open_node(tmp_path / "state", podman, storage_root=str(root)) as node:
        assert (await run_to_end(node, plan)).exit_code == 0
        data = await node.log_bytes(plan.member)
    assert len(data) == 1048576
    assert data == (Path(plan.output_dir) / "copy").read_bytes()


# ---------------------------------------------------------------- an engine's log file, without an engine


@define
class FileEngine:
    """The log file of one container, as Podman's engine client opens it."""

    path: Path
    running: bool = True

    async def inspect(self, container: str) -> ContainerState:
        await trio.lowlevel.checkpoint()
        return ContainerState(id=container, name="n", labels={}, life=Life.RUNNING if self.running else Life.ENDED)

    @asynccontextmanager
    async def open_logs(self, container: str, *, follow: bool) -> AsyncIterator[AsyncIterator[bytes]]:
        await trio.lowlevel.checkpoint()
        file = open_log_file(self.path, follow=follow)
        assert file is not None
        try:
            yield file
        finally:
            file.close()


def wrapped(first: int, last: int) -> bytes:
    """Lines as conmon writes them, each with its own time."""
    return b"".join(b"2026-11-30T19:06:31.%09d+00:00 stdout F line %d\n" % (n, n) for n in range(first, last))


async def wait_captured(log: MemberLog, text: bytes) -> bytes:
    with trio.fail_after(WAIT_SECONDS):
        while True:
            data = await everything(log)
            if text in data:
                return data
            await log.wait_grown(log.end)


async def everything(log: MemberLog) -> bytes:
    return b"".join([p.data async for p in read_log(log, offset=0, tail_lines=None, max_bytes=1 << 40, follow=False)])


@pytest.mark.parametrize("grows_past", [False, True], ids=["shorter", "longer than before"])
async def test_log_file_that_is_copied_and_truncated_is_noticed_and_marked(tmp_path: Path, grows_past: bool) -> None:
    """L-E1: logrotate's copytruncate; also when the file is as long again before anybody has looked."""
    path = tmp_path / "ctr.log"
    path.write_bytes(wrapped(0, 100))
    engine, log = FileEngine(path), MemberLog(tmp_path / "m", ThreadRunner())
    capture = Capture(engine, "c", log)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(capture.run)
        await wait_captured(log, b"line 99\n")
        with path.open("r+b", buffering=0) as file:  # one step for a reader that sleeps
            file.truncate(0)
            file.write(wrapped(150, 400 if grows_past else 160))
        last = 399 if grows_past else 159
        data = await wait_captured(log, b"line %d\n" % last)
        engine.running = False
        capture.note_ended()
    assert ROTATED in data
    assert check_numbers(await everything(log), last + 1) == 50


async def test_log_file_that_is_replaced_is_read_to_its_end_first(tmp_path: Path) -> None:
    """L-E1: what conmon wrote before it began a new file is not lost."""
    path = tmp_path / "ctr.log"
    path.write_bytes(wrapped(0, 100))
    engine, log = FileEngine(path), MemberLog(tmp_path / "m", ThreadRunner())
    capture = Capture(engine, "c", log)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(capture.run)
        await wait_captured(log, b"line 99\n")
        with path.open("ab", buffering=0) as file:
            file.write(wrapped(100, 200))
        fresh = path.with_name("fresh")
        fresh.write_bytes(wrapped(200, 300))
        fresh.rename(path)
        await wait_captured(log, b"line 299\n")
        engine.running = False
        capture.note_ended()
    assert check_numbers(await everything(log), 300) == 0


FLOOD = """
import sys, time
block = b"".join(b"2026-11-30T19:06:31.%09d+00:00 stdout F y\\n" % n for n in range(20_000))
ends = time.monotonic() + float(sys.argv[2])
with open(sys.argv[1], "ab", buffering=0) as file:
    while time.monotonic() < ends:
        file.write(block)
        time.sleep(len(block) / 100e6)
"""


@contextmanager
def flooding(path: Path, seconds: float) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", FLOOD, str(path), str(seconds)]) as process:
        try:
            yield
        finally:
            process.kill()


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024


@pytest.mark.seconds(60)
async def test_flood_is_read_at_a_bounded_rate_and_memory_and_leaves_the_daemon_its_turns(tmp_path: Path) -> None:
    """L-E5, P-22: ``yes`` at 100 MB/s, with the times that the engine writes before each line."""
    path = tmp_path / "ctr.log"
    path.touch()
    log = MemberLog(tmp_path / "m", ThreadRunner())
    capture = Capture(FileEngine(path), "c", log)  # type: ignore[arg-type]
    before, began, late = resident_bytes(), time.monotonic(), []
    with flooding(path, 5.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(capture.run)
            for _ in range(300):  # whoever else runs in the daemon: how late are its turns?
                due = trio.current_time() + 0.01
                await trio.sleep_until(due)
                late.append(trio.current_time() - due)
            took = time.monotonic() - began
            nursery.cancel_scope.cancel()
    raw = log.end * len(wrapped(0, 1).replace(b"line 0", b"y")) / 2
    assert raw > 1 << 20
    assert raw < engine_logfile.BYTES_PER_SECOND * (took + engine_logfile.BURST_SECONDS + 0.5)
    assert path.stat().st_size > raw, "the writer was no faster than the reader: the test proves nothing"
    assert resident_bytes() - before < 48 << 20
    assert sorted(late)[len(late) * 9 // 10] < 0.1


@pytest.mark.seconds(120)
async def test_last_page_of_ten_million_lines_costs_what_it_costs_tail(tmp_path: Path) -> None:
    """L-E13: by offset from the end, whatever lies before it; compared with ``tail -n`` on the same bytes in the same run."""
    log = MemberLog(tmp_path / "m", ThreadRunner(), member_bytes=1 << 40, segment_bytes=1 << 40)
    for start in range(0, 10_000_000, 200_000):
        await log.append(b"".join(b"line %08d\n" % n for n in range(start, start + 200_000)))
    [(path, _, size)] = log.sources(0, log.end)
    assert size == log.end == 140_000_000

    async def ours() -> float:
        began = time.perf_counter()
        pieces = [piece async for piece in read_log(log, offset=None, tail_lines=1000, max_bytes=1 << 20, follow=False)]
        took = time.perf_counter() - began
        assert b"".join(piece.data for piece in pieces) == b"".join(b"line %08d\n" % n for n in range(9_999_000, 10_000_000))
        return took

    async def theirs() -> float:
        began = time.perf_counter()
        await trio.run_process(["tail", "-n", "1000", str(path)], capture_stdout=True)
        return time.perf_counter() - began

    pairs = [(await ours(), await theirs()) for _ in range(20)]
    ratios = sorted(a / b for a, b in pairs)
    assert ratios[len(ratios) // 2] < 10, ratios
    assert min(a for a, _ in pairs) < 0.2
