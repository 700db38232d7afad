"""What the control plane can see, and when it doubts its own eyes: whose silence counts, and from when (P-16, P-19, L-B8).

One row of PostgreSQL, the :class:`Sight`, is written by every worker that looks around. Silence is counted from it by
whoever judges: launches a gang's silent Node (``launch_table``), the API and the deployments a Node (``liveness``).

- Nobody looked for a while (a start, an outage of the database, a stalled process): whatever was missed is held against
  nobody, so everybody has a full deadline from the look that follows.
- No gateway lives, or the oldest that lives began later: likewise, nobody could be heard before.
- The mass-failure brake: when a large share of the Nodes vanishes together, a fault of our own (a switch, a route, a
  certificate, a clock) is likelier than so many machines that died in one minute. While it is on, no silence counts.
  It is off again when the vanished are back, or when an operator has taken them out (drained, cordoned, removed): that is
  evidence. What is silent then still has a full deadline from there on. It never suspends the rule that new work needs a live
  session and a fresh inventory.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from attrs import evolve, frozen

from .timings import Timings

BRAKE_FEWEST = 3  # Nodes: of one or two, half is nothing unusual; a small lab's two dead machines are two dead machines
BRAKE_SHARE = 0.5  # of the active Nodes that were there: more than any rack or row that fails by itself, in any but a small lab
RELEASE_SHARE = 0.25  # well below the other, so that machines that come back one by one do not make it flutter


@frozen(kw_only=True)
class Census:
    """Active Nodes that have ever had a session: live now, and vanished within the window."""

    live: int
    vanished: int

    @property
    def share(self) -> float:
        """Vanished, of those that were there."""
        return self.vanished / max(self.live + self.vanished, 1)


@frozen(kw_only=True)
class Brake:
    """On since ``since``: ``vanished`` of ``population`` Nodes are gone that were there after ``window_from``."""

    since: datetime
    window_from: datetime
    vanished: int
    population: int

    def __str__(self) -> str:
        """Without numbers: not everybody who reads it may count all Nodes."""
        return (
            f"too many Nodes vanished together at {self.since:%Y-%m-%d %H:%M:%SZ}: the control plane suspects itself and judges no"
            " silence until they are back, or an operator has drained, cordoned or removed them"
        )


@frozen(kw_only=True)
class Sight:
    """What the workers have seen together. ``gateways_since``: since when some gateway has lived without a gap; None: none lives."""

    seen_since: datetime  # without a gap
    looked_at: datetime
    gateways_since: datetime | None = None
    blind_from: datetime | None = None  # the last look before the gap that ended at ``seen_since``
    released_at: datetime | None = None  # when the brake was last taken off
    brake: Brake | None = None
    census: Census = Census(live=0, vanished=0)

    @property
    def counts_from(self) -> datetime:
        """Nobody's silence counts from before."""
        return max(one for one in (self.seen_since, self.gateways_since, self.released_at) if one is not None)

    def is_blind(self, now: datetime, timings: Timings) -> bool:
        """Whether nobody has looked for so long that the next look begins anew."""
        return (now - self.looked_at).total_seconds() > timings.claim_lease

    def counted(self, since: datetime, now: datetime, timings: Timings) -> float:
        """Seconds since ``since`` in which somebody could see."""
        if self.gateways_since is None or self.is_blind(now, timings):
            return 0.0
        return max(0.0, (now - max(since, self.gateways_since, self.seen_since)).total_seconds())

    def silence(self, since: datetime, now: datetime, timings: Timings) -> float:
        """As :meth:`counted`, of a Node that is silent since ``since``: under the brake nobody is."""
        if self.brake is not None:
            return 0.0
        return self.counted(max(since, self.released_at or since), now, timings)

    def why_suspended(self, now: datetime, timings: Timings) -> str:
        """Why no silence counts just now; "" when it does."""
        if self.brake is not None:
            return str(self.brake)
        if self.is_blind(now, timings):
            return f"no worker has looked at the Nodes since {self.looked_at:%Y-%m-%d %H:%M:%SZ}"
        return "" if self.gateways_since is not None else "no gateway lives: no Node can be heard"


def counted(sight: Sight | None, since: datetime, now: datetime, timings: Timings) -> float:
    """As Sight.counted; nobody has looked yet: nothing counts."""
    return sight.counted(since, now, timings) if sight is not None else 0.0


def silence(sight: Sight | None, since: datetime, now: datetime, timings: Timings) -> float:
    """As Sight.silence; nobody has looked yet: nothing counts."""
    return sight.silence(since, now, timings) if sight is not None else 0.0


def why_suspended(sight: Sight | None, now: datetime, timings: Timings) -> str:
    """As Sight.why_suspended; nobody has looked yet: no worker has run."""
    return "no worker has looked at the Nodes yet" if sight is None else sight.why_suspended(now, timings)


# ---------------------------------------------------------------- looking around


def window_from(former: Sight | None, now: datetime, missed: bool, timings: Timings) -> datetime:
    """From when a Node counts as vanished *together* with others, in a look at ``now``.

    As long as one common cause may take to show at all of them: some notice a dead line after an idle deadline, some when
    their gateway's lease runs out. What vanished while nobody looked, and just before, vanished together.
    """
    window = timedelta(seconds=timings.judging_grace)
    if former is None:
        return now - window
    if former.brake is not None:
        return former.brake.window_from
    if _has_gap(former, now, missed, timings):
        return _blind_from(former, timings) - window
    if former.blind_from is not None and now - former.seen_since <= window:
        return former.blind_from - window
    return now - window


def look(former: Sight | None, census: Census, now: datetime, missed: bool, timings: Timings) -> Sight:
    """The sight after a look at ``now``. ``census`` was taken with :func:`window_from`; ``missed``: the looker's last look failed."""
    if former is None:
        seen = Sight(seen_since=now, looked_at=now)
    elif _has_gap(former, now, missed, timings):
        seen = evolve(former, seen_since=now, blind_from=_blind_from(former, timings), looked_at=now)
    else:
        seen = evolve(former, looked_at=max(former.looked_at, now))
    began = window_from(former, now, missed, timings)
    brake = _brake(former.brake if former is not None else None, census, now, began)
    released = now if former is not None and former.brake is not None and brake is None else seen.released_at
    return evolve(seen, brake=brake, released_at=released, census=census)


def _blind_from(former: Sight, timings: Timings) -> datetime:
    """The last look before the gap that ends now; a gap that follows another within the window is the same blindness."""
    if former.blind_from is not None and (former.looked_at - former.seen_since).total_seconds() <= timings.judging_grace:
        return former.blind_from
    return former.looked_at


def _has_gap(former: Sight, now: datetime, missed: bool, timings: Timings) -> bool:
    """One who knows that he could not look is believed at once, unless another one did meanwhile (P-16)."""
    return former.is_blind(now, timings) or (missed and (now - former.looked_at).total_seconds() > timings.claim_renew)


def _brake(held: Brake | None, census: Census, now: datetime, began: datetime) -> Brake | None:
    if census.vanished < BRAKE_FEWEST or census.share < (BRAKE_SHARE if held is None else RELEASE_SHARE):
        return None
    since, began = (now, began) if held is None else (held.since, held.window_from)
    return Brake(since=since, window_from=began, vanished=census.vanished, population=census.live + census.vanished)
