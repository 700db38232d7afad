"""What an actor costs: tell and ask against a bare Trio memory channel and against Pykka, in one run.

The reference for tell is one task that sends and one that receives over one buffered channel; for ask, one task that
sends a request over one channel and waits for the reply on a second. Both sides use the same buffer as the actor's
mailbox, both move one small frozen message, and on both the receiver does nothing with it. ``tell`` waits when the
mailbox is full, as ``send`` does; ``tell_nowait`` never waits, as Pykka's ``tell`` never does.

Each measure is taken by the wall clock and by the CPU time of the process. Ratios to the channel use CPU time: both
sides are one thread, and other load on the machine cancels out. Ratios to Pykka are given by both, and the budget is on
letters per second of the wall clock. Pykka runs two threads: with a core for each they fight for the interpreter and it
is slow, on one core (also when the rest of the machine is busy) they do not and it is fast, and in a burst that one
thread writes before the other reads nothing holds it back (``burst``). So that ratio has two values; docs/actors.md
says which and why.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from statistics import median
from time import perf_counter, process_time

import pykka
import trio
from attrs import define, field, frozen

from tuneplane.actors import Actor, ChildSpec, Context, MailboxFull, MailboxSpec, Ref, SupervisorSpec, handles, open_system
from tuneplane.actors.trace import TRACE_SIZE

from .figures import Figure, median_ratio

ROUNDS = 7
TELLS = 100_000
BURST = 2_000
ASKS = 6_000
CAPACITY = 64
TELL_BUDGET = 0.35
ASK_BUDGET = 0.25
REPLY_SECONDS = 5.0


@frozen
class Rate:
    """Operations per second: of the wall clock, and of CPU time (all threads together)."""

    wall: float
    cpu: float


@define
class Stopwatch:
    count: int
    wall: float = field(factory=perf_counter)
    cpu: float = field(factory=process_time)

    def rate(self) -> Rate:
        return Rate(self.count / (perf_counter() - self.wall), self.count / (process_time() - self.cpu))


Measure = Callable[[], Rate]


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


async def _with_sink(trace_size: int, work: Callable[[Ref], Awaitable[None]], count: int) -> Rate:
    """Operations per second of ``work``, the time until the last letter is handled included."""
    done = trio.Event()
    spec = SupervisorSpec(name="root", children=(ChildSpec(name="sink", factory=lambda: Sink(done)),))
    async with open_system("bench", spec, trace_size=trace_size) as system:
        ref = system.find("root/sink")
        await ref.ask(Request(0), REPLY_SECONDS)
        watch = Stopwatch(count)
        await work(ref)
        await ref.tell(Last())
        await done.wait()
        return watch.rate()


def _tell(count: int) -> Callable[[Ref], Awaitable[None]]:
    async def tell(ref: Ref) -> None:
        for number in range(count):
            await ref.tell(Note(number))

    return tell


async def _tell_nowait(ref: Ref) -> None:
    for number in range(TELLS):
        try:
            ref.tell_nowait(Note(number))
        except MailboxFull:
            await ref.tell(Note(number))


async def _ask(ref: Ref) -> None:
    for number in range(ASKS):
        await ref.ask(Request(number), REPLY_SECONDS)


async def _channel_tell() -> Rate:
    sender, receiver = trio.open_memory_channel[Note](CAPACITY)

    async def receive() -> None:
        for _ in range(TELLS):
            await receiver.receive()

    watch = Stopwatch(TELLS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        for number in range(TELLS):
            await sender.send(Note(number))
    return watch.rate()


async def _channel_ask() -> Rate:
    to_worker, requests = trio.open_memory_channel[Request](CAPACITY)
    to_asker, replies = trio.open_memory_channel[int](CAPACITY)

    async def serve() -> None:
        for _ in range(ASKS):
            request = await requests.receive()
            await to_asker.send(request.number)

    watch = Stopwatch(ASKS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        for number in range(ASKS):
            await to_worker.send(Request(number))
            await replies.receive()
    return watch.rate()


class PykkaSink(pykka.ThreadingActor):  # type: ignore[misc]
    def on_receive(self, message: Note | Request) -> int:
        return message.number


def _pykka(work: Callable[[pykka.ActorRef], None], count: int) -> Rate:
    ref = PykkaSink.start()
    try:
        ref.ask(Request(0))
        watch = Stopwatch(count)
        work(ref)
        ref.ask(Request(0))
        return watch.rate()
    finally:
        ref.stop()


def _pykka_tell(count: int) -> Callable[[pykka.ActorRef], None]:
    def tell(ref: pykka.ActorRef) -> None:
        for number in range(count):
            ref.tell(Note(number))

    return tell


def _pykka_ask(ref: pykka.ActorRef) -> None:
    for number in range(ASKS):
        ref.ask(Request(number))


def _measures() -> dict[str, Measure]:
    def sink(size: int, work: Callable[[Ref], Awaitable[None]], count: int) -> Measure:
        return lambda: trio.run(_with_sink, size, work, count)

    return {
        "channel tell": lambda: trio.run(_channel_tell),
        "tell": sink(TRACE_SIZE, _tell(TELLS), TELLS),
        "tell, ring off": sink(0, _tell(TELLS), TELLS),
        "tell_nowait": sink(TRACE_SIZE, _tell_nowait, TELLS),
        "pykka tell": lambda: _pykka(_pykka_tell(TELLS), TELLS),
        "tell, burst": sink(TRACE_SIZE, _tell(BURST), BURST),
        "pykka tell, burst": lambda: _pykka(_pykka_tell(BURST), BURST),
        "channel ask": lambda: trio.run(_channel_ask),
        "ask": sink(TRACE_SIZE, _ask, ASKS),
        "ask, ring off": sink(0, _ask, ASKS),
        "pykka ask": lambda: _pykka(_pykka_ask, ASKS),
    }


def run_rounds() -> dict[str, list[Rate]]:
    """Every measure once per round, the rounds interleaved; the first round only warms up."""
    measures = _measures()
    rates: dict[str, list[Rate]] = {name: [] for name in measures}
    for number in range(ROUNDS + 1):
        for name, measure in measures.items():
            gc.collect()
            rate = measure()
            if number:
                rates[name].append(rate)
    return rates


def figures() -> Iterator[Figure]:
    rates = run_rounds()
    wall = {name: [rate.wall for rate in values] for name, values in rates.items()}
    cpu = {name: [rate.cpu for rate in values] for name, values in rates.items()}
    for name in rates:
        detail: dict[str, object] = {"per_cpu_second": round(median(cpu[name])), "rounds": [round(value) for value in wall[name]]}
        yield Figure(name=name, value=median(wall[name]), unit="1/s", detail=detail)
    ratios = (
        ("tell / channel", cpu, "tell", "channel tell", TELL_BUDGET),
        ("ask / channel", cpu, "ask", "channel ask", ASK_BUDGET),
        ("tell / channel, ring off", cpu, "tell, ring off", "channel tell", None),
        ("ask / channel, ring off", cpu, "ask, ring off", "channel ask", None),
        ("tell / pykka tell", wall, "tell", "pykka tell", 1.0),
        ("ask / pykka ask", wall, "ask", "pykka ask", 1.0),
        ("tell_nowait / pykka tell", wall, "tell_nowait", "pykka tell", None),
        ("tell / pykka tell, burst", wall, "tell, burst", "pykka tell, burst", None),
        ("tell / pykka tell, CPU", cpu, "tell", "pykka tell", None),
        ("ask / pykka ask, CPU", cpu, "ask", "pykka ask", None),
    )
    for name, of, above, below, budget in ratios:
        yield Figure(name=name, value=median_ratio(of[above], of[below]), unit="ratio", budget=budget)
