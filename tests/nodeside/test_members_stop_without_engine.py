"""A stop while the container runtime is away: the job's own signal and its grace are owed, not skipped (R-LCH-12)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import trio

from tests.nodeside.harness import commit, make_plan, open_node, prepare, stop
from tests.support.podman import open_podman
from tests.support.registry import Registry
from tuneplane.domain.faultpoint import AnswerLost, install_fault_hook
from tuneplane.domain.member_table import NodePhase

pytestmark = pytest.mark.container

HEEDS = "trap 'sleep 0.3; exit 9' TERM; while true; do sleep 0.05; done"


async def _wait_running(directory: Path) -> None:
    with trio.fail_after(10):
        while not (directory / "up").exists():  # noqa: ASYNC110 - another process makes it
            await trio.sleep(0.02)


async def test_stop_while_the_engine_is_away_still_gives_signal_and_grace(tmp_path: Path, image: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with open_podman(Path(tempfile.gettempdir())) as podman:
        plan = make_plan(image, ("sh", "-c", f"touch {root}/up; {HEEDS}"), storage_root=str(root), stop_grace_seconds=5.0)
        async with open_node(tmp_path / "state", podman, storage_root=str(root)) as node:
            await node.send(prepare(plan))
            await node.until_phase(plan.member, NodePhase.PREPARED)
            await node.send(commit(plan))
            await node.until_phase(plan.member, NodePhase.RUNNING)
            await _wait_running(root)
            podman.kill()
            await node.send(stop(plan, grace_seconds=5.0))
            await trio.sleep(0.5)  # several tries at an engine that is not there
            podman.start()
            record = await node.until_clean(plan.member)
    assert (record.exit_code, record.reason_code) == (9, "stopped")


async def test_stop_whose_signal_got_no_answer_still_gives_its_grace(tmp_path: Path, image: str, registry: Registry) -> None:
    root = tmp_path / "root"
    root.mkdir()
    struck = []

    def lose(name: str, moment: str) -> None:
        if (name, moment) == ("node.engine.signal", "after") and not struck:
            struck.append(name)
            raise AnswerLost("the answer is lost")

    with open_podman(Path(tempfile.gettempdir())) as podman:
        plan = make_plan(image, ("sh", "-c", f"touch {root}/up; {HEEDS}"), storage_root=str(root))
        async with open_node(tmp_path / "state", podman, storage_root=str(root)) as node:
            await node.send(prepare(plan))
            await node.until_phase(plan.member, NodePhase.PREPARED)
            await node.send(commit(plan))
            await node.until_phase(plan.member, NodePhase.RUNNING)
            await _wait_running(root)
            install_fault_hook(lose)
            try:
                await node.send(stop(plan, grace_seconds=5.0))
                record = await node.until_clean(plan.member)
            finally:
                install_fault_hook(None)
    assert struck
    assert (record.exit_code, record.reason_code) == (9, "stopped")
