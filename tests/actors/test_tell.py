"""Tell: bounded mailboxes, typed refusal, order, several mailboxes with their own workers, statistics."""

from __future__ import annotations

import pytest
import trio
from attrs import Factory, define
from trio.testing import MockClock

from tuneplane.actors import Actor, ActorGone, Context, MailboxFull, MailboxSpec, NoHandler, Stopped, handles, open_system

from .support import ASK_SECONDS, Add, Probe, Read, Unknown, Wait, one, only, settle


async def test_tell_from_one_sender_is_handled_in_order() -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        for amount in range(200):
            await ref.tell(Add(amount))
        await settle()
        assert probe.seen == [f"add {amount}" for amount in range(200)]


async def test_tell_nowait_to_a_full_mailbox_raises_at_once_and_counts() -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        ref.tell_nowait(Wait())
        await probe.begun.wait()
        for amount in range(3):
            ref.tell_nowait(Add(amount))
        with pytest.raises(MailboxFull, match="'work' of root/probe holds its 3 letters"):
            ref.tell_nowait(Add(9))
        work = ref.statistics()[0]
        assert (work.depth, work.in_hand, work.refused) == (3, 1, 1)
        probe.gate.set()
        await settle()
        assert probe.seen == ["wait", "add 0", "add 1", "add 2"]


async def test_tell_to_a_full_mailbox_waits_in_line(nursery: trio.Nursery) -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        for message in (Wait(), Add(0), Add(1), Add(2)):
            await ref.tell(message)
        await probe.begun.wait()
        for amount in (3, 4, 5):
            nursery.start_soon(ref.tell, Add(amount))
            await settle()
        assert ref.statistics()[0].senders_waiting == 3
        probe.gate.set()
        await settle()
        assert probe.seen == ["wait", *(f"add {amount}" for amount in range(6))]
        assert ref.statistics()[0].senders_waiting == 0


async def test_tell_waiting_in_line_fails_when_the_target_stops(nursery: trio.Nursery) -> None:
    probe = Probe()
    failed = trio.Event()

    async def tell() -> None:
        with pytest.raises(ActorGone) as caught:
            await ref.tell(Add(1))
        assert caught.value.reason == Stopped()
        failed.set()

    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        for _ in range(4):
            await ref.tell(Wait())
        await settle()
        nursery.start_soon(tell)
        await settle()
        ref.stop()
        await failed.wait()
        probe.gate.set()


async def test_tell_to_a_dead_actor_raises_with_its_exit_reason() -> None:
    async with open_system("t", one(Probe)) as system:
        ref = system.find("root/probe")
        ref.stop()
        await ref.wait_exit()
        with pytest.raises(ActorGone) as caught:
            ref.tell_nowait(Add(1))
        assert caught.value.reason == Stopped()
        with pytest.raises(ActorGone):
            await ref.tell(Add(1))


async def test_tell_of_an_unknown_message_is_a_programming_error() -> None:
    async with open_system("t", one(Probe)) as system:
        with pytest.raises(NoHandler, match="Unknown"):
            system.find("root/probe").tell_nowait(Unknown())


async def test_mailboxes_of_one_actor_do_not_wait_for_each_other() -> None:
    """House: several named mailboxes, each with its own task, keep stop and status clear of slow work."""
    probe = Probe(total=7)
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        await ref.tell(Wait())
        await probe.begun.wait()
        assert await ref.ask(Read(), ASK_SECONDS) == 7
        probe.gate.set()


@define
class Crew(Actor):
    mailboxes = (MailboxSpec("work", 8, "test", workers=3),)
    gate: trio.Event = Factory(trio.Event)
    at_once: int = 0
    most: int = 0

    @handles(Wait)
    async def wait(self, message: Wait, context: Context) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.gate.wait()
        self.at_once -= 1


async def test_mailbox_with_three_workers_has_three_letters_in_hand() -> None:
    crew = Crew()
    async with open_system("t", one(only(crew))) as system:
        ref = system.find("root/probe")
        for _ in range(8):
            await ref.tell(Wait())
        await settle()
        assert (crew.most, ref.statistics()[0].in_hand, ref.statistics()[0].depth) == (3, 3, 5)
        crew.gate.set()
        await settle()
        assert (crew.most, ref.statistics()[0].handled) == (3, 8)


async def test_statistics_tell_depth_age_and_wait(autojump_clock: MockClock) -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        await ref.tell(Wait())
        await trio.sleep(1)
        await ref.tell(Add(1))
        await trio.sleep(4)
        before = ref.statistics()[0]
        assert (before.name, before.capacity, before.depth, before.in_hand, before.handled) == ("work", 3, 1, 1, 0)
        assert before.oldest_seconds == pytest.approx(4)
        probe.gate.set()
        await settle()
        after = ref.statistics()[0]
        assert (after.depth, after.in_hand, after.handled, after.oldest_seconds) == (0, 0, 2, 0)
        assert after.wait_most_seconds == pytest.approx(4)
        assert after.wait_mean_seconds == pytest.approx(2)


async def _set(event: trio.Event) -> None:
    event.set()
    await trio.lowlevel.checkpoint()


async def test_sender_that_never_waits_lets_others_run(nursery: trio.Nursery) -> None:
    """A turn is bounded: a sender into a big mailbox cannot keep the scheduler to itself."""
    ran = trio.Event()

    @define
    class Big(Actor):
        mailboxes = (MailboxSpec("work", 10_000, "larger than the test sends"),)

        @handles(Add)
        async def add(self, message: Add, context: Context) -> None: ...

    async with open_system("t", one(Big)) as system:
        ref = system.find("root/probe")
        nursery.start_soon(_set, ran)
        for amount in range(32):
            await ref.tell(Add(amount))
        assert ran.is_set()


async def test_worker_with_slow_handlers_lets_others_run_between_letters(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """A turn is bounded in time too: here each handler takes ten milliseconds without giving way."""
    seen: list[str] = []

    @define
    class Hog(Actor):
        mailboxes = (MailboxSpec("work", 8, "test"),)

        @handles(Add)
        async def add(self, message: Add, context: Context) -> None:
            autojump_clock.jump(0.01)
            seen.append("letter")

    async def other() -> None:
        for _ in range(4):
            await trio.lowlevel.checkpoint()
            seen.append("other")

    async with open_system("t", one(Hog)) as system:
        ref = system.find("root/probe")
        await settle()
        for amount in range(4):
            ref.tell_nowait(Add(amount))
        nursery.start_soon(other)
        await settle()
    assert seen.index("other") < seen.index("letter") + 3
    assert seen.count("letter") == 4
