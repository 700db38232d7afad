"""The immutable member plan: all that one machine needs to run one member, and its digest (R-LCH-01)."""

from __future__ import annotations

import json

from attrs import frozen

from . import codec
from .errors import InvalidInput
from .ids import AttemptId, FleetId, JobId, MemberId, NodeId, TraceId

PLAN_VERSION = 1
MAX_PLAN_BYTES = 900 * 1024  # one frame carries it whole; a frame ends at 1 MiB


@frozen(kw_only=True)
class MemberPlan:
    """What the Node is to run. Everything in it is decided; the Node resolves nothing but local paths."""

    version: int = PLAN_VERSION
    member: MemberId
    attempt: AttemptId
    attempt_number: int
    job: JobId
    job_name: str
    fleet: FleetId
    node: NodeId
    rank: int
    world: int
    image: str  # repository@sha256:…
    command: tuple[str, ...]
    env: dict[str, str]
    workdir: str | None
    cpu_millis: int
    memory_bytes: int
    gpu_uuids: tuple[str, ...]
    ports: tuple[int, ...]
    storage_root: str  # mounted read-write at the same path
    output_dir: str  # below storage_root; the Node creates it
    stop_signal: str
    stop_grace_seconds: float
    max_runtime_seconds: float | None
    trace: TraceId


def plan_bytes(plan: MemberPlan) -> bytes:
    """The bytes that are stored, sent and hashed."""
    return codec.canonical(plan)


def plan_digest(data: bytes) -> str:
    return codec.digest(data)


def read_plan(data: bytes, digest: str) -> MemberPlan:
    """Decode plan bytes after checking them against ``digest``. Raises InvalidInput."""

    if codec.digest(data) != digest:
        raise InvalidInput("plan", "the bytes do not match the plan digest")
    plan = codec.decode(MemberPlan, json.loads(data), "plan")
    if plan.version != PLAN_VERSION:
        raise InvalidInput("plan.version", f"version {plan.version} is unknown; this Node knows {PLAN_VERSION}")
    return plan


def workload_env(plan: MemberPlan) -> dict[str, str]:
    """The user's variables and ours, as the container gets them (interfaces.md)."""
    return {
        **plan.env,
        "TUNEPLANE_JOB_ID": plan.job,
        "TUNEPLANE_ATTEMPT": str(plan.attempt_number),
        "TUNEPLANE_MEMBER": plan.member,
        "TUNEPLANE_OUTPUT_DIR": plan.output_dir,
        "TUNEPLANE_ORCHESTRATOR": "process-group",
        "TUNEPLANE_MACHINE_RANK": str(plan.rank),
        "TUNEPLANE_MACHINE_COUNT": str(plan.world),
    }
