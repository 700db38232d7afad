"""Podman's log file: every byte of a container that writes faster than anybody reads, and nothing that it did not write."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.nodeside.harness import make_plan, open_node, run_to_end
from tests.support.podman import Podman
from tuneplane.domain.node_ports import ContainerState, EngineRefused, EngineUnclear, Life, LogRotated, Refusal
from tuneplane.nodeside.capture import ROTATED, Capture
from tuneplane.nodeside.engine_http import Demux
from tuneplane.nodeside.engine_logfile import Unwrap, open_log_file
from tuneplane.nodeside.logs import MemberLog, read_log
from tuneplane.nodeside.runner import run_inline

TIME = b"2026-11-30T19:06:31.067433061+00:00"
LATE_ERROR = b'{"cause":"no such process","message":"failed to obtain logs for Container","response":500}\n'


def wrapped(entries: list[tuple[bytes, bool]]) -> bytes:
    return b"".join(TIME + b" stdout " + (b"F " if whole else b"P ") + text + b"\n" for text, whole in entries)


@given(
    st.lists(st.tuples(st.binary(max_size=20).map(lambda text: text.replace(b"\n", b" ")), st.booleans()), max_size=8),
    st.lists(st.integers(1, 90), max_size=20),
)
def test_unwrap_gives_what_was_written_however_the_file_is_cut(entries: list[tuple[bytes, bool]], cuts: list[int]) -> None:
    """L-E3: any bytes, also blanks and carriage returns at either end."""
    data, unwrap, out, at = wrapped(entries), Unwrap(), b"", 0
    for cut in [*cuts, len(data) + 1]:
        out += unwrap.feed(data[at : at + cut])
        at += cut
    assert out == b"".join(text + b"\n" * whole for text, whole in entries)


@pytest.mark.parametrize("line", [b"\n", b"no such format\n", TIME + b" stdout X text\n", b"x" * (1 << 21)])
def test_unwrap_of_another_format_raises(line: bytes) -> None:
    with pytest.raises(EngineUnclear):
        Unwrap().feed(line)


async def test_log_file_that_is_replaced_raises_and_one_that_is_removed_goes_on(tmp_path: Path) -> None:
    """L-E1."""
    path = tmp_path / "ctr.log"
    path.write_bytes(wrapped([(b"one", True)]))
    file = open_log_file(path, follow=True)
    assert file is not None
    assert await anext(file) == b"one\n"
    path.unlink()
    with trio.move_on_after(0.2):
        await anext(file)
    path.write_bytes(wrapped([(b"two", True)]))
    with pytest.raises(LogRotated, match="replaced"):
        await anext(file)
    file.close()
    assert open_log_file(tmp_path / "none", follow=False) is None


def test_demux_of_an_error_behind_the_status_raises_instead_of_logging_it() -> None:
    """Podman sends 200, then finds that the container has just ended, and writes its error into the stream."""
    frame = b"\1\0\0\0\0\0\0\2a\n"
    with pytest.raises(EngineUnclear, match="no such process"):
        Demux().feed(frame + LATE_ERROR)


class StumblingEngine:
    """Refuses once for a reason of its own, then has the whole log."""

    def __init__(self) -> None:
        self.refusals = iter([EngineRefused("reading", Refusal.OTHER, "a lock timed out", 500)])

    async def inspect(self, container: str) -> ContainerState:
        return ContainerState(id=container, name="n", labels={}, life=Life.ENDED)

    @asynccontextmanager
    async def open_logs(self, container: str, *, follow: bool) -> Any:
        for refusal in self.refusals:
            raise refusal

        async def play() -> Any:
            yield b"all of it"

        yield play()


async def test_capture_that_the_engine_refuses_for_another_reason_asks_again(tmp_path: Path, autojump_clock: Any) -> None:
    """R-LCH-13: only a container that is gone has nothing more to say."""
    log = MemberLog(tmp_path / "m", run_inline)
    await Capture(StumblingEngine(), "c", log).run()  # type: ignore[arg-type]
    pieces = [piece.data async for piece in read_log(log, offset=0, tail_lines=None, max_bytes=100, follow=False)]
    assert (b"".join(pieces), log.complete) == (b"all of it", True)


@pytest.mark.container
@pytest.mark.seconds(60)
async def test_log_of_a_fast_writer_that_ends_has_every_line_once(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-LCH-13, L-E5: Podman's own stream skips lines when a container ends before its client has read all."""
    script = "i=0; while [ $i -lt 150000 ]; do echo line $i; i=$((i+1)); done; printf LAST"
    plan = make_plan(image, ("sh", "-c", script))
    async with open_node(tmp_path / "state", podman) as node:
        assert (await run_to_end(node, plan)).exit_code == 0
        data = await node.log_bytes(plan.member)
    assert ROTATED not in data
    assert data == b"".join(b"line %d\n" % number for number in range(150_000)) + b"LAST"
