"""What a fresh daemon makes of a runtime that changed behind its back, and what runs into each other."""

from __future__ import annotations

import random
import resource
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, evolve, field

from tests.nodeside.harness import (
    TestNode,
    commit,
    containers_of,
    forget,
    make_plan,
    open_node,
    prepare,
    private,
    run_to_end,
    stop,
)
from tests.support.podman import Podman
from tuneplane.domain.ids import MemberId, OperationId, container_name
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.member_table import ENDED, NodePhase
from tuneplane.domain.node_member import LABEL_FENCE, LABEL_MEMBER
from tuneplane.domain.plan import MemberPlan
from tuneplane.nodeside.machine import LinuxMachine
from tuneplane.nodeside.strangers import find_strangers

pytestmark = pytest.mark.container


@define(eq=False)
class MovableMachine:
    """This machine, as it would be after a reboot or a long suspend."""

    boot: str = "boot-a"
    skipped_seconds: float = 0.0
    here: LinuxMachine = field(factory=LinuxMachine)

    def boot_id(self) -> str:
        return self.boot

    def machine_id(self) -> str:
        return self.here.machine_id()

    def boot_seconds(self) -> float:
        return self.here.boot_seconds() + self.skipped_seconds

    def now(self) -> datetime:
        return self.here.now()


async def start_running(node: TestNode, plan: MemberPlan) -> None:
    await node.send(prepare(plan))
    await node.until_phase(plan.member, NodePhase.PREPARED)
    await node.send(commit(plan))
    await node.until_phase(plan.member, NodePhase.RUNNING)


async def test_container_removed_behind_the_daemons_back_ends_lost_and_is_fenced(tmp_path: Path, podman: Podman, image: str) -> None:
    """L-C12, P-03: absent is fenced, then lost; Forget takes the fence away."""
    plan = make_plan(image, ("sleep", "1000"))
    async with open_node(tmp_path / "state", podman) as node:
        await start_running(node, plan)
        podman.run("rm", "-f", "-t", "0", container_name(plan.member))
        record = await node.until_clean(plan.member)
        assert (record.phase, record.reason_code, record.exit_code) == (NodePhase.TERMINATED, "lost", None)
        fence = podman.containers(f"{LABEL_MEMBER}={plan.member}")
        assert [(c["State"], bool(c["Labels"].get(LABEL_FENCE))) for c in fence] == [("created", True)]  # type: ignore[attr-defined]
        await node.send(forget(plan))
        await node.until_gone(plan.member)
    assert containers_of(podman, plan) == []


async def test_container_removed_while_the_daemon_is_down_ends_lost(tmp_path: Path, podman: Podman, image: str) -> None:
    plan = make_plan(image, ("sleep", "1000"))
    async with open_node(tmp_path / "state", podman) as node:
        await start_running(node, plan)
    podman.run("rm", "-f", "-t", "0", container_name(plan.member))
    async with open_node(tmp_path / "state", podman) as node:
        record = await node.until_clean(plan.member)
    assert (record.phase, record.reason_code) == (NodePhase.TERMINATED, "lost")


async def test_exit_found_after_a_reboot_is_lost_whatever_code_the_runtime_shows(tmp_path: Path, podman: Podman, image: str) -> None:
    """P-04, L-C6, L-C7: success needs our own evidence."""
    root = private(tmp_path / "storage")
    plan = make_plan(image, ("sh", "-c", f"while ! [ -e {root}/go ]; do sleep 0.02; done; exit 0"), storage_root=str(root))
    async with open_node(tmp_path / "state", podman, machine=MovableMachine(), storage_root=str(root)) as node:
        await start_running(node, plan)
    (root / "go").touch()
    podman.run("wait", container_name(plan.member))
    async with open_node(tmp_path / "state", podman, machine=MovableMachine(boot="boot-b"), storage_root=str(root)) as node:
        record = await node.until_clean(plan.member)
    assert (record.phase, record.reason_code, record.exit_code) == (NodePhase.TERMINATED, "lost", None)
    assert "reboot" in record.reason_detail


