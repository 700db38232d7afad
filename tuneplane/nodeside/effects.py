"""The effects a member's driver performs, one function an action of the member table. Each returns what it found out.

All are safe to be repeated except ``create`` and ``start``, which the table never repeats. EngineDown (nothing was
sent) goes to the driver, which tries the same action again; what EngineUnclear means is said at each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio
from attrs import evolve, frozen

from tuneplane.domain.frames import Command, Progress
from tuneplane.domain.ids import container_name
from tuneplane.domain.log_archive import FOLDER
from tuneplane.domain.member_table import MemberAction, MemberEvent
from tuneplane.domain.node_member import (
    LABEL_CARDS,
    LABEL_CPU,
    LABEL_FENCE,
    LABEL_MEMBER,
    LABEL_MEMORY,
    LABEL_NODE,
    LABEL_PLAN,
    NOTHING_FOUND,
    Facts,
    NodeMember,
    grace_left,
    hold_left,
    judge,
)
from tuneplane.domain.node_ports import (
    ContainerSpec,
    ContainerState,
    EngineDown,
    EngineRefused,
    EngineUnclear,
    Life,
    Mount,
    Refusal,
)
from tuneplane.domain.plan import MemberPlan, read_plan, workload_env
from tuneplane.domain.ray import EXIT_REASONS, container_command, exit_reason

from .core import NodeCore
from .log_archive import archive_again, archive_log
from .preparation import NOTHING, prepare, remove_tree
from .strangers import is_leftover


@frozen
class Outcome:
    """An event for the table, its facts, and the engine instance they were found under ("" where it does not matter)."""

    event: MemberEvent
    facts: Facts = NOTHING_FOUND
    engine: str = ""


PLAN_TARGET = "/tuneplane/plan"
PIDS_LIMIT = 32768  # data loaders and threads of a whole machine; a fork bomb ends here
UNCONFIRMED = Progress(phase="stop-unconfirmed")  # what a person sees until the runtime shows the end (L-E9)
KILL_CONFIRM_SECONDS = 10.0  # after SIGKILL: longer means the kernel holds it; the stop then stays unconfirmed (L-E9)


async def load_plan(core: NodeCore, record: NodeMember) -> MemberPlan:
    return read_plan(await core.journal.plan(record.member), record.plan_digest)


async def do_prepare(core: NodeCore, record: NodeMember) -> Outcome:
    """Image, plan directory and output directory, unless the hold runs out first (P-08). Nothing that runs is made.

    Time in which the machine was suspended is not seen here: the AWAIT that follows finds it.
    """
    with trio.move_on_after(hold_left(record, core.place())):
        problem = await prepare(core, record, await load_plan(core, record))
        if problem is not None:
            return Outcome(MemberEvent.UNFIT, Facts(reason_code=problem.code, reason_detail=problem.detail))
        return Outcome(MemberEvent.READY)
    return Outcome(MemberEvent.HOLD_EXPIRED)


async def do_await(core: NodeCore, record: NodeMember) -> Outcome:
    """Sleep until the hold has run out, on the clock that also counts suspended time (P-08)."""
    while True:
        left = hold_left(record, core.place())
        if left <= 0:
            return Outcome(MemberEvent.HOLD_EXPIRED)
        await trio.sleep(min(left, core.timings.poll))


async def do_create(core: NodeCore, record: NodeMember) -> Outcome:
    """Create the container under its deterministic name. Sent at most once a record."""
    spec = workload_spec(core, record, await load_plan(core, record))
    instance = await core.engine.instance()
    try:
        container = await core.engine.create(spec)
    except (EngineUnclear, OSError):
        return Outcome(MemberEvent.UNCLEAR)
    except EngineRefused as error:
        if error.kind is Refusal.NAME_TAKEN:
            try:
                return await do_look(core, record)
            except (EngineDown, EngineUnclear, EngineRefused):
                return Outcome(MemberEvent.UNCLEAR)  # look later: trying again would send the create a second time
        code = "image-unavailable" if error.kind is Refusal.NO_IMAGE else "start-failed"
        return await _refused(core, record, code, error)
    fresh = ContainerState(id=container, name=spec.name, labels=spec.labels, life=Life.CREATED)
    return _judged(core, record, fresh, instance)


async def do_start(core: NodeCore, record: NodeMember) -> Outcome:
    """The one start of this member, of the container whose id is journalled."""
    try:
        await core.engine.start(record.container_id)
    except (EngineUnclear, OSError):
        return Outcome(MemberEvent.UNCLEAR)
    except EngineRefused as error:
        return await _refused(core, record, "start-failed", error)
    return Outcome(MemberEvent.STARTED, Facts(started_at=core.machine.now()))


async def _refused(core: NodeCore, record: NodeMember, code: str, error: EngineRefused) -> Outcome:
    """The engine said no: believe it when the runtime shows nothing that ever started. Never a reason to ask twice."""
    try:
        instance = await core.engine.instance()
        found = await find(core, record)
        await _confirm_instance(core, found, instance)
    except (EngineDown, EngineUnclear, EngineRefused):
        return Outcome(MemberEvent.UNCLEAR)
    if found is None or found.life is Life.CREATED:
        facts = Facts(reason_code=code, reason_detail=error.detail, container_id=found.id if found else "")
        return Outcome(MemberEvent.REFUSED, facts)
    return _judged(core, record, found, instance)


async def do_look(core: NodeCore, record: NodeMember) -> Outcome:
    """What the runtime shows now (P-03), and under which engine instance. EngineUnclear when that cannot be told."""
    instance = await core.engine.instance()
    found = await find(core, record)
    await _confirm_instance(core, found, instance)
    return await _explained(core, record, _judged(core, record, found, instance))


async def _explained(core: NodeCore, record: NodeMember, outcome: Outcome) -> Outcome:
    """An end with an exit code of the Ray runner's own gets its reason."""
    if outcome.event is not MemberEvent.FOUND_ENDED or outcome.facts.exit_code not in EXIT_REASONS:
        return outcome
    if not record.plan_digest:  # a container that only its labels tell of: nobody knows what the code means
        return outcome
    code, detail = exit_reason(await load_plan(core, record), outcome.facts.exit_code)
    return evolve(outcome, facts=evolve(outcome.facts, reason_code=code, reason_detail=detail))


