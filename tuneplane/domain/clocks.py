"""How far two clocks are apart, by round trips: the reply tells when the question arrived (R-LIV-06)."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta

from attrs import define, field, frozen

TRIPS_KEPT = 8  # about a minute of heartbeats: one that was delayed on its way does not count while a quicker one is remembered
CLOCK_WARN_SECONDS = 5.0  # half of ``commit_margin``: beyond it times of one machine mislead who compares them with another's
CLOCK_STEP_SECONDS = 0.5  # a smaller change is not worth a write: people see tenths


@frozen(kw_only=True)
class Offset:
    """This clock minus the other one; wrong by ``error_seconds`` at most, half of the round trip."""

    seconds: float
    error_seconds: float

    def differs(self, other: Offset) -> bool:
        """Whether it tells something new."""
        return abs(self.seconds - other.seconds) > max(CLOCK_STEP_SECONDS, self.error_seconds, other.error_seconds)


@define
class ClockMeter:
    """Fed with round trips; gives the best recent one."""

    _trips: deque[Offset] = field(factory=lambda: deque(maxlen=TRIPS_KEPT), init=False)

    def answered(self, sent_at: datetime, received_at: datetime, round_trip_seconds: float) -> None:
        """``sent_at`` on this clock, ``received_at`` on the other; the round trip by a clock that nobody sets."""
        half = max(round_trip_seconds, 0.0) / 2
        middle = sent_at + timedelta(seconds=half)
        self._trips.append(Offset(seconds=(middle - received_at).total_seconds(), error_seconds=half))

    @property
    def best(self) -> Offset | None:
        """By the quickest round trip that is remembered; a clock that was set is believed once the newest says so beyond doubt."""
        if not self._trips:
            return None
        newest, quickest = self._trips[-1], min(self._trips, key=lambda trip: trip.error_seconds)
        return newest if newest.differs(quickest) else quickest


def clock_warning(offset: float | None, error: float | None) -> str:
    """What people are told of a clock that is off by more than they can overlook; "" otherwise."""
    if offset is None or abs(offset) - (error or 0.0) <= CLOCK_WARN_SECONDS:
        return ""
    side = "ahead of" if offset > 0 else "behind"
    return f"its clock is {abs(offset):.1f} s {side} the control plane's (more than {CLOCK_WARN_SECONDS:g} s): its times mislead"
