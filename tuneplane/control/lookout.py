"""The lookout: one look at all Nodes every few seconds, from which silence is judged (domain/sight.py; P-16, P-19, L-B8)."""

from __future__ import annotations

from typing import ClassVar

import structlog
from attrs import define, field

from tuneplane.actors import Actor, Context, MailboxSpec, on_signal
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.sight import Brake, Sight
from tuneplane.domain.small_ports import SightStore
from tuneplane.domain.timings import Timings

from .patience import Backoff, Clock

log = structlog.get_logger("tuneplane.control.lookout")


@define
class Lookout(Actor):
    """Every worker has one; they share one row, so any number of them see as one. Nothing is judged here.

    A look that failed is told with the next one: time in which the database was away counts for nothing.
    """

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = ()
    storage: SightStore
    timings: Timings
    clock: Clock
    backoff: Backoff
    _missed: bool = field(default=False, init=False)
    _brake: Brake | None = field(default=None, init=False)  # as last told in the log

    async def on_start(self, context: Context) -> None:
        context.ref.signal("look")

    @on_signal("look")
    async def look(self, context: Context) -> None:
        try:
            seen = await self.storage.look_around(self._missed, self.clock())
        except StorageUnavailable as error:
            self._missed = True
            log.warning("cannot look around", error=str(error))
            context.timer("look", min(self.backoff.next_seconds(), self.timings.claim_renew))
            return
        self._missed = False
        self.backoff.reset()
        self._tell(seen)
        context.timer("look", self.timings.claim_renew)

    def _tell(self, seen: Sight) -> None:
        if seen.brake is not None and self._brake is None:
            log.error("mass-failure brake on", vanished=seen.brake.vanished, population=seen.brake.population, since=seen.brake.since)
        elif seen.brake is None and self._brake is not None:
            log.warning("mass-failure brake off", live=seen.census.live, vanished=seen.census.vanished)
        self._brake = seen.brake
