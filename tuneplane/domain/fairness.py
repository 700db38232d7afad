"""Who of a Fleet's waiting jobs is placed, and for whom machines are kept free (R-PLC-06): pure and deterministic.

Priority, then age. What cannot be placed lets younger jobs go first, until it has waited for ``earmark_after`` and nobody
before it waits as long: then the machines that come free for it soonest are *earmarked*. A later job may use them only when
it is over, by its own ``max_runtime_seconds``, before the last of them comes free; so it delays nobody. Every machine
that comes free for the waiting job stays free, so its turn comes, whatever small jobs arrive. One job of a Fleet at a time
has an earmark: the first that waits so long and that the Fleet's machines could hold at all just now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Union

from attrs import define, field, frozen

from .errors import Reason
from .fit import Shape, holds_when_empty, shape_of, why_apart, why_no_series
from .fleets import Fleet
from .hardware import only_series
from .ids import JobId, NodeId, attempt_id
from .jobs import Job, Occupant
from .jobspec import JobSpec
from .leases import port_count
from .nodes import Node
from .placement import NONE, MustWait, Placed, Room, open_room
from .timings import Timings

Releases = Mapping[NodeId, datetime | None]
"""When a Node's members have all ended at the latest; None: nobody can say. Nodes without members are not in it."""


@frozen
class Earmark:
    """Machines that are kept free for one job. ``needed_at``: all are free by then; None: nobody can say when."""

    job: JobId
    nodes: frozenset[NodeId]
    needed_at: datetime | None


@frozen
class Decision:
    """One job that is placed, or all those that wait for one and the same reason."""

    jobs: tuple[Job, ...]
    answer: Union[Placed, MustWait]


def queue_order(job: Job) -> tuple[int, datetime, JobId]:
    return (-job.spec.spec.priority, job.created_at, job.id)


def waiting_since(job: Job) -> datetime:
    """Since when it could have been placed: a back-off is not waiting for machines."""
    return max(job.created_at, job.not_before or job.created_at)


def wants_releases(jobs: Iterable[Job], now: datetime, timings: Timings) -> bool:
    """Whether :func:`plan_queue` may ask when machines come free."""
    return any(_is_overdue(job, now, timings) for job in jobs)


def releases_of(occupants: Iterable[Occupant], timings: Timings) -> dict[NodeId, datetime | None]:
    """Upper bounds: a member that does not run yet has all the time that a launch may take before it."""
    releases: dict[NodeId, datetime | None] = {}
    for one in occupants:
        end = None
        if one.max_runtime_seconds is not None:
            began = one.running_at or one.placed_at + timedelta(seconds=_launch_seconds(timings))
            end = began + timedelta(seconds=one.max_runtime_seconds + one.grace_seconds)
        known = releases.get(one.node, end)
        releases[one.node] = None if known is None or end is None else max(known, end)
    return releases


def plan_queue(
    fleet: Fleet, nodes: Iterable[Node], jobs: Sequence[Job], releases: Releases, now: datetime, timings: Timings
) -> Iterator[Decision]:
    """Decisions in the order of the queue: placements as they are found, and at the end every other job with its reason.

    The order of ``nodes`` and ``jobs`` makes no difference. The reasons are those at the end of the plan, so that they are
    true once its placements have been written.
    """
    line = _Line(open_room(fleet, nodes, now), releases, timings)
    for job in sorted(jobs, key=queue_order):
        placed = line.serve(job)
        if placed is not None:
            yield Decision((job,), placed)
    yield from line.left()


def foresee(
    job: Job, fleet: Fleet, nodes: Iterable[Node], queue: Iterable[Job], releases: Releases, now: datetime, timings: Timings
) -> tuple[Union[Placed, MustWait], int]:
    """What would become of ``job`` at its place in the queue, and how many are before it. Younger and less urgent ones do not
    matter: they come after it."""
    before = [one for one in queue if queue_order(one) < queue_order(job)]
    plan = plan_queue(fleet, nodes, [*before, job], releases, now, timings)
    return next(decision.answer for decision in plan for one in decision.jobs if one.id == job.id), len(before)


