"""What every reconciler of this room does alike: follow pokes, and wait longer after each failure of the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from math import inf

import structlog
import trio
from attrs import define, field

from tuneplane.actors import Context, Ref, Timer
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.ports import PokeStore, Topic

log = structlog.get_logger("tuneplane.control")

Clock = Callable[[], datetime]
"""The time in UTC."""

Entropy = Callable[[int], bytes]
"""``n`` random bytes."""

FIRST_SECONDS = 0.1  # a restarted PostgreSQL answers within a second or two
MOST_SECONDS = 5.0  # P-17: what waited for the database takes effect within 5 s of its return


@define
class Backoff:
    """Doubling waits with jitter: half of each is fixed and half is drawn, so that many waiters spread out."""

    entropy: Entropy
    first: float = FIRST_SECONDS
    most: float = MOST_SECONDS
    _failures: int = field(default=0, init=False)

    def reset(self) -> None:
        self._failures = 0

    def next_seconds(self) -> float:
        """The next wait; more than ``most`` is never asked."""
        whole = min(self.first * 2.0 ** min(self._failures, 30), self.most)
        self._failures += 1
        return whole * (0.5 + int.from_bytes(self.entropy(2), "big") / 131072.0)


@define
class Pace:
    """Keeps looks apart when pokes come faster than they can be afforded; the first after a quiet time is never delayed."""

    _rest_until: float = field(default=0.0, init=False)

    def rest(self, seconds: float) -> None:
        """No look for ``seconds`` from now."""
        self._rest_until = trio.current_time() + seconds

    def seconds_left(self) -> float:
        """How long to wait before looking; 0 when the look may begin."""
        return max(self._rest_until - trio.current_time(), 0.0)


@define
class Alarm:
    """One pending timer of one signal: setting it again replaces it. Its task is kept for the next time as long as it sleeps."""

    signal: str
    _timer: Timer | None = field(default=None, init=False)

    def set(self, context: Context, seconds: float) -> None:
        if self._timer is not None and self._timer.pending:
            self._timer.reset(seconds)
            return
        self.cancel()
        self._timer = context.timer(self.signal, seconds)

    def cancel(self) -> None:
        if self._timer is None:
            return
        if self._timer.pending:
            self._timer.reset(inf)
            return
        self._timer.cancel()  # its time has come, and it has not raised its signal yet
        self._timer = None


async def signal_on_pokes(context: Context, signals: Mapping[Topic, str], store: PokeStore, backoff: Backoff) -> None:
    """Raise the signal of a topic at once, after every poke about it, every reconnect and every poll interval, until the actor
    is asked to stop.

    A lost database is waited for.
    """
    with context.until_stopping():
        await _follow_pokes(context, signals, store, backoff)


async def _follow_pokes(context: Context, signals: Mapping[Topic, str], store: PokeStore, backoff: Backoff) -> None:
    while True:
        try:
            async with store.open_pokes(tuple(signals)) as pokes:
                async for heard in pokes:
                    backoff.reset()
                    for topic, signal in signals.items():
                        if topic in heard:
                            context.ref.signal(signal)
        except StorageUnavailable as error:
            log.warning("pokes lost, polling again soon", topics=[topic.value for topic in signals], error=str(error))
        await trio.sleep(backoff.next_seconds())


def sibling(context: Context, name: str) -> Ref | None:
    """The actor called ``name`` under the same supervisor, or None while it is down."""
    return context.system.ref(f"{parent_path(context)}/{name}")


def parent_path(context: Context) -> str:
    """The path of the supervisor of this actor."""
    return context.path.rpartition("/")[0]
