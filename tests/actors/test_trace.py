"""The trace: every letter has an id, a cause and a trace id; events go to a bounded ring."""

from __future__ import annotations

import pytest
import trio
from attrs import define, frozen
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tuneplane.actors import (
    Actor,
    ActorGone,
    AskExpired,
    AskFailed,
    ChildSpec,
    Context,
    Kind,
    MailboxFull,
    MailboxSpec,
    Restart,
    SupervisorSpec,
    TraceEvent,
    TraceRing,
    current_trace,
    handles,
    open_system,
    trace_scope,
)

from .support import ASK_SECONDS, Add, Crash, Probe, Read, Wait, one, only, settle

SEEN: list[str | None] = []


@frozen
class Pass:
    left: int
    by: str = "letter"  # or "effect"


@define
class Passer(Actor):
    """Passes a letter on to itself until none is left, directly or from an effect task."""

    mailboxes = (MailboxSpec("work", 8, "test"),)

    @handles(Pass)
    async def pass_on(self, message: Pass, context: Context) -> None:
        SEEN.append(current_trace())
        if message.left == 0:
            return
        following = Pass(message.left - 1, message.by)
        if message.by == "effect":
            context.start_task(context.ref.tell, following)
        else:
            context.ref.tell_nowait(following)


def told(events: list[TraceEvent], *kinds: Kind) -> list[TraceEvent]:
    return [event for event in events if event.letter and event.kind in kinds]


@pytest.mark.parametrize("by", ["letter", "effect"])
async def test_letters_carry_trace_and_cause_through_handlers_and_effects(by: str) -> None:
    SEEN.clear()
    async with open_system("t", one(Passer)) as system:
        with trace_scope("trace-of-a-row"):
            system.find("root/probe").tell_nowait(Pass(3, by))
        await settle()
        sent = told(system.trace.read(), Kind.SENT)
    assert [event.trace for event in sent] == ["trace-of-a-row"] * 4
    assert sent[0].cause == 0
    assert [event.cause for event in sent[1:]] == [event.letter for event in sent[:-1]], "each letter names its cause"
    assert SEEN == ["trace-of-a-row"] * 4
    assert current_trace() is None


async def test_letter_without_a_trace_begins_its_own() -> None:
    async with open_system("t", one(Passer)) as system:
        system.find("root/probe").tell_nowait(Pass(1))
        system.find("root/probe").tell_nowait(Pass(1))
        await settle()
        traces = [event.trace for event in told(system.trace.read(), Kind.SENT)]
    assert len(set(traces)) == 2
    assert all(traces.count(trace) == 2 for trace in traces)


async def test_trace_ids_of_two_systems_differ_and_a_seed_repeats_them() -> None:
    async def prefix(seed: int | None) -> str:
        async with open_system("t", one(Passer), seed=seed) as system:
            return system.trace_prefix

    assert await prefix(None) != await prefix(None)
    assert await prefix(5) == await prefix(5)


def test_trace_scope_puts_the_former_trace_back() -> None:
    with trace_scope("outer"):
        with trace_scope("inner"):
            assert current_trace() == "inner"
        assert current_trace() == "outer"
    assert current_trace() is None


async def _life(message: object) -> list[Kind]:
    """The events of one letter, from a system that then ends."""
    async with open_system("t", one(Probe)) as system:
        ref = system.find("root/probe")
        await settle()
        try:
            await ref.ask(message, ASK_SECONDS)
        except AskFailed:
            await ref.wait_exit()
        return [event.kind for event in system.trace.read() if event.letter == 1]


async def test_trace_tells_the_life_of_a_handled_letter() -> None:
    assert await _life(Read()) == [Kind.SENT, Kind.RECEIVED, Kind.HANDLED]


async def test_trace_tells_which_letter_crashed_its_actor() -> None:
    assert await _life(Crash()) == [Kind.SENT, Kind.RECEIVED, Kind.CRASHED]


async def test_trace_tells_of_refused_and_expired_letters(autojump_clock: MockClock) -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        await ref.tell(Wait())
        await probe.begun.wait()
        with pytest.raises(AskExpired):
            await ref.ask(Add(1), 1.0)
        await ref.tell(Add(2))
        await ref.tell(Add(3))
        with pytest.raises(MailboxFull):
            ref.tell_nowait(Add(4))
        probe.gate.set()
        await settle()
        ref.stop()
        await ref.wait_exit()
        with pytest.raises(ActorGone):
            ref.tell_nowait(Add(5))
        by_letter: dict[int, list[Kind]] = {}
        for event in told(system.trace.read(), *Kind):
            by_letter.setdefault(event.letter, []).append(event.kind)
    handled = [Kind.SENT, Kind.RECEIVED, Kind.HANDLED]
    assert list(by_letter.values()) == [handled, [Kind.SENT, Kind.EXPIRED], handled, handled, [Kind.REFUSED], [Kind.REFUSED]]


async def test_trace_tells_starts_crashes_and_restarts(autojump_clock: MockClock) -> None:
    async with open_system("t", one(Probe, restart=Restart.PERMANENT)) as system:
        system.find("root/probe").tell_nowait(Crash())
        await trio.sleep(5)
    lives = [(event.kind, event.what) for event in system.trace.read() if event.path == "root/probe" and not event.letter]
    assert lives == [
        (Kind.STARTED, ""),
        (Kind.CRASHED, "crashed: ValueError: as told"),
        (Kind.RESTARTED, "restart 1"),
        (Kind.STARTED, ""),
        (Kind.STOPPED, "stopped"),
    ]


async def test_ring_that_is_off_records_nothing() -> None:
    async with open_system("t", one(Probe), trace_size=0) as system:
        await system.find("root/probe").ask(Add(1), ASK_SECONDS)
        assert system.trace.read() == []


@given(size=st.integers(1, 20), events=st.integers(0, 60), pages=st.integers(1, 7))
def test_ring_keeps_the_last_events_and_a_reader_in_pages_sees_each_once(size: int, events: int, pages: int) -> None:
    ring = TraceRing(size)
    for number in range(events):
        ring.record(Kind.SENT, float(number), ("root/a", number, 0, "t", "Add"))
    read: list[int] = []
    while page := ring.read(after=read[-1] if read else 0, limit=pages):
        read += [event.sequence for event in page]
    assert read == list(range(max(0, events - size) + 1, events + 1))


async def test_ring_holds_no_message_alive() -> None:
    """4,096 events must not keep 4,096 log chunks in memory: an event knows the class of a message, not the message."""
    ring_of: list[object] = []
    async with open_system("t", one(Probe)) as system:
        await system.find("root/probe").ask(Add(1), ASK_SECONDS)
        ring_of.extend(entry for entry in system.trace._entries)
    assert not any(isinstance(part, Add) for entry in ring_of for part in entry[3])  # type: ignore[index]


async def test_tree_shows_every_actor_with_its_mailboxes() -> None:
    inner = SupervisorSpec(name="inner", children=(ChildSpec(name="x", factory=Probe),))
    spec = SupervisorSpec(name="root", children=(ChildSpec(name="a", factory=Probe), inner))
    async with open_system("t", spec) as system:
        await system.find("root/inner/x").ask(Add(1), ASK_SECONDS)
        tree = system.tree()
    a, inside = tree.children
    assert (tree.path, tree.kind, a.path, a.kind, inside.path, inside.kind) == (
        "root",
        "one-for-one",
        "root/a",
        "Probe",
        "root/inner",
        "one-for-one",
    )
    assert [box.name for box in a.mailboxes] == ["work", "status"]
    assert inside.children[0].mailboxes[0].handled == 1
