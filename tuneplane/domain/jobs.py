"""Jobs, accounts, tokens and the other records of the control plane, as storage gives them out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from attrs import evolve, frozen

from .errors import Reason
from .frames import Command, Progress
from .ids import AttemptId, FleetId, GatewayId, JobId, MemberId, NodeId, TokenId, TraceId, UserName, WorkerId
from .inventory import Inventory
from .jobspec import JobSpec
from .launch_table import ENDED_PHASES, AttemptState, JobState, MemberPhase
from .plan import LOOPBACK, sight

WAIT_FOR_PEERS = "wait-for-peers"  # progress of a prepared member of a gang


@frozen(kw_only=True)
class User:
    username: UserName
    role: str  # "admin" or "user"
    disabled: bool = False
    created_at: datetime
    projects: tuple[str, ...] = ()  # whose member he is, in the order of their names


@frozen(kw_only=True)
class ApiToken:
    id: TokenId
    username: UserName
    name: str
    created_at: datetime
    last_used_at: datetime | None = None


@frozen(kw_only=True)
class JoinToken:
    id: TokenId
    fleet: FleetId
    created_by: UserName
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None
    used_at: datetime | None = None
    used_by: NodeId | None = None


@frozen(kw_only=True)
class JoinRequest:
    """Body of ``POST /api/fleets/{id}/nodes``. ``try`` rises with every retry of one join (P-14)."""

    token: str
    join_key: str
    try_: int
    address: str
    node_version: str
    protocol: int
    inventory: Inventory


@frozen(kw_only=True)
class MemberRecord:
    """One member of an attempt, as a user sees it."""

    id: MemberId
    node: NodeId
    rank: int
    phase: MemberPhase
    exit_code: int | None = None
    oom_killed: bool = False
    reason_code: str = ""
    reason_detail: str = ""
    progress: Progress | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cleaned: bool = False
    gpu_uuids: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()  # leased on its Node
    address: str = ""  # as its peers route to it
    interface: str | None = None  # the one that the job asked for
    node_silent_since: datetime | None = None  # a hold on a silent Node is shown as such (P-11)


@frozen(kw_only=True)
class AttemptRecord:
    id: AttemptId
    number: int
    state: AttemptState
    members: tuple[MemberRecord, ...]
    created_at: datetime
    running_at: datetime | None = None
    ended_at: datetime | None = None
    reason_code: str = ""
    reason_detail: str = ""
    main_address: str = ""  # where the members meet: rank 0's address and leased port
    main_port: int = 0
    output_dir: str = ""  # on the storage root of its time: the Fleet may name another for later attempts
    waits_for: tuple[Reason, ...] = ()  # what keeps it from its end: a silent Node that holds a member, a stop not confirmed


def waiting_for_peers(state: AttemptState, members: tuple[MemberRecord, ...]) -> tuple[MemberRecord, ...]:
    """A member that is prepared waits until all are, and says how many (R-LCH-15)."""
    if state is not AttemptState.PREPARING or len(members) < 2:
        return members
    ready = sum(member.phase is MemberPhase.PREPARED for member in members)
    wait = Progress(phase=WAIT_FOR_PEERS, done=ready, total=len(members), unit="members")
    return tuple(evolve(member, progress=wait) if member.phase is MemberPhase.PREPARED else member for member in members)


def waits_for(state: AttemptState, members: tuple[MemberRecord, ...]) -> tuple[Reason, ...]:
    """Every accepted stop and every hold ends, or is shown as held by a named silent Node since a time (P-11)."""
    reasons = []
    for member in members if state is not AttemptState.ENDED else ():
        if member.phase in ENDED_PHASES:
            continue
        if member.node_silent_since is not None:
            since = f"{member.node_silent_since:%Y-%m-%d %H:%M:%SZ}"
            reasons.append(Reason("silent-node", f"{member.id} is held by Node {member.node}, silent since {since}", member.node))
        elif state is AttemptState.STOPPING:
            reasons.append(Reason("stopping", f"{member.id} on Node {member.node} has not confirmed its end", member.node))
    return tuple(reasons)


@frozen(kw_only=True)
class Waiting:
    """Why a queued job waits, truthfully."""

    code: str
    reasons: tuple[Reason, ...] = ()
    since: datetime | None = None


@frozen(kw_only=True)
class Job:
    id: JobId
    name: str
    project: str
    owner: UserName
    fleet: FleetId
    spec: JobSpec
    image: str  # pinned: repository@sha256:…
    state: JobState
    trace: TraceId
    created_at: datetime
    ended_at: datetime | None = None
    stop_asked_at: datetime | None = None
    stop_asked_by: str = ""
    waiting: Waiting | None = None
    reason_code: str = ""
    reason_detail: str = ""
    attempt_number: int = 0  # of the latest attempt; 0: not placed yet
    not_before: datetime | None = None  # a queued job's next attempt waits for this (back-off)
    attempts: tuple[AttemptRecord, ...] = ()  # filled by get_job; empty in listings


@frozen(kw_only=True)
class JobSummary:
    """A job in a list: without its specification and attempts, which may be long (L-L2)."""

    id: JobId
    name: str
    project: str
    owner: UserName
    fleet: FleetId
    state: JobState
    priority: int
    created_at: datetime
    ended_at: datetime | None = None
    stop_asked_at: datetime | None = None
    stop_asked_by: str = ""
    waiting: Waiting | None = None  # with its first reason alone
    reason_code: str = ""
    reason_detail: str = ""
    attempt_number: int = 0
    not_before: datetime | None = None


def summary_of(job: Job) -> JobSummary:
    """What the list shows of ``job``."""
    return JobSummary(
        id=job.id,
        name=job.name,
        project=job.project,
        owner=job.owner,
        fleet=job.fleet,
        state=job.state,
        priority=job.spec.spec.priority,
        created_at=job.created_at,
        ended_at=job.ended_at,
        stop_asked_at=job.stop_asked_at,
        stop_asked_by=job.stop_asked_by,
        waiting=first_reason(job.waiting),
        reason_code=job.reason_code,
        reason_detail=job.reason_detail,
        attempt_number=job.attempt_number,
        not_before=job.not_before,
    )


def first_reason(waiting: Waiting | None) -> Waiting | None:
    return evolve(waiting, reasons=waiting.reasons[:1]) if waiting is not None else None


@frozen(kw_only=True)
class TimelineEvent:
    at: datetime
    kind: str  # "job.submitted", "attempt.committed", "member.running", …
    subject: str
    detail: str = ""
    sequence: int = 0


@frozen(kw_only=True)
class Page:
    """Keyset paging: ``cursor`` is opaque, None starts at the newest; ``limit`` is 1 to 500."""

    limit: int = 50
    cursor: str | None = None


# ---------------------------------------------------------------- what the workers and gateways work with


@frozen(kw_only=True)
class NodeIdentity:
    """Who a Node's credential says it is."""

    node: NodeId
    fleet: FleetId
    credential_expires_at: datetime


