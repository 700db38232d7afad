"""The rules of restarting, pure: who is restarted, with whom, after how long, and when to give up."""

from __future__ import annotations

from collections import deque
from enum import Enum

from attrs import Factory, define, field, frozen, validators

from .exits import ExitReason, is_failure


class Restart(Enum):
    """When a child that ended by itself is started again."""

    PERMANENT = "permanent"  # always
    TRANSIENT = "transient"  # after a failure: crashed, gave up, killed
    TEMPORARY = "temporary"  # never


class Strategy(Enum):
    """Which siblings restart with a child."""

    ONE_FOR_ONE = "one-for-one"
    ONE_FOR_ALL = "one-for-all"
    REST_FOR_ONE = "rest-for-one"  # the child and those started after it
    POOL = "pool"  # like one-for-one; children come and go at run time


@frozen
class Budget:
    """At most ``restarts`` within any ``seconds``; one more and the supervisor gives up."""

    restarts: int = field(default=5, validator=validators.ge(0))
    seconds: float = field(default=30.0, validator=validators.gt(0))


@frozen
class Backoff:
    """Seconds before a restart: ``first``, doubled with each restart in the window, at most ``most``."""

    first: float = field(default=0.1, validator=validators.ge(0))
    most: float = field(default=10.0, validator=validators.ge(0))

    def delay(self, restart: int, jitter: float) -> float:
        """Before the ``restart``-th (from 1) in the window. ``jitter`` in [0, 1) takes away up to half."""
        doublings = min(restart - 1, 62)  # beyond that the float would overflow, and ``most`` has long won
        return min(self.most, self.first * 2.0**doublings) * (1.0 - jitter / 2)


@define
class Window:
    """The restarts of the last ``budget.seconds``."""

    budget: Budget
    _times: deque[float] = Factory(deque)  # at most budget.restarts + 1

    def charge(self, now: float) -> int | None:
        """Count one more; which one it is in the window, or None when that is one too many."""
        while self._times and self._times[0] <= now - self.budget.seconds:
            self._times.popleft()
        self._times.append(now)
        return len(self._times) if len(self._times) <= self.budget.restarts else None


def wants_restart(kind: Restart, reason: ExitReason) -> bool:
    """Of a child that ended without its supervisor's asking."""
    return kind is Restart.PERMANENT or (kind is Restart.TRANSIENT and is_failure(reason))
