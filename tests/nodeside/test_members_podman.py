"""Members on a real Podman: the ordinary path, and what users' containers do."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
import trio

from tests.nodeside.harness import (
    commit,
    containers_of,
    forget,
    make_plan,
    open_node,
    prepare,
    run_to_end,
    stop,
)
from tests.support.podman import Podman
from tests.support.registry import Registry
from tuneplane.domain.ids import container_name
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.member_table import NodePhase
from tuneplane.domain.node_member import LABEL_FENCE, LABEL_MEMBER, LABEL_NODE
from tuneplane.domain.plan import plan_bytes

pytestmark = pytest.mark.container


async def test_member_prepared_and_committed_runs_and_ends_with_its_exit_code(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-LCH-04, R-LCH-14: nothing exists before the commit; ended, its log is kept and its container is gone."""
    root = tmp_path / "storage"
    root.mkdir()
    script = 'cat /tuneplane/plan/plan.json >"$TUNEPLANE_OUTPUT_DIR/plan"; echo "$WHO $TUNEPLANE_MEMBER"; echo err >&2; pwd; exit 7'
    plan = make_plan(image, ("sh", "-c", script), storage_root=str(root), workdir="/tmp")
    async with open_node(tmp_path / "state", podman, storage_root=str(root)) as node:
        assert (await node.send(prepare(plan))).accepted
        await node.until_phase(plan.member, NodePhase.PREPARED)
        assert containers_of(podman, plan) == []
        assert (await node.send(commit(plan))).accepted
        record = await node.until_clean(plan.member)
        assert (record.phase, record.exit_code, record.oom_killed, record.reason_code) == (NodePhase.TERMINATED, 7, False, "")
        assert record.started_at is not None
        assert record.ended_at is not None
        lines = (await node.log_bytes(plan.member)).splitlines()
        assert sorted(lines) == sorted([f"me {plan.member}".encode(), b"err", b"/tmp"])
    assert containers_of(podman, plan) == []
    assert (root / "out" / plan.job / "plan").read_bytes() == plan_bytes(plan)
    assert not (tmp_path / "state" / "members" / plan.member).exists()


