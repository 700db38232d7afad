"""The immutable member plan: all that one machine needs to run one member, and its digest (R-LCH-01)."""

from __future__ import annotations

import json

from attrs import frozen

from . import codec
from .errors import InvalidInput
from .ids import AttemptId, FleetId, JobId, MemberId, NodeId, TraceId

PLAN_VERSION = 2
LOOPBACK = "127.0.0.1"  # where a member that has no peers finds its main process
FILLED_IN = {  # what plans of version 1 did not say yet; a Node may still hold such a plan when it is updated
    1: {"orchestrator": "process-group", "main_address": LOOPBACK, "main_port": 0, "address": LOOPBACK, "interface": None},
    PLAN_VERSION: {},
}
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
    ports: tuple[int, ...]  # leased on this member's own Node
    orchestrator: str  # "process-group" or "ray"
    ray_version: str = ""  # exact; only for ray
    main_address: str  # of rank 0, numeric, as its peers route to it; LOOPBACK when there are none
    main_port: int  # leased on rank 0's Node; 0 in a plan of version 1
    address: str  # this member's own, numeric, as its peers route to it
    interface: str | None  # exactly the one that the job asks for
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
    """Decode plan bytes after checking them against ``digest``; of every version that ever was. Raises InvalidInput."""
    if codec.digest(data) != digest:
        raise InvalidInput("plan", "the bytes do not match the plan digest")
    said = json.loads(data)
    version = said.get("version") if isinstance(said, dict) else None
    if type(version) is not int or version not in FILLED_IN:
        raise InvalidInput("plan.version", f"version {version} is unknown; this Node knows {', '.join(map(str, FILLED_IN))}")
    return codec.decode(MemberPlan, {**FILLED_IN[version], **said}, "plan")


SEEN = ("address", "interface", "main_address", "main_port", "output_dir")


@frozen(kw_only=True)
class PlanSight:
    """What a person is shown of a plan."""

    gpu_uuids: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    address: str = ""  # "" and 0: the plan is of a version that did not say
    interface: str | None = None
    main_address: str = ""
    main_port: int = 0
    output_dir: str = ""


def sight(data: bytes) -> PlanSight:
    """Of stored plan bytes, which outlive the holds. Of any version: what it does not say is left out."""
    try:
        said = json.loads(data)
    except ValueError:
        return PlanSight()
    if not isinstance(said, dict):
        return PlanSight()
    known = {name: said[name] for name in SEEN if name in said}
    return PlanSight(gpu_uuids=tuple(said.get("gpu_uuids", ())), ports=tuple(said.get("ports", ())), **known)


def workload_env(plan: MemberPlan) -> dict[str, str]:
    """The user's variables and ours, as the container gets them (interfaces.md)."""
    return {
        **plan.env,
        "TUNEPLANE_JOB_ID": plan.job,
        "TUNEPLANE_ATTEMPT": str(plan.attempt_number),
        "TUNEPLANE_MEMBER": plan.member,
        "TUNEPLANE_OUTPUT_DIR": plan.output_dir,
        "TUNEPLANE_ORCHESTRATOR": plan.orchestrator,
        "TUNEPLANE_MACHINE_RANK": str(plan.rank),
        "TUNEPLANE_MACHINE_COUNT": str(plan.world),
        **_meeting_point(plan),
    }


def _meeting_point(plan: MemberPlan) -> dict[str, str]:
    """Where the members find each other (R-LCH-09), and by which interface their libraries talk (R-LCH-11, L-H5)."""
    if not plan.main_port:
        return {}
    named = {"NCCL_SOCKET_IFNAME": plan.interface, "GLOO_SOCKET_IFNAME": plan.interface} if plan.interface else {}
    main = {"TUNEPLANE_MAIN_PROCESS_IP": plan.main_address, "TUNEPLANE_MAIN_PROCESS_PORT": str(plan.main_port), **named}
    if plan.orchestrator == "ray":
        return main  # main_port is Ray's own: a torch that took it for its MASTER_PORT would talk to the wrong server
    return {
        **main,
        "MASTER_ADDR": plan.main_address,
        "MASTER_PORT": str(plan.main_port),
        "NODE_RANK": str(plan.rank),
        "NNODES": str(plan.world),
    }