async def _confirm_instance(core: NodeCore, found: ContainerState | None, instance: str) -> None:
    """An end counts as witnessed only when no restart lies between question and answer (P-04): a restart may be that end."""
    if found is not None and found.life is Life.ENDED and await core.engine.instance() != instance:
        raise EngineUnclear(f"the container runtime was restarted while {found.name} was looked at")


def _judged(core: NodeCore, record: NodeMember, found: ContainerState | None, instance: str) -> Outcome:
    event, facts = judge(record, found, core.place(instance))
    return Outcome(event, facts, instance)


async def find(core: NodeCore, record: NodeMember) -> ContainerState | None:
    """By the journalled id, else by the deterministic name."""
    if record.container_id:
        found = await core.engine.inspect(record.container_id)
        if found is not None:
            return found
    return await core.engine.inspect(container_name(record.member))


async def do_wait(core: NodeCore, record: NodeMember) -> Outcome:
    """Until the container has ended, or for a bounded time; then look."""
    await core.engine.wait_ended(record.container_id)
    return await do_look(core, record)


async def do_end(core: NodeCore, record: NodeMember) -> Outcome:
    """The job's own signal, once; then what is left of its grace, SIGKILL, confirm. Unconfirmed, it comes back.

    The grace is journalled as it begins: a daemon that is restarted meanwhile goes on with it, and a job that ignores its
    signal is not given it again at each restart (L-E11). EngineDown or OSError while the signal may not have been sent.
    """
    if record.member not in core.progress:
        core.note_progress(record.member, UNCONFIRMED)  # before the engine is asked: it may never answer (L-E9)
    left = grace_left(record, core.place())
    if left is None:
        return Outcome(MemberEvent.SIGNALLED) if await _signal(core, record, record.stop_signal) else await do_look(core, record)
    with trio.move_on_after(left):
        await _wait_gone(core, record)
    return await _kill(core, record)


async def _kill(core: NodeCore, record: NodeMember) -> Outcome:
    found = await core.engine.inspect(record.container_id)
    if found is not None and found.life is Life.RUNNING and await _signal(core, record, "SIGKILL"):
        with trio.move_on_after(KILL_CONFIRM_SECONDS):
            await _wait_gone(core, record)
    return await do_look(core, record)


async def _signal(core: NodeCore, record: NodeMember, signal: str) -> bool:
    """False when it does not run any more. An unclear signal counts as sent: what comes of it is looked at."""
    try:
        await core.engine.signal(record.container_id, signal)
    except EngineUnclear:
        return True
    except EngineRefused as error:
        return error.kind is Refusal.OTHER
    return True


async def _wait_gone(core: NodeCore, record: NodeMember) -> None:
    while True:
        with suppress(EngineDown, EngineUnclear):  # an engine that is being restarted does not cut the grace short
            await core.engine.wait_ended(record.container_id, soon=True)
            found = await core.engine.inspect(record.container_id)
            if found is None or found.life is not Life.RUNNING:
                return
        await trio.sleep(0.05)  # an engine whose wait returns early must not be asked in a tight loop


async def do_remove(core: NodeCore, record: NodeMember) -> Outcome:
    """Remove, by id, a container that an unanswered start may yet start."""
    found = await find(core, record)
    if found is not None and judge(record, found, core.place())[0] is not MemberEvent.FOUND_FOREIGN:
        await core.engine.remove(found.id)
    return Outcome(MemberEvent.REMOVED)


