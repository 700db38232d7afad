"""Ask cycles are refused when the last ask is about to be sent; what can still be answered is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from attrs import Factory, define, frozen
from trio.testing import MockClock

from tuneplane.actors import (
    Actor,
    AskCycle,
    AskExpired,
    ChildSpec,
    Context,
    MailboxSpec,
    Restart,
    SupervisorSpec,
    handles,
    open_system,
)

from .support import settle

SECONDS = 10.0


@frozen
class Relay:
    """Ask the next of ``way`` to do the same; the last one answers with its name."""

    way: tuple[str, ...]


@frozen
class Status:
    pass


@frozen
class ByTask:
    way: tuple[str, ...]


@define
class Link(Actor):
    """Asks on along a way. ``hold`` keeps its first letter back until opened."""

    mailboxes = (MailboxSpec("work", 4, "test"), MailboxSpec("status", 4, "test"))
    hold: trio.Event | None = None

    @handles(Relay, raises=(Exception,))
    async def relay(self, message: Relay, context: Context) -> str:
        if self.hold is not None:
            await self.hold.wait()
        if not message.way:
            return context.name
        if message.way[0] == "status":
            return str(await context.system.find(f"root/{message.way[1]}").ask(Status(), SECONDS))
        return str(await context.system.find(f"root/{message.way[0]}").ask(Relay(message.way[1:]), SECONDS))

    @handles(Status, mailbox="status")
    async def status(self, message: Status, context: Context) -> str:
        return f"status of {context.name}"

    @handles(ByTask)
    async def by_task(self, message: ByTask, context: Context) -> None:
        context.start_task(context.system.find(f"root/{message.way[0]}").ask, Relay(message.way[1:]), SECONDS)


@define
class Crew(Link):
    mailboxes = (MailboxSpec("work", 4, "test", workers=2), MailboxSpec("status", 4, "test"))


def links(**makers: Callable[[], Actor]) -> SupervisorSpec:
    children = tuple(ChildSpec(name=name, factory=make, restart=Restart.TEMPORARY) for name, make in makers.items())
    return SupervisorSpec(name="root", children=children)


def innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


async def test_ask_chain_without_a_cycle_is_answered() -> None:
    async with open_system("t", links(a=Link, b=Link, c=Link)) as system:
        assert await system.find("root/a").ask(Relay(("b", "c")), SECONDS) == "c"


async def test_ask_that_is_over_leaves_no_trace_of_waiting(autojump_clock: MockClock) -> None:
    """Answered or expired: the other direction is free again."""
    hold = trio.Event()
    async with open_system("t", links(a=Link, b=Link, c=lambda: Link(hold))) as system:
        a, b = system.find("root/a"), system.find("root/b")
        assert await a.ask(Relay(("b",)), SECONDS) == "b"
        with pytest.raises(AskExpired):
            await a.ask(Relay(("c",)), SECONDS - 1)
        await trio.sleep(SECONDS)
        assert await b.ask(Relay(("a",)), SECONDS) == "a"
        assert all(not box.waits_on for ref in (a, b) for box in ref._cell.mailboxes.values())
        hold.set()


@pytest.mark.parametrize("way", [("a",), ("b", "a"), ("b", "c", "a"), ("b", "c", "b")])
async def test_ask_cycle_is_refused_at_once_and_names_its_way(autojump_clock: MockClock, way: tuple[str, ...]) -> None:
    async with open_system("t", links(a=Link, b=Link, c=Link)) as system:
        begun = trio.current_time()
        with pytest.raises(Exception, match="ask cycle") as caught:
            await system.find("root/a").ask(Relay(way), SECONDS)
        cycle = innermost(caught.value)
        assert isinstance(cycle, AskCycle)
        assert cycle.cycle[0] == cycle.cycle[-1] == f"root/{way[-2] if len(way) > 1 else 'a'}:work"
        assert trio.current_time() == begun
        assert await system.find("root/a").ask(Relay(("b",)), SECONDS) == "b"


async def test_two_actors_that_ask_each_other_at_the_same_time_do_not_wait_for_ever(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """No letter causes the other here: only the waiting itself shows the cycle."""
    hold = trio.Event()
    errors: list[BaseException] = []

    async def ask(first: str, second: str) -> None:
        try:
            await system.find(f"root/{first}").ask(Relay((second,)), SECONDS)
        except Exception as error:
            errors.append(innermost(error))

    async with open_system("t", links(a=lambda: Link(hold), b=lambda: Link(hold))) as system:
        begun = trio.current_time()
        nursery.start_soon(ask, "a", "b")
        nursery.start_soon(ask, "b", "a")
        await settle()
        hold.set()
        await settle()
        assert trio.current_time() == begun
        assert [type(error) for error in errors] in ([AskCycle], [AskCycle, AskCycle])


async def test_ask_back_into_another_mailbox_is_no_cycle() -> None:
    async with open_system("t", links(a=Link, b=Link)) as system:
        assert await system.find("root/a").ask(Relay(("b", "status", "a")), SECONDS) == "status of a"


async def test_ask_back_to_an_actor_with_a_free_worker_is_no_cycle() -> None:
    async with open_system("t", links(a=Crew, b=Link)) as system:
        assert await system.find("root/a").ask(Relay(("b", "a")), SECONDS) == "a"


async def test_ask_cycle_through_every_worker_is_refused(autojump_clock: MockClock) -> None:
    async with open_system("t", links(a=Crew, b=Crew)) as system:
        begun = trio.current_time()
        with pytest.raises(Exception, match="ask cycle"):
            await system.find("root/a").ask(Relay(("b", "a", "b", "a")), SECONDS)
        assert trio.current_time() == begun


async def test_ask_by_an_effect_task_holds_no_worker() -> None:
    async with open_system("t", links(a=Link, b=Link)) as system:
        await system.find("root/a").ask(ByTask(("b", "a")), SECONDS)
        await settle()
        assert system.find("root/a").statistics()[0].handled == 2


async def test_waiting_for_a_stuck_actor_outside_the_cycle_only_expires(autojump_clock: MockClock) -> None:
    """A slow target is not a cycle: the deadline ends the wait."""
    hold = trio.Event()
    async with open_system("t", links(a=Link, b=lambda: Link(hold))) as system:
        with pytest.raises(AskExpired):
            await system.find("root/a").ask(Relay(("b",)), 1.0)
        hold.set()


@define
class Asker(Actor):
    """Its body asks; a body holds no worker."""

    mailboxes = (MailboxSpec("work", 4, "test"),)
    replies: list[str] = Factory(list)

    async def run(self, context: Context) -> None:
        self.replies.append(await context.system.find("root/b").ask(Relay(("c",)), SECONDS))
        await context.wait_stopping()

    @handles(Relay)
    async def relay(self, message: Relay, context: Context) -> str:
        return context.name


async def test_ask_by_the_body_and_back_is_answered() -> None:
    asker = Asker()
    async with open_system("t", links(b=Link, c=lambda: asker)):
        await settle()
        assert asker.replies == ["c"]
