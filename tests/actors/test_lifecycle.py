"""One life of an actor: start to readiness, the stop ladder, clean-up, effects, and the exit reasons."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest
import trio
from attrs import Factory, define
from trio.testing import MockClock

from tuneplane.actors import (
    Actor,
    ActorGone,
    CleanUpOverdue,
    Context,
    Crashed,
    ExitReason,
    Finished,
    Killed,
    MailboxSpec,
    StartOverdue,
    Stopped,
    TaskHandle,
    handles,
    open_system,
)

from .support import ASK_SECONDS, Add, Crash, Probe, Read, Wait, boxes_at_rest, one, only, settle


@pytest.mark.parametrize(
    ("how", "expected"),
    [("finish", Finished), ("stop", Stopped), ("kill", Killed), ("crash", Crashed), ("stop then kill", Killed)],
)
async def test_exit_reason_tells_how_the_actor_ended(how: str, expected: type[ExitReason]) -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        assert ref.alive
        assert ref.exit_reason is None
        if how == "finish":
            probe.finish.set()
        elif how == "crash":
            await ref.tell(Crash())
        else:
            if how.startswith("stop"):
                await ref.tell(Wait())
                await settle()
                ref.stop()
            if how.endswith("kill"):
                ref.kill()
            probe.gate.set()
        assert isinstance(await ref.wait_exit(), expected)
        assert ref.exit_reason == await ref.wait_exit()
        assert not ref.alive
        assert probe.journal.lines == ["start probe", "stop probe"]
        assert boxes_at_rest(ref)


async def test_letters_sent_before_readiness_wait_for_it() -> None:
    begun: list[str] = []

    @define
    class Early(Probe):
        async def on_start(self, context: Context) -> None:
            context.ref.tell_nowait(Add(1))
            await settle()
            begun.append(f"ready with {self.total}")

    async with open_system("t", one(Early)) as system:
        await settle()
        assert begun == ["ready with 0"]
        assert await system.find("root/probe").ask(Read(), ASK_SECONDS) == 1


async def test_actor_is_registered_only_when_ready() -> None:
    found: list[object] = []

    @define
    class Early(Probe):
        async def on_start(self, context: Context) -> None:
            found.append(context.system.ref(context.path))

    async with open_system("t", one(Early)) as system:
        assert found == [None]
        assert system.ref("root/probe") is not None


async def test_start_that_takes_too_long_is_a_crash(autojump_clock: MockClock) -> None:
    @define
    class Slow(Probe):
        async def on_start(self, context: Context) -> None:
            self.journal.refs.append(context.ref)
            await trio.sleep_forever()

    probe = Slow()
    async with open_system("t", one(only(probe), start_seconds=3.0)) as system:
        assert trio.current_time() == pytest.approx(3.0)
        assert system.refs() == {}
        reason = probe.journal.refs[0].exit_reason
        assert isinstance(reason, Crashed)
        assert isinstance(reason.errors.exceptions[0], StartOverdue)
        assert probe.journal.lines == ["stop probe"]


@define
class Stubborn(Probe):
    """Its body returns ``seconds`` after it was asked to stop; unless cancelled before."""

    seconds: float = 0.0
    cancelled_at: float | None = None

    async def run(self, context: Context) -> None:
        await context.wait_stopping()
        assert context.stopping
        try:
            await trio.sleep(self.seconds)
        except trio.Cancelled:
            self.cancelled_at = trio.current_time()
            raise


async def test_stop_gives_the_body_its_grace(autojump_clock: MockClock) -> None:
    body = Stubborn(seconds=4.0)
    async with open_system("t", one(only(body), stop_seconds=5.0)) as system:
        ref = system.find("root/probe")
        ref.stop()
        assert await ref.wait_exit() == Stopped()
        assert body.cancelled_at is None
        assert trio.current_time() == pytest.approx(4.0)


async def test_stop_cancels_the_body_when_its_grace_is_over(autojump_clock: MockClock) -> None:
    body = Stubborn(seconds=60.0)
    async with open_system("t", one(only(body), stop_seconds=5.0)) as system:
        ref = system.find("root/probe")
        ref.stop()
        assert await ref.wait_exit() == Stopped()
        assert body.cancelled_at == pytest.approx(5.0)


async def test_kill_gives_no_grace(autojump_clock: MockClock) -> None:
    body = Stubborn(seconds=60.0)
    async with open_system("t", one(only(body))) as system:
        ref = system.find("root/probe")
        ref.stop()
        await settle()
        ref.kill()
        assert await ref.wait_exit() == Killed()
        assert trio.current_time() == 0
        assert body.journal.lines == ["start probe", "stop probe"]


async def test_stop_finishes_the_letter_in_hand_and_drops_the_queue() -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        for message in (Wait(), Add(1), Add(2)):
            await ref.tell(message)
        await probe.begun.wait()
        ref.stop()
        await settle()
        assert ref.exit_reason is None
        probe.gate.set()
        assert await ref.wait_exit() == Stopped()
        assert probe.seen == ["wait"]


async def test_stop_goes_ahead_of_a_letter_that_was_handed_over_but_not_begun() -> None:
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        await settle()
        ref.tell_nowait(Add(1))
        ref.stop()
        await ref.wait_exit()
        assert probe.seen == []
        assert boxes_at_rest(ref)


async def test_stop_while_starting_cancels_the_start() -> None:
    @define
    class Slow(Probe):
        async def on_start(self, context: Context) -> None:
            self.journal.add("start", context)
            context.stop_self()
            await trio.sleep_forever()

    probe = Slow()
    async with open_system("t", one(only(probe))) as system:
        assert probe.journal.refs[0].exit_reason == Stopped()
        assert system.refs() == {}


async def test_clean_up_is_shielded_from_the_cancel_that_ended_the_actor(autojump_clock: MockClock) -> None:
    done: list[float] = []

    @define
    class Tidy(Probe):
        async def on_stop(self, context: Context) -> None:
            await trio.sleep(1.5)
            done.append(trio.current_time())

    with trio.CancelScope() as scope:
        async with open_system("t", one(Tidy, cleanup_seconds=2.0)):
            scope.cancel()
            await trio.sleep_forever()
    assert done == [pytest.approx(1.5)]


async def test_clean_up_that_takes_too_long_is_cancelled_and_reported_by_name(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    @define
    class Untidy(Probe):
        async def on_stop(self, context: Context) -> None:
            await trio.sleep(60)

    async with open_system("t", one(Untidy, cleanup_seconds=2.0)) as system:
        ref = system.find("root/probe")
        ref.stop()
        reason = await ref.wait_exit()
        assert trio.current_time() == pytest.approx(2.0)
        assert isinstance(reason, Crashed)
        assert isinstance(reason.errors.exceptions[0], CleanUpOverdue)
        assert system.overdue == ["root/probe"]
    assert "root/probe is overdue" in caplog.text


async def test_error_in_clean_up_is_told_beside_the_one_that_ended_the_actor() -> None:
    @define
    class Untidy(Probe):
        async def on_stop(self, context: Context) -> None:
            raise OSError("disk")

    async with open_system("t", one(Untidy)) as system:
        ref = system.find("root/probe")
        await ref.tell(Crash())
        reason = await ref.wait_exit()
        assert isinstance(reason, Crashed)
        assert [type(error) for error in reason.errors.exceptions] == [ValueError, OSError]


@define
class Worker(Actor):
    """Starts ``work`` as an effect for each Add."""

    mailboxes = (MailboxSpec("work", 3, "test"),)
    work: Callable[[], Awaitable[None]]
    tasks: list[TaskHandle] = Factory(list)
    stopped: list[bool] = Factory(list)

    @handles(Add)
    async def add(self, message: Add, context: Context) -> None:
        self.tasks.append(context.start_task(self.work, name="effect"))

    async def on_stop(self, context: Context) -> None:
        self.stopped.append(all(task.done for task in self.tasks))
        with pytest.raises(ActorGone):
            context.start_task(self.work)


async def test_effect_runs_beside_the_handlers_and_can_be_waited_for() -> None:
    gate = trio.Event()
    worker = Worker(gate.wait)
    async with open_system("t", one(only(worker))) as system:
        await system.find("root/probe").ask(Add(1), ASK_SECONDS)
        (task,) = worker.tasks
        await settle()
        assert (task.done, task.name) == (False, "effect")
        gate.set()
        await task.wait_done()
        assert task.done


async def test_effect_that_is_cancelled_leaves_the_actor_alive() -> None:
    worker = Worker(trio.sleep_forever)
    async with open_system("t", one(only(worker))) as system:
        ref = system.find("root/probe")
        await ref.ask(Add(1), ASK_SECONDS)
        worker.tasks[0].cancel()
        await worker.tasks[0].wait_done()
        assert ref.alive


async def test_effect_cancelled_before_it_began_is_done() -> None:
    @define
    class Hasty(Worker):
        @handles(Add)
        async def add(self, message: Add, context: Context) -> None:
            self.tasks.append(context.start_task(self.work))
            self.tasks[0].cancel()

    worker = Hasty(trio.sleep_forever)
    async with open_system("t", one(only(worker))) as system:
        ref = system.find("root/probe")
        await ref.ask(Add(1), ASK_SECONDS)
        await settle()
        assert worker.tasks[0].done


async def test_effect_that_crashes_crashes_its_actor() -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError("effect")

    async with open_system("t", one(lambda: Worker(fail))) as system:
        ref = system.find("root/probe")
        await ref.tell(Add(1))
        reason = await ref.wait_exit()
        assert isinstance(reason, Crashed)
        assert [type(error) for error in reason.errors.exceptions] == [KeyError]


async def test_effects_have_no_grace_and_are_gone_before_clean_up(autojump_clock: MockClock) -> None:
    worker = Worker(trio.sleep_forever)
    async with open_system("t", one(only(worker))) as system:
        ref = system.find("root/probe")
        await ref.ask(Add(1), ASK_SECONDS)
        ref.stop()
        await ref.wait_exit()
        assert worker.stopped == [True]
        assert trio.current_time() == 0


async def test_mixed_group_delivers_its_errors_and_the_cancel_goes_on() -> None:
    """House: mixed exception groups deliver their errors to the owner and re-raise the cancelled part."""

    @define
    class Mixed(Probe):
        async def run(self, context: Context) -> None:
            async def fail_when_cancelled() -> None:
                try:
                    await trio.sleep_forever()
                finally:
                    raise OSError("while cancelled")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail_when_cancelled)
                nursery.start_soon(trio.sleep_forever)

    probe = Mixed()
    async with open_system("t", one(only(probe))) as system:
        ref = system.find("root/probe")
        await settle()
        ref.kill()
        reason = await ref.wait_exit()
        assert isinstance(reason, Crashed)
        assert [type(error) for error in reason.errors.exceptions] == [OSError]


async def test_state_is_released_when_the_actor_has_ended() -> None:
    """A ref may be kept for long; what the actor held must not be."""
    async with open_system("t", one(Probe)) as system:
        ref = system.find("root/probe")
        ref.stop()
        await ref.wait_exit()
        assert not hasattr(ref._cell, "actor")


async def test_effect_started_while_the_actor_unwinds_is_refused() -> None:
    refused: list[ActorGone] = []

    @define
    class Late(Probe):
        async def run(self, context: Context) -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                    await settle()
                    self._start_late(context)

        def _start_late(self, context: Context) -> None:
            try:
                context.start_task(trio.sleep_forever)
            except ActorGone as error:
                refused.append(error)

    async with open_system("t", one(Late)) as system:
        ref = system.find("root/probe")
        await settle()
        ref.kill()
        assert await ref.wait_exit() == Killed()
        assert len(refused) == 1


async def test_interrupt_in_a_handler_goes_up_after_everybody_has_cleaned_up() -> None:
    """What is no Exception (Ctrl-C, say) is nobody's crash: the tree comes down with it."""

    @define
    class Interrupted(Probe):
        @handles(Add)
        async def add(self, message: Add, context: Context) -> int:
            raise KeyboardInterrupt

    probe = Interrupted()
    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_system("t", one(only(probe))) as system:
            await system.find("root/probe").ask(Add(1), ASK_SECONDS)
    assert caught.group_contains(KeyboardInterrupt)
    assert probe.journal.lines == ["start probe", "stop probe"]
    assert probe.journal.refs[0].exit_reason == Killed()


async def test_actor_without_mailboxes_and_body_waits_to_be_stopped() -> None:
    async with open_system("t", one(Actor)) as system:
        ref = system.find("root/probe")
        await settle()
        assert ref.alive
        ref.stop()
        assert await ref.wait_exit() == Stopped()


async def test_idle_worker_keeps_no_message_alive() -> None:
    """Ten thousand sessions must not keep their last log chunk each."""
    probe = Probe()
    async with open_system("t", one(only(probe))) as system:
        message = Add(1)
        ref = weakref.ref(message)
        await system.find("root/probe").ask(message, ASK_SECONDS)
        del message
        await settle()
        gc.collect()
        assert ref() is None