async def test_member_container_has_its_limits_labels_and_no_new_privileges(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-LCH-07: CPU and memory limits are the container's; L-C6: it is never restarted by the runtime."""
    plan = make_plan(image, ("sleep", "100"), cpu_millis=1500, memory_bytes=128 << 20)
    async with open_node(tmp_path / "state", podman) as node:
        await node.send(prepare(plan))
        await node.until_phase(plan.member, NodePhase.PREPARED)
        await node.send(commit(plan))
        await node.until_phase(plan.member, NodePhase.RUNNING)
        seen = json.loads(podman.run("inspect", container_name(plan.member)))[0]
        host = seen["HostConfig"]
        assert (host["NanoCpus"], host["Memory"], host["MemorySwap"]) == (1_500_000_000, 128 << 20, 128 << 20)
        assert host["RestartPolicy"]["Name"] in ("", "no")
        assert "no-new-privileges" in host["SecurityOpt"]
        assert host["NetworkMode"] == "host"
        assert seen["Config"]["Labels"]["io.tuneplane.member"] == plan.member
        assert seen["Config"]["Labels"]["io.tuneplane.node"] == "node-1"
        assert [m["RW"] for m in seen["Mounts"] if m["Destination"] == "/tuneplane/plan"] == [False]
        await node.send(stop(plan))
        await node.until_clean(plan.member)


async def test_member_that_ends_before_the_first_look_keeps_its_exit_code(tmp_path: Path, podman: Podman, image: str) -> None:
    plan = make_plan(image, ("sh", "-c", "exit 3"))
    async with open_node(tmp_path / "state", podman) as node:
        record = await run_to_end(node, plan)
    assert (record.phase, record.exit_code, record.reason_code) == (NodePhase.TERMINATED, 3, "")


async def test_member_whose_command_does_not_exist_is_aborted_with_the_reason(tmp_path: Path, podman: Podman, image: str) -> None:
    plan = make_plan(image, ("/no/such/program", "--x"))
    async with open_node(tmp_path / "state", podman) as node:
        record = await run_to_end(node, plan)
    assert (record.phase, record.reason_code, record.exit_code) == (NodePhase.ABORTED, "start-failed", None)
    assert "/no/such/program" in record.reason_detail
    assert containers_of(podman, plan) == []


async def test_member_whose_image_digest_is_unknown_is_aborted_at_prepare(tmp_path: Path, podman: Podman, image: str) -> None:
    plan = make_plan(image[:-8] + "00000000", ("true",))
    async with open_node(tmp_path / "state", podman) as node:
        await node.send(prepare(plan))
        record = await node.until_clean(plan.member)
        assert (record.phase, record.reason_code) == (NodePhase.ABORTED, "image-unavailable")
        assert "manifest unknown" in record.reason_detail
        late = await node.send(commit(plan))
        assert (late.accepted, late.code) == (False, "tombstone")


async def test_labels_of_an_image_do_not_hide_its_container(tmp_path: Path, podman: Podman, registry: Registry) -> None:
    """P-07, R-LCH-14: images bring labels of their own; one that is labelled as a fence is watched, stopped and removed all the same."""
    from tests.support.images import busybox_layer, image_archive

    labels = dict.fromkeys((LABEL_FENCE, LABEL_MEMBER, LABEL_NODE), "1")
    archive = image_archive(tmp_path / "posing.tar", "localhost/posing:1", busybox_layer(), ["sh"], labels)
    plan = make_plan(registry.push(archive, "t/posing:1"), ("sh", "-c", 'trap "exit 5" TERM; while :; do sleep 0.05; done'))
    async with open_node(tmp_path / "state", podman) as node:
        await node.send(prepare(plan))
        await node.until_phase(plan.member, NodePhase.PREPARED)
        await node.send(commit(plan))
        await node.until_phase(plan.member, NodePhase.RUNNING)
    async with open_node(tmp_path / "state", podman) as node:
        await node.send(stop(plan))
        record = await node.until_clean(plan.member)
        assert record.phase is NodePhase.TERMINATED
        assert record.reason_code == "stopped"
    assert containers_of(podman, plan) == []


async def test_member_whose_registry_is_down_is_prepared_when_it_returns(tmp_path: Path, podman: Podman, registry: Registry) -> None:
    """L-K3: a registry that does not answer is asked again; an image that does not exist is not."""
    from tests.support.images import busybox_layer, image_archive

    other = registry.push(image_archive(tmp_path / "other.tar", "localhost/other:1", busybox_layer({"x": b"1"}), ["sh"]), "t/other:1")
    registry.kill()
    plan = make_plan(other, ("true",))
    async with open_node(tmp_path / "state", podman) as node:
        await node.send(prepare(plan))
        await node.until(plan.member, lambda _: plan.member in node.core.progress)
        registry.start()
        record = await node.until_phase(plan.member, NodePhase.PREPARED)
        assert record.reason_code == ""


@pytest.mark.seconds(60)
async def test_member_whose_output_is_any_bytes_is_captured_exactly(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-LCH-13, L-E3: not UTF-8, zero bytes, carriage returns."""
    script = r"i=0; while [ $i -lt 256 ]; do printf \\$(printf %03o $i); i=$((i+1)); done; printf '\n\377\376\000x\ry\n'"
    plan = make_plan(image, ("sh", "-c", script))
    async with open_node(tmp_path / "state", podman) as node:
        await run_to_end(node, plan)
        assert await node.log_bytes(plan.member) == bytes(range(256)) + b"\n\xff\xfe\x00x\ry\n"


async def test_member_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-LCH-12."""
    plan = make_plan(image, ("sh", "-c", 'trap "" TERM; echo up; while :; do sleep 1; done'))
    async with open_node(tmp_path / "state", podman) as node:
        await node.send(prepare(plan))
        await node.until_phase(plan.member, NodePhase.PREPARED)
        await node.send(commit(plan))
        await node.until_phase(plan.member, NodePhase.RUNNING)
        begun = time.monotonic()
        assert (await node.send(stop(plan, grace_seconds=1.0))).accepted
        record = await node.until_phase(plan.member, NodePhase.TERMINATED)
        took = time.monotonic() - begun
        assert (record.exit_code, record.reason_code) == (137, "stopped")
        assert 1.0 <= took < 6.0
        await node.until_clean(plan.member)


async def test_member_stopped_ends_by_its_own_handler_within_grace(tmp_path: Path, podman: Podman, image: str) -> None:
    plan = make_plan(image, ("sh", "-c", 'trap "exit 5" TERM; while :; do sleep 0.05; done'))
    async with open_node(tmp_path / "state", podman) as node:
        await node.send(prepare(plan))
        await node.until_phase(plan.member, NodePhase.PREPARED)
        await node.send(commit(plan))
        await node.until_phase(plan.member, NodePhase.RUNNING)
        await node.send(stop(plan, grace_seconds=15))
        record = await node.until_phase(plan.member, NodePhase.TERMINATED, seconds=10)
        assert (record.exit_code, record.reason_code) == (5, "stopped")
        await node.until_clean(plan.member)


async def test_member_that_uses_too_much_memory_is_reported_as_oom_killed(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-LCH-07."""
    plan = make_plan(image, ("sh", "-c", "exec tail -c 200m /dev/zero"), memory_bytes=20 << 20)
    async with open_node(tmp_path / "state", podman) as node:
        record = await run_to_end(node, plan)
    assert (record.exit_code, record.oom_killed) == (137, True)


async def test_member_forgotten_leaves_neither_log_nor_record(tmp_path: Path, podman: Podman, image: str) -> None:
    """P-06: tombstones go on an explicit Forget only."""
    plan = make_plan(image, ("echo", "hi"))
    async with open_node(tmp_path / "state", podman) as node:
        await run_to_end(node, plan)
        assert await node.log_bytes(plan.member) == b"hi\n"
        assert (await node.send(forget(plan))).accepted
        await node.until_gone(plan.member)
        assert (await node.send(forget(plan))).accepted
    assert list((tmp_path / "state" / "logs").iterdir()) == []


async def test_wait_for_a_container_that_runs_on_is_no_unclear_call(tmp_path: Path, podman: Podman, image: str) -> None:
    """Podman answers a wait with nothing at all until the end: that silence is not an engine that hangs."""
    plan = make_plan(image, ("sleep", "100"))
    async with open_node(tmp_path / "state", podman, call_seconds=1.0) as node:
        await node.send(prepare(plan))
        await node.until_phase(plan.member, NodePhase.PREPARED)
        await node.send(commit(plan))
        record = await node.until_phase(plan.member, NodePhase.RUNNING)
        with trio.move_on_after(2.0) as waited:
            await node.core.engine.wait_ended(record.container_id)
        assert waited.cancelled_caught
        await node.send(stop(plan))
        await node.until_clean(plan.member)


async def test_member_whose_leased_port_something_listens_on_is_aborted_at_prepare_and_names_it(
    tmp_path: Path, podman: Podman, image: str
) -> None:
    """L-H3, R-PLC-05: before anything is pulled or created."""
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        port = foreign.getsockname()[1]
        plan = make_plan(image, ("true",), ports=(port,), main_port=port)
        budgets = Budgets(cpu_millis=64_000, memory_bytes=64 << 30, gpu_indexes=(), port_first=1024, port_last=65535)
        async with open_node(tmp_path / "state", podman, budgets=budgets) as node:
            await node.send(prepare(plan))
            record = await node.until_clean(plan.member)
    assert (record.phase, record.reason_code) == (NodePhase.ABORTED, "port-taken")
    assert str(port) in record.reason_detail
    assert containers_of(podman, plan) == []


async def test_member_whose_interface_is_not_there_is_aborted_at_prepare(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-LCH-11."""
    plan = make_plan(image, ("true",), interface="bond7", world=2, address="10.1.0.1")
    async with open_node(tmp_path / "state", podman) as node:
        await node.send(prepare(plan))
        record = await node.until_clean(plan.member)
    assert (record.phase, record.reason_code) == (NodePhase.ABORTED, "no-interface")
    assert "bond7" in record.reason_detail


async def test_member_that_was_prepared_and_stopped_refuses_the_commit_that_comes_after_a_restart_too(
    tmp_path: Path, podman: Podman, image: str
) -> None:
    """L-H11, P-10: the rest of its gang was stopped with it; however late the Commit is, nothing starts."""
    plan = make_plan(image, ("true",), world=8, rank=7)
    async with open_node(tmp_path / "state", podman) as node:
        await node.send(prepare(plan))
        await node.until(plan.member, lambda record: record.phase is NodePhase.PREPARED)
        await node.send(stop(plan))
        await node.until_clean(plan.member)
    async with open_node(tmp_path / "state", podman) as node:
        late = await node.send(commit(plan))
        assert (late.accepted, late.code) == (False, "tombstone")
        assert (await node.until_clean(plan.member)).phase is NodePhase.ABORTED
    assert containers_of(podman, plan) == []
