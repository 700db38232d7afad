"""What an actor costs: tell and ask against a bare Trio memory channel and against Pykka, in one run.

The reference for tell is one task that sends and one that receives over one buffered channel; for ask, one task that
sends a request over one channel and waits for the reply on a second. Both sides use the same buffer as the actor's
mailbox, both move one small frozen message, and on both the receiver does nothing with it. ``tell`` waits when the
mailbox is full, as ``send`` does; ``tell_nowait`` never waits, as Pykka's ``tell`` never does.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from statistics import median
from time import perf_counter

import pykka
import trio
from attrs import define, frozen

from tuneplane.actors import Actor, ChildSpec, Context, MailboxFull, MailboxSpec, Ref, SupervisorSpec, handles, open_system
from tuneplane.actors.trace import TRACE_SIZE

from .figures import Figure, median_ratio

ROUNDS = 9
TELLS = 20_000
ASKS = 6_000
CAPACITY = 64
TELL_BUDGET = 0.35
ASK_BUDGET = 0.25
REPLY_SECONDS = 5.0

Measure = Callable[[], float]  # operations per second


@frozen
class Note:
    number: int


@frozen
class Request:
    number: int


@frozen
class Last:
    """No letter comes after it."""


@define
class Sink(Actor):
    mailboxes = (MailboxSpec("work", CAPACITY, "the buffer of the channel it is compared with"),)
    done: trio.Event

    @handles(Note)
    async def note(self, message: Note, context: Context) -> None:
        pass

    @handles(Last)
    async def last(self, message: Last, context: Context) -> None:
        self.done.set()

    @handles(Request)
    async def request(self, message: Request, context: Context) -> int:
        return message.number


async def _with_sink(trace_size: int, work: Callable[[Ref], Awaitable[None]], count: int) -> float:
    """Operations per second of ``work``, the time until the last letter is handled included."""
    done = trio.Event()
    spec = SupervisorSpec(name="root", children=(ChildSpec(name="sink", factory=lambda: Sink(done)),))
    async with open_system("bench", spec, trace_size=trace_size) as system:
        ref = system.find("root/sink")
        await ref.ask(Request(0), REPLY_SECONDS)
        begun = perf_counter()
        await work(ref)
        await ref.tell(Last())
        await done.wait()
        return count / (perf_counter() - begun)


async def _tell(ref: Ref) -> None:
    for number in range(TELLS):
        await ref.tell(Note(number))


async def _tell_nowait(ref: Ref) -> None:
    for number in range(TELLS):
        try:
            ref.tell_nowait(Note(number))
        except MailboxFull:
            await ref.tell(Note(number))


async def _ask(ref: Ref) -> None:
    for number in range(ASKS):
        await ref.ask(Request(number), REPLY_SECONDS)


async def _channel_tell() -> float:
    sender, receiver = trio.open_memory_channel[Note](CAPACITY)

    async def receive() -> None:
        for _ in range(TELLS):
            await receiver.receive()

    begun = perf_counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        for number in range(TELLS):
            await sender.send(Note(number))
    return TELLS / (perf_counter() - begun)


async def _channel_ask() -> float:
    to_worker, requests = trio.open_memory_channel[Request](CAPACITY)
    to_asker, replies = trio.open_memory_channel[int](CAPACITY)

    async def serve() -> None:
        for _ in range(ASKS):
            request = await requests.receive()
            await to_asker.send(request.number)

    begun = perf_counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        for number in range(ASKS):
            await to_worker.send(Request(number))
            await replies.receive()
    return ASKS / (perf_counter() - begun)


class PykkaSink(pykka.ThreadingActor):  # type: ignore[misc]
    def on_receive(self, message: Note | Request) -> int:
        return message.number


def _pykka(work: Callable[[pykka.ActorRef], None], count: int) -> float:
    ref = PykkaSink.start()
    try:
        ref.ask(Request(0))
        begun = perf_counter()
        work(ref)
        ref.ask(Request(0))
        return count / (perf_counter() - begun)
    finally:
        ref.stop()


def _pykka_tell(ref: pykka.ActorRef) -> None:
    for number in range(TELLS):
        ref.tell(Note(number))


def _pykka_ask(ref: pykka.ActorRef) -> None:
    for number in range(ASKS):
        ref.ask(Request(number))


def _measures() -> dict[str, Measure]:
    def sink(size: int, work: Callable[[Ref], Awaitable[None]], count: int) -> Measure:
        return lambda: trio.run(_with_sink, size, work, count)

    return {
        "channel tell": lambda: trio.run(_channel_tell),
        "tell": sink(TRACE_SIZE, _tell, TELLS),
        "tell, ring off": sink(0, _tell, TELLS),
        "tell_nowait": sink(TRACE_SIZE, _tell_nowait, TELLS),
        "pykka tell": lambda: _pykka(_pykka_tell, TELLS),
        "channel ask": lambda: trio.run(_channel_ask),
        "ask": sink(TRACE_SIZE, _ask, ASKS),
        "ask, ring off": sink(0, _ask, ASKS),
        "pykka ask": lambda: _pykka(_pykka_ask, ASKS),
    }


def run_rounds() -> dict[str, list[float]]:
    """Every measure once per round, the rounds interleaved; the first round only warms up."""
    measures = _measures()
    rates: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(ROUNDS + 1):
        for name, measure in measures.items():
            gc.collect()
            rate = measure()
            if number:
                rates[name].append(rate)
    return rates


def figures() -> Iterator[Figure]:
    rates = run_rounds()
    for name, values in rates.items():
        yield Figure(name=name, value=median(values), unit="1/s", detail={"rounds": [round(value) for value in values]})
    ratios = (
        ("tell / channel", "tell", "channel tell", TELL_BUDGET),
        ("ask / channel", "ask", "channel ask", ASK_BUDGET),
        ("tell / channel, ring off", "tell, ring off", "channel tell", None),
        ("ask / channel, ring off", "ask, ring off", "channel ask", None),
        ("tell / pykka tell", "tell", "pykka tell", 1.0),
        ("tell_nowait / pykka tell", "tell_nowait", "pykka tell", 1.0),
        ("ask / pykka ask", "ask", "pykka ask", 1.0),
    )
    for name, above, below, budget in ratios:
        yield Figure(name=name, value=median_ratio(rates[above], rates[below]), unit="ratio", budget=budget)
