"""Waiting jobs are served fairly: priority, then age, and a large gang is not starved by small jobs (R-PLC-06, R-PLC-03)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.strategies import EPOCH, fleets, job_specs, node_lists, optional
from tests.domain.test_placement import LAB, gang, machine
from tuneplane.domain.fairness import Decision, Releases, plan_queue, queue_order, releases_of, wants_releases
from tuneplane.domain.fit import free_amounts
from tuneplane.domain.fleets import Fleet
from tuneplane.domain.ids import JobId, NodeId, TraceId, UserName
from tuneplane.domain.jobs import Job, Occupant
from tuneplane.domain.jobspec import JobSpec
from tuneplane.domain.launch_table import JobState
from tuneplane.domain.nodes import Connection, Node
from tuneplane.domain.placement import MustWait, Placed
from tuneplane.domain.timings import PRODUCTION

T = PRODUCTION.earmark_after


def waiting(name: str, spec: JobSpec, *, age: float = 0.0, priority: int = 0, runtime: float | None = None) -> Job:
    body = attrs.evolve(spec.spec, priority=priority, max_runtime_seconds=runtime)
    return Job(
        id=JobId(name),
        name=name,
        project="default",
        owner=UserName("ada"),
        fleet=LAB.id,
        spec=attrs.evolve(spec, spec=body),
        image="i",
        state=JobState.QUEUED,
        trace=TraceId("t"),
        created_at=EPOCH - timedelta(seconds=age),
    )


def decide(nodes: Sequence[Node], jobs: Sequence[Job], releases: Releases | None = None, fleet: Fleet = LAB) -> list[Decision]:
    return list(plan_queue(fleet, nodes, jobs, releases or {}, EPOCH, PRODUCTION))


def placed_of(decisions: list[Decision]) -> dict[str, tuple[str, ...]]:
    return {one.jobs[0].id: tuple(m.node for m in one.answer.members) for one in decisions if isinstance(one.answer, Placed)}


def wait_of(decisions: list[Decision], name: str) -> MustWait:
    (answer,) = (one.answer for one in decisions for job in one.jobs if job.id == name)
    assert isinstance(answer, MustWait)
    return answer


def in_seconds(seconds: float) -> Releases:
    return {NodeId(f"n{number}"): EPOCH + timedelta(seconds=seconds) for number in range(1, 9)}


# ---------------------------------------------------------------- order


def test_queue_is_by_priority_then_age() -> None:
    jobs = [
        waiting("young", gang(1, cpus=8), age=1),
        waiting("old", gang(1, cpus=8), age=9),
        waiting("urgent", gang(1, cpus=8), priority=1),
    ]
    decisions = decide([machine(1), machine(2)], jobs)
    assert list(placed_of(decisions)) == ["urgent", "old"]
    assert wait_of(decisions, "young").code == "no-free-capacity"


@settings(max_examples=50)
@given(
    st.lists(st.tuples(job_specs(), st.floats(0, 900), optional(st.floats(1, 9999))), max_size=6),
    fleets(),
    node_lists(),
    st.dictionaries(st.sampled_from([NodeId(f"node-{n:02}") for n in range(5)]), optional(st.just(EPOCH + timedelta(hours=2)))),
    st.randoms(use_true_random=False),
)
def test_plan_decides_every_job_once_whatever_the_order(
    asked: list, fleet: Fleet, nodes: list[Node], releases: dict, random: object
) -> None:
    """Deterministic; a job is placed, or waits for reasons that name every Node that is refused."""
    jobs = [waiting(f"job-{n}", spec, age=age, runtime=runtime) for n, (spec, age, runtime) in enumerate(asked)]
    decisions = decide(nodes, jobs, releases, fleet)
    assert sorted(job.id for one in decisions for job in one.jobs) == sorted(job.id for job in jobs)
    for shuffled in (jobs, nodes):
        random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert decide(nodes, jobs, releases, fleet) == decisions
    for one in decisions:
        if isinstance(one.answer, MustWait):
            assert one.answer.code
            assert one.answer.reasons
    _check_budgets(nodes, decisions)


def _check_budgets(nodes: list[Node], decisions: list[Decision]) -> None:
    """R-PLC-05: all placements of a plan together fit what was free."""
    given_away: dict[str, list] = {node.id: [0, 0, []] for node in nodes}
    for one in decisions:
        for member in one.answer.members if isinstance(one.answer, Placed) else ():
            pool = one.jobs[0].spec.pool
            used = given_away[member.node]
            used[0] += round((pool.cpus or 1.0) * 1000)
            used[1] += round((pool.memory_gb or 1.0) * 10**9)
            used[2] += member.gpu_uuids
    for node in nodes:
        cpu, memory, cards = given_away[node.id]
        if cpu:
            have = free_amounts(node)
            assert (cpu, memory) <= (have[0], have[1])
            assert memory <= have[1]
            assert len(set(cards)) == len(cards) <= have[2]
            assert set(cards) <= set(node.free_gpu_uuids)


# ---------------------------------------------------------------- earmarks


def test_a_job_that_has_waited_little_lets_younger_ones_go_first() -> None:
    decisions = decide([machine(1), machine(2, cpus=2)], [waiting("gang", gang(2, cpus=8), age=T - 1), waiting("small", gang(1))])
    assert set(placed_of(decisions)) == {"small"}


def test_a_gang_that_has_waited_long_keeps_machines_free() -> None:
    """And who waits behind it is told so, with the numbers."""
    jobs = [waiting("gang", gang(2, cpus=8), age=T), waiting("small", gang(1)), waiting("large", gang(1, cpus=9))]
    decisions = decide([machine(1), machine(2, cpus=2)], jobs)
    assert placed_of(decisions) == {}
    (reason,) = wait_of(decisions, "small").reasons
    assert (wait_of(decisions, "small").code, reason.subject, reason.unit, reason.need, reason.have) == ("behind", "gang", "machines", 1, 0)
    assert reason.detail == "waits behind job gang, for which 2 machines are kept free"
    head = wait_of(decisions, "gang")
    assert head.code == "too-few-machines"
    assert [(one.code, one.need, one.have) for one in head.reasons][-1] == ("earmarked", 2, 1)
    assert "nobody can say when the others are" in head.reasons[-1].detail
    assert wait_of(decisions, "large").code == "no-free-capacity"  # it would not fit anyway: that is the truth


def test_other_machines_stay_open_to_others() -> None:
    nodes = [machine(1), machine(2, cpus=2), machine(3, cpus=3)]
    decisions = decide(nodes, [waiting("gang", gang(2, cpus=8), age=T), waiting("small", gang(1))], in_seconds(60))
    assert placed_of(decisions) == {"small": ("n3",)}  # n2 comes free as soon as n3, and is first by its id


def test_the_machines_that_come_free_soonest_are_kept() -> None:
    releases = {**in_seconds(900), NodeId("n3"): EPOCH + timedelta(seconds=60)}
    nodes = [machine(1), machine(2, cpus=2), machine(3, cpus=2)]
    decisions = decide(nodes, [waiting("gang", gang(2, cpus=8), age=T), waiting("small", gang(1))], releases)
    assert placed_of(decisions) == {"small": ("n2",)}
    assert "n1, n3; 1 are free, all are free by 2026-11-30 12:01:00Z" in wait_of(decisions, "gang").reasons[-1].detail


def test_backfill_only_where_the_job_is_over_before_the_machines_are_needed() -> None:
    launch = PRODUCTION.prepare_deadline + PRODUCTION.commit_deadline + 30.0  # and its grace
    nodes, gang_ = [machine(1), machine(2, cpus=0)], waiting("gang", gang(2, cpus=8), age=T)
    for runtime, fits in ((100.0, True), (101.0, False), (None, False)):
        decisions = decide(nodes, [gang_, waiting("small", gang(1), runtime=runtime)], in_seconds(launch + 100.0))
        assert (set(placed_of(decisions)) == {"small"}) is fits, runtime
    assert placed_of(decide(nodes, [gang_, waiting("small", gang(1), runtime=1.0)], {})) == {}  # nobody knows when: nobody goes first


def test_a_job_that_no_machine_of_now_could_hold_keeps_nobody_up() -> None:
    """Its machines are away: what waits for a repair does not stop the others."""
    away = attrs.evolve(machine(2), connection=Connection(state="disconnected"))
    decisions = decide([machine(1), away], [waiting("gang", gang(2, cpus=8), age=T), waiting("small", gang(1))])
    assert set(placed_of(decisions)) == {"small"}
    assert {one.code for one in wait_of(decisions, "gang").reasons} == {"too-few-machines", "insufficient-cpus", "not-ready"}


def test_only_the_first_keeps_machines() -> None:
    nodes = [machine(1), machine(2, cpus=2), machine(3)]
    jobs = [waiting("one", gang(2, cpus=8, interface="eth0"), age=T + 2), waiting("two", gang(3, cpus=8), age=T + 1)]
    decisions = decide([*nodes[:2]], jobs)
    assert sum(one.code == "earmarked" for d in decisions if isinstance(d.answer, MustWait) for one in d.answer.reasons) == 1


def test_releases_are_upper_bounds() -> None:
    launch = PRODUCTION.prepare_deadline + PRODUCTION.commit_deadline
    run = Occupant(node=NodeId("n1"), placed_at=EPOCH, running_at=EPOCH + timedelta(seconds=5), max_runtime_seconds=10.0, grace_seconds=2.0)
    starts = attrs.evolve(run, node=NodeId("n2"), running_at=None)
    unknown = attrs.evolve(run, node=NodeId("n3"), max_runtime_seconds=None)
    releases = releases_of(
        [run, starts, unknown, attrs.evolve(run, node=NodeId("n3")), attrs.evolve(starts, node=NodeId("n1"))], PRODUCTION
    )
    late = EPOCH + timedelta(seconds=launch + 12)
    assert releases == {"n1": late, "n2": late, "n3": None}
    assert wants_releases([waiting("a", gang(1), age=T)], EPOCH, PRODUCTION)
    assert not wants_releases([waiting("a", gang(1), age=T - 1)], EPOCH, PRODUCTION)


def _weeks_of_small_jobs(earmark_after: float) -> float | None:
    """When the gang starts: two machines of two places, always a small job waiting, each runs 100 s, one begins every 50 s."""
    timings = attrs.evolve(PRODUCTION, earmark_after=earmark_after)
    gang_, running, number = waiting("gang", gang(2, cpus=8)), {}, 0
    for tick in range(0, 4000, 50):
        now = EPOCH + timedelta(seconds=tick)
        running = {name: (node, end) for name, (node, end) in running.items() if end > tick}
        used = {f"n{m}": 4 * sum(node == f"n{m}" for node, _ in running.values()) for m in (1, 2)}
        lease = Connection(state="connected", lease_expires_at=now + timedelta(seconds=9))
        nodes = [attrs.evolve(machine(m, cpus=8 - used[f"n{m}"]), connection=lease) for m in (1, 2)]
        small = [attrs.evolve(waiting(f"s{number + n}", gang(1, cpus=4)), created_at=now) for n in range(2)]
        number += 2
        for one in plan_queue(LAB, nodes, [*small, *([gang_] if tick >= 100 else [])], {}, now, timings):
            if isinstance(one.answer, Placed) and one.jobs[0].id == "gang":
                return float(tick)
            if isinstance(one.answer, Placed):
                running[one.jobs[0].id] = (one.answer.members[0].node, tick + 100)
    return None


def test_a_gang_is_not_starved_by_small_jobs() -> None:
    """And it would be without the earmark: small jobs always find the place that another has left."""
    assert _weeks_of_small_jobs(float(10**9)) is None
    began = _weeks_of_small_jobs(T)
    assert began is not None
    assert began <= T + 100 + 100


def test_queue_order_is_total() -> None:
    jobs = [
        waiting(name, gang(1), age=age, priority=priority) for name, age, priority in (("b", 1, 0), ("a", 1, 0), ("c", 2, 0), ("d", 0, 1))
    ]
    assert [job.id for job in sorted(jobs, key=queue_order)] == ["d", "c", "a", "b"]