async def test_success_journalled_before_the_container_was_pruned_stays_success(tmp_path: Path, podman: Podman, image: str) -> None:
    """L-C17."""
    plan = make_plan(image, ("true",))
    async with open_node(tmp_path / "state", podman) as node:
        await run_to_end(node, plan)
    async with open_node(tmp_path / "state", podman, machine=MovableMachine(boot="boot-z")) as node:
        record = node.record(plan.member)
    assert record is not None
    assert (record.phase, record.exit_code, record.reason_code) == (NodePhase.TERMINATED, 0, "")


async def test_reservation_found_after_a_reboot_is_a_tombstone(tmp_path: Path, podman: Podman, image: str) -> None:
    """P-08: a hold is timed on the boot's own clock."""
    plan = make_plan(image, ("true",))
    async with open_node(tmp_path / "state", podman, machine=MovableMachine()) as node:
        await node.send(prepare(plan))
        await node.until_phase(plan.member, NodePhase.PREPARED)
    async with open_node(tmp_path / "state", podman, machine=MovableMachine(boot="boot-b")) as node:
        record = await node.until_clean(plan.member)
        assert (record.phase, record.reason_code) == (NodePhase.ABORTED, "hold-expired")


async def test_hold_that_runs_out_refuses_the_late_commit(tmp_path: Path, podman: Podman, image: str) -> None:
    """P-08, P-10, L-H11."""
    plan = make_plan(image, ("true",))
    async with open_node(tmp_path / "state", podman) as node:
        await node.send(prepare(plan, hold_seconds=0.5))
        record = await node.until_clean(plan.member)
        assert (record.phase, record.reason_code) == (NodePhase.ABORTED, "hold-expired")
        late = await node.send(commit(plan))
        assert (late.accepted, late.code) == (False, "tombstone")
        again = await node.send(evolve(prepare(plan), operation=f"{plan.member}:prepare-2"))  # type: ignore[arg-type]
        assert (again.accepted, again.code) == (False, "tombstone")
    assert containers_of(podman, plan) == []


async def test_hold_runs_out_though_the_registry_never_answers(tmp_path: Path, podman: Podman, image: str) -> None:
    """P-08: a preparation that hangs keeps neither capacity nor a place for a Commit beyond its hold."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        plan = make_plan(f"127.0.0.1:{silent.getsockname()[1]}/t/{image.rsplit('/', 1)[1]}", ("true",))
        async with open_node(tmp_path / "state", podman) as node:
            await node.send(prepare(plan, hold_seconds=1.0))
            await node.until(plan.member, lambda _: plan.member in node.core.progress)
            record = await node.until_clean(plan.member)
            assert (record.phase, record.reason_code) == (NodePhase.ABORTED, "hold-expired")
            late = await node.send(commit(plan))
            assert (late.accepted, late.code) == (False, "tombstone")


async def test_hold_keeps_running_out_while_the_machine_sleeps(tmp_path: Path, podman: Podman, image: str) -> None:
    """P-08: CLOCK_BOOTTIME, not the monotonic clock."""
    plan = make_plan(image, ("true",))
    machine = MovableMachine()
    async with open_node(tmp_path / "state", podman, machine=machine) as node:
        await node.send(prepare(plan, hold_seconds=3600))
        await node.until_phase(plan.member, NodePhase.PREPARED)
        machine.skipped_seconds = 3601
        record = await node.until_clean(plan.member)
    assert record.reason_code == "hold-expired"


async def test_same_operation_twice_is_answered_alike_and_done_once(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-LCH-02."""
    root = private(tmp_path / "storage")
    plan = make_plan(image, ("sh", "-c", f"echo x >>{root}/starts"), storage_root=str(root))
    async with open_node(tmp_path / "state", podman, storage_root=str(root)) as node:
        first = [await node.send(prepare(plan)) for _ in range(3)]
        await node.until_phase(plan.member, NodePhase.PREPARED)
        second = [await node.send(commit(plan)) for _ in range(3)]
        await node.until_clean(plan.member)
        third = [await node.send(commit(plan)), await node.send(commit(plan, operation="commit-again"))]
        assert all(answer.accepted for answer in first + second + third)
        record = node.record(plan.member)
        assert (root / "starts").exists(), record
    assert (root / "starts").read_text() == "x\n"


