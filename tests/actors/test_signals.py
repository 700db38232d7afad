"""Signals and timers: coalesced flags that cannot be refused and go ahead of letters."""

from __future__ import annotations

import pytest
import trio
from attrs import Factory, define
from trio.testing import MockClock

from tuneplane.actors import Actor, Context, Crashed, MailboxSpec, NoHandler, Timer, handles, on_signal, open_system

from .support import ASK_SECONDS, Add, Probe, Wait, one, only, settle


async def test_signal_raised_many_times_is_handled_once() -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        await settle()
        for _ in range(1000):
            ref.signal("poke")
        await settle()
        assert probe.seen == ["poke"]
        ref.signal("poke")
        await settle()
        assert probe.seen == ["poke", "poke"]


async def test_signal_reaches_an_actor_whose_mailbox_is_full() -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        ref.tell_nowait(Wait())
        await probe.begun.wait()
        for amount in range(3):
            ref.tell_nowait(Add(amount))
        ref.signal("poke")
        await settle()
        assert probe.seen == ["wait", "poke"]
        probe.gate.set()


@pytest.mark.parametrize("attempt", range(10))
async def test_signal_goes_ahead_of_letters_sent_before_it(attempt: int) -> None:
    """Whatever order the scheduler picks: a letter that has not begun waits for the signal's handler to begin."""
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        await settle()
        ref.tell_nowait(Add(1))
        ref.tell_nowait(Add(2))
        ref.signal("poke")
        await settle()
        assert probe.seen == ["poke", "add 1", "add 2"]


async def test_signal_without_a_handler_is_a_programming_error() -> None:
    async with open_system("t", one(Probe)) as system:
        with pytest.raises(NoHandler, match="signal 'nudge'"):
            system.find("root/probe").signal("nudge")


async def test_signal_to_a_dead_actor_is_ignored() -> None:
    async with open_system("t", one(Probe)) as system:
        ref = system.find("root/probe")
        ref.stop()
        await ref.wait_exit()
        ref.signal("poke")


async def test_signal_handler_that_raises_crashes_the_actor() -> None:
    @define
    class Fragile(Probe):
        @on_signal("poke")
        async def poked(self, context: Context) -> None:
            raise KeyError("signal")

    async with open_system("t", one(Fragile)) as system:
        ref = system.find("root/probe")
        ref.signal("poke")
        assert isinstance(await ref.wait_exit(), Crashed)


async def test_slow_signal_handler_holds_no_letter_back() -> None:
    @define
    class Slow(Probe):
        @on_signal("poke")
        async def poked(self, context: Context) -> None:
            await self.gate.wait()

    probe = Slow()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        ref.signal("poke")
        await settle()
        ref.signal("poke")
        assert await ref.ask(Add(1), ASK_SECONDS) == 1
        probe.gate.set()


@define
class Clockwork(Actor):
    mailboxes = (MailboxSpec("work", 3, "test"),)
    rings: list[float] = Factory(list)
    timers: list[Timer] = Factory(list)

    async def on_start(self, context: Context) -> None:
        self.timers.append(context.timer("ring", 5.0))

    @on_signal("ring")
    async def ring(self, context: Context) -> None:
        self.rings.append(trio.current_time())

    @handles(Add)
    async def add(self, message: Add, context: Context) -> None:
        context.timer("nothing of ours", 1.0)


async def test_timer_raises_its_signal_once(autojump_clock: MockClock) -> None:
    clockwork = Clockwork()
    async with open_system("t", one(only(clockwork))):
        await trio.sleep(20)
        assert clockwork.rings == [pytest.approx(5.0)]


async def test_timer_that_is_cancelled_stays_silent(autojump_clock: MockClock) -> None:
    clockwork = Clockwork()
    async with open_system("t", one(only(clockwork))):
        await trio.sleep(4)
        clockwork.timers[0].cancel()
        clockwork.timers[0].reset(1)
        await trio.sleep(20)
        assert clockwork.rings == []


async def test_timer_that_is_reset_counts_from_then(autojump_clock: MockClock) -> None:
    clockwork = Clockwork()
    async with open_system("t", one(only(clockwork))):
        for _ in range(10):
            await trio.sleep(4)
            clockwork.timers[0].reset(5.0)
        await trio.sleep(20)
        assert clockwork.rings == [pytest.approx(45.0)]


async def test_timer_dies_with_its_actor(autojump_clock: MockClock) -> None:
    clockwork = Clockwork()
    async with open_system("t", one(only(clockwork))) as system:
        system.find("root/probe").stop()
        await trio.sleep(20)
        assert clockwork.rings == []


async def test_timer_for_a_signal_without_a_handler_is_a_programming_error() -> None:
    async with open_system("t", one(Clockwork)) as system:
        ref = system.find("root/probe")
        await ref.tell(Add(1))
        reason = await ref.wait_exit()
        assert isinstance(reason, Crashed)
        assert isinstance(reason.errors.exceptions[0], NoHandler)
