"""From a placement to the immutable member plans (R-LCH-01): all decisions are in the plan, the Node resolves nothing."""

from __future__ import annotations

from attrs import frozen

from tuneplane.domain.fleet_config import storage_root
from tuneplane.domain.fleets import Fleet
from tuneplane.domain.ids import AttemptId, JobId, attempt_id, member_id
from tuneplane.domain.jobs import Allocation, Job, PlacedMember
from tuneplane.domain.jobspec import Orchestrator, cpu_millis, memory_bytes
from tuneplane.domain.placement import Placed
from tuneplane.domain.plan import MAX_PLAN_BYTES, MemberPlan, plan_bytes, plan_digest


@frozen
class PlannedAttempt:
    """An attempt as it is about to be written."""

    id: AttemptId
    number: int
    members: tuple[PlacedMember, ...]

    @property
    def too_large(self) -> bool:
        """No frame could carry one of the plans."""
        return any(len(member.plan) > MAX_PLAN_BYTES for member in self.members)


def plan_attempt(job: Job, fleet: Fleet, placed: Placed, default_root: str) -> PlannedAttempt:
    """The next attempt of ``job``: a plan a member. ``default_root`` is used unless the Fleet names its own."""
    number = next_number(job)
    attempt = attempt_id(job.id, number)
    root = storage_root_of(fleet, default_root)
    plans = [_member_plan(job, fleet, attempt, number, allocation, placed, root) for allocation in placed.members]
    return PlannedAttempt(attempt, number, tuple(_placed_member(plan) for plan in plans))


def next_number(job: Job) -> int:
    return job.attempt_number + 1


def storage_root_of(fleet: Fleet, default_root: str) -> str:
    """The shared directory of a Fleet's machines; "" when neither the Fleet nor the setting names one."""
    return storage_root(fleet.config, default_root)


def output_dir_of(root: str, job: JobId, attempt: AttemptId) -> str:
    return f"{root.rstrip('/')}/jobs/{job}/{attempt}"


def root_of_output(output_dir: str, job: JobId) -> str:
    """The storage root that an attempt was planned with; "" when its plan does not tell."""
    root, mark, _ = output_dir.rpartition(f"/jobs/{job}/")
    return root if mark else ""


def _member_plan(job: Job, fleet: Fleet, attempt: AttemptId, number: int, allocation: Allocation, placed: Placed, root: str) -> MemberPlan:
    body, network, head = job.spec.spec, job.spec.spec.resources.network, placed.members[0]
    return MemberPlan(
        member=member_id(attempt, allocation.rank),
        attempt=attempt,
        attempt_number=number,
        job=job.id,
        job_name=job.name,
        fleet=fleet.id,
        node=allocation.node,
        rank=allocation.rank,
        world=len(placed.members),
        image=job.image,
        command=body.command,
        env=body.env,
        workdir=body.workdir,
        cpu_millis=cpu_millis(job.spec.pool),
        memory_bytes=memory_bytes(job.spec.pool),
        gpu_uuids=allocation.gpu_uuids,
        ports=allocation.ports,
        orchestrator=body.orchestrator.value,
        ray_version=body.runtime.ray_version if body.orchestrator is Orchestrator.RAY else "",
        main_address=head.address,
        main_port=head.ports[0],
        address=allocation.address,
        interface=network.interface if network is not None else None,
        storage_root=root,
        output_dir=output_dir_of(root, job.id, attempt),
        stop_signal=body.stop.signal,
        stop_grace_seconds=body.stop.grace_seconds,
        max_runtime_seconds=body.max_runtime_seconds,
        trace=job.trace,
    )


def _placed_member(plan: MemberPlan) -> PlacedMember:
    data = plan_bytes(plan)
    return PlacedMember(
        member=plan.member,
        node=plan.node,
        rank=plan.rank,
        plan=data,
        plan_digest=plan_digest(data),
        cpu_millis=plan.cpu_millis,
        memory_bytes=plan.memory_bytes,
        gpu_uuids=plan.gpu_uuids,
        ports=plan.ports,
    )
