"""P-09 on the Node: a journal transaction that raised may have committed. Each in turn loses its answer; nothing hangs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.nodeside.harness import TestNode, commit, containers_of, forget, make_plan, open_node, prepare, stop
from tests.support.podman import Podman
from tuneplane.domain.faultpoint import AnswerLost, install_fault_hook
from tuneplane.domain.frames import Command
from tuneplane.domain.ids import MemberId
from tuneplane.domain.member_table import NodePhase
from tuneplane.domain.plan import MemberPlan

pytestmark = pytest.mark.container

STEPS = ("preparing", "prepared", "creating", "starting", "running", "terminated", "cleaned", "forgotten", "gone")
UNCERTAIN = ("starting",)  # its one effect may have followed for all that the journal says: never repeated, so lost (P-03)
RESEND_SECONDS = 5.0  # a control plane that got no answer sends the operation again; here it need not wait for a session


@pytest.fixture(autouse=True)
def no_hook_stays() -> Iterator[None]:
    yield
    install_fault_hook(None)


def _lose_answer_of(point: str) -> list[str]:
    """Lose the first answer of ``point``; the returned list tells that it happened."""
    struck: list[str] = []

    def hook(name: str, moment: str) -> None:
        if (name, moment) == (point, "after") and not struck:
            struck.append(name)
            raise AnswerLost(f"the answer of {name} is lost")

    install_fault_hook(hook)
    return struck


async def _send(node: TestNode, command: Command) -> None:
    """As a control plane: again, until it is answered."""
    with trio.fail_after(RESEND_SECONDS):
        for _ in itertools.count():
            try:
                answer = await node.send(command)
            except OSError:
                continue
            assert answer.accepted, answer
            return


async def _reported(node: TestNode, member: MemberId, *phases: NodePhase) -> None:
    """Wait until a *report* is due while the record is in one of ``phases``: what the control plane would come to know."""
    seen: list[NodePhase | None] = []
    with trio.move_on_after(15):
        while True:
            await node.core.outbox.wait_due()
            node.core.outbox.clear()
            record = node.record(member)
            seen.append(record.phase if record else None)
            if seen[-1] in phases:
                return
    raise AssertionError(f"no report of {member} in {[phase.value for phase in phases]}; reported {seen}, is {node.record(member)}")


async def _whole_life(node: TestNode, plan: MemberPlan, *, stopped: bool, end: tuple[int | None, str]) -> None:
    await _send(node, prepare(plan))
    await _reported(node, plan.member, NodePhase.PREPARED)
    await _send(node, commit(plan))
    if stopped:
        await _reported(node, plan.member, NodePhase.RUNNING)
        await _send(node, stop(plan))
    await _reported(node, plan.member, NodePhase.TERMINATED)
    record = await node.until_clean(plan.member)
    assert (record.exit_code, record.reason_code) == end
    await _send(node, forget(plan))
    await node.until_gone(plan.member)


@pytest.mark.parametrize("step", STEPS)
async def test_member_whose_journal_answer_is_lost_goes_on_and_is_reported(tmp_path: Path, podman: Podman, image: str, step: str) -> None:
    plan = make_plan(image, ("sh", "-c", "exit 5"))
    async with open_node(tmp_path / "state", podman) as node:
        struck = _lose_answer_of(f"node.journal.{step}")
        await _whole_life(node, plan, stopped=False, end=(None, "lost") if step in UNCERTAIN else (5, ""))
    assert struck, f"nothing passed node.journal.{step}"
    assert containers_of(podman, plan) == []


async def test_stop_whose_journal_answer_is_lost_takes_effect(tmp_path: Path, podman: Podman, image: str) -> None:
    plan = make_plan(image, ("sh", "-c", "trap '' TERM; while true; do sleep 0.1; done"), stop_grace_seconds=0.2)
    async with open_node(tmp_path / "state", podman) as node:
        struck = _lose_answer_of("node.journal.stopping")
        await _whole_life(node, plan, stopped=True, end=(137, "stopped"))
    assert struck


async def test_stop_of_an_unseen_member_whose_journal_answer_is_lost_still_makes_a_tombstone(
    tmp_path: Path, podman: Podman, image: str
) -> None:
    """P-02: the tombstone is what the control plane waits for."""
    plan = make_plan(image, ("true",))
    async with open_node(tmp_path / "state", podman) as node:
        struck = _lose_answer_of("node.journal.withdrawn")
        await _send(node, stop(plan))
        await _reported(node, plan.member, NodePhase.ABORTED)
        answer = await node.send(prepare(plan))
        assert (answer.accepted, answer.code) == (False, "tombstone")
    assert struck
