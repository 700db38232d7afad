"""Jobs: admission while the submitter is looking, listing, stopping, the timeline (R-LCH, R-PLC-02)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import trio
from attrs import evolve, field, frozen

from tuneplane.domain.accounts import DEFAULT_PROJECT
from tuneplane.domain.admission import WORKLOAD_OF, Candidate, admission_reasons, choose
from tuneplane.domain.errors import InvalidInput, NotFound, Reason, Refused
from tuneplane.domain.fairness import foresee, releases_of, wants_releases
from tuneplane.domain.fleets import Fleet, FleetKind
from tuneplane.domain.ids import FleetId, JobId, NodeId, ProjectId, TraceId
from tuneplane.domain.jobs import Job, JobSummary, Page, TimelineEvent, User
from tuneplane.domain.jobspec import JobSpec, check_job_spec, check_node_fleet_shape, check_supported
from tuneplane.domain.launch_table import JobState
from tuneplane.domain.nodes import Node
from tuneplane.domain.placement import Placed, place
from tuneplane.domain.timings import Timings
from tuneplane.domain.visibility import ADMIN, may_change_job, may_see_job
from tuneplane.domain.waiting import WaitingGroup, by_cause, waiting_of

from .api_base import Base
from .api_fleets import Fleets
from .images import FIELD as IMAGE_FIELD
from .images import ImageResolver

RESOLVE_SECONDS = 10.0  # a person is looking; a registry that takes longer is reported as such
JOBS_LOOKED_AT = 1000  # of a queue, as many as the allocator looks at
TIMELINE_EVENTS = 1000  # an attempt has some twenty; the newest are kept
MOST_KEY = 200  # characters of an Idempotency-Key: a UUID has 36
MOST_LABELS = 64
MOST_LABEL_TEXT = 256  # characters of a label's name or value


@frozen(kw_only=True)
class Preview:
    """What a submission would meet now: the Fleet and image it would get, and whether it would start or wait."""

    fleet: FleetId
    image: str
    placed: bool
    nodes: tuple[NodeId, ...] = ()
    waiting_code: str = ""
    reasons: tuple[Reason, ...] = ()
    ahead: int = 0  # jobs that are before it in the Fleet's queue, as far as one looks


@frozen
class _Admitted:
    fleet: Fleet
    nodes: list[Node]
    image: str


@frozen(kw_only=True)
class Jobs(Base):
    """Jobs as their owners, the members of their projects and administrators see them; to all others they do not exist."""

    fleets: Fleets
    images: ImageResolver
    timings: Timings
    resolve_seconds: float = field(default=RESOLVE_SECONDS)

    async def submit(self, caller: User, spec: JobSpec, *, idempotency_key: str | None = None, trace: TraceId | None = None) -> Job:
        """Admit and write a queued job; the same key again returns the first job without judging it again.

        InvalidInput names the field. Refused: ``no-fleet-fits`` with a reason per visible Fleet, ``image-unresolved``,
        ``idempotency-key-reused``. NotFound for a named Fleet that the caller may not see.
        """
        if idempotency_key is not None:
            first = await self._first_answer(caller, spec, idempotency_key)
            if first is not None:
                return first
        admitted = await self._admit(caller, spec)
        await self._check_again(caller, spec, admitted.fleet.id)
        job = await self.storage.submit(
            JobId(self.new_id("job")),
            spec,
            owner=caller.username,
            fleet=admitted.fleet.id,
            image=admitted.image,
            trace=trace or TraceId(self.new_id("trace")),
            idempotency_key=idempotency_key,
            now=self.clock(),
        )
        self.tell(caller.username, "job.submit", job.id, job.fleet)
        return _same(job, spec)  # not ours, when another request with this key was faster

    async def preview(self, caller: User, spec: JobSpec) -> Preview:
        """The answer that ``submit`` would give, and where the job would go now. Creates nothing."""
        admitted, now = await self._admit(caller, spec), self.clock()
        queue = await self.storage.waiting_jobs(admitted.fleet.id, JOBS_LOOKED_AT, now)
        overdue = wants_releases(queue, now, self.timings)
        releases = releases_of(await self.storage.occupants(admitted.fleet.id), self.timings) if overdue else {}
        job = self._as_if_submitted(caller, spec, admitted, now)
        answer, ahead = foresee(job, admitted.fleet, admitted.nodes, queue, releases, now, self.timings)
        preview = Preview(fleet=admitted.fleet.id, image=admitted.image, placed=isinstance(answer, Placed), ahead=ahead)
        if isinstance(answer, Placed):
            return evolve(preview, nodes=tuple(member.node for member in answer.members))
        return evolve(preview, waiting_code=answer.code, reasons=answer.reasons)

    def _as_if_submitted(self, caller: User, spec: JobSpec, admitted: _Admitted, now: datetime) -> Job:
        return Job(
            id=JobId("preview"),
            name=spec.metadata.name,
            project=spec.metadata.project,
            owner=caller.username,
            fleet=admitted.fleet.id,
            spec=spec,
            image=admitted.image,
            state=JobState.QUEUED,
            trace=TraceId(""),
            created_at=now,
        )

    async def get(self, caller: User, job: JobId) -> Job:
        """The job with its attempts. NotFound also for one that the caller may not see."""
        await self.check(caller, job)
        found = await self.storage.get_job(job)
        if found is None:
            raise NotFound("job", job)
        return evolve(found, waiting=waiting_of(found))

    async def waiting(self, caller: User, fleet: FleetId | None = None) -> list[WaitingGroup]:
        """What waits and why, by cause: of the jobs that the caller sees (L-L4)."""
        return by_cause(await self.storage.waiting_by_reasons(fleet=fleet, seen_by=caller))

    async def check(self, caller: User, job: JobId, *, to_change: bool = False) -> None:
        """That the caller may see the job; or the same NotFound, after the same one look, as where there is none. ``to_change``:
        and stop or retry it; Refused(code="forbidden") for who may only see it."""
        access = await self.storage.job_access(job)
        if access is None or not may_see_job(caller, access):
            raise NotFound("job", job)
        if to_change and not may_change_job(caller, access):
            raise Refused("forbidden", f"job {job} is {access.owner}'s: only its owner or an administrator may do this")

    async def list_page(
        self, caller: User, page: Page, *, states: Sequence[JobState] = (), fleet: FleetId | None = None
    ) -> tuple[list[JobSummary], str | None]:
        """Newest first: the caller's own and those of his projects, or everybody's for an administrator."""
        jobs, cursor = await self.storage.list_jobs(page, states=states, fleet=fleet, seen_by=caller)
        return [evolve(job, waiting=waiting_of(job)) for job in jobs], cursor

    async def stop(self, caller: User, job: JobId) -> Job:
        """Accept a stop, once and for ever; a repeat and a stop of an ended job change nothing (R-LCH-12)."""
        await self.check(caller, job, to_change=True)
        stopped = await self.storage.request_stop(job, caller.username, self.clock())
        self.tell(caller.username, "job.stop", job)
        return stopped

    async def retry(self, caller: User, job: JobId, *, after: int | None = None) -> Job:
        """Queue a failed job for one more attempt. Refused says why not.

        A repeat changes nothing before that attempt is placed; with ``after``, the attempt that was seen to fail, never.
        """
        await self.check(caller, job, to_change=True)
        found = await self.get(caller, job)
        if after is not None and not 1 <= after <= max(found.attempt_number, 1):  # nobody can have seen that one fail
            raise InvalidInput("after", f"must be the number of an attempt that failed: job {job} has {found.attempt_number}")
        queued = await self.storage.retry(job, caller.username, self.clock(), after=after)
        self.tell(caller.username, "job.retry", job)
        return queued

    async def timeline(self, caller: User, job: JobId) -> list[TimelineEvent]:
        await self.check(caller, job)
        return await self.storage.timeline(job, TIMELINE_EVENTS)

    async def _first_answer(self, caller: User, spec: JobSpec, key: str) -> Job | None:
        if not 1 <= len(key) <= MOST_KEY or not (key.isascii() and key.isprintable()):
            raise InvalidInput("Idempotency-Key", f"must be 1 to {MOST_KEY} printable ASCII characters")
        first = await self.storage.find_submission(caller.username, key)
        if first is None:
            return None
        await self.check(caller, first.id)  # its Fleet may have gone out of his sight since
        return _same(first, spec)

    async def _admit(self, caller: User, spec: JobSpec) -> _Admitted:
        check_job_spec(spec)
        check_supported(spec.spec)
        check_node_fleet_shape(spec.spec)  # this version has no other back end to point a larger job to
        _check_labels(spec)
        await self._check_project(caller, spec.metadata.project)
        fleet, nodes = await self._choose(caller, spec)
        return _Admitted(fleet, nodes, await self._resolve(spec.spec.runtime.image or ""))

    async def _check_again(self, caller: User, spec: JobSpec, fleet: FleetId) -> None:
        """An image may take RESOLVE_SECONDS: who was disabled, or shut out of project or Fleet, meanwhile submits nothing (R-ADM-01)."""
        user = await self.storage.get_user(caller.username)
        if user is None or user.disabled:
            raise Refused("unauthenticated", "the account was disabled while this job was judged")
        await self._check_project(user, spec.metadata.project)
        await self.fleets.get(user, fleet)

    async def _check_project(self, caller: User, project: str) -> None:
        """A job is of a project that its submitter is a member of, or of ``default``, which is everybody's own; administrators
        may name any. What is not his is not told from what is not there."""
        if project == DEFAULT_PROJECT or project in caller.projects:
            return
        if caller.role != ADMIN or await self.storage.get_project(ProjectId(project)) is None:
            raise InvalidInput("metadata.project", f"you are a member of no project {project!r}; leave it out for a job of your own")

    async def _resolve(self, image: str) -> str:
        try:
            with trio.fail_after(self.resolve_seconds):
                return await self.images.resolve(image)
        except trio.TooSlowError:
            detail = f"image {image[:200]!r} cannot be resolved to a digest: its registry took longer than {self.resolve_seconds:g} s"
            raise Refused("image-unresolved", detail, field=IMAGE_FIELD) from None

    async def _choose(self, caller: User, spec: JobSpec) -> tuple[Fleet, list[Node]]:
        """The Fleet that takes the job (R-PLC-01), of those that the caller may see."""
        named = spec.spec.fleet
        fleets = [await self.fleets.get(caller, FleetId(named))] if named is not None else await self.fleets.visible(caller)
        nodes = {fleet.id: await self.storage.placement_nodes(fleet.id, self.clock()) for fleet in fleets}
        candidates = [self._candidate(spec, fleet, nodes[fleet.id]) for fleet in fleets]
        fleet = choose(WORKLOAD_OF[spec.kind], candidates, named=named is not None)
        assert fleet is not None  # jobs have one
        return fleet, nodes[fleet.id]

    def _candidate(self, spec: JobSpec, fleet: Fleet, nodes: list[Node]) -> Candidate:
        refusals = _backend_reasons(fleet) or admission_reasons(spec, fleet, nodes)
        return Candidate(fleet, refusals, not refusals and isinstance(place(spec, fleet, nodes, self.clock()), Placed))


def _same(first: Job, spec: JobSpec) -> Job:
    """The job that an Idempotency-Key belongs to, if it is the one that was asked for."""
    if first.spec != spec:
        raise Refused("idempotency-key-reused", f"this Idempotency-Key was used for job {first.id}, which has another specification")
    return first


def _backend_reasons(fleet: Fleet) -> tuple[Reason, ...]:
    if fleet.kind is FleetKind.NODE:
        return ()
    return (Reason("back-end", f"Fleet {fleet.id} is of kind {fleet.kind.value!r}, which this version cannot run jobs on", fleet.id),)


def _check_labels(spec: JobSpec) -> None:
    labels = spec.metadata.labels
    if len(labels) > MOST_LABELS:
        raise InvalidInput("metadata.labels", f"at most {MOST_LABELS} labels")
    for name, value in labels.items():
        if max(len(name), len(value)) > MOST_LABEL_TEXT:
            raise InvalidInput(f"metadata.labels.{name[:64]}", f"at most {MOST_LABEL_TEXT} characters")
