"""Jobs: submit, look, stop, logs, timeline."""

from __future__ import annotations

import base64
from typing import Any

import trio
from attrs import evolve, frozen

from tuneplane.control.api import (
    FollowBytes,
    FollowEnded,
    FollowEvent,
    FollowInterrupted,
    FollowWaiting,
    LogChoice,
    Preview,
)
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.ids import FleetId, JobId, TraceId
from tuneplane.domain.jobs import Job, JobSummary, TimelineEvent
from tuneplane.domain.jobspec import JobSpec
from tuneplane.domain.launch_table import JobState
from tuneplane.domain.waiting import WaitingGroup

from . import streams
from .inputs import PageQuery
from .routing import Answer, Call, Raw, Router, Who
from .site import Site
from .streams import EventStream, Send, spell_event

router = Router("jobs")

IDEMPOTENCY_HEADER = "Idempotency-Key"
IF_CHANGED = "If-None-Match"
MOST_GROUPS = 500  # more causes than people read; ``jobs`` counts all of them
LOG_SECONDS = 20.0  # a bounded read: up to 4 MiB through gateway and Node; the request itself may take 45 s
POLL_SECONDS = 2.0  # a follow looks again at least this often


@frozen(kw_only=True)
class JobPage:
    """One page of jobs, newest first, without their specifications and attempts."""

    items: tuple[JobSummary, ...]
    next_cursor: str | None


@frozen(kw_only=True)
class WaitingQuery:
    """``?fleet=``: of one Fleet only."""

    fleet: str | None = None


@frozen(kw_only=True)
class WaitingPage:
    """Waiting jobs by cause, and how many they are in all."""

    items: tuple[WaitingGroup, ...]
    next_cursor: str | None
    jobs: int


@frozen(kw_only=True)
class JobQuery(PageQuery):
    """Filters of the job list; ``state`` may be given several times."""

    state: tuple[JobState, ...] = ()
    fleet: str | None = None


@frozen(kw_only=True)
class RetryQuery:
    """``?after=N``: the attempt that was seen to fail. A repeat then answers the job as it is, whatever attempt N+1 came to."""

    after: int | None = None


@frozen(kw_only=True)
class Timeline:
    """Every event of the launch, in causal order."""

    items: tuple[TimelineEvent, ...]
    next_cursor: str | None


@router.route("GET", "/api/jobs", who=Who.USER, query=JobQuery, headers=(IF_CHANGED,), answers={200: JobPage, 304: None})
async def list_jobs(site: Site, call: Call) -> Answer:
    """The caller's jobs, or everybody's for an administrator."""
    fleet = FleetId(call.query.fleet) if call.query.fleet is not None else None
    items, cursor = await site.api.jobs.list_page(call.user, call.query.page(), states=call.query.state, fleet=fleet)
    return Answer(value=JobPage(items=tuple(items), next_cursor=cursor))


@router.route("GET", "/api/waiting", who=Who.USER, query=WaitingQuery, headers=(IF_CHANGED,), answers={200: WaitingPage, 304: None})
async def list_waiting(site: Site, call: Call) -> Answer:
    """What waits and why, grouped by cause, of the jobs that the caller sees."""
    fleet = FleetId(call.query.fleet) if call.query.fleet is not None else None
    groups = await site.api.jobs.waiting(call.user, fleet)
    shown, jobs = tuple(groups[:MOST_GROUPS]), sum(group.jobs for group in groups)
    return Answer(value=WaitingPage(items=shown, next_cursor=None, jobs=jobs))


@router.route(
    "POST",
    "/api/jobs",
    who=Who.USER,
    body=JobSpec,
    headers=(IDEMPOTENCY_HEADER,),
    answers={201: Job},
    problems=(404,),
    acts=("job.submit",),
)
async def submit_job(site: Site, call: Call) -> Answer:
    """Submit a job. A repeat with the same Idempotency-Key returns the first job."""
    key = call.headers.get(IDEMPOTENCY_HEADER)
    job = await site.api.jobs.submit(call.user, call.body, idempotency_key=key, trace=TraceId(call.trace))
    return Answer(status=201, value=job, headers={"Location": f"/api/jobs/{job.id}"})


@router.route("POST", "/api/jobs/preview", who=Who.USER, body=JobSpec, answers={200: Preview}, problems=(404,))
async def preview_job(site: Site, call: Call) -> Answer:
    """What a submission would be answered now; creates nothing."""
    return Answer(value=await site.api.jobs.preview(call.user, call.body))


