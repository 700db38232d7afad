"""The inbox of a session: coalesced, ordered, bounded (P-06, P-17)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tuneplane.control import inbox as inbox_module
from tuneplane.control.inbox import Inbox
from tuneplane.domain.frames import CommandAnswer, InventoryReport, Observation, ReconcileDone
from tuneplane.domain.ids import MemberId, OperationId
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.launch_table import MemberPhase


def _seen(member: str, revision: int) -> Observation:
    return Observation(member=MemberId(member), revision=revision, phase=MemberPhase.RUNNING, plan_digest="", boot_id="b")


def _drain(inbox: Inbox) -> list[Any]:
    taken = []
    while (frame := inbox.first()) is not None:
        taken.append(frame)
        inbox.done(frame)
    return taken


async def test_inbox_a_newer_observation_replaces_the_one_that_waits() -> None:
    inbox = Inbox()
    for frame in (_seen("a", 1), _seen("b", 1), _seen("a", 3), _seen("a", 2)):
        await inbox.put(frame)
    assert _drain(inbox) == [_seen("a", 3), _seen("b", 1)]


async def test_inbox_reconcile_done_comes_after_everything_reported_before() -> None:
    inbox = Inbox()
    frames = (_seen("a", 1), CommandAnswer(operation=OperationId("a:prepare"), accepted=True), _seen("b", 1), ReconcileDone(members=2))
    for frame in frames:
        await inbox.put(frame)
    assert _drain(inbox) == list(frames)


async def test_inbox_what_came_while_the_first_was_stored_stays() -> None:
    inbox = Inbox()
    await inbox.put(_seen("a", 1))
    storing = inbox.first()
    await inbox.put(_seen("a", 2))
    assert storing is not None
    inbox.done(storing)
    assert _drain(inbox) == [_seen("a", 2)]


async def test_inbox_full_waits_for_room_and_still_coalesces(monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> None:
    """P-17: a member that waits already costs no room; a new one waits, and the Node's window closes behind it."""
    monkeypatch.setattr(inbox_module, "MAX_WAITING", 2)
    inbox = Inbox()
    await inbox.put(_seen("a", 1))
    await inbox.put(_seen("b", 1))
    nursery.start_soon(inbox.put, _seen("c", 1))
    await trio.testing.wait_all_tasks_blocked()
    await inbox.put(_seen("a", 2))
    first = inbox.first()
    assert first == _seen("a", 2)
    inbox.done(first)
    await trio.testing.wait_all_tasks_blocked()
    assert _drain(inbox) == [_seen("b", 1), _seen("c", 1)]


async def test_inbox_answer_to_a_stop_goes_first_and_waits_for_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-SES-07: however many reports wait; and it keeps its place while the database is away."""
    monkeypatch.setattr(inbox_module, "MAX_WAITING", 2)
    inbox = Inbox()
    stopped = CommandAnswer(operation=OperationId("c:stop"), accepted=True)
    for name in ("a", "b"):
        await inbox.put(_seen(name, 1))
    storing = inbox.first()
    inbox.put_first(stopped)
    assert inbox.first() is stopped
    assert storing is not None
    inbox.done(storing)
    assert _drain(inbox) == [stopped, _seen("b", 1)]


async def test_inbox_our_own_repeat_never_replaces_news() -> None:
    inbox = Inbox()
    news = InventoryReport(inventory=Inventory(hostname="n", node_version="1", cpu_count=1, memory_bytes=1), digest="new")
    await inbox.put(news)
    inbox.put_again(InventoryReport(inventory=news.inventory, digest="old"))
    assert _drain(inbox) == [news]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=30))
def test_inbox_keeps_the_newest_of_every_member(reports: list[tuple[str, int]]) -> None:
    inbox = Inbox()

    async def fill() -> None:
        for member, revision in reports:
            await inbox.put(_seen(member, revision))

    trio.run(fill)
    newest = {member: max(revision for other, revision in reports if other == member) for member, _ in reports}
    assert {frame.member: frame.revision for frame in _drain(inbox)} == newest
