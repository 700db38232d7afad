"""Retention: what ended long ago is forgotten on the Nodes by an explicit command, never by a clock of theirs (P-06)."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

import structlog
from attrs import define

from tuneplane.actors import Actor, Context, MailboxSpec, on_signal
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.ports import LaunchStore
from tuneplane.domain.timings import Timings

from .patience import Backoff, Clock

log = structlog.get_logger("tuneplane.control.retention")

MEMBERS_A_LOOK = 500  # one short transaction
LOOKS_A_PERIOD = 1000  # with a week's keeping, one look in ten minutes


@define
class Retention(Actor):
    """Persists Forget commands for cleaned members whose attempt ended before ``forget_after``. Repeats change nothing."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = ()
    storage: LaunchStore
    timings: Timings
    clock: Clock
    backoff: Backoff

    async def on_start(self, context: Context) -> None:
        context.ref.signal("look")

    @on_signal("look")
    async def look(self, context: Context) -> None:
        now = self.clock()
        try:
            written = await self.storage.forget_ended(now - timedelta(seconds=self.timings.forget_after), MEMBERS_A_LOOK, now)
        except StorageUnavailable as error:
            log.warning("retention waits for the database", error=str(error))
            context.timer("look", self.backoff.next_seconds())
            return
        self.backoff.reset()
        if written:
            log.info("members forgotten", count=written)
        full = written >= MEMBERS_A_LOOK
        context.timer("look", self.timings.poll if full else self.timings.forget_after / LOOKS_A_PERIOD)
