"""Logs archived with the attempt: whole or with their gap told, whatever the storage root does, whatever lies on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.nodeside.harness import TestNode, forget, make_plan, open_node, open_node_on, run_to_end
from tests.support.engine import PlayContainer, PlayEngine
from tests.support.podman import Podman
from tuneplane.control import archive_server, log_archive
from tuneplane.control.log_archive import LogArchive
from tuneplane.domain.errors import InvalidInput, Refused
from tuneplane.domain.frames import LogPiece, LogQuery
from tuneplane.domain.log_archive import FOLDER, HEADER_BYTES, NOTE, Part, archive_path, choose_parts, read_header, spell_header
from tuneplane.domain.member_table import NodePhase
from tuneplane.domain.plan import MemberPlan
from tuneplane.nodeside import log_archive as writing
from tuneplane.nodeside import storage_probe

IMAGE = "registry.example/busybox@sha256:" + "0" * 64


def writes(*chunks: bytes, exit_code: int = 0) -> PlayEngine:
    """An engine whose containers write and end."""

    def on_start(container: PlayContainer) -> None:
        container.write(*chunks)
        container.end(exit_code)

    return PlayEngine(on_start=on_start)


def a_plan(root: Path, **changes: object) -> MemberPlan:
    return make_plan(IMAGE, ("true",), storage_root=str(root), **changes)


def file_of(root: Path, plan: MemberPlan) -> Path:
    return root.joinpath(*archive_path(plan.job, plan.attempt, plan.member))


async def read(root: Path, plan: MemberPlan, archive: LogArchive | None = None, **how: object) -> list[LogPiece]:
    query = LogQuery(node=plan.node, member=plan.member, **{"offset": 0, "max_bytes": 1 << 30, **how})  # type: ignore[arg-type]
    async with (archive or LogArchive()).open_log(str(root), plan.job, plan.attempt, query) as pieces:
        return [piece async for piece in pieces]


def text(pieces: list[LogPiece]) -> bytes:
    assert [piece.end for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    return b"".join(piece.data for piece in pieces)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.mkdir()
    return made


async def ended(tmp_path: Path, root: Path, engine: PlayEngine, plan: MemberPlan) -> str:
    """Run a member to its clean end; its reason's detail."""
    async with open_node_on(tmp_path / "state", engine, storage_root=str(root)) as node:
        return (await run_to_end(node, plan)).reason_detail


async def test_log_is_archived_before_the_member_is_clean_and_read_after_the_node_has_forgotten(tmp_path: Path, root: Path) -> None:
    """R-LCH-13: any bytes, by offset, by tail and whole."""
    data = bytes(range(256)) * 1000 + b"\none\ntwo\n"
    plan = a_plan(root)
    async with open_node_on(tmp_path / "state", writes(data), storage_root=str(root)) as node:
        assert (await run_to_end(node, plan)).reason_detail == ""
        await node.send(forget(plan))
        await node.until_gone(plan.member)
    assert not (tmp_path / "state" / "logs" / plan.member).exists()
    assert text(await read(root, plan)) == data
    assert text(await read(root, plan, offset=255_990, max_bytes=10)) == data[255_990:256_000]
    assert text(await read(root, plan, offset=None, tail_lines=2)) == b"one\ntwo\n"
    assert text(await read(root, plan, offset=None, tail_lines=0)) == b""
    assert text(await read(root, plan, offset=1 << 40)) == b""
    assert text(await read(root, plan, follow=True)) == data


async def test_logs_of_five_attempts_are_all_readable(tmp_path: Path, root: Path) -> None:
    """L-E7: a log belongs to its attempt, and another attempt does not replace it."""
    first = a_plan(root)
    for number in range(1, 6):
        plan = evolve(first, member=f"{first.job}-{number}-0", attempt=f"{first.job}-{number}", attempt_number=number)
        await ended(tmp_path, root, writes(b"attempt %d\n" % number), plan)
    for number in range(1, 6):
        plan = evolve(first, member=f"{first.job}-{number}-0", attempt=f"{first.job}-{number}")
        assert text(await read(root, plan)) == b"attempt %d\n" % number