async def test_container_of_others_under_a_members_name_is_not_touched(tmp_path: Path, podman: Podman, image: str) -> None:
    """L-C13."""
    plan = make_plan(image, ("true",))
    podman.run("pull", "-q", "--tls-verify=false", image)
    podman.run("run", "-d", "--network=host", "--name", container_name(plan.member), "--label", f"{LABEL_MEMBER}=x", image, "sleep", "99")
    async with open_node(tmp_path / "state", podman) as node:
        record = await run_to_end(node, plan)
        assert (record.phase, record.reason_code) == (NodePhase.ABORTED, "name-taken")
        await node.send(forget(plan))
        await node.until_gone(plan.member)
    left = [c for c in podman.containers() if container_name(plan.member) in c["Names"]]  # type: ignore[operator]
    assert [c["State"] for c in left] == ["running"]
    podman.run("rm", "-f", "-t", "0", container_name(plan.member))


async def test_container_that_a_lost_journal_knew_is_reported_and_only_a_stop_ends_it(tmp_path: Path, podman: Podman, image: str) -> None:
    """P-02, P-07: an unknown container of ours is never killed by itself."""
    plan = make_plan(image, ("sh", "-c", 'trap "exit 0" TERM; while :; do sleep 0.05; done'))
    async with open_node(tmp_path / "state", podman) as node:
        await start_running(node, plan)
    async with open_node(tmp_path / "other-state", podman) as node:
        [stranger], problems = await find_strangers(node.core)
        assert (stranger.member, stranger.name, stranger.image) == (plan.member, container_name(plan.member), plan.image)
        assert (stranger.gpu_uuids, stranger.cpu_millis, stranger.memory_bytes) == ((), plan.cpu_millis, plan.memory_bytes)
        assert stranger.since is not None
        assert problems == ()
        assert [c["State"] for c in podman.containers(f"{LABEL_MEMBER}={plan.member}")] == ["running"]
        await node.send(stop(plan))
        record = await node.until_clean(plan.member)
        assert record.phase is NodePhase.TERMINATED
    assert containers_of(podman, plan) == []


async def test_unknown_container_that_ends_with_a_code_of_the_ray_runners_is_only_stopped(
    tmp_path: Path, podman: Podman, image: str
) -> None:
    """P-02: the journal is gone, and with it the plan that would say what the code means; the Stop ends it all the same."""
    plan = make_plan(image, ("sh", "-c", 'trap "exit 91" TERM; while :; do sleep 0.05; done'))
    async with open_node(tmp_path / "state", podman) as node:
        await start_running(node, plan)
    async with open_node(tmp_path / "other-state", podman) as node:
        await node.send(stop(plan))
        record = await node.until_clean(plan.member)
        assert (record.phase, record.exit_code, record.reason_code) == (NodePhase.TERMINATED, 91, "stopped")
    assert containers_of(podman, plan) == []


async def test_containers_with_labels_like_ours_are_no_strangers_and_are_never_touched(tmp_path: Path, podman: Podman, image: str) -> None:
    """L-C13: another Node's, one without our label, and one that has only a name like ours."""
    labels = {
        "other-node": (f"{LABEL_MEMBER}=job-x-1-0", "io.tuneplane.node=node-2"),
        "no-node": (f"{LABEL_MEMBER}=job-x-1-0",),
        "look-alike": ("io.tuneplane.node.x=node-1", "tuneplane.node=node-1"),
        "tuneplane-job-x-1-0": (),
        "ours-of-old": ("io.tuneplane.node=node-1", f"{LABEL_MEMBER}=job-y-1-0", "io.tuneplane.cpu-millis=-5"),
    }
    podman.run("pull", "-q", "--tls-verify=false", image)
    for name, given in labels.items():
        flags = [part for label in given for part in ("--label", label)]
        podman.run("run", "-d", "--network=host", "--name", name, *flags, image, "sleep", "99")
    async with open_node(tmp_path / "state", podman) as node:
        [stranger], _ = await find_strangers(node.core)
        assert (stranger.name, stranger.member, stranger.is_known) == ("ours-of-old", "job-y-1-0", False)
        assert (stranger.gpu_uuids, stranger.cpu_millis) == (None, None)  # what its labels do not tell is unknown, not zero
        plan = make_plan(image, ("true",))
        await run_to_end(node, plan)
        await node.send(forget(plan))
        await node.until_gone(plan.member)
    assert {c["State"] for c in podman.containers() if c["Names"][0] in labels} == {"running"}  # type: ignore[index]
    podman.run("rm", "-f", "-t", "0", *labels)


