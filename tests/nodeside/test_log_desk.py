"""Log reads in one session: what is refused stands in nobody's way."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import trio
import trio.testing
from attrs import define, field

from tests.nodeside.harness import TestNode, make_plan, open_node_on, prepare
from tests.support.engine import PlayEngine
from tuneplane.domain.frames import MAX_LOG_FOLLOWS, LogChunk, LogRead
from tuneplane.domain.ids import MemberId
from tuneplane.nodeside.log_desk import MAX_REFUSED, LogDesk
from tuneplane.wire.link import NodeLink


@define(eq=False)
class SlowLink:
    """What a desk uses of a link. A refusal waits for its turn until ``turn`` is set, as it does while followers use up the
    credit; what the desk does meanwhile is the question, not the credit."""

    sent: list[LogChunk] = field(factory=list)
    waiting: int = 0
    turn: trio.Event = field(factory=trio.Event)

    async def send(self, chunk: LogChunk) -> None:
        if chunk.error:
            self.waiting += 1
            await self.turn.wait()
        self.sent.append(chunk)


def read(number: int, member: MemberId, *, follow: bool) -> LogRead:
    return LogRead(request=number, member=member, offset=0, tail_lines=None, max_bytes=1 << 20, follow=follow)


async def a_log(node: TestNode) -> MemberId:
    plan = make_plan("train@sha256:1", ("true",))
    assert (await node.send(prepare(plan))).accepted
    await (await node.core.logs.log(plan.member)).append(b"hello\n")
    return plan.member


async def test_read_is_answered_while_refusals_wait_for_their_turn(tmp_path: Path, nursery: trio.Nursery) -> None:
    """R-SES-07: and no more refusals are kept than MAX_REFUSED, besides the one on its way."""
    async with open_node_on(tmp_path / "state", PlayEngine()) as node:
        member, link = await a_log(node), SlowLink()
        desk = LogDesk(node.core, cast(NodeLink, link))
        nursery.start_soon(desk.serve)
        for number in range(MAX_LOG_FOLLOWS):
            desk.begin(read(number, member, follow=True))
        with trio.fail_after(20):
            while len(link.sent) < MAX_LOG_FOLLOWS:
                await trio.testing.wait_all_tasks_blocked()
            desk.begin(read(1000, member, follow=True))
            while not link.waiting:
                await trio.testing.wait_all_tasks_blocked()
            for number in range(2 * MAX_REFUSED):
                desk.begin(read(1001 + number, member, follow=True))
            desk.begin(read(999, member, follow=False))
            while not any(chunk.request == 999 and chunk.end for chunk in link.sent):
                await trio.testing.wait_all_tasks_blocked()
            assert not any(chunk.error for chunk in link.sent)
            link.turn.set()
            while sum(bool(chunk.error) for chunk in link.sent) < 1 + MAX_REFUSED:
                await trio.testing.wait_all_tasks_blocked()
        assert link.waiting == 1 + MAX_REFUSED