async def test_log_beyond_the_cap_keeps_beginning_and_end_and_tells_the_gap(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-LCH-13: never a silent hole."""
    monkeypatch.setattr(writing, "choose_parts", lambda first, end: choose_parts(first, end, most=30, head=10))
    plan = a_plan(root)
    await ended(tmp_path, root, writes(b"".join(b"%03d\n" % n for n in range(50))), plan)
    pieces = await read(root, plan)
    assert [(piece.offset, piece.gap) for piece in pieces] == [(0, 0), (180, 170), (200, 0)]
    assert text(pieces) == b"000\n001\n00" + b"045\n046\n047\n048\n049\n"
    assert text(await read(root, plan, offset=None, tail_lines=1)) == b"049\n"
    assert (await read(root, plan, offset=100))[0].gap == 80
    assert file_of(root, plan).stat().st_size == HEADER_BYTES + 30


async def test_member_that_never_ran_archives_nothing(tmp_path: Path, root: Path) -> None:
    plan = a_plan(root, gpu_uuids=("GPU-none",))
    async with open_node_on(tmp_path / "state", PlayEngine(), storage_root=str(root)) as node:
        assert (await run_to_end(node, plan)).phase is NodePhase.ABORTED
    assert not file_of(root, plan).parent.exists()


async def _with_a_bad_root(tmp_path: Path, root: Path, plan: MemberPlan, spoil: object) -> str:
    """Run a member on a good root that ``spoil`` makes bad once it has started."""

    def on_start(container: PlayContainer) -> None:
        container.write(b"kept\n")
        spoil()  # type: ignore[operator]
        container.end(0)

    async with open_node_on(tmp_path / "state", PlayEngine(on_start=on_start), storage_root=str(root)) as node:
        record = await run_to_end(node, plan)
        assert (record.phase, record.exit_code) == (NodePhase.TERMINATED, 0)
        assert await node.log_bytes(plan.member) == b"kept\n"
    return record.reason_detail


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "WAITS_SECONDS", (0.05,))
    monkeypatch.setattr(writing, "TRY_SECONDS", 1.0)


@pytest.mark.usefixtures("hasty")
async def test_root_that_is_not_there_any_more_is_said_and_the_node_keeps_the_log(tmp_path: Path, root: Path) -> None:
    """A root that is no longer mounted is an empty directory of the machine's own disk: nothing is written there."""
    plan = a_plan(root)
    detail = await _with_a_bad_root(tmp_path, root, plan, lambda: (root / FOLDER).rmdir())
    assert detail.startswith(NOTE)
    assert "No such file" in detail
    assert not (root / FOLDER).exists()


@pytest.mark.usefixtures("hasty")
async def test_link_planted_in_place_of_our_folder_is_not_followed(tmp_path: Path, root: Path) -> None:
    """The Node runs as root: a link to a directory of the machine must not make it write there, nor the console read there."""
    elsewhere, plan = tmp_path / "elsewhere", a_plan(root)
    elsewhere.mkdir()

    def spoil() -> None:
        (root / FOLDER).rmdir()
        (root / FOLDER).symlink_to(elsewhere)

    assert (await _with_a_bad_root(tmp_path, root, plan, spoil)).startswith(NOTE)
    assert list(elsewhere.iterdir()) == []
    with pytest.raises(Refused) as refused:
        await read(root, plan)
    assert refused.value.code == "log-unavailable"


@pytest.mark.usefixtures("hasty")
async def test_root_that_hangs_wedges_nobody(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L-J1: each child is killed at its deadline, the member is clean within the bound, another member meanwhile ends."""
    monkeypatch.setattr(writing, "WRITER", _hanging(tmp_path))
    plan = a_plan(root)
    began = time.monotonic()
    detail = await _with_a_bad_root(tmp_path, root, plan, lambda: None)
    assert "did not answer within 1 s" in detail
    assert time.monotonic() - began < 10


@pytest.mark.usefixtures("hasty")
async def test_root_that_is_full_is_said_and_leaves_no_half_file(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = storage_probe.run_killable

    async def limited(command: list[str], seconds: float, what: str) -> None:
        shell = "trap '' XFSZ; ulimit -f 8; exec \"$@\""  # beyond 8 blocks a write fails as on a full disk
        await real(["sh", "-c", shell, "sh", *command], seconds, what)

    monkeypatch.setattr(storage_probe, "run_killable", limited)
    plan = a_plan(root)

    def on_start(container: PlayContainer) -> None:
        container.write(b"x" * 100_000)
        container.end(0)

    async with open_node_on(tmp_path / "state", PlayEngine(on_start=on_start), storage_root=str(root)) as node:
        assert "File too large" in (await run_to_end(node, plan)).reason_detail
    assert list(file_of(root, plan).parent.iterdir()) == []


@pytest.mark.usefixtures("hasty")
async def test_failed_archive_is_tried_once_more_before_it_is_forgotten(tmp_path: Path, root: Path) -> None:
    plan = a_plan(root)
    (tmp_path / "aside").mkdir()

    def on_start(container: PlayContainer) -> None:
        container.write(b"late\n")
        (root / FOLDER).rmdir()
        container.end(0)

    async with open_node_on(tmp_path / "state", PlayEngine(on_start=on_start), storage_root=str(root)) as node:
        assert NOTE in (await run_to_end(node, plan)).reason_detail
        (root / FOLDER).mkdir()
        await node.send(forget(plan))
        await node.until_gone(plan.member)
    assert text(await read(root, plan)) == b"late\n"


async def test_daemon_that_dies_while_it_archives_does_it_again(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or not at all: the scratch file of the killed writer is replaced."""
    plan = a_plan(root)
    engine = writes(b"all of it\n")
    begun = trio.Event()

    async def killed(command: list[str], seconds: float, what: str) -> None:
        if WRITER in command:
            file_of(root, plan).parent.mkdir(parents=True)
            file_of(root, plan).with_name(f".{plan.member}.log.new").write_bytes(b"half")
            begun.set()
            await trio.sleep_forever()
        await real(command, seconds, what)

    real = storage_probe.run_killable
    monkeypatch.setattr(storage_probe, "run_killable", killed)
    async with open_node_on(tmp_path / "state", engine, storage_root=str(root)) as node:
        node.nursery.start_soon(_run, node, plan)
        await begun.wait()
    monkeypatch.setattr(storage_probe, "run_killable", real)
    assert not file_of(root, plan).exists()
    async with open_node_on(tmp_path / "state", engine, storage_root=str(root)) as node:
        assert (await node.until_clean(plan.member)).reason_detail == ""
    assert text(await read(root, plan)) == b"all of it\n"
    assert [path.name for path in file_of(root, plan).parent.iterdir()] == [f"{plan.member}.log"]


TAKES_OVER = """
import os, runpy, sys
real, sys.argv = os.fsync, sys.argv[1:]
scratch = sys.argv.pop()
def fsync(sink):
    real(sink)
    os.unlink(scratch)
    with open(scratch, "wb") as other:
        other.write(b"half of the other's")
os.fsync = fsync
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_writer_whose_place_another_one_has_taken_shows_no_half_file(root: Path) -> None:
    """Whole or not at all: the writer of a killed daemon lives on beside that of the next one."""
    source, folder = root / "source", root / FOLDER
    source.write_bytes(b"all of it")
    folder.mkdir()
    order = {"root": str(root), "folders": [FOLDER], "name": "log", "header": "", "sources": [[str(source), 0, 9]]}
    command = [sys.executable, "-c", TAKES_OVER, WRITER, json.dumps(order), str(folder / ".log.new")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr.strip()) == (1, "another writer has taken over")
    assert [path.name for path in folder.iterdir()] == [".log.new"]


WRITER = str(writing.WRITER)


async def _run(node: TestNode, plan: MemberPlan) -> None:
    await run_to_end(node, plan)


def _hanging(tmp_path: Path) -> Path:
    script = tmp_path / "hangs.py"
    script.write_text("import time\ntime.sleep(600)\n")
    return script


# ---------------------------------------------------------------- reading what anybody may have put there


@pytest.mark.parametrize("plant", ["link", "folder-link", "fifo", "directory", "nothing"])
async def test_reader_gives_nothing_but_a_regular_file_of_ours(tmp_path: Path, root: Path, plant: str) -> None:
    """A workload that found a way to write there must not make the console read other files, or wait."""
    secret = tmp_path / "secret"
    secret.write_bytes(spell_header(choose_parts(0, 6)) + b"secret")
    plan = a_plan(root)
    path = file_of(root, plan)
    path.parent.parent.mkdir(parents=True)
    if plant == "folder-link":
        (tmp_path / path.name).write_bytes(secret.read_bytes())
        path.parent.symlink_to(tmp_path)
    else:
        path.parent.mkdir()
    if plant == "link":
        path.symlink_to(secret)
    elif plant == "fifo":
        os.mkfifo(path)
    elif plant == "directory":
        path.mkdir()
    with trio.fail_after(10), pytest.raises(Refused) as refused:
        await read(root, plan)
    assert refused.value.code == ("log-not-archived" if plant == "nothing" else "log-unavailable")


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff" * 5000, b"[" * 5000, spell_header(choose_parts(0, 1 << 40)) + b"short"])
async def test_damaged_archive_is_said_so(root: Path, data: bytes) -> None:
    plan = a_plan(root)
    path = file_of(root, plan)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    with pytest.raises(Refused, match=r"damaged|shorter"):
        await read(root, plan)


@pytest.mark.parametrize("name", ["..", "a/b", "", ".tuneplane", "x" * 200])
def test_archive_path_of_an_id_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        archive_path(name, "job-a-1", "job-a-1-0")  # type: ignore[arg-type]


async def test_reader_of_a_root_that_hangs_is_answered_in_time_and_others_are_refused_at_last(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_archive, "SERVER", _hanging(tmp_path))
    monkeypatch.setattr(log_archive, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(log_archive, "MAX_READS", 2)
    plan, archive = a_plan(root), LogArchive()
    with trio.fail_after(5), pytest.raises(Refused, match="the storage root hangs"):
        await read(root, plan, archive)
    stuck = [subprocess.Popen([sys.executable, str(_hanging(tmp_path))]) for _ in range(2)]  # noqa: ASYNC220 - it does not wait
    archive._children.update(stuck)  # type: ignore[arg-type]
    try:
        with pytest.raises(Refused) as refused:
            await read(root, plan, archive)
        assert refused.value.code == "busy"
    finally:
        for child in stuck:
            child.kill()
            child.wait()
    with pytest.raises(Refused, match="hangs"):
        await read(root, plan, archive)


async def test_reads_leave_no_process_and_no_descriptor_behind(tmp_path: Path, root: Path) -> None:
    """L-E6."""
    plan, archive = a_plan(root), LogArchive()
    await ended(tmp_path, root, writes(b"x" * 1_000_000), plan)
    await read(root, plan, archive)
    before = len(os.listdir("/proc/self/fd"))
    query = LogQuery(node=plan.node, member=plan.member, max_bytes=1 << 30)
    for _ in range(20):
        async with archive.open_log(str(root), plan.job, plan.attempt, query) as pieces:
            assert (await anext(pieces)).data
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(child.poll() is not None for child in archive._children)


@given(first=st.integers(0, 50), size=st.integers(0, 200), most=st.integers(2, 60), at=st.integers(0, 300))
def test_index_tells_every_offset_as_kept_or_lost(first: int, size: int, most: int, at: int) -> None:
    index = choose_parts(first, first + size, most=most, head=most // 2)
    assert read_header(spell_header(index)) == index
    assert index.size - HEADER_BYTES == min(size, most)
    kept = [n for part in index.parts for n in range(part.offset, part.end)]
    found = index.locate(at)
    following = [n for n in kept if n >= at]
    assert (found is None) == (not following)
    if found is not None:
        offset, place, run = found
        assert offset == following[0]
        assert kept[place - HEADER_BYTES : place - HEADER_BYTES + run] == list(range(offset, offset + run))


def test_header_with_parts_out_of_order_is_refused() -> None:
    for parts in ((Part(5, 5), Part(0, 5)), (Part(0, 6), Part(5, 5)), (Part(0, 99),)):
        with pytest.raises(InvalidInput):
            read_header(json.dumps({"format": 1, "end": 50, "parts": [[part.offset, part.size] for part in parts]}).encode())


def test_server_gives_no_more_than_a_block_at_once(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * (3 << 20))
    asked = f"0 {1 << 40}\n5 3\n".encode()
    command = [sys.executable, "-I", "-S", str(log_archive.SERVER), str(tmp_path), "f"]
    done = subprocess.run(command, input=asked, capture_output=True, timeout=20, check=True)
    assert len(done.stdout) == 8 + archive_server.MOST_BYTES + 8 + 3


# ---------------------------------------------------------------- what a workload sees


@pytest.mark.container
async def test_workload_finds_an_empty_folder_that_it_cannot_write(tmp_path: Path, podman: Podman, image: str) -> None:
    """It sees the whole storage root, and not the logs of other jobs."""
    root = tmp_path / "root"
    (root / FOLDER / "logs" / "other").mkdir(parents=True)
    script = f"cd {root}; ls -A {FOLDER} | wc -l; touch {FOLDER}/x 2>&1; rmdir {FOLDER} 2>&1; mv {FOLDER} y 2>&1; echo done"
    plan = make_plan(image, ("sh", "-c", script), storage_root=str(root))
    async with open_node(tmp_path / "state", podman, storage_root=str(root)) as node:
        record = await run_to_end(node, plan)
        said = (await node.log_bytes(plan.member)).decode()
    assert record.exit_code == 0, said
    assert said.startswith("0\n")
    assert "Read-only file system" in said
    assert (root / FOLDER / "logs" / "other").is_dir()
    assert text(await read(root, plan)).decode() == said
