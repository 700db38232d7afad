"""Field lessons about clients that come back, on real Podman: L-C1, L-C3, L-C10, L-C12, L-C20."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from tests.nodeside.harness import commit, containers_of, make_plan, open_node, prepare, private, stop
from tests.nodeside.test_recovery_podman import MovableMachine, start_running
from tests.support.podman import Podman
from tuneplane.domain.faultpoint import install_fault_hook
from tuneplane.domain.ids import container_name
from tuneplane.domain.member_table import NodePhase
from tuneplane.domain.node_member import LABEL_FENCE, LABEL_MEMBER

pytestmark = pytest.mark.container

HOUR_SECONDS = 3600.0
SETUP_STEPS = ("node.plan.write", "node.storage.mkdir", "node.engine.pull")


@pytest.fixture(autouse=True)
def no_hook_stays() -> Iterator[None]:
    yield
    install_fault_hook(None)


async def test_attempt_that_was_given_up_is_not_started_again_when_its_daemon_returns(tmp_path: Path, podman: Podman, image: str) -> None:
    """L-C1, L-C12: daemon and container are killed, silence outlasts every deadline, the daemon returns: no start, and evidence."""
    root = private(tmp_path / "storage")
    plan = make_plan(image, ("sh", "-c", f"echo x >>{root}/starts; sleep 1000"), storage_root=str(root))
    async with open_node(tmp_path / "state", podman, machine=MovableMachine(), storage_root=str(root)) as node:
        await start_running(node, plan)
    podman.run("rm", "-f", "-t", "0", container_name(plan.member))
    later = MovableMachine(skipped_seconds=HOUR_SECONDS)
    async with open_node(tmp_path / "state", podman, machine=later, storage_root=str(root)) as node:
        record = await node.until_clean(plan.member)
        assert (record.phase, record.reason_code) == (NodePhase.TERMINATED, "lost")
        for again in (commit(plan, operation="commit-late"), evolve(prepare(plan), operation=f"{plan.member}:prepare-late")):  # type: ignore[arg-type]
            await node.send(again)
        assert (await node.until_clean(plan.member)).phase is NodePhase.TERMINATED
    assert (root / "starts").read_text() == "x\n"
    assert [bool(c["Labels"].get(LABEL_FENCE)) for c in podman.containers(f"{LABEL_MEMBER}={plan.member}")] == [True]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fate", "end"),
    [
        ("running", (NodePhase.RUNNING, None, "")),
        ("exited-0", (NodePhase.TERMINATED, 0, "")),
        ("exited-1", (NodePhase.TERMINATED, 1, "")),
        ("missing", (NodePhase.TERMINATED, None, "lost")),
        ("rebooted", (NodePhase.TERMINATED, None, "lost")),
    ],
)
async def test_what_became_of_a_member_meanwhile_is_told_at_the_return(
    tmp_path: Path, podman: Podman, image: str, fate: str, end: tuple[NodePhase, int | None, str]
) -> None:
    """L-C3: the whole matrix; every one ends in a state that is true, and the running one is adopted, not started."""
    root = private(tmp_path / "storage")
    script = f"echo x >>{root}/starts; while ! [ -e {root}/go ]; do sleep 0.05; done; exit $(cat {root}/go)"
    plan = make_plan(image, ("sh", "-c", script), storage_root=str(root))
    machine = MovableMachine()
    async with open_node(tmp_path / "state", podman, machine=machine, storage_root=str(root)) as node:
        await start_running(node, plan)
    _befall(podman, plan.member, root, fate)
    if fate == "rebooted":
        machine = MovableMachine(boot="boot-b")
    async with open_node(tmp_path / "state", podman, machine=machine, storage_root=str(root)) as node:
        record = await (node.until_phase(plan.member, NodePhase.RUNNING) if fate == "running" else node.until_clean(plan.member))
        assert (record.phase, record.exit_code, record.reason_code) == end
        if fate == "running":
            await node.send(stop(plan))
            await node.until_clean(plan.member)
    assert (root / "starts").read_text() == "x\n"


def _befall(podman: Podman, member: str, root: Path, fate: str) -> None:
    name = container_name(member)  # type: ignore[arg-type]
    if fate in ("exited-0", "exited-1"):
        (root / "go").write_text(fate[-1])
        podman.run("wait", name)
    elif fate == "missing":
        podman.run("rm", "-f", "-t", "0", name)
    elif fate == "rebooted":
        podman.run("kill", name)
        podman.run("wait", name)


@pytest.mark.parametrize("step", SETUP_STEPS)
async def test_preparation_that_fails_at_any_step_leaves_nothing_once_it_is_stopped(
    tmp_path: Path, podman: Podman, image: str, step: str
) -> None:
    """L-C10: no container, no plan directory, no reservation."""
    root = private(tmp_path / "storage")
    plan = make_plan(image, ("true",), storage_root=str(root))
    failed: list[str] = []

    def fail(name: str, moment: str) -> None:
        if (name, moment) == (step, "before"):
            failed.append(name)
            raise OSError(f"the test fails {step}")

    async with open_node(tmp_path / "state", podman, storage_root=str(root)) as node:
        if step == "node.engine.pull":
            podman.run("rmi", "-f", image, check=False)
        install_fault_hook(fail)
        await node.send(prepare(plan))
        await node.until(plan.member, lambda record: bool(failed) or record.phase is not NodePhase.PREPARING)
        assert failed
        install_fault_hook(None)
        await node.send(stop(plan))
        record = await node.until_clean(plan.member)
        assert record.phase is NodePhase.ABORTED
        assert not node.core.member_dir(plan.member).exists()
    assert containers_of(podman, plan) == []
