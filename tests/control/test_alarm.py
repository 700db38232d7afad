"""An alarm is one pending timer, however often it is set and taken back."""

from __future__ import annotations

import pytest
import trio
from attrs import Factory, define, frozen
from trio.testing import MockClock

from tests.actors.support import one, only
from tuneplane.actors import Actor, Context, MailboxSpec, handles, on_signal, open_system
from tuneplane.control.patience import Alarm


@frozen
class SetAlarm:
    seconds: float


@frozen
class CancelAlarm:
    pass


@define
class Sleeper(Actor):
    mailboxes = (MailboxSpec("work", 3, "test"),)
    alarm: Alarm = Factory(lambda: Alarm("ring"))
    rings: list[float] = Factory(list)

    @on_signal("ring")
    async def ring(self, context: Context) -> None:
        self.rings.append(trio.current_time())

    @handles(SetAlarm)
    async def set(self, message: SetAlarm, context: Context) -> None:
        self.alarm.set(context, message.seconds)

    @handles(CancelAlarm)
    async def cancel(self, message: CancelAlarm, context: Context) -> None:
        self.alarm.cancel()


async def test_alarm_that_is_set_again_rings_once_at_the_new_time(autojump_clock: MockClock) -> None:
    sleeper = Sleeper()
    async with open_system("t", one(only(sleeper))) as system:
        ref = system.find("root/probe")
        for seconds in (5.0, 9.0, 2.0):
            await ref.tell(SetAlarm(seconds))
        await trio.sleep(20)
        assert sleeper.rings == [pytest.approx(2.0)]
        await ref.tell(SetAlarm(3.0))  # also after it has rung
        await trio.sleep(20)
        assert sleeper.rings[1:] == [pytest.approx(23.0)]


async def test_alarm_taken_back_is_silent_until_it_is_set_again(autojump_clock: MockClock) -> None:
    sleeper = Sleeper()
    async with open_system("t", one(only(sleeper))) as system:
        ref = system.find("root/probe")
        await ref.tell(SetAlarm(5.0))
        await ref.tell(CancelAlarm())
        await trio.sleep(20)
        assert sleeper.rings == []
        await ref.tell(SetAlarm(1.0))
        await trio.sleep(20)
        assert sleeper.rings == [pytest.approx(21.0)]


async def test_alarm_taken_back_in_the_moment_of_its_time_stays_silent(autojump_clock: MockClock) -> None:
    """The timer's task has been woken and has not run yet."""
    sleeper = Sleeper()
    async with open_system("t", one(only(sleeper))) as system:
        ref = system.find("root/probe")
        await ref.tell(SetAlarm(5.0))
        await trio.testing.wait_all_tasks_blocked()
        autojump_clock.jump(5.0)
        sleeper.alarm.cancel()
        await trio.sleep(20)
        assert sleeper.rings == []
