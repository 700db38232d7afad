"""A stop's grace is the job's, once: whatever becomes of the daemon meanwhile (L-E11, R-LCH-12)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio

from tests.nodeside.harness import TestNode, commit, make_plan, open_node, prepare, stop
from tests.support.podman import Podman
from tuneplane.domain.frames import Progress
from tuneplane.domain.member_table import NodePhase
from tuneplane.domain.node_member import observation
from tuneplane.domain.plan import MemberPlan
from tuneplane.wire.node_codec import decode_node_frame, encode_node_frame

pytestmark = pytest.mark.container

GRACE_SECONDS = 6.0
OVERHEAD_SECONDS = 30.0  # to start three times, find, kill and confirm on a very busy machine
DEAF = "trap 'echo told >> $TUNEPLANE_OUTPUT_DIR/told' TERM; touch $TUNEPLANE_OUTPUT_DIR/up; while true; do sleep 0.05; done"


async def _run(node: TestNode, plan: MemberPlan) -> None:
    await node.send(prepare(plan))
    await node.until_phase(plan.member, NodePhase.PREPARED)
    await node.send(commit(plan))
    await node.until_phase(plan.member, NodePhase.RUNNING)
    with trio.fail_after(10):
        while not (Path(plan.output_dir) / "up").exists():  # noqa: ASYNC110 - another process makes it
            await trio.sleep(0.02)


async def test_grace_goes_on_over_restarts_of_the_daemon_and_the_signal_is_sent_once(tmp_path: Path, podman: Podman, image: str) -> None:
    """L-E11: three lives of the daemon within one grace; the kill comes when the grace that the first began is over."""
    root = tmp_path / "root"
    root.mkdir()
    plan = make_plan(image, ("sh", "-c", DEAF), storage_root=str(root))
    async with open_node(tmp_path / "state", podman, storage_root=str(root)) as node:
        await _run(node, plan)
        await node.send(stop(plan, grace_seconds=GRACE_SECONDS))
        record = await node.until(plan.member, lambda record: bool(record.grace_boot_id))
        began = time.monotonic()
        told = observation(record, node.core.place(), node.core.progress[plan.member].progress, 1)
        frame = decode_node_frame(encode_node_frame(told))  # a gateway takes it
        assert frame.progress == Progress(phase="stop-unconfirmed")
    for _ in range(2):
        async with open_node(tmp_path / "state", podman, storage_root=str(root)) as node:
            await node.until(plan.member, lambda now: now.revision > record.revision)
            await trio.sleep(GRACE_SECONDS / 6)  # of the grace, not for anything
            seen = node.record(plan.member)
            assert seen is not None
            assert (seen.phase, seen.grace_deadline) == (NodePhase.STOPPING, record.grace_deadline)
    async with open_node(tmp_path / "state", podman, storage_root=str(root)) as node:
        ended = await node.until_clean(plan.member, GRACE_SECONDS + OVERHEAD_SECONDS)
    took = time.monotonic() - began
    assert (ended.exit_code, ended.reason_code) == (137, "stopped")
    assert ended.grace_deadline == record.grace_deadline, "no life of the daemon began a grace of its own"
    assert GRACE_SECONDS - 0.5 < took < GRACE_SECONDS + OVERHEAD_SECONDS
    assert (Path(plan.output_dir) / "told").read_text().split() == ["told"]