@frozen(kw_only=True)
class Allocation:
    """The planner's answer for one member: where, and which cards and ports. Amounts are in the plan."""

    node: NodeId
    rank: int
    gpu_uuids: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    address: str = LOOPBACK  # numeric, as its peers route to it


@frozen(kw_only=True)
class PlacedMember:
    """A member about to be written: its plan bytes, digest, and holds."""

    member: MemberId
    node: NodeId
    rank: int
    plan: bytes
    plan_digest: str
    cpu_millis: int
    memory_bytes: int
    gpu_uuids: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


@frozen(kw_only=True)
class Occupant:
    """A member that holds something on a Node, and what bounds its end."""

    node: NodeId
    placed_at: datetime
    running_at: datetime | None
    max_runtime_seconds: float | None
    grace_seconds: float


def placed_on(members: Sequence[PlacedMember]) -> str:
    """Where an attempt was placed, in a sentence: its machines, and where a gang meets."""
    where = f"on {', '.join(sorted({one.node for one in members}))}"
    head = sight(members[0].plan)
    return f"{where}; they meet at {head.main_address} port {head.main_port}" if len(members) > 1 and head.main_port else where


@frozen(kw_only=True)
class Claim:
    """A worker's right to drive one attempt, until its lease ends or another takes over (P-05)."""

    attempt: AttemptId
    job: JobId
    worker: WorkerId
    epoch: int


@frozen(kw_only=True)
class OutgoingCommand:
    """An unanswered command for a Node whose session this gateway holds."""

    node: NodeId
    command: Command


@frozen(kw_only=True)
class SessionOpened:
    node: NodeId
    epoch: int
    gateway: GatewayId
    accepted_hold: str = ""  # what an operator has accepted, for the Welcome (P-07)
    accepted_cards: str = ""  # likewise: the change of cards (L-D1)


@frozen(kw_only=True)
class GatewayAddress:
    """Where another control-plane process reaches the gateway that holds a Node's session (P-23)."""

    gateway: GatewayId
    host: str
    port: int


@frozen(kw_only=True)
class EncryptedIdentity:
    """A TLS identity as PostgreSQL keeps it: the key is AES-GCM ciphertext under a named key."""

    name: str  # "gateway" or "internal"
    certificate_pem: str
    key_ciphertext: bytes
    version: int
    key_id: str
