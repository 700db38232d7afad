"""The daemon dies, or loses an answer, at every fault point of a member's life; a fresh one goes on over what is left.

What is checked comes from the workload and the runtime, not from our tables: how often it started (R-LCH-02), what is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.nodeside.harness import TestNode, commit, containers_of, make_plan, open_node, prepare, private, stop
from tests.support.podman import Podman
from tuneplane.domain.faultpoint import FAULT_POINTS, AnswerLost, install_fault_hook
from tuneplane.domain.frames import Command
from tuneplane.domain.member_table import ENDED, NodePhase
from tuneplane.domain.node_member import LABEL_FENCE, LABEL_MEMBER, NodeMember
from tuneplane.domain.plan import MemberPlan

pytestmark = [pytest.mark.container, pytest.mark.seconds(60)]

LIFE = [
    "node.journal.preparing",
    "node.plan.write",
    "node.storage.mkdir",
    "node.journal.prepared",
    "node.journal.creating",
    "node.engine.create",
    "node.journal.starting",
    "node.engine.start",
    "node.journal.running",
    "node.logs.append",
    "node.journal.terminated",
    "node.logs.finish",
    "node.engine.remove",
    "node.plan.delete",
    "node.journal.cleaned",
]
STOPPED = ["node.journal.stopping", "node.engine.signal", "node.journal.terminated", "node.engine.remove", "node.journal.cleaned"]
WITHDRAWN = ["node.journal.withdrawn", "node.journal.aborted", "node.journal.cleaned"]


class Died(BaseException):
    """Stands for SIGKILL: nothing of ours handles it."""


class Fault:
    """Strikes once, at the n-th pass of one point."""

    def __init__(self, name: str, moment: str) -> None:
        self.name, self.moment, self.struck = name, moment, False

    def __call__(self, name: str, moment: str) -> None:
        if self.struck or name != self.name or moment != ("after" if self.moment == "lost" else self.moment):
            return
        self.struck = True
        raise AnswerLost(f"the answer of {name} was lost") if self.moment == "lost" else Died(f"{moment} {name}")


@contextmanager
def armed(name: str, moment: str) -> Iterator[Fault]:
    assert name in FAULT_POINTS
    fault = Fault(name, moment)
    install_fault_hook(fault)
    try:
        yield fault
    finally:
        install_fault_hook(None)


async def insist(node: TestNode, command: Command) -> None:
    """Send until answered, as a gateway does."""
    for _ in range(3):
        try:
            await node.send(command)
            return
        except AnswerLost:
            continue
    raise AssertionError(f"{command.operation} was never answered")


async def whole_life(node: TestNode, plan: MemberPlan, *, stopped: bool) -> NodeMember:
    """What the control plane asks, in its order, each command again and again until it is answered."""
    await insist(node, prepare(plan))
    await node.until(plan.member, lambda record: record.phase is not NodePhase.PREPARING)
    await insist(node, commit(plan))
    if stopped:
        await node.until(plan.member, lambda record: record.phase is NodePhase.RUNNING or record.phase in ENDED)
        await insist(node, stop(plan, grace_seconds=10))
    return await node.until_clean(plan.member)


async def live_twice(tmp_path: Path, podman: Podman, plan: MemberPlan, fault: Fault, *, stopped: bool) -> NodeMember:
    root = str(tmp_path / "storage")
    try:
        async with open_node(tmp_path / "state", podman, storage_root=root) as node:
            return await whole_life(node, plan, stopped=stopped)
    except BaseExceptionGroup as group:
        died, rest = group.split(Died)
        if rest is not None:
            raise
        assert died is not None
    except Died:
        pass
    assert fault.struck
    async with open_node(tmp_path / "state", podman, storage_root=root) as node:
        return await whole_life(node, plan, stopped=stopped)


def starts(tmp_path: Path, plan: MemberPlan) -> int:
    path = tmp_path / "storage" / f"{plan.member}.starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def workload(image: str, tmp_path: Path, then: str) -> MemberPlan:
    root = private(tmp_path / "storage")
    return make_plan(image, ("sh", "-c", f'echo started >>"{root}/$TUNEPLANE_MEMBER.starts"; echo out; {then}'), storage_root=str(root))


def no_workload_left(podman: Podman, plan: MemberPlan) -> bool:
    left = podman.containers(f"{LABEL_MEMBER}={plan.member}")
    return all(c["Labels"].get(LABEL_FENCE) and c["State"] == "created" for c in left)  # type: ignore[attr-defined]


@pytest.mark.parametrize("moment", ["before", "after", "lost"])
@pytest.mark.parametrize("name", LIFE)
async def test_member_whose_daemon_fails_once_starts_at_most_once_and_ends(
    tmp_path: Path, podman: Podman, image: str, name: str, moment: str
) -> None:
    """P-01, P-03, P-04, R-LCH-02, R-LCH-04, L-C5."""
    plan = workload(image, tmp_path, "exit 3")
    with armed(name, moment) as fault:
        record = await live_twice(tmp_path, podman, plan, fault, stopped=False)
        assert fault.struck
    count = starts(tmp_path, plan)
    assert count <= 1
    assert no_workload_left(podman, plan)
    if record.phase is NodePhase.TERMINATED and not record.reason_code:
        assert (record.exit_code, count) == (3, 1)
    else:
        assert record.reason_code == "lost" or (record.phase is NodePhase.ABORTED and count == 0)


@pytest.mark.parametrize("moment", ["before", "after", "lost"])
@pytest.mark.parametrize("name", STOPPED)
async def test_member_being_stopped_whose_daemon_fails_once_ends_stopped(
    tmp_path: Path, podman: Podman, image: str, name: str, moment: str
) -> None:
    """R-LCH-12: a stop survives the daemon."""
    plan = workload(image, tmp_path, 'trap "exit 5" TERM; while :; do sleep 0.05; done')
    with armed(name, moment) as fault:
        record = await live_twice(tmp_path, podman, plan, fault, stopped=True)
        assert fault.struck
    assert starts(tmp_path, plan) == 1
    assert (record.phase, record.reason_code) == (NodePhase.TERMINATED, "stopped")
    assert record.exit_code in (5, 143)  # SIGTERM may come before the shell has set its trap
    assert containers_of(podman, plan) == []


@pytest.mark.parametrize("moment", ["before", "after", "lost"])
@pytest.mark.parametrize("name", WITHDRAWN)
async def test_stop_before_prepare_whose_daemon_fails_once_leaves_a_tombstone(
    tmp_path: Path, podman: Podman, image: str, name: str, moment: str
) -> None:
    """P-02: the Prepare that comes late is refused."""
    plan = workload(image, tmp_path, "true")

    async def stop_then_prepare(node: TestNode) -> NodeMember:
        await insist(node, stop(plan))
        record = await node.until_clean(plan.member)
        late = await node.send(prepare(plan))
        assert (late.accepted, late.code) == (False, "tombstone")
        return record

    with armed(name, moment) as fault:
        try:
            async with open_node(tmp_path / "state", podman, storage_root=plan.storage_root) as node:
                record = await stop_then_prepare(node)
        except (Died, BaseExceptionGroup):
            async with open_node(tmp_path / "state", podman, storage_root=plan.storage_root) as node:
                record = await stop_then_prepare(node)
        assert fault.struck
    assert (record.phase, record.reason_code) == (NodePhase.ABORTED, "stopped")
    assert starts(tmp_path, plan) == 0
