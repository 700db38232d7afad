"""The twin's tables: frozen rows in dicts, an undo log for the unit in hand, and what the database's triggers refuse."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from datetime import datetime
from typing import Generic, TypeVar

from attrs import define, field, frozen

from tuneplane.domain.accounts import AuditLine, ConsoleSession, Project
from tuneplane.domain.fleets import Fleet
from tuneplane.domain.frames import CommandKind, Progress
from tuneplane.domain.hardware import Series
from tuneplane.domain.ids import (
    AttemptId,
    FleetId,
    GatewayId,
    JobId,
    MemberId,
    NodeId,
    OperationId,
    ProjectId,
    SeriesId,
    SessionId,
    TraceId,
    UserName,
    WorkerId,
)
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.jobs import ApiToken, EncryptedIdentity, Job, JoinToken, TimelineEvent, User
from tuneplane.domain.launch_table import AttemptState, MemberPhase
from tuneplane.domain.nodes import Cordon, NodeState
from tuneplane.domain.sight import Sight

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@frozen(kw_only=True)
class NodeRow:
    id: NodeId
    fleet: FleetId
    address: str
    created_at: datetime
    enrolled_by: str
    state: NodeState = NodeState.ACTIVE
    removed_at: datetime | None = None
    journal_id: str | None = None
    journal_sequence: int = 0
    accepted_hold: str = ""
    accepted_cards: str = ""
    inventory: Inventory | None = None
    inventory_observed_at: datetime | None = None
    inventory_epoch: int = 0
    cpu_used: int = 0
    memory_used: int = 0


@frozen(kw_only=True)
class GrantRow:
    node: NodeId
    index: int | None
    gpu_uuid: str
    granted: bool
    occupied: bool = False


@frozen(kw_only=True)
class CredentialRow:
    node: NodeId
    expires_at: datetime
    revoked_at: datetime | None = None


@frozen(kw_only=True)
class TokenRow:
    """A Join Token."""

    token: JoinToken
    secret_hash: str
    join_key_hash: str | None = None
    try_ordinal: int = 0


@frozen(kw_only=True)
class GatewayRow:
    id: GatewayId
    host: str
    port: int
    lease_until: datetime
    live_since: datetime


@frozen(kw_only=True)
class SessionRow:
    node: NodeId
    epoch: int
    gateway: GatewayId
    machine_id: str
    boot_id: str
    opened_at: datetime
    clock_offset_seconds: float
    clock_error_seconds: float | None = None
    closed_at: datetime | None = None


@frozen(kw_only=True)
class AttemptRow:
    id: AttemptId
    job: JobId
    number: int
    created_at: datetime
    entered_at: datetime
    state: AttemptState = AttemptState.PENDING
    running_at: datetime | None = None
    ended_at: datetime | None = None
    cause_code: str = ""
    cause_detail: str = ""
    claim_worker: WorkerId | None = None
    claim_epoch: int = 0
    claim_until: datetime | None = None


@frozen(kw_only=True)
class MemberRow:
    id: MemberId
    attempt: AttemptId
    job: JobId
    node: NodeId
    rank: int
    plan: bytes
    plan_digest: str
    phase: MemberPhase = MemberPhase.PENDING
    revision: int = 0
    boot_id: str = ""
    container_id: str = ""
    exit_code: int | None = None
    oom_killed: bool = False
    reason_code: str = ""
    reason_detail: str = ""
    refusal_code: str = ""
    refusal_detail: str = ""
    progress: Progress | None = None
    hold_expires_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cleaned: bool = False
    journal_id: str = ""
    revision_epoch: int = 0
    violation: str = ""


@frozen(kw_only=True)
class HoldRow:
    member: MemberId
    node: NodeId
    cpu_millis: int
    memory_bytes: int
    gpu_uuids: tuple[str, ...]
    ports: tuple[int, ...]


@frozen(kw_only=True)
class CommandRow:
    operation: OperationId
    member: MemberId
    node: NodeId
    kind: CommandKind
    claim_epoch: int
    trace: TraceId
    created_at: datetime
    hold_seconds: float = 0.0
    stop_signal: str = ""
    stop_grace_seconds: float = 0.0
    reason: str = ""
    sent_epoch: int | None = None
    answered_at: datetime | None = None
    accepted: bool | None = None
    withdrawn_at: datetime | None = None

    @property
    def open(self) -> bool:
        return self.answered_at is None and self.withdrawn_at is None


@frozen(kw_only=True)
class StrangerRow:
    """A command for what is no member here."""

    operation: OperationId
    node: NodeId
    member: MemberId
    container: str
    kind: CommandKind
    asked_by: str
    created_at: datetime
    sent_epoch: int | None = None
    answered_at: datetime | None = None
    accepted: bool | None = None


@frozen
class Change:
    """One row before and after: None for no row."""

    table: str
    key: Hashable
    before: object
    after: object


@define(eq=False)
class Table(Generic[K, V]):
    """Rows by primary key, in the order of their insertion. ``log`` is shared by all tables of a book."""

    name: str
    log: list[Change]
    rows: dict[K, V] = field(factory=dict)

    def __getitem__(self, key: K) -> V:
        return self.rows[key]

    def get(self, key: K) -> V | None:
        return self.rows.get(key)

    def __contains__(self, key: K) -> bool:
        return key in self.rows

    def __iter__(self) -> Iterator[V]:
        return iter(self.rows.values())

    def __len__(self) -> int:
        return len(self.rows)

    def put(self, key: K, row: V) -> V:
        self.log.append(Change(self.name, key, self.rows.get(key), row))
        self.rows[key] = row
        return row

    def drop(self, key: K) -> None:
        if key in self.rows:
            self.log.append(Change(self.name, key, self.rows.pop(key), None))


@define(eq=False)
class Book:
    """All tables. ``touched`` are the topics that the unit in hand pokes at its commit."""

    log: list[Change] = field(factory=list)
    touched: set[str] = field(factory=set)
    users: Table[str, tuple[User, str | None]] = field(init=False)
    api_tokens: Table[str, tuple[ApiToken, str, bool]] = field(init=False)
    projects: Table[ProjectId, Project] = field(init=False)  # without their members
    memberships: Table[tuple[ProjectId, UserName], datetime] = field(init=False)
    console_sessions: Table[SessionId, ConsoleSession] = field(init=False)
    audit: Table[int, AuditLine] = field(init=False)
    fleets: Table[FleetId, Fleet] = field(init=False)
    series: Table[SeriesId, Series] = field(init=False)
    identities: Table[str, EncryptedIdentity] = field(init=False)
    nodes: Table[NodeId, NodeRow] = field(init=False)
    tokens: Table[str, TokenRow] = field(init=False)
    credentials: Table[str, CredentialRow] = field(init=False)
    cordons: Table[tuple[NodeId, str], Cordon] = field(init=False)
    clearing: Table[NodeId, datetime] = field(init=False)  # storage cordons: since when the root is seen again
    sight: Table[bool, Sight] = field(init=False)  # at most one row, without what gateways tell
    grants: Table[tuple[NodeId, str], GrantRow] = field(init=False)
    card_cordons: Table[tuple[NodeId, str, str], Cordon] = field(init=False)
    gateways: Table[GatewayId, GatewayRow] = field(init=False)
    sessions: Table[NodeId, SessionRow] = field(init=False)
    jobs: Table[JobId, Job] = field(init=False)
    submissions: Table[tuple[str, str], JobId] = field(init=False)
    attempts: Table[AttemptId, AttemptRow] = field(init=False)
    members: Table[MemberId, MemberRow] = field(init=False)
    holds: Table[MemberId, HoldRow] = field(init=False)
    gpu_holds: Table[str, MemberId] = field(init=False)
    port_holds: Table[tuple[NodeId, int], MemberId] = field(init=False)
    commands: Table[OperationId, CommandRow] = field(init=False)
    stranger_commands: Table[OperationId, StrangerRow] = field(init=False)
    timeline: Table[int, tuple[JobId, TimelineEvent]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        for name in self._tables():
            setattr(self, name, Table(name, self.log))

    def backup(self) -> dict[str, dict[Hashable, object]]:
        """All rows as they are, for :meth:`restore`."""
        return {name: dict(getattr(self, name).rows) for name in self._tables()}

    def restore(self, backup: dict[str, dict[Hashable, object]]) -> None:
        """The database as it was then; whatever was committed since has never been (P-07)."""
        for name, rows in backup.items():
            table = getattr(self, name)
            table.rows.clear()
            table.rows.update(rows)

    def _tables(self) -> list[str]:
        return [name for name, kind in self.__class__.__annotations__.items() if str(kind).startswith("Table")]

    def roll_back(self) -> None:
        """Undo what the unit in hand did."""
        for change in reversed(self.log):
            rows = getattr(self, change.table).rows
            if change.before is None:
                rows.pop(change.key, None)
            else:
                rows[change.key] = change.before
        self.close_unit()

    def close_unit(self) -> tuple[list[Change], set[str]]:
        """Make it final; what it changed and whom it pokes."""
        changes, touched = list(self.log), set(self.touched)
        self.log.clear()
        self.touched.clear()
        return changes, touched