async def do_fence(core: NodeCore, record: NodeMember) -> Outcome:
    """Hold the name with an inert container, so that a create still executing cannot succeed any more (P-01)."""
    if not record.create_sent:
        return Outcome(MemberEvent.FENCED)  # nothing was ever sent
    image = (await load_plan(core, record)).image if record.plan_digest else ""  # no plan: a Stop for what was never heard of
    if not image or not await core.engine.has_image(image):
        image = await core.engine.any_image() or ""
    if not image:
        return Outcome(MemberEvent.FENCED)  # no image, so no create can succeed
    labels = {**identity_labels(core, record), LABEL_FENCE: "1"}
    try:
        await core.engine.create(
            ContainerSpec(name=container_name(record.member), image=image, command=("fence-never-started",), labels=labels)
        )
    except EngineRefused as error:
        if error.kind is Refusal.NAME_TAKEN:
            return await do_look(core, record)  # noqa: ASYNC120 - cancelled: the next life of the member looks again
        raise
    return Outcome(MemberEvent.FENCED)


async def do_clean(core: NodeCore, record: NodeMember, capture: Callable[[str], Awaitable[None]]) -> Outcome:
    """Capture the rest of the log, remove container and plan, see that they are gone (R-LCH-14), archive the log."""
    core.note_progress(record.member, None)
    if record.create_sent or record.container_id:
        found = await find(core, record)
        if found is not None and judge(record, found, core.place())[0] not in (MemberEvent.FOUND_FOREIGN, MemberEvent.FENCED):
            if found.life is not Life.CREATED:
                await capture(found.id)
            await core.engine.remove(found.id)
            if await core.engine.inspect(found.id) is not None:
                raise EngineUnclear(f"container {found.id[:12]} is still there after its removal")
    log = await core.logs.log(record.member)
    await log.finish()
    problem = await archive_log(core, record)
    await core.disk(lambda: remove_tree(core.member_dir(record.member)))
    return Outcome(MemberEvent.CLEANED, Facts(reason_detail=problem))


async def do_forget(core: NodeCore, record: NodeMember) -> Outcome:
    """Remove what was kept for questions: the log, and the fence."""
    if record.create_sent or record.container_id:
        found = await find(core, record)
        if found is not None and judge(record, found, core.place())[0] is not MemberEvent.FOUND_FOREIGN:
            await core.engine.remove(found.id)
    await archive_again(core, record)
    await core.logs.forget(record.member)
    await core.disk(lambda: remove_tree(core.member_dir(record.member)))
    return Outcome(MemberEvent.GONE)


async def end_leftover(core: NodeCore, stop: Command) -> None:
    """End and remove, by its id, a container that runs though its member is over. The member's record and verdict stay.

    Looked at again first, so that it may be repeated. EngineDown, EngineUnclear, EngineRefused, OSError: not done yet.
    """
    if not await is_leftover(core, stop):
        return
    apart = NodeMember(member=stop.member, container_id=stop.container)
    if await _signal(core, apart, stop.stop_signal or apart.stop_signal):
        with trio.move_on_after(stop.stop_grace_seconds):
            await _wait_gone(core, apart)
    await core.engine.remove(stop.container)
    if await core.engine.inspect(stop.container) is not None:
        raise EngineUnclear(f"container {stop.container[:12]} is still there after its removal")


EFFECTS: dict[MemberAction, Callable[[NodeCore, NodeMember], Awaitable[Outcome]]] = {
    MemberAction.PREPARE: do_prepare,
    MemberAction.AWAIT: do_await,
    MemberAction.CREATE: do_create,
    MemberAction.START: do_start,
    MemberAction.LOOK: do_look,
    MemberAction.WAIT: do_wait,
    MemberAction.END: do_end,
    MemberAction.REMOVE: do_remove,
    MemberAction.FENCE: do_fence,
    MemberAction.FORGET: do_forget,
}


def workload_spec(core: NodeCore, record: NodeMember, plan: MemberPlan) -> ContainerSpec:
    """The container of a member: host network, the storage root at its own path, the plan read-only."""
    mounts = [Mount(source=str(core.member_dir(record.member) / "plan"), target=PLAN_TARGET, read_only=True)]
    if plan.storage_root:
        mounts.append(Mount(source=plan.storage_root, target=plan.storage_root))
        ours = f"{plan.storage_root.rstrip('/')}/{FOLDER}"  # archived logs of all jobs: not for a workload to read or write
        mounts.append(Mount(source=str(core.member_dir(record.member) / NOTHING), target=ours, read_only=True))
    return ContainerSpec(
        name=container_name(record.member),
        image=plan.image,
        command=container_command(plan, PLAN_TARGET) if plan.orchestrator == "ray" else plan.command,
        labels={
            **identity_labels(core, record),
            LABEL_CARDS: ",".join(plan.gpu_uuids),
            LABEL_CPU: str(plan.cpu_millis),
            LABEL_MEMORY: str(plan.memory_bytes),
            LABEL_FENCE: "",  # whatever the image says: what runs is judged as what runs
        },
        env=workload_env(plan),
        workdir=plan.workdir,
        mounts=tuple(mounts),
        cpu_millis=plan.cpu_millis,
        memory_bytes=plan.memory_bytes,
        pids_limit=PIDS_LIMIT,
        gpu_uuids=plan.gpu_uuids,
        stop_signal=plan.stop_signal,
    )


def identity_labels(core: NodeCore, record: NodeMember) -> dict[str, str]:
    return {LABEL_MEMBER: record.member, LABEL_NODE: core.node, LABEL_PLAN: record.plan_digest}
