"""A look tells of the moment it was begun in: what is journalled meanwhile is not judged by it (P-03)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
from attrs import define

from tests.nodeside.harness import commit, make_plan, open_node_on, prepare
from tests.support.engine import PlayEngine
from tuneplane.domain.member_table import NodePhase
from tuneplane.domain.node_ports import ContainerState

ON_THE_WAY = (NodePhase.PREPARED, NodePhase.CREATING, NodePhase.STARTING)


@define(eq=False)
class SlowToTell(PlayEngine):
    """``meanwhile`` happens between an inspection and its answer, once."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def inspect(self, container: str) -> ContainerState | None:
        found = await super().inspect(container)
        if self.meanwhile is not None:
            await self.meanwhile()  # not forgotten before: a look gives way to a poke, and comes again
            self.meanwhile = None
        return found


async def test_commit_during_the_look_of_a_daemon_that_starts_is_carried_out(tmp_path: Path) -> None:
    """P-03: the container that this Commit is about to create was rightly absent; the launch is not lost."""
    plan = make_plan("any@sha256:1", ("true",))
    engine = SlowToTell()
    async with open_node_on(tmp_path / "state", engine) as node:
        await node.send(prepare(plan))
        await node.until_phase(plan.member, NodePhase.PREPARED)
    opened = trio.Event()

    async def journal_commit() -> None:
        await opened.wait()
        core = node.core
        await core.journal.accept(commit(plan), core.place(), core.grants)  # and nobody has told the driver yet

    engine.meanwhile = journal_commit
    async with open_node_on(tmp_path / "state", engine) as node:
        opened.set()
        record = await node.until(plan.member, lambda record: record.phase not in ON_THE_WAY)
        assert (record.phase, record.reason_code) == (NodePhase.RUNNING, "")
        assert [each.spec.name for each in engine.containers.values()] == [f"tuneplane-{plan.member}"]
