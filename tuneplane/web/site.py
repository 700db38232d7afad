"""What every handler may use: made once per process, in ``server.py``, and handed to each call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from attrs import Factory, frozen

from tuneplane.control.api import Clock, ControlApi, Entropy
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.ids import ID_ENTROPY_BYTES, spell_id
from tuneplane.domain.jobs import User
from tuneplane.domain.ports import Storage

from .feed import Feed
from .metrics import Metrics
from .sessions import Sessions
from .streams import StreamCount

CHECK_DEADLINE_SECONDS = 2.0  # a stream's sign of life must not wait for a database that hangs


@frozen(kw_only=True)
class Site:
    """The web room's own wiring. Holds no request and no task."""

    api: ControlApi
    storage: Storage  # for readiness and pokes only: what a user asks goes through ``api``
    sessions: Sessions
    clock: Clock
    entropy: Entropy
    version: str
    feed: Feed = Factory(Feed)
    metrics: Metrics = Factory(Metrics)
    streams: StreamCount = Factory(StreamCount)

    def new_trace(self) -> str:
        """Names one request in answers and in the log."""
        return spell_id("trace", self.entropy(ID_ENTROPY_BYTES))

    def stream_check(
        self, authenticate_again: Callable[[], Awaitable[User]], still_seen: Callable[[User], Awaitable[None]] | None = None
    ) -> Callable[[], Awaitable[dict[str, Any]]]:
        """What a stream asks every few seconds, and when accounts change: that its caller's account, and the token or session
        that it came with, are still good (R-ADM-01), that he may still see what it shows, and whether the data are fresh."""

        async def check() -> dict[str, Any]:
            fresh = self.feed.fresh
            try:
                with trio.fail_after(CHECK_DEADLINE_SECONDS):
                    user = await authenticate_again()
                    if still_seen is not None:
                        await still_seen(user)
            except (StorageUnavailable, trio.TooSlowError):
                fresh = False  # nobody can be looked up: the stream says stale, and stays
            return {"fresh": fresh, "at": self.clock()}

        return check