async def test_stranger_ends_by_an_operators_stop_only_and_by_its_own_id_and_label(tmp_path: Path, podman: Podman, image: str) -> None:
    """P-07: the Node looks again itself; a foreign container, a wrong label and a known member are refused."""
    plan = make_plan(image, ("sh", "-c", 'trap "exit 0" TERM; while :; do sleep 0.05; done'))
    podman.run("pull", "-q", "--tls-verify=false", image)
    foreign = podman.run("run", "-d", "--network=host", "--label", f"{LABEL_MEMBER}={plan.member}", image, "sleep", "99").strip()
    async with open_node(tmp_path / "state", podman) as node:
        await start_running(node, plan)
        known = await node.send(evolve(stop(plan), stranger=True, operation=OperationId("s:1")))
        assert (known.accepted, known.code) == (False, "known-member")
    async with open_node(tmp_path / "other-state", podman) as node:
        [stranger], _ = await find_strangers(node.core)
        order = evolve(stop(plan), stranger=True, container=stranger.container)
        for number, wrong in enumerate(({"container": foreign}, {"container": stranger.name}, {"member": MemberId("job-z-1-0")})):
            answer = await node.send(evolve(order, operation=OperationId(f"s:w{number}"), **wrong))  # type: ignore[arg-type]
            assert (answer.accepted, answer.code) == (False, "no-such-stranger")
        assert (await node.send(order)).accepted
        record = await node.until_clean(plan.member)
        assert (record.phase, record.stranger) == (NodePhase.TERMINATED, True)
        assert await find_strangers(node.core) == ((), ())
    assert containers_of(podman, plan) == []
    assert [c["State"] for c in podman.containers() if c["Id"] == foreign] == ["running"]
    podman.run("rm", "-f", "-t", "0", foreign)


async def test_plan_that_no_longer_fits_the_journals_holds_is_a_tombstone(tmp_path: Path, podman: Podman, image: str) -> None:
    """L-D10: the Node asks its own journal again; R-ENR-11: a different storage root names both."""
    budgets = Budgets(cpu_millis=1500, memory_bytes=1 << 30, gpu_indexes=())
    first, second = make_plan(image, ("true",)), make_plan(image, ("true",))
    elsewhere = make_plan(image, ("true",), storage_root="/mnt/else", cpu_millis=1)
    async with open_node(tmp_path / "state", podman, budgets=budgets, storage_root="") as node:
        await node.send(prepare(first))
        await node.until_phase(first.member, NodePhase.PREPARED)
        assert (await node.send(prepare(second))).accepted
        refused = await node.until_clean(second.member)
        assert (refused.phase, refused.reason_code) == (NodePhase.ABORTED, "over-budget")
        assert "500 of 1500 are free" in refused.reason_detail
        await node.send(prepare(elsewhere))
        misled = await node.until_clean(elsewhere.member)
        assert misled.reason_code == "storage-root"
        assert "/mnt/else" in misled.reason_detail


async def test_image_that_vanished_between_prepare_and_commit_aborts_with_the_reason(tmp_path: Path, podman: Podman, image: str) -> None:
    plan = make_plan(image, ("true",))
    async with open_node(tmp_path / "state", podman) as node:
        await node.send(prepare(plan))
        await node.until_phase(plan.member, NodePhase.PREPARED)
        podman.run("rmi", "-f", image)
        await node.send(commit(plan))
        record = await node.until_clean(plan.member)
    assert (record.phase, record.reason_code) == (NodePhase.ABORTED, "image-unavailable")


