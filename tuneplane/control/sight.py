"""How long this process has been able to see, without a gap: what it could not see is held against nobody (P-16, L-B9)."""

from __future__ import annotations

import trio
from attrs import define, field


@define
class Sight:
    """Shared by all that one process judges. On the Trio clock: a wall clock that is set does not count as waiting.

    ``gap_seconds`` without a look end it: this process was stalled, or had nothing to look at.
    """

    gap_seconds: float
    _since: float = field(default=0.0, init=False)
    _last: float | None = field(default=None, init=False)

    def looked(self) -> float:
        """PostgreSQL has just answered; for how many seconds it has by now."""
        now = trio.current_time()
        if self._last is None or now - self._last > self.gap_seconds:
            self._since = now
        self._last = now
        return now - self._since

    def lost(self) -> None:
        """PostgreSQL did not answer."""
        self._last = None