@define
class _Line:
    room: Room
    releases: Releases
    timings: Timings
    earmark: Earmark | None = field(default=None, init=False)
    _waiting: dict[tuple[Shape, bool, bool], list[Job]] = field(factory=dict, init=False)

    def serve(self, job: Job) -> Placed | None:
        shape, kept = shape_of(job.spec), self._kept(job.spec)
        placed = self.room.place(job.spec, attempt_id(job.id, job.attempt_number + 1), kept)
        if placed is not None:
            self.room.take(job.spec, placed)
            return placed
        if self.earmark is None and _is_overdue(job, self.room.now, self.timings):
            self.earmark = self._make_earmark(job.id, shape)
        is_head = self.earmark is not None and self.earmark.job == job.id
        self._waiting.setdefault((shape, bool(kept), is_head), []).append(job)
        return None

    def left(self) -> Iterator[Decision]:
        for (shape, kept, is_head), jobs in self._waiting.items():
            yield Decision(tuple(jobs), self._why(jobs[0].spec, shape, kept=kept, is_head=is_head))

    def _kept(self, spec: JobSpec) -> frozenset[NodeId]:
        """The machines that are not for this job: those earmarked, unless it is over before they are needed."""
        if self.earmark is None:
            return NONE
        needed_at, runtime = self.earmark.needed_at, spec.spec.max_runtime_seconds
        if needed_at is None or runtime is None:
            return self.earmark.nodes
        seconds = _launch_seconds(self.timings) + runtime + spec.spec.stop.grace_seconds
        return NONE if self.room.now + timedelta(seconds=seconds) <= needed_at else self.earmark.nodes

    def _why(self, spec: JobSpec, shape: Shape, *, kept: bool, is_head: bool) -> MustWait:
        if kept and self.earmark is not None:
            without = len(self.room.best(shape, self.earmark.nodes))
            if without < shape.machines <= len(self.room.best(shape)):
                return MustWait("behind", (_behind(shape, self.earmark, without),))
        why = self.room.why(spec)
        return MustWait(why.code, (*why.reasons, self._earmarked(shape))) if is_head else why

    def _earmarked(self, shape: Shape) -> Reason:
        """What a job knows whose turn it is."""
        assert self.earmark is not None
        refused = self.room.refused(shape)
        free = sum(node not in refused for node in self.earmark.nodes)
        when = self.earmark.needed_at
        by = f"all are free by {when:%Y-%m-%d %H:%M:%SZ}" if when is not None else "nobody can say when the others are"
        names = ", ".join(sorted(self.earmark.nodes))
        detail = f"{shape.machines} machines are kept for it: {names}; {free} are free, {by}"
        return Reason("earmarked", detail, self.room.fleet.id, "machines", shape.machines, free)

    def _make_earmark(self, job: JobId, shape: Shape) -> Earmark | None:
        """None: the machines that are open to work could not hold it even empty, so nobody waits for it.

        When a machine is free on which this very plan has placed something, nobody can say yet.
        """
        refused, changed, found = self.room.refused(shape), self.room.changed, []
        for node in self.room.open_nodes():
            if _could_hold(shape, node, self.room):
                free = node.id not in refused
                at = self.room.now if free else None if node.id in changed else self.releases.get(node.id)
                short = max(shape.gpus - len(node.free_gpu_uuids), 0)
                found.append((not free, at is None, at or self.room.now, short, node.id))
        if len(found) < shape.machines:
            return None
        chosen = sorted(found)[: shape.machines]
        unknown = any(one[1] for one in chosen)
        return Earmark(job, frozenset(one[-1] for one in chosen), None if unknown else max(one[2] for one in chosen))


def _could_hold(shape: Shape, node: Node, room: Room) -> bool:
    seen = only_series(node, shape.series)
    ports = port_count(node.inventory.budgets) if node.inventory is not None else 0
    static = why_no_series(shape, seen) or why_apart(shape, seen, room.peers(shape))
    return static is None and ports >= shape.ports and holds_when_empty(shape, seen)


def _behind(shape: Shape, earmark: Earmark, have: int) -> Reason:
    kept = f"for which {len(earmark.nodes)} machines are kept free"
    return Reason("behind", f"waits behind job {earmark.job}, {kept}", earmark.job, "machines", shape.machines, have)


def _is_overdue(job: Job, now: datetime, timings: Timings) -> bool:
    return now - waiting_since(job) >= timedelta(seconds=timings.earmark_after)


def _launch_seconds(timings: Timings) -> float:
    """From the placement until the command runs, at most: what takes longer is stopped."""
    return timings.prepare_deadline + timings.commit_deadline
