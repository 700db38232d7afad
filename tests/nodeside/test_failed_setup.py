"""A set-up that fails at any of its steps leaves nothing (L-C10, R-LCH-14): no container, directory, port or hold."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.nodeside.harness import containers_of, make_plan, open_node, prepare, run_to_end
from tests.support.podman import Podman
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.member_table import HOLDING, NodePhase
from tuneplane.domain.plan import MemberPlan

pytestmark = pytest.mark.container

Break = Callable[[MemberPlan, Path], dict[str, Any]]


def _output_is_a_file(plan: MemberPlan, root: Path) -> dict[str, Any]:
    (root / "file").write_text("in the way")
    return {"output_dir": f"{root}/file/out"}


def _no_such_interface(plan: MemberPlan, root: Path) -> dict[str, Any]:
    return {"interface": "nosuch0"}


def _no_such_image(plan: MemberPlan, root: Path) -> dict[str, Any]:
    return {"image": plan.image[:-8] + "00000000"}


def _no_such_program(plan: MemberPlan, root: Path) -> dict[str, Any]:
    return {"command": ("/no/such/program",)}


def _card_that_no_driver_has(plan: MemberPlan, root: Path) -> dict[str, Any]:
    return {"gpu_uuids": ("GPU-none",)}


STEPS: dict[str, tuple[Break, str]] = {
    "budget": (_card_that_no_driver_has, "over-budget"),
    "directories": (_output_is_a_file, "storage-unavailable"),
    "network": (_no_such_interface, "no-interface"),
    "image": (_no_such_image, "image-unavailable"),
    "start": (_no_such_program, "start-failed"),
}


def _one_port(port: int) -> Budgets:
    return Budgets(cpu_millis=64_000, memory_bytes=64 << 30, gpu_indexes=(), port_first=port, port_last=port)


@pytest.mark.parametrize("step", STEPS)
async def test_set_up_that_fails_leaves_nothing_behind(tmp_path: Path, podman: Podman, image: str, step: str) -> None:
    """L-C10: what the failed member had leased can be leased at once by the next one, which then runs."""
    root = tmp_path / "storage"
    root.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    base = make_plan(image, ("true",), storage_root=str(root))
    breaks, reason = STEPS[step]
    broken = make_plan(**{"image": image, "command": ("true",), "storage_root": str(root), "ports": (port,), **breaks(base, root)})
    async with open_node(tmp_path / "state", podman, storage_root=str(root), budgets=_one_port(port)) as node:
        record = await run_to_end(node, broken)
        assert (record.phase, record.reason_code) == (NodePhase.ABORTED, reason), record
        assert containers_of(podman, broken) == []
        assert not node.core.member_dir(broken.member).exists()
        assert broken.member not in node.core.progress
        assert [each for each in node.core.journal.members() if each.phase in HOLDING] == []
        healthy = make_plan(image, ("true",), storage_root=str(root), ports=(port,))
        assert (await run_to_end(node, healthy)).exit_code == 0


async def test_port_that_something_else_listens_on_is_left_to_it(tmp_path: Path, podman: Podman, image: str) -> None:
    """L-C10: the member goes, the listener stays."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        plan = make_plan(image, ("true",), ports=(port,))
        async with open_node(tmp_path / "state", podman, budgets=_one_port(port)) as node:
            assert (await node.send(prepare(plan))).accepted
            record = await node.until_clean(plan.member)
            assert (record.phase, record.reason_code) == (NodePhase.ABORTED, "port-taken")
            assert not node.core.member_dir(plan.member).exists()
        assert listener.getsockname()
