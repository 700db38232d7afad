"""One member as a Node's journal knows it, and the pure rules over it: commands, outcomes, evidence, reports."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from attrs import evolve, frozen

from .errors import InvalidInput
from .frames import Command, CommandAnswer, CommandKind, Observation, Progress
from .ids import MemberId, NodeId, TraceId
from .inventory import Budgets
from .log_archive import with_note
from .member_table import ENDED, HOLDING, REFUSALS, REPORTED, UNSEEN, MemberAction, MemberEvent, NodePhase, step
from .node_ports import ContainerState, Life
from .plan import MemberPlan, read_plan
from .ray import plan_problem

PROGRESS_TICKS = 1 << 16  # reported revisions are journalled ones times this, so that progress needs no write to be newer

LABEL_MEMBER = "io.tuneplane.member"
LABEL_NODE = "io.tuneplane.node"
LABEL_PLAN = "io.tuneplane.plan-digest"
LABEL_CARDS = "io.tuneplane.cards"  # what it was given, for whoever finds it and does not know it (P-07)
LABEL_CPU = "io.tuneplane.cpu-millis"
LABEL_MEMORY = "io.tuneplane.memory-bytes"
LABEL_FENCE = "io.tuneplane.fence"  # "1" on a fence, "" on a workload: an image's own label of that name must not count


@frozen(kw_only=True)
class NodeMember:
    """The journalled record. ``hold_deadline`` is in seconds since the boot ``hold_boot_id``."""

    member: MemberId
    phase: NodePhase = NodePhase.ABSENT
    revision: int = 0  # rises with every write
    acknowledged: int = 0  # highest revision that the control plane has stored
    plan_digest: str = ""
    hold_deadline: float = 0.0
    hold_boot_id: str = ""
    create_sent: bool = False  # a create may have been sent, under this record or one that is gone
    container_id: str = ""
    start_boot_id: str = ""  # where its start, or the last sight of it running, was journalled (P-04)
    start_engine: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    oom_killed: bool = False
    reason_code: str = ""
    reason_detail: str = ""
    stop_signal: str = "SIGTERM"
    stop_grace_seconds: float = 0.0
    grace_deadline: float = 0.0  # seconds since the boot ``grace_boot_id``, once the stop signal was sent (L-E11)
    grace_boot_id: str = ""
    cleaned: bool = False
    stranger: bool = False  # stopped by an operator, and known to no control plane (P-07)
    cpu_millis: int = 0
    memory_bytes: int = 0
    gpu_uuids: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    trace: TraceId = TraceId("")


@frozen(kw_only=True)
class Place:
    """Where and when a decision is made: this boot, this engine instance, this Node."""

    node: NodeId
    boot_id: str
    boot_seconds: float
    engine: str = ""  # "" while the engine has not answered yet
    now: datetime


@frozen(kw_only=True)
class Facts:
    """What an effect or a look found out, to be journalled with its event."""

    container_id: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    oom_killed: bool = False
    reason_code: str = ""
    reason_detail: str = ""


NOTHING_FOUND = Facts()


@frozen(kw_only=True)
class Grants:
    """What this Node may give away (R-ENR-09); ``None`` amounts are not declared."""

    budgets: Budgets
    gpu_uuids: frozenset[str] = frozenset()
    storage_root: str = ""


@frozen
class Decision:
    """What a command leads to. ``record`` is None when nothing is kept of the member."""

    answer: CommandAnswer
    record: NodeMember | None
    action: MemberAction


# ---------------------------------------------------------------- outcomes


def advance(record: NodeMember, event: MemberEvent, facts: Facts, place: Place) -> tuple[NodeMember, MemberAction]:
    """Apply an outcome to the record as it is now. An unchanged record keeps its revision (no write is needed)."""
    row = step(record.phase, event)
    changed = evolve(record, phase=row.phase)
    if event is MemberEvent.STARTED:
        changed = evolve(changed, started_at=facts.started_at or record.started_at)
    if event is MemberEvent.SIGNALLED:
        deadline = place.boot_seconds + record.stop_grace_seconds
        changed = evolve(changed, grace_deadline=deadline, grace_boot_id=place.boot_id)
    if event is MemberEvent.FOUND_RUNNING or row.action is MemberAction.START:
        changed = _sighted(changed, facts, place)
    if event is MemberEvent.CLEANED:
        changed = evolve(changed, cleaned=True, reason_detail=with_note(record.reason_detail, facts.reason_detail))
    if row.phase in ENDED and record.phase not in ENDED:
        changed = _ended(changed, row.reason, facts, place)
    if changed != record:
        changed = evolve(changed, revision=record.revision + 1)
    return changed, row.action


def _sighted(record: NodeMember, facts: Facts, place: Place) -> NodeMember:
    """Journal where it was about to start or seen running. A restart by others on a later boot is no evidence (L-C6)."""
    same_boot = record.start_boot_id in ("", place.boot_id)
    return evolve(
        record,
        container_id=facts.container_id or record.container_id,
        started_at=facts.started_at or record.started_at,
        start_boot_id=place.boot_id if same_boot else record.start_boot_id,
        start_engine=place.engine if same_boot else record.start_engine,
    )


def _ended(record: NodeMember, reason: str, facts: Facts, place: Place) -> NodeMember:
    lost = reason == "lost"
    return evolve(
        record,
        container_id=facts.container_id or record.container_id,
        started_at=facts.started_at or record.started_at,
        ended_at=facts.ended_at or place.now,
        exit_code=None if lost else facts.exit_code,
        oom_killed=False if lost else facts.oom_killed,
        reason_code=reason or facts.reason_code,
        reason_detail=facts.reason_detail or _DETAILS.get(reason, ""),
    )


_DETAILS = {
    "lost": "the container is gone or its end was not witnessed: it may have run, and it runs no more",
    "stopped": "stopped by the control plane",
    "hold-expired": "the reservation ran out before a commit arrived",
    "name-taken": "a container that is not Tuneplane's has this member's name; remove it",
}


def judge(record: NodeMember, found: ContainerState | None, place: Place) -> tuple[MemberEvent, Facts]:
    """What a look at the runtime means for this record (P-03, P-04)."""
    if found is None:
        return MemberEvent.FOUND_ABSENT, NOTHING_FOUND
    if found.labels.get(LABEL_MEMBER) != record.member or found.labels.get(LABEL_NODE) != place.node:
        return MemberEvent.FOUND_FOREIGN, Facts(reason_detail=f"container {found.id[:12]} is named {found.name}")
    if found.labels.get(LABEL_FENCE):
        return MemberEvent.FENCED, NOTHING_FOUND
    facts = Facts(
        container_id=found.id,
        started_at=found.started_at,
        ended_at=found.ended_at,
        exit_code=found.exit_code,
        oom_killed=found.oom_killed,
    )
    if found.life is Life.RUNNING:
        return MemberEvent.FOUND_RUNNING, facts
    if found.life is Life.ENDED:
        if _witnessed(record, place) and found.exit_code is not None:
            return MemberEvent.FOUND_ENDED, facts
        return MemberEvent.FOUND_UNPROVEN, _why_lost(record, facts, place)
    fresh = hold_left(record, place) > 0
    return (MemberEvent.FOUND_READY if fresh else MemberEvent.FOUND_STALE), facts


def _witnessed(record: NodeMember, place: Place) -> bool:
    return bool(record.start_boot_id) and (record.start_boot_id, record.start_engine) == (place.boot_id, place.engine)


def _why_lost(record: NodeMember, facts: Facts, place: Place) -> Facts:
    if facts.exit_code is None:
        return evolve(facts, reason_detail="the container runtime does not tell how it ended")
    if record.start_boot_id and record.start_boot_id != place.boot_id:
        return evolve(facts, reason_detail="the machine was rebooted while it ran; the runtime's exit code proves nothing")
    return evolve(facts, reason_detail="the container runtime was restarted while it ran; its exit code proves nothing")


def hold_left(record: NodeMember, place: Place) -> float:
    """Seconds until the reservation expires; none is left on another boot (P-08)."""
    if record.hold_boot_id != place.boot_id:
        return 0.0
    return max(0.0, record.hold_deadline - place.boot_seconds)


def grace_left(record: NodeMember, place: Place) -> float | None:
    """Seconds that a signalled member still has to heed its signal; None when it was not signalled since this boot."""
    if record.grace_boot_id != place.boot_id:
        return None
    return max(0.0, record.grace_deadline - place.boot_seconds)


# ---------------------------------------------------------------- commands


def decide(
    record: NodeMember | None,
    command: Command,
    place: Place,
    grants: Grants,
    holders: Iterable[NodeMember],
    *,
    unseen: bool = False,
) -> Decision:
    """Answer a command that was never seen before, against the journal as it is now. Pure.

    ``unseen``: nobody has looked for the member's container since the daemon started.
    """
    known = record or NodeMember(member=command.member)
    event = MemberEvent(command.kind.value)
    if unseen and event is MemberEvent.STOP and known.phase in UNSEEN:
        event = MemberEvent.STOP_UNSEEN
    refusal = REFUSALS.get((known.phase, event)) or _mismatch(known, command)
    if refusal:
        return Decision(_refuse(command, refusal, known), record, MemberAction.KEEP)
    if command.kind is CommandKind.PREPARE and known.phase is NodePhase.ABSENT:
        return _prepare(known, command, place, grants, holders)
    row = step(known.phase, event)
    changed = evolve(known, phase=row.phase)
    if row.phase in (NodePhase.CREATING, NodePhase.WITHDRAWN) and row.phase is not known.phase:
        changed = evolve(changed, create_sent=True)  # by us, or by a journal that is gone: its create may be executing still
    if command.kind is CommandKind.STOP and row.phase is not known.phase:
        changed = evolve(changed, stop_signal=command.stop_signal or known.stop_signal, stop_grace_seconds=command.stop_grace_seconds)
        changed = evolve(changed, trace=known.trace or command.trace)
    if command.stranger and command.kind is CommandKind.STOP:
        changed = evolve(changed, stranger=True, container_id=changed.container_id or command.container)
    if row.phase in ENDED and known.phase not in ENDED:
        changed = _ended(changed, row.reason, Facts(reason_detail=command.reason), place)
    if changed != known:
        changed = evolve(changed, revision=known.revision + 1)
    return Decision(_accept(command), None if changed.phase is NodePhase.ABSENT else changed, row.action)


def _prepare(fresh: NodeMember, command: Command, place: Place, grants: Grants, holders: Iterable[NodeMember]) -> Decision:
    record = evolve(
        fresh,
        revision=1,
        plan_digest=command.plan_digest,
        hold_deadline=place.boot_seconds + command.hold_seconds,
        hold_boot_id=place.boot_id,
        trace=command.trace,
    )
    unfit = Facts()
    try:
        plan = read_plan(command.plan, command.plan_digest)
        record = _with_plan(record, plan)
        unfit = _why_unfit(plan, command, place, grants, holders)
    except (InvalidInput, json.JSONDecodeError, UnicodeDecodeError) as error:
        unfit = Facts(reason_code="invalid-plan", reason_detail=str(error))
    row = step(NodePhase.ABSENT, MemberEvent.UNFIT if unfit.reason_code else MemberEvent.PREPARE)
    record = evolve(record, phase=row.phase)
    if unfit.reason_code:
        record = _ended(record, row.reason, unfit, place)
    return Decision(_accept(command), record, row.action)


def _with_plan(record: NodeMember, plan: MemberPlan) -> NodeMember:
    return evolve(
        record,
        stop_signal=plan.stop_signal,
        stop_grace_seconds=plan.stop_grace_seconds,
        cpu_millis=plan.cpu_millis,
        memory_bytes=plan.memory_bytes,
        gpu_uuids=plan.gpu_uuids,
        ports=plan.ports,
    )


def _why_unfit(plan: MemberPlan, command: Command, place: Place, grants: Grants, holders: Iterable[NodeMember]) -> Facts:
    """Why this Node can never run the plan; empty facts when it can. The journal is asked again (L-D10)."""
    if plan.member != command.member or plan.node != place.node:
        return Facts(reason_code="invalid-plan", reason_detail=f"the plan is for {plan.member} on Node {plan.node}")
    if "@sha256:" not in plan.image:
        return Facts(reason_code="invalid-plan", reason_detail=f"image {plan.image} is not pinned to a digest (R-LCH-06)")
    if plan_problem(plan):
        return Facts(reason_code="invalid-plan", reason_detail=plan_problem(plan))
    if plan.storage_root != grants.storage_root:
        detail = f"the plan's storage root is {plan.storage_root or 'unset'}, this Node's is {grants.storage_root or 'unset'} (R-ENR-11)"
        return Facts(reason_code="storage-root", reason_detail=detail)
    over = _over_budget(plan, grants, [holder for holder in holders if holder.phase in HOLDING])
    return Facts(reason_code="over-budget", reason_detail=over) if over else Facts()


def _over_budget(plan: MemberPlan, grants: Grants, holders: list[NodeMember]) -> str:
    budgets = grants.budgets
    amounts = (
        ("TUNEPLANE_NODE_CPUS", "thousandths of a CPU", plan.cpu_millis, budgets.cpu_millis, sum(h.cpu_millis for h in holders)),
        ("TUNEPLANE_NODE_MEMORY_GB", "bytes of memory", plan.memory_bytes, budgets.memory_bytes, sum(h.memory_bytes for h in holders)),
    )
    for variable, unit, need, budget, held in amounts:
        if budget is None:
            return f"{variable} is not set on this Node"
        if need > budget - held:
            return f"the plan needs {need} {unit}, {budget - held} of {budget} are free"
    for what, wanted, taken in (
        ("GPU", set(plan.gpu_uuids), {uuid for h in holders for uuid in h.gpu_uuids}),
        ("port", set(plan.ports), {port for h in holders for port in h.ports}),
    ):
        if wanted & taken:
            return f"{what} {', '.join(map(str, sorted(wanted & taken)))} is held by another member of this Node"
    outside = [port for port in plan.ports if not budgets.port_first <= port <= budgets.port_last]
    if outside:
        return f"port {', '.join(map(str, outside))} is outside TUNEPLANE_NODE_PORT_RANGE {budgets.port_first}-{budgets.port_last}"
    strange = set(plan.gpu_uuids) - grants.gpu_uuids
    return f"GPU {', '.join(sorted(strange))} is not granted on this Node" if strange else ""


def _mismatch(record: NodeMember, command: Command) -> str:
    carries = command.kind in (CommandKind.PREPARE, CommandKind.COMMIT)
    if carries and record.phase is not NodePhase.ABSENT and command.plan_digest != record.plan_digest:
        return "plan-mismatch"
    return ""


def _accept(command: Command) -> CommandAnswer:
    return CommandAnswer(operation=command.operation, accepted=True)


def _refuse(command: Command, code: str, record: NodeMember) -> CommandAnswer:
    why = f": {record.reason_detail or record.reason_code}" if record.reason_code else ""
    detail = f"{command.kind.value} of {command.member} refused: it is {record.phase.value}{why}"
    return CommandAnswer(operation=command.operation, accepted=False, code=code, detail=detail)


# ---------------------------------------------------------------- reports


def observation(record: NodeMember, place: Place, progress: Progress | None = None, tick: int = 0) -> Observation:
    """The record as the control plane gets it. ``tick`` orders progress between two journalled revisions."""
    holding = record.phase in (NodePhase.PREPARING, NodePhase.PREPARED)
    return Observation(
        member=record.member,
        revision=record.revision * PROGRESS_TICKS + min(tick, PROGRESS_TICKS - 1),
        phase=REPORTED[record.phase],
        plan_digest=record.plan_digest,
        boot_id=record.start_boot_id or place.boot_id,
        hold_seconds_left=hold_left(record, place) if holding else None,
        container_id=record.container_id,
        started_at=record.started_at,
        ended_at=record.ended_at,
        exit_code=record.exit_code,
        oom_killed=record.oom_killed,
        reason_code=record.reason_code,
        reason_detail=record.reason_detail,
        cleaned=record.cleaned,
        progress=progress,
    )


def acknowledged(record: NodeMember, revision: int) -> NodeMember:
    """The record after the control plane stored a report of ``revision`` (P-06)."""
    return evolve(record, acknowledged=max(record.acknowledged, min(revision // PROGRESS_TICKS, record.revision)))