@router.route("GET", "/api/jobs/{job}", who=Who.USER, headers=(IF_CHANGED,), answers={200: Job, 304: None})
async def read_job(site: Site, call: Call) -> Answer:
    """One job with its attempts and their members."""
    return Answer(value=await site.api.jobs.get(call.user, JobId(call.path["job"])))


@router.route("POST", "/api/jobs/{job}/stop", who=Who.USER, answers={202: Job}, problems=(422,), acts=("job.stop",))
async def stop_job(site: Site, call: Call) -> Answer:
    """Ask a job to stop: accepted once and for ever; a repeat changes nothing."""
    return Answer(status=202, value=await site.api.jobs.stop(call.user, JobId(call.path["job"])))


@router.route("POST", "/api/jobs/{job}/retry", who=Who.USER, query=RetryQuery, answers={202: Job}, problems=(409,), acts=("job.retry",))
async def retry_job(site: Site, call: Call) -> Answer:
    """Try a failed job once more; a repeat before that attempt has begun, or with ``after``, changes nothing."""
    return Answer(status=202, value=await site.api.jobs.retry(call.user, JobId(call.path["job"]), after=call.query.after))


@router.route("GET", "/api/jobs/{job}/timeline", who=Who.USER, answers={200: Timeline})
async def read_timeline(site: Site, call: Call) -> Answer:
    """Every event of the job's launch."""
    events = await site.api.jobs.timeline(call.user, JobId(call.path["job"]))
    return Answer(value=Timeline(items=tuple(events), next_cursor=None))


LOG_ANSWER = Raw("text/plain", "the bytes; X-Next-Offset says where to go on. With follow=true: text/event-stream")


@router.route(
    "GET", "/api/jobs/{job}/logs", who=Who.USER, query=LogChoice, headers=("Last-Event-ID",), answers={200: LOG_ANSWER}, problems=(410,)
)
async def read_logs(site: Site, call: Call) -> Answer:
    """A bounded piece of a member's log, or with follow=true all of it as server-sent events while it grows."""
    job = JobId(call.path["job"])
    if call.query.follow:
        return await _follow(site, call, job)
    with trio.fail_after(LOG_SECONDS):
        piece = await site.api.logs.read(call.user, job, call.query)
    headers = {"X-Next-Offset": str(piece.next_offset), "X-Offset": str(piece.offset), "X-Ended": str(piece.ended).lower()}
    if piece.gap:
        headers["X-Gap"] = str(piece.gap)
    return Answer(raw=piece.data, media_type="text/plain; charset=utf-8", headers=headers)


async def _follow(site: Site, call: Call, job: JobId) -> Answer:
    choice = _resumed(call.query, call.headers.get("Last-Event-ID", ""))
    await site.api.logs.check(call.user, job, choice)  # a wrong name is answered as such, before the stream
    site.streams.check(call.user.username)

    async def pause() -> None:
        with trio.move_on_after(POLL_SECONDS):
            await site.feed.wait_poke()

    async def pump(send: Send) -> None:
        await site.api.logs.follow(call.authenticate_again, job, choice, lambda event: send(_spell(event)), pause)

    check = site.stream_check(call.authenticate_again, lambda user: site.api.jobs.check(user, job))
    stream = EventStream(pump, check, site.streams, call.user.username)
    return Answer(stream=stream, media_type=streams.MEDIA_TYPE)


def _resumed(choice: LogChoice, last: str) -> LogChoice:
    """A browser that reconnects repeats the id of the last event: the attempt, and the offset behind it."""
    if not last:
        return choice
    parts = last.split(".")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() and len(part) <= 16 for part in parts):
        raise InvalidInput("Last-Event-ID", "is not an id of this stream")
    attempt = int(parts[0]) if len(parts) == 2 else choice.attempt
    return evolve(choice, offset=int(parts[-1]), tail_lines=None, attempt=attempt)


def _spell(event: FollowEvent) -> bytes:
    if isinstance(event, FollowBytes):
        data: dict[str, Any] = {
            "attempt": event.attempt,
            "offset": event.offset,
            "next_offset": event.next_offset,
            "gap": event.gap,
            "data": base64.b64encode(event.data).decode(),
        }
        return spell_event("log", data, f"{event.attempt}.{event.next_offset}")
    names = {FollowWaiting: "waiting", FollowInterrupted: "interrupted", FollowEnded: "end"}
    return spell_event(names[type(event)], event)
