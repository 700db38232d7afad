"""Ask: a reply or a typed failure by the deadline in the envelope."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tuneplane.actors import (
    ActorGone,
    AskExpired,
    AskFailed,
    Crashed,
    Killed,
    MailboxFull,
    Ref,
    Stopped,
    System,
    open_system,
)

from .support import ASK_SECONDS, Add, Crash, Probe, Read, Refusal, Refuse, Wait, one, only, settle


async def test_ask_returns_the_handlers_value() -> None:
    async with open_system("t", one(Probe)) as system:
        ref = system.find("root/probe")
        assert await ref.ask(Add(2), ASK_SECONDS) == 2
        assert await ref.ask(Add(3), ASK_SECONDS) == 5


async def test_ask_refused_by_a_declared_error_leaves_the_actor_alive() -> None:
    async with open_system("t", one(Probe)) as system:
        ref = system.find("root/probe")
        with pytest.raises(AskFailed) as caught:
            await ref.ask(Refuse(), ASK_SECONDS)
        assert isinstance(caught.value.error, Refusal)
        assert caught.value.__cause__ is caught.value.error
        assert ref.alive
        assert await ref.ask(Add(1), ASK_SECONDS) == 1


async def test_tell_of_what_the_handler_refuses_crashes_the_actor() -> None:
    """Nobody waits for the refusal: it is an error without a reader, so its owner hears of it."""
    async with open_system("t", one(Probe)) as system:
        ref = system.find("root/probe")
        await ref.tell(Refuse())
        assert isinstance(await ref.wait_exit(), Crashed)


async def test_ask_that_crashes_the_actor_fails_with_the_error_after_deregistration() -> None:
    """House: on exit an actor deregisters, then answers every waiter."""
    async with open_system("t", one(Probe)) as system:
        ref = system.find("root/probe")
        with pytest.raises(AskFailed, match="ValueError: as told"):
            await ref.ask(Crash(), ASK_SECONDS)
        assert system.ref("root/probe") is None
        assert not ref.alive


async def test_ask_to_a_dead_actor_fails_at_once_with_its_exit_reason() -> None:
    async with open_system("t", one(Probe)) as system:
        ref = system.find("root/probe")
        ref.kill()
        await ref.wait_exit()
        with pytest.raises(ActorGone) as caught:
            await ref.ask(Read(), ASK_SECONDS)
        assert caught.value.reason == Killed()


async def test_ask_to_an_unknown_path_fails() -> None:
    async with open_system("t", one(Probe)) as system:
        with pytest.raises(ActorGone, match="no such actor"):
            system.find("root/nobody")


async def _ask_and_tell(ref: Ref, message: object, outcome: list[Exception], system: System) -> None:
    try:
        await ref.ask(message, ASK_SECONDS)
    except (ActorGone, AskFailed) as error:
        assert system.ref(ref.path) is None, "answered before it was deregistered"
        outcome.append(error)


@pytest.mark.parametrize("ending", ["stop", "kill", "crash"])
async def test_asks_to_a_dying_actor_fail_at_once_with_its_reason(autojump_clock: MockClock, nursery: trio.Nursery, ending: str) -> None:
    """In hand or queued, all are answered; none waits for its deadline."""
    probe = Probe()
    outcome: list[Exception] = []
    async with open_system("t", one(only(probe), stop_seconds=1.0)) as system:
        ref = system.find("root/probe")
        for message in (Wait(), Crash(), Add(1)):
            nursery.start_soon(_ask_and_tell, ref, message, outcome, system)
            await settle()
        {"stop": ref.stop, "kill": ref.kill, "crash": probe.gate.set}[ending]()
        begun = trio.current_time()
        reason = await ref.wait_exit()
        await settle()
        assert trio.current_time() - begun <= 1.0
        gone = [error.reason for error in outcome if isinstance(error, ActorGone)]
        if ending == "crash":
            assert isinstance(reason, Crashed)
            assert [type(error) for error in outcome].count(AskFailed) == 1
            assert gone == [reason]
        else:
            assert gone == [reason, reason, reason]


async def test_ask_to_a_stopping_actor_fails_at_once(autojump_clock: MockClock) -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        await ref.tell(Wait())
        await probe.begun.wait()
        ref.stop()
        with pytest.raises(ActorGone) as caught:
            await ref.ask(Read(), ASK_SECONDS)
        assert caught.value.reason == Stopped()
        assert ref.exit_reason is None
        probe.gate.set()


async def test_ask_in_hand_when_stop_is_asked_is_still_answered(nursery: trio.Nursery) -> None:
    probe = Probe()
    replies: list[str] = []

    async def ask() -> None:
        replies.append(await ref.ask(Wait(), ASK_SECONDS))

    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        nursery.start_soon(ask)
        await probe.begun.wait()
        ref.stop()
        probe.gate.set()
        assert await ref.wait_exit() == Stopped()
        await settle()
    assert replies == ["waited"]


async def test_ask_expires_at_its_deadline_and_the_late_reply_is_counted(autojump_clock: MockClock) -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        begun = trio.current_time()
        with pytest.raises(AskExpired, match=r"did not answer Wait within 2 s"):
            await ref.ask(Wait(), 2.0)
        assert trio.current_time() - begun == pytest.approx(2.0)
        probe.gate.set()
        await settle()
        work = ref.statistics()[0]
        assert (work.handled, work.late, work.expired) == (1, 1, 0)


async def test_expired_ask_is_dropped_before_work_starts_and_counted(autojump_clock: MockClock) -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        await ref.tell(Wait())
        with pytest.raises(AskExpired):
            await ref.ask(Add(5), 1.0)
        probe.gate.set()
        await settle()
        work = ref.statistics()[0]
        assert probe.seen == ["wait"]
        assert (work.handled, work.expired, work.late) == (1, 1, 0)


async def test_ask_whose_asker_was_cancelled_is_dropped_before_work_starts(autojump_clock: MockClock) -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        await ref.tell(Wait())
        with trio.move_on_after(1):
            await ref.ask(Add(5), 100.0)
        probe.gate.set()
        await settle()
        assert probe.seen == ["wait"]
        assert ref.statistics()[0].expired == 1


async def test_ask_to_a_full_mailbox_is_refused_at_once() -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        await ref.tell(Wait())
        await probe.begun.wait()
        for amount in range(3):
            await ref.tell(Add(amount))
        with pytest.raises(MailboxFull):
            await ref.ask(Add(9), ASK_SECONDS)
        probe.gate.set()


async def test_supervisors_cannot_be_asked() -> None:
    """House: supervisors never ask their children; they have no handlers that could, and no ref."""
    async with open_system("t", one(Probe)) as system:
        assert system.ref("root") is None
        assert set(system.refs()) == {"root/probe"}
