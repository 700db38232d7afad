"""The Node's member table: complete for everything that can happen, and safe whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tuneplane.domain.errors import IllegalTransition
from tuneplane.domain.frames import Command, CommandKind
from tuneplane.domain.ids import AttemptId, FleetId, JobId, MemberId, NodeId, OperationId, TraceId
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.launch_table import MEMBER_TABLE, MemberPhase
from tuneplane.domain.member_table import (
    ENDED,
    HOLDING,
    NODE_MEMBER_TABLE,
    REFUSALS,
    REPORTED,
    RESUME,
    UNSEEN,
    MemberAction,
    MemberEvent,
    NodePhase,
    step,
)
from tuneplane.domain.node_member import (
    LABEL_FENCE,
    LABEL_MEMBER,
    LABEL_NODE,
    NOTHING_FOUND,
    PROGRESS_TICKS,
    Facts,
    Grants,
    NodeMember,
    Place,
    acknowledged,
    advance,
    decide,
    grace_left,
    hold_left,
    judge,
    observation,
)
from tuneplane.domain.node_ports import ContainerState, Life
from tuneplane.domain.plan import MemberPlan, plan_bytes, plan_digest

P, E, A = NodePhase, MemberEvent, MemberAction
COMMANDS = (E.PREPARE, E.COMMIT, E.STOP, E.FORGET)
FOUND = (E.FOUND_ABSENT, E.FOUND_READY, E.FOUND_STALE, E.FOUND_RUNNING, E.FOUND_ENDED, E.FOUND_UNPROVEN, E.FOUND_FOREIGN, E.FENCED)
OUTCOMES: dict[MemberAction, tuple[MemberEvent, ...]] = {
    A.PREPARE: (E.READY, E.UNFIT),
    A.AWAIT: (E.HOLD_EXPIRED,),
    A.CREATE: (E.UNCLEAR, E.REFUSED, *FOUND),
    A.START: (E.UNCLEAR, E.REFUSED, E.STARTED, *FOUND),
    A.LOOK: FOUND,
    A.WAIT: FOUND,
    A.END: (E.SIGNALLED, *FOUND),
    A.REMOVE: (E.REMOVED,),
    A.FENCE: FOUND,
    A.CLEAN: (E.CLEANED,),
    A.FORGET: (E.GONE,),
    A.KEEP: (),
}


def after_commands(phase: NodePhase) -> set[NodePhase]:
    """Where commands alone can take a member while its driver is busy."""
    seen, todo = {phase}, [phase]
    while todo:
        at = todo.pop()
        for command in COMMANDS:
            row = NODE_MEMBER_TABLE.get((at, command))
            if row is not None and row.phase not in seen and (at, command) not in REFUSALS:
                seen.add(row.phase)
                todo.append(row.phase)
    return seen


def begun() -> Iterator[tuple[NodePhase, MemberAction]]:
    """Every (phase, action) that a driver may begin."""
    for row in NODE_MEMBER_TABLE.values():
        if row.action is not A.KEEP and row.phase is not P.ABSENT:
            yield row.phase, row.action
    yield from RESUME.items()


@pytest.mark.parametrize("phase", list(P))
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_in_every_phase_is_either_taken_or_refused(phase: NodePhase, command: MemberEvent) -> None:
    assert ((phase, command) in NODE_MEMBER_TABLE) != ((phase, command) in REFUSALS)


def test_every_outcome_of_a_begun_action_has_a_row_whatever_commands_came_meanwhile() -> None:
    """Except an await that ends in a phase where nothing awaits: an ended member has no hold."""
    missing = [
        (phase.value, action.value, event.value, now.value)
        for phase, action in set(begun())
        for now in after_commands(phase)
        for event in OUTCOMES[action]
        if (now, event) not in NODE_MEMBER_TABLE and now is not P.ABSENT and not (action is A.AWAIT and phase in ENDED)
    ]
    assert missing == []


def test_no_path_starts_a_member_twice() -> None:
    """R-LCH-02, P-03: START is reached from one phase only, and no path leads back to it."""
    starting = {key for key, row in NODE_MEMBER_TABLE.items() if row.action is A.START}
    assert {phase for phase, _ in starting} == {P.CREATING}
    assert all(NODE_MEMBER_TABLE[key].phase is P.STARTING for key in starting)
    assert P.CREATING not in reachable(P.STARTING)
    assert A.START not in RESUME.values()
    assert A.CREATE not in RESUME.values()


def test_no_path_creates_twice() -> None:
    creating = {key for key, row in NODE_MEMBER_TABLE.items() if row.action is A.CREATE}
    assert creating == {(P.PREPARED, E.COMMIT)}
    assert P.PREPARED not in reachable(P.CREATING)


def reachable(phase: NodePhase) -> set[NodePhase]:
    seen: set[NodePhase] = set()
    todo = [phase]
    while todo:
        at = todo.pop()
        targets = {row.phase for (here, _), row in NODE_MEMBER_TABLE.items() if here is at} - seen - {P.ABSENT}
        seen |= targets
        todo += targets
    return seen


@pytest.mark.parametrize("phase", [P.WITHDRAWN, P.STOPPING, P.ABORTED, P.TERMINATED, P.FORGOTTEN])
def test_nothing_starts_after_a_stop_was_accepted(phase: NodePhase) -> None:
    """R-LCH-12, P-02, P-08, P-10."""
    actions = {row.action for (at, _), row in NODE_MEMBER_TABLE.items() if at in {phase, *reachable(phase)}}
    assert not actions & {A.START, A.CREATE, A.PREPARE, A.WAIT}


def test_an_end_is_left_by_forget_only() -> None:
    """P-06."""
    for (phase, event), row in NODE_MEMBER_TABLE.items():
        if phase in ENDED and row.phase is not phase:
            assert (event, row.phase) in {(E.FORGET, P.FORGOTTEN), (E.GONE, P.ABSENT)}


def test_every_holding_phase_can_come_to_an_end() -> None:
    """Every accepted stop and every hold ends (P-11)."""
    for phase in HOLDING:
        assert {P.ABORTED, P.TERMINATED} & reachable(phase)


def test_absent_is_never_an_end_without_a_fence() -> None:
    """P-01."""
    for (phase, event), row in NODE_MEMBER_TABLE.items():
        if event is E.FOUND_ABSENT:
            assert row.phase is phase
            assert row.action is A.FENCE or phase in UNSEEN | ENDED


def test_what_a_node_reports_never_goes_back_on_the_control_side() -> None:
    """The two tables agree: each step here is a step, or none, there."""
    for (phase, _), row in NODE_MEMBER_TABLE.items():
        if phase in REPORTED and row.phase in REPORTED:
            assert REPORTED[row.phase] in MEMBER_TABLE[REPORTED[phase]], (phase, row.phase)
    for phase in REPORTED:
        assert REPORTED[phase] in MEMBER_TABLE[MemberPhase.PENDING]


def test_step_of_an_illegal_pair_names_machine_phase_and_event() -> None:
    with pytest.raises(IllegalTransition, match=r"node member.*'started'.*'prepared'"):
        step(P.PREPARED, E.STARTED)


# ---------------------------------------------------------------- records

NOW = datetime(2026, 11, 30, tzinfo=UTC)
PLACE = Place(node=NodeId("node-1"), boot_id="boot-a", boot_seconds=100.0, engine="podman", now=NOW)
GRANTS = Grants(budgets=Budgets(cpu_millis=4000, memory_bytes=1000, gpu_indexes=(0,)), gpu_uuids=frozenset({"GPU-0"}))
PLAN = MemberPlan(
    member=MemberId("job-a-1-0"),
    attempt=AttemptId("job-a-1"),
    attempt_number=1,
    job=JobId("job-a"),
    job_name="a",
    fleet=FleetId("lab"),
    node=NodeId("node-1"),
    rank=0,
    world=1,
    image="r/x@sha256:0",
    command=("true",),
    env={},
    workdir=None,
    cpu_millis=1000,
    memory_bytes=500,
    gpu_uuids=("GPU-0",),
    ports=(20000,),
    orchestrator="process-group",
    main_address="127.0.0.1",
    main_port=20000,
    address="127.0.0.1",
    interface=None,
    storage_root="",
    output_dir="",
    stop_signal="SIGINT",
    stop_grace_seconds=7.0,
    max_runtime_seconds=None,
    trace=TraceId("t"),
)
DATA = plan_bytes(PLAN)


def command(kind: CommandKind, **changes: object) -> Command:
    carries = kind in (CommandKind.PREPARE, CommandKind.COMMIT)
    value = Command(
        operation=OperationId(f"x:{kind.value}"),
        kind=kind,
        member=PLAN.member,
        session_epoch=1,
        claim_epoch=1,
        plan=DATA if kind is CommandKind.PREPARE else b"",
        plan_digest=plan_digest(DATA) if carries else "",
        hold_seconds=60.0,
    )
    return evolve(value, **changes)


def prepared() -> NodeMember:
    record = decide(None, command(CommandKind.PREPARE), PLACE, GRANTS, ()).record
    assert record is not None
    return advance(record, E.READY, NOTHING_FOUND, PLACE)[0]


def running() -> NodeMember:
    record = decide(prepared(), command(CommandKind.COMMIT), PLACE, GRANTS, ()).record
    assert record is not None
    record, action = advance(record, E.FOUND_READY, Facts(container_id="c"), PLACE)
    assert action is A.START
    return advance(record, E.STARTED, Facts(started_at=NOW), PLACE)[0]


def found(life: Life, **changes: object) -> ContainerState:
    state = ContainerState(id="c", name="tuneplane-job-a-1-0", labels={LABEL_MEMBER: PLAN.member, LABEL_NODE: "node-1"}, life=life)
    return evolve(state, **changes)


def test_prepare_keeps_what_the_plan_says_and_what_it_holds() -> None:
    record = prepared()
    assert (record.phase, record.cpu_millis, record.gpu_uuids, record.stop_signal) == (P.PREPARED, 1000, ("GPU-0",), "SIGINT")
    assert hold_left(record, PLACE) == 60.0
    assert hold_left(record, evolve(PLACE, boot_seconds=130.0)) == 30.0
    assert hold_left(record, evolve(PLACE, boot_id="boot-b")) == 0.0


@pytest.mark.parametrize(
    ("grants", "code"),
    [
        (evolve(GRANTS, budgets=Budgets()), "over-budget"),
        (evolve(GRANTS, budgets=Budgets(cpu_millis=999, memory_bytes=1000)), "over-budget"),
        (evolve(GRANTS, gpu_uuids=frozenset()), "over-budget"),
        (evolve(GRANTS, budgets=Budgets(cpu_millis=1000, memory_bytes=500, port_first=20001)), "over-budget"),
        (evolve(GRANTS, storage_root="/mnt/other"), "storage-root"),
    ],
)
def test_prepare_of_what_this_node_cannot_hold_is_a_tombstone(grants: Grants, code: str) -> None:
    decision = decide(None, command(CommandKind.PREPARE), PLACE, grants, ())
    assert decision.answer.accepted
    assert decision.record is not None
    assert (decision.record.phase, decision.record.reason_code) == (P.ABORTED, code)


def test_prepare_of_cards_or_ports_that_another_member_holds_is_a_tombstone() -> None:
    """L-D10."""
    other = evolve(prepared(), member=MemberId("job-b-1-0"), cpu_millis=0, memory_bytes=0)
    decision = decide(None, command(CommandKind.PREPARE), PLACE, GRANTS, (other,))
    assert decision.record is not None
    assert "GPU GPU-0 is held" in decision.record.reason_detail
    freed = evolve(other, phase=P.TERMINATED)
    again = decide(None, command(CommandKind.PREPARE), PLACE, GRANTS, (freed,))
    assert again.record is not None
    assert again.record.phase is P.PREPARING


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[1]", b'{"version":1}'])
def test_prepare_of_bytes_that_are_no_plan_is_a_tombstone(data: bytes) -> None:
    decision = decide(None, command(CommandKind.PREPARE, plan=data, plan_digest=plan_digest(data)), PLACE, GRANTS, ())
    assert decision.record is not None
    assert (decision.record.phase, decision.record.reason_code) == (P.ABORTED, "invalid-plan")


def test_commit_of_another_plan_is_refused() -> None:
    decision = decide(prepared(), command(CommandKind.COMMIT, plan_digest="sha256:other"), PLACE, GRANTS, ())
    assert (decision.answer.accepted, decision.answer.code) == (False, "plan-mismatch")


def test_look_at_an_exit_under_the_same_boot_and_engine_is_evidence() -> None:
    """P-04."""
    event, facts = judge(running(), found(Life.ENDED, exit_code=0), PLACE)
    record, _ = advance(running(), event, facts, PLACE)
    assert (record.phase, record.exit_code, record.reason_code) == (P.TERMINATED, 0, "")


@pytest.mark.parametrize("place", [evolve(PLACE, boot_id="boot-b"), evolve(PLACE, engine="another")])
def test_look_at_an_exit_under_another_boot_or_engine_is_lost(place: Place) -> None:
    """P-04, L-C7."""
    event, facts = judge(running(), found(Life.ENDED, exit_code=0), place)
    record, _ = advance(running(), event, facts, place)
    assert (record.phase, record.exit_code, record.reason_code) == (P.TERMINATED, None, "lost")


def test_look_at_a_member_seen_running_under_a_new_engine_binds_it_there_but_never_to_a_new_boot() -> None:
    engine = evolve(PLACE, engine="another")
    event, facts = judge(running(), found(Life.RUNNING), engine)
    assert advance(running(), event, facts, engine)[0].start_engine == "another"
    boot = evolve(PLACE, boot_id="boot-b", engine="another")
    assert advance(running(), event, facts, boot)[0].start_boot_id == "boot-a"


def test_look_at_a_created_container_depends_on_the_hold_and_the_boot() -> None:
    """P-03."""
    record = decide(prepared(), command(CommandKind.COMMIT), PLACE, GRANTS, ()).record
    assert record is not None
    assert judge(record, found(Life.CREATED), PLACE)[0] is E.FOUND_READY
    assert judge(record, found(Life.CREATED), evolve(PLACE, boot_seconds=161.0))[0] is E.FOUND_STALE
    assert judge(record, found(Life.CREATED), evolve(PLACE, boot_id="boot-b"))[0] is E.FOUND_STALE


@pytest.mark.parametrize(
    "labels", [{}, {LABEL_MEMBER: PLAN.member}, {LABEL_MEMBER: "x", LABEL_NODE: "node-1"}, {LABEL_MEMBER: PLAN.member, LABEL_NODE: "2"}]
)
def test_look_at_a_container_without_our_labels_is_foreign(labels: dict[str, str]) -> None:
    """L-C13."""
    assert judge(running(), found(Life.ENDED, labels=labels), PLACE)[0] is E.FOUND_FOREIGN


def test_grace_begins_with_the_signal_and_goes_on_whoever_asks_until_the_next_boot() -> None:
    """L-E11: a restarted daemon gives what is left of it, not all of it again."""
    stopped = decide(running(), command(CommandKind.STOP, stop_signal="SIGTERM", stop_grace_seconds=30.0), PLACE, GRANTS, ()).record
    assert stopped is not None
    assert grace_left(stopped, PLACE) is None
    signalled, action = advance(stopped, E.SIGNALLED, NOTHING_FOUND, PLACE)
    assert (signalled.phase, action) == (P.STOPPING, A.END)
    assert grace_left(signalled, evolve(PLACE, boot_seconds=PLACE.boot_seconds + 12.0)) == 18.0
    assert grace_left(signalled, evolve(PLACE, boot_seconds=PLACE.boot_seconds + 99.0)) == 0.0
    assert grace_left(signalled, evolve(PLACE, boot_id="boot-b")) is None


def test_look_at_a_fence_says_fenced() -> None:
    fence = found(Life.CREATED, labels={LABEL_MEMBER: PLAN.member, LABEL_NODE: "node-1", LABEL_FENCE: "1"})
    assert judge(running(), fence, PLACE)[0] is E.FENCED


def test_report_of_progress_is_newer_than_the_record_and_older_than_its_next_revision() -> None:
    record = prepared()
    reports = [observation(record, PLACE), observation(record, PLACE, tick=5), observation(evolve(record, revision=3), PLACE)]
    revisions = [report.revision for report in reports]
    assert revisions == sorted(set(revisions))
    assert acknowledged(record, 2 * PROGRESS_TICKS + 9).acknowledged == 2
    assert acknowledged(record, 99 * PROGRESS_TICKS).acknowledged == record.revision


@given(st.lists(st.sampled_from([*E]), max_size=30), st.integers(0, 200))
def test_record_under_any_events_keeps_its_promises(events: list[MemberEvent], later: int) -> None:
    """Revisions never fall, evidence is never rewritten, an end is never left, nothing starts twice."""
    record = prepared()
    starts = 0
    place = evolve(PLACE, boot_seconds=100.0 + later, now=NOW + timedelta(seconds=later))
    for event in events:
        try:
            if event in COMMANDS:
                decision = decide(record, command(CommandKind(event.value)), place, GRANTS, ())
                changed, action = decision.record, decision.action
            else:
                changed, action = advance(record, event, Facts(container_id="c", exit_code=0), place)
        except IllegalTransition:
            continue
        assert changed is not None
        starts += action is A.START
        assert changed.revision >= record.revision
        assert (changed == record) == (changed.revision == record.revision)
        if record.phase in ENDED and changed.phase is not P.ABSENT:
            assert (changed.exit_code, changed.reason_code, changed.ended_at) == (record.exit_code, record.reason_code, record.ended_at)
        if changed.phase is P.ABSENT:
            return
        record = changed
    assert starts <= 1
