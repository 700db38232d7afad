"""``GET /api/events``: what changed, as server-sent events."""

from __future__ import annotations

from attrs import frozen

from tuneplane.domain.ids import JobId
from tuneplane.domain.jobs import User

from . import streams
from .routing import Answer, Call, Raw, Router, Who
from .site import Site
from .streams import EventStream, Send, spell_event

router = Router("events")


@frozen(kw_only=True)
class EventQuery:
    """``?job=`` also tells of changes of that job's members."""

    job: str | None = None


STREAM = Raw(streams.MEDIA_TYPE, "`changed` {changes: [{kind, id, state}], complete}, and `alive` {fresh, at} every five seconds")


@router.route("GET", "/api/events", who=Who.USER, query=EventQuery, answers={200: STREAM}, problems=(404,))
async def watch_events(site: Site, call: Call) -> Answer:
    """What changed, filtered to what the caller may see; the first `changed` says to look at everything."""
    job = JobId(call.query.job) if call.query.job is not None else None

    async def still_seen(user: User) -> None:
        if job is not None:
            await site.api.jobs.check(user, job)

    await still_seen(call.user)
    site.streams.check(call.user.username)

    async def pump(send: Send) -> None:
        with site.feed.watch(call.user, job) as watcher:
            while True:
                await send(spell_event("changed", await watcher.next_changes()))

    stream = EventStream(pump, site.stream_check(call.authenticate_again, still_seen), site.streams, call.user.username)
    return Answer(stream=stream, media_type=streams.MEDIA_TYPE)