@pytest.mark.seconds(90)
async def test_stop_at_any_moment_of_a_start_wins_and_leaves_nothing(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-LCH-12, P-01, L-C15: twenty members, each stopped a little later in its start."""
    root = private(tmp_path / "storage")
    dice = random.Random(7)
    async with open_node(tmp_path / "state", podman, storage_root=str(root)) as node:

        async def one(delay: float) -> None:
            plan = make_plan(
                image,
                ("sh", "-c", f'echo x >>"{root}/$TUNEPLANE_MEMBER"; trap "exit 0" TERM; while :; do sleep 0.05; done'),
                storage_root=str(root),
                cpu_millis=10,
            )
            await node.send(prepare(plan))
            await node.until_phase(plan.member, NodePhase.PREPARED)
            await node.send(commit(plan))
            await trio.sleep(delay)
            assert (await node.send(stop(plan, grace_seconds=0.3))).accepted
            record = await node.until_clean(plan.member, seconds=40)
            assert record.phase in ENDED
            marks = (root / plan.member).read_text() if (root / plan.member).exists() else ""
            assert marks == "" if record.phase is NodePhase.ABORTED else len(marks.splitlines()) <= 1
            assert containers_of(podman, plan) == []

        for _ in range(4):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(one, dice.uniform(0, 0.6))


@pytest.mark.seconds(60)
async def test_runtime_killed_and_restarted_while_a_member_runs_loses_neither_exit_code_nor_log(
    tmp_path: Path, podman: Podman, image: str
) -> None:
    """L-C9: conmon keeps the container and its exit code; the log goes on where it was."""
    root = private(tmp_path / "storage")
    script = f"i=0; while ! [ -e {root}/go ]; do echo line $i; i=$((i+1)); sleep 0.02; done; echo last; exit 9"
    plan = make_plan(image, ("sh", "-c", script), storage_root=str(root))
    async with open_node(tmp_path / "state", podman, storage_root=str(root)) as node:
        await start_running(node, plan)
        log = await node.core.logs.log(plan.member)
        await log.wait_grown(100)
        podman.kill()
        podman.start()
        (root / "go").touch()
        record = await node.until_clean(plan.member)
        assert (record.exit_code, record.reason_code) == (9, "")
        lines = (await node.log_bytes(plan.member)).decode().splitlines()
        assert lines[-1] == "last"
        assert lines[:-1] == [f"line {n}" for n in range(len(lines) - 1)]


@pytest.mark.seconds(60)
async def test_frozen_runtime_holds_up_neither_the_answer_to_a_stop_nor_the_truth(tmp_path: Path, podman: Podman, image: str) -> None:
    """P-01: a client time-out is not an outcome. The create that hangs may still happen; the stop is journalled at once."""
    root = private(tmp_path / "storage")
    plan = make_plan(image, ("sh", "-c", f"echo x >>{root}/starts; sleep 100"), storage_root=str(root))
    async with open_node(tmp_path / "state", podman, storage_root=str(root), call_seconds=1.0) as node:
        await node.send(prepare(plan))
        await node.until_phase(plan.member, NodePhase.PREPARED)
        podman.pause()
        try:
            await node.send(commit(plan))
            await trio.sleep(1.5)
            begun = time.monotonic()
            assert (await node.send(stop(plan))).accepted
            assert time.monotonic() - begun < 0.5
        finally:
            podman.resume()
        record = await node.until_clean(plan.member)
        assert (record.phase, record.reason_code) == (NodePhase.ABORTED, "stopped")
        await node.send(forget(plan))
        await node.until_gone(plan.member)
    assert not (root / "starts").exists()
    assert containers_of(podman, plan) == []


@pytest.mark.seconds(120)
async def test_one_line_of_a_hundred_megabytes_is_captured_whole_in_bounded_memory(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-LCH-13, L-E6."""
    size = 100 << 20
    plan = make_plan(image, ("sh", "-c", f"head -c {size} /dev/zero | tr '\\0' a; echo; echo end"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with open_node(tmp_path / "state", podman) as node:
        record = await node_life(node, plan)
        log = await node.core.logs.log(plan.member)
        assert (record.exit_code, log.end) == (0, size + 5)
        assert await log.read(log.end - 10, 100) == b"aaaaa\nend\n"
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10, f"the daemon's memory grew by {grown} KiB"


async def node_life(node: TestNode, plan: MemberPlan) -> Any:
    await node.send(prepare(plan))
    await node.until_phase(plan.member, NodePhase.PREPARED)
    await node.send(commit(plan))
    return await node.until_clean(plan.member, seconds=100)
