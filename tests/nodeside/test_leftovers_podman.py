"""Containers that run though their members are over: strangers of members that the journal knows (P-07)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
from attrs import define, evolve, field

from tests.nodeside.harness import TestNode, containers_of, forget, make_plan, open_node, run_to_end, stop
from tests.support.podman import Podman
from tuneplane.actors import Actor, ChildSpec, Context, MailboxSpec, Strategy, SupervisorSpec, handles, open_system
from tuneplane.domain.frames import Command, CommandAnswer
from tuneplane.domain.ids import OperationId, container_name
from tuneplane.domain.node_member import LABEL_MEMBER, LABEL_NODE
from tuneplane.domain.node_ports import Engine, EngineDown
from tuneplane.domain.plan import MemberPlan
from tuneplane.nodeside.engine import EngineClient
from tuneplane.nodeside.member_actors import Answered, Steward, arrival
from tuneplane.nodeside.strangers import find_strangers

pytestmark = pytest.mark.container
HEEDS, IGNORES = ('trap "exit 0" TERM; while :; do sleep 0.05; done', 'trap "" TERM; while :; do sleep 0.05; done')


@define(eq=False)
class RefusesRemovals:
    """A runtime that does not remove anything the next ``left`` times."""

    client: EngineClient
    left: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    async def remove(self, container: str) -> None:
        if self.left:
            self.left -= 1
            raise EngineDown("not now")
        await self.client.remove(container)


@define(eq=False)
class Listener(Actor):
    """Takes the steward's answers."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = (MailboxSpec("answers", 8, "more than a test asks for"),)
    answers: list[CommandAnswer] = field(factory=list)
    heard: trio.Event = field(factory=trio.Event)

    @handles(Answered, mailbox="answers")
    async def answered(self, letter: Answered, context: Context) -> None:
        self.answers.append(letter.answer)
        self.heard.set()


async def start_late(node: TestNode, podman: Podman, plan: MemberPlan, script: str) -> Command:
    """The member ends and is cleaned, and then a container of its runs; the order to stop that."""
    await run_to_end(node, plan)
    labels = ("--label", f"{LABEL_MEMBER}={plan.member}", "--label", f"{LABEL_NODE}=node-1")
    podman.run("run", "-d", "--network=host", "--name", container_name(plan.member), *labels, plan.image, "sh", "-c", script)
    [stranger], _ = await find_strangers(node.core)
    return evolve(stop(plan), stranger=True, container=stranger.container, operation=OperationId("s:1"))


@pytest.mark.parametrize("script", [HEEDS, IGNORES])
async def test_container_that_runs_though_its_member_is_over_ends_by_an_operators_stop(
    tmp_path: Path, podman: Podman, image: str, script: str
) -> None:
    """P-07, L-C13: a start by hand, or one that came late, is a stranger; its stop leaves the member's verdict alone."""
    plan = make_plan(image, ("sh", "-c", "exit 3"))
    async with open_node(tmp_path / "state", podman) as node:
        order = await start_late(node, podman, plan, script)
        ended = node.record(plan.member)
        wrong = await node.send(evolve(order, container=container_name(plan.member)))
        assert (wrong.accepted, wrong.code) == (False, "known-member")
        with trio.fail_after(20):
            answer = await node.send(order)
        assert (answer.accepted, answer.code) == (True, "")
        assert await find_strangers(node.core) == ((), ())
        assert containers_of(podman, plan) == []
        assert node.record(plan.member) == ended
        await node.send(forget(plan))
        await node.until_gone(plan.member)


async def test_operators_stop_is_answered_when_the_runtime_has_let_the_container_go(tmp_path: Path, podman: Podman, image: str) -> None:
    """P-07, L-E9: not before; and a second asking meanwhile changes nothing."""
    plan = make_plan(image, ("true",))
    engines: list[RefusesRemovals] = []

    def refusing(client: EngineClient) -> Engine:
        engines.append(RefusesRemovals(client))
        return engines[0]  # type: ignore[return-value]

    async with open_node(tmp_path / "state", podman, engine=refusing) as node:
        order = evolve(await start_late(node, podman, plan, "sleep 99"), stop_signal="SIGUSR1")
        engines[0].left = 2
        answers: list[CommandAnswer] = []

        async def ask() -> None:
            answers.append(await node.send(order))
            assert engines[0].left == 0

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                nursery.start_soon(ask)
        assert [answer.accepted for answer in answers] == [True, True]
        assert containers_of(podman, plan) == []


async def test_steward_answers_others_while_a_container_is_given_its_grace(tmp_path: Path, podman: Podman, image: str) -> None:
    """R-SES-07: what waits for a runtime stands in nobody's way; the driver's actor does the rest (P-01)."""
    plan, other = make_plan(image, ("true",)), make_plan(image, ("true",))
    listener = Listener()
    async with open_node(tmp_path / "state", podman) as node:
        order = evolve(await start_late(node, podman, plan, IGNORES), stop_grace_seconds=3.0)
        children = (
            SupervisorSpec(name="members", strategy=Strategy.POOL),
            ChildSpec(name="steward", factory=lambda: Steward(node.core), start_seconds=60.0),
            ChildSpec(name="listener", factory=lambda: listener),
        )
        async with open_system("node", SupervisorSpec(name="root", children=children)) as system:
            steward, ears = system.find("root/steward"), system.find("root/listener")
            with trio.fail_after(20):
                for command in (order, forget(other)):
                    await steward.tell(arrival(command, ears))
                while len(listener.answers) < 2:
                    await listener.heard.wait()
                    listener.heard = trio.Event()
        assert [(answer.operation, answer.accepted) for answer in listener.answers] == [(f"{other.member}:forget", True), ("s:1", True)]
        assert containers_of(podman, plan) == []
