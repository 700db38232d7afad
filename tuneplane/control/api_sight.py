"""What the control plane sees of all Nodes, and whether it judges their silence (P-16, P-19)."""

from __future__ import annotations

from datetime import datetime

from attrs import frozen

from tuneplane.domain.jobs import User
from tuneplane.domain.sight import Brake, Sight, why_suspended
from tuneplane.domain.timings import PRODUCTION, Timings

from .api_base import Base, require_admin


@frozen(kw_only=True)
class SightAnswer:
    """What the workers see of all Nodes together. ``suspended`` says why no silence is judged just now."""

    judging: bool
    suspended: str
    seen_since: datetime | None  # without a gap; nobody's silence counts from before
    looked_at: datetime | None
    live: int  # of the active Nodes
    vanished: int  # of them, those that vanished lately (under the brake: since shortly before it)
    brake: Brake | None  # P-19


@frozen(kw_only=True)
class Sights(Base):
    """One look at the lookouts' row."""

    timings: Timings = PRODUCTION

    async def get(self, caller: User) -> SightAnswer:
        """For administrators: it counts the Nodes of all Fleets."""
        require_admin(caller)
        now = self.clock()
        return answer_sight(await self.storage.load_sight(now), now, self.timings)

    async def warnings(self) -> tuple[str, ...]:
        """What the control plane suspects of itself, for everybody; without numbers. Raises StorageUnavailable."""
        now = self.clock()
        suspended = why_suspended(await self.storage.load_sight(now), now, self.timings)
        return (suspended,) if suspended else ()


def answer_sight(sight: Sight | None, now: datetime, timings: Timings) -> SightAnswer:
    """The API's shape of a sight, judged now."""
    suspended = why_suspended(sight, now, timings)
    return SightAnswer(
        judging=not suspended,
        suspended=suspended,
        seen_since=sight.seen_since if sight is not None else None,
        looked_at=sight.looked_at if sight is not None else None,
        live=sight.census.live if sight is not None else 0,
        vanished=sight.census.vanished if sight is not None else 0,
        brake=sight.brake if sight is not None else None,
    )
