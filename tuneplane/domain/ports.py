"""The storage ports: what ``control`` asks of PostgreSQL. ``storage`` implements them; the simulator's twin will too.

Every method is one unit of work: it commits as a whole or changes nothing, and locks its aggregate rows in id order
first. Every method may raise StorageUnavailable (the outcome of a write is then unknown, P-09: repeat it, all are
idempotent by their keys, or re-read). Cancelling a method rolls its work back unless COMMIT was already sent.
Methods that write rows others wait for also poke (NOTIFY) the matching topic; a poke carries no data.
A method that does what a person asked for writes the line of the audit log in the same unit (R-ADM-02): act and line
happen both, or neither. ``by`` is that person; where it may be None, None is nobody's act and writes no line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import Enum
from typing import Protocol

from .account_ports import AccountStore, AuditStore, ProjectStore
from .errors import Reason
from .fleets import Capability, Fleet, FleetState, Visibility
from .frames import Hello, Observation
from .hardware import Registry, Series
from .ids import AttemptId, FleetId, GatewayId, JobId, MemberId, NodeId, OperationId, SeriesId, TokenId, TraceId, UserName, WorkerId
from .inventory import Inventory
from .jobs import (
    Claim,
    GatewayAddress,
    Job,
    JobSummary,
    JoinRequest,
    JoinToken,
    NodeIdentity,
    Occupant,
    OutgoingCommand,
    Page,
    PlacedMember,
    SessionOpened,
    TimelineEvent,
    User,
)
from .jobspec import JobSpec
from .launch_table import AttemptAction, AttemptState, Cause, JobState, LaunchView, Verdict
from .nodes import Node, NodeState
from .small_ports import DrainStore, IdentityStore, SightStore
from .visibility import JobAccess
from .waiting import WaitingJobs


class Topic(str, Enum):
    """What a poke is about. The receiver looks again at everything it owns of that topic."""

    JOBS = "jobs"  # a job was submitted, stopped, or capacity came free: the allocator looks
    ATTEMPTS = "attempts"  # a member, or what is wanted of an attempt, changed: its launch looks
    UNCLAIMED = "unclaimed"  # an attempt that no worker drives came to be: launch consumers claim
    COMMANDS = "commands"  # a command was persisted: gateways look
    SESSIONS = "sessions"  # a session or credential changed: gateways look
    CONSOLE = "console"  # anything a person may be watching changed
    ACCOUNTS = "accounts"  # who somebody is, or what he may see: whoever holds a stream open asks again


class FleetStore(Protocol):
    async def create_fleet(self, fleet: Fleet, *, by: UserName | None = None) -> None:
        """Refused(code="exists") when the id is taken."""

    async def get_fleet(self, fleet: FleetId) -> Fleet | None: ...

    async def list_fleets(self, page: Page, *, seen_by: User | None = None) -> tuple[list[Fleet], str | None]:
        """Newest first; only those that ``seen_by`` may see (domain/visibility.py), so that neither pages nor cursors tell of others."""

    async def update_fleet(
        self,
        fleet: FleetId,
        *,
        capabilities: tuple[Capability, ...] | None,
        visibility: Visibility | None,
        project: str | None,
        state: FleetState | None,
        config: dict[str, str] | None,
        by: UserName | None = None,
        now: datetime | None = None,
    ) -> Fleet:
        """Change what is given, keep the rest. NotFound. Whoever gives ``by`` gives ``now``, for the audit line."""

    async def delete_fleet(self, fleet: FleetId, *, by: UserName | None = None, now: datetime | None = None) -> None:
        """Refused(code="fleet-in-use") naming what is left: Nodes or attempts that have not ended (R-FLT-06)."""


class HardwareStore(Protocol):
    """R-ENR-06. Nodes come out of the other ports with ``card_series`` filled from it."""

    async def hardware(self) -> Registry:
        """The whole registry, by series; the names of each in the order of their coming."""

    async def add_series(self, series: Series, now: datetime, *, by: UserName | None = None) -> tuple[Series, bool]:
        """Make the series, or add to its names; answers it as it is then, and whether it is new. Waiting jobs are looked at again.

        Refused: ``card-taken`` (a name belongs to another series), ``too-many-card-names``, ``too-many-series``.
        """

    async def remove_series(
        self, series: SeriesId, card_name: str | None = None, *, by: UserName | None = None, now: datetime | None = None
    ) -> None:
        """The series, or one of its names. NotFound. Refused: ``series-in-use`` naming the live jobs that pin it, ``last-card-name``."""


class EnrolmentStore(Protocol):
    async def mint_join_token(self, token: JoinToken, secret_hash: str) -> None:
        """Its audit line, of the same unit, is its creator's."""

    async def list_join_tokens(self, fleet: FleetId) -> list[JoinToken]: ...

    async def revoke_join_token(self, fleet: FleetId, token: TokenId, now: datetime, *, by: UserName | None = None) -> bool: ...

    async def join(
        self,
        fleet: FleetId,
        request: JoinRequest,
        *,
        node: NodeId,
        token_hash: str,
        join_key_hash: str,
        credential_hash: str,
        credential_expires_at: datetime,
        now: datetime,
    ) -> Node:
        """Validate the token, consume it and create the Node with its credential, in one transaction (R-ENR-03).

        The same token and join key again, with a higher ``try``, before expiry and before the first session: the same
        Node, the earlier credential revoked (``node`` is then ignored). Refused with code ``token-unknown`` (also for a
        token of another Fleet), ``token-expired``, ``token-revoked``, ``token-used``, ``stale-try``, ``not-a-node-fleet``.
        The audit line of the same unit is that of the person who minted the token.
        """

    async def nodes_at_address(self, fleet: FleetId, address: str, besides: NodeId) -> list[NodeId]:
        """Connected Nodes that answer at ``address`` (R-ENR-07): those that a machine joining ``fleet`` may hear of (R-FLT-08)."""


class NodeStore(Protocol):
    async def get_node(self, node: NodeId, now: datetime) -> Node | None: ...

    async def fleet_of_node(self, node: NodeId) -> Fleet | None:
        """What decides who may see an enrolled Node: one look, whether there is one or not."""

    async def list_nodes(
        self, fleet: FleetId | None, page: Page, now: datetime, *, seen_by: User | None = None
    ) -> tuple[list[Node], str | None]:
        """Newest first; of one Fleet when given, of Fleets that ``seen_by`` may see."""

    async def set_node_state(self, node: NodeId, state: NodeState, reason: str, now: datetime, *, by: UserName | None = None) -> Node:
        """NotFound. ``active`` lifts the operator's cordon and that of a lost journal; other owners lift their own (L-F4)."""

    async def accept_epoch(self, node: NodeId, hold: str, by: UserName, now: datetime) -> Node:
        """Accept the hold that the Node reports (P-07): the session epoch rises to what the Node has seen, its session is
        closed, and the next Welcome says so. Its audit line is of the same unit (P-09). NotFound; Refused ``no-such-hold``
        unless its inventory has a hold of that id."""

    async def set_card_cordon(self, node: NodeId, card: str, reason: str | None, by: UserName, now: datetime) -> Node:
        """Keep new work off one card, with a reason, or (None) let it come again; the health table's cordon stays (L-D13).
        What runs on it goes on. Its audit line is of the same unit. NotFound (Node, or a card that its budget never named)."""

    async def accept_cards(self, node: NodeId, change: str, by: UserName, now: datetime) -> Node:
        """Bind the indexes of the budget to the cards that the newest inventory shows at them (L-D1), and close the Node's
        session: the next Welcome says so. Its audit line is of the same unit. NotFound; Refused ``no-such-change`` unless
        ``change`` names just these cards, and one of them is not what was bound."""

    async def stop_stranger(self, node: NodeId, container: str, member: MemberId, by: UserName, now: datetime) -> Node:
        """Persist an operator's Stop of a stranger and its audit line; repeated after a refusal, it is sent again. NotFound; Refused
        ``no-such-stranger`` unless the Node's inventory has one of this container and member (P-07)."""

    async def delete_node(self, node: NodeId, force: bool, by: UserName, now: datetime) -> None:
        """The audit line, of the same unit, names the members left behind.

        Refused(code="node-busy", reasons naming the members left) without ``force`` when active or holding anything.
        """

    async def declare_lost(self, node: NodeId, member: MemberId, by: UserName, reason: str, now: datetime) -> None:
        """Take an operator's word for evidence (P-11): the member ends as ``declared-lost``, its holds are released.

        The Node's session, whose lease had run out, is closed: it reports anew when it comes back, and a Stop is kept for it.
        The audit line, marked as forced, is of the same unit. NotFound. Refused: ``node-live`` while the Node's session
        lives (it can be asked), ``member-ended``.
        """


class SessionStore(DrainStore, Protocol):
    """What gateways need."""

    async def register_gateway(self, gateway: GatewayId, host: str, port: int, now: datetime, lease_until: datetime) -> None:
        """Sessions that an earlier process of the same name left open are closed: their streams died with it."""

    async def renew_gateway(self, gateway: GatewayId, lease_until: datetime) -> bool:
        """False when the row is gone (register again)."""

    async def close_gateway(self, gateway: GatewayId, now: datetime) -> None:
        """Close the gateway's sessions and its lease."""

    async def authenticate(self, secret_hash: str, now: datetime) -> NodeIdentity:
        """Refused: ``credential-unknown``, ``credential-revoked``, ``credential-expired``, ``node-removed``."""

    async def open_session(self, identity: NodeIdentity, gateway: GatewayId, hello: Hello, now: datetime) -> SessionOpened:
        """Raise the Node's session epoch and make this session the live one; the former is fenced (R-SES-02).

        A changed journal id, or a sequence lower than last seen, sets a ``journal`` cordon and makes the Node's live
        members ``unknown``, with a Stop for each (P-02). Refused ``node-removed``, and ``identity-in-use`` while another
        machine id or boot id holds a live session of this Node (P-15).
        """

    async def close_session(self, node: NodeId, epoch: int, reason: str, now: datetime) -> None: ...

    async def live_epochs(self, gateway: GatewayId) -> dict[NodeId, int]:
        """The sessions of this gateway that the database still takes for live: others are to be closed (R-CRD-04)."""

    async def record_inventory(self, node: NodeId, epoch: int, inventory: Inventory, digest: str, now: datetime) -> None:
        """Write a changed inventory, update capacity and grants, lift or set the ``storage`` cordon. Raises Fenced."""

    async def inventory_stale(self, node: NodeId, epoch: int, now: datetime) -> None:
        """No confirmation for ``inventory_fresh`` seconds: no new work until one arrives."""

    async def observe(self, node: NodeId, epoch: int, observation: Observation, now: datetime) -> bool:
        """Weigh one observation (domain/evidence.py); evidence of an end releases the holds in the same transaction.

        True: stored, or already known (acknowledge it). False: the member is none of ours; report, never kill (P-07).
        Raises Fenced for an old epoch. A lower journalled revision than an earlier session reported puts the Node's journal
        in doubt, as in :meth:`open_session` (P-02, P-12). A step that no history makes leaves the member ``unknown``, with a
        Stop; one that had ended and is reported alive gets a Stop and is shown as a violation (R-LCH-05).
        """

    async def reconcile(self, node: NodeId, epoch: int, reported: Collection[MemberId], now: datetime) -> None:
        """The Node has reported all that it knows in this session. A live member that its journal once had and now lacks
        puts that journal in doubt (P-02); one whose first command may still be in flight does not. Raises Fenced."""

    async def outgoing_commands(self, gateway: GatewayId, limit: int) -> list[OutgoingCommand]:
        """Unanswered, unwithdrawn commands of this gateway's live sessions not yet sent in their present epoch; stops first."""

    async def mark_sent(self, operation: OperationId, node: NodeId, epoch: int, now: datetime) -> bool:
        """Persist the send before it happens. False when withdrawn, answered or fenced meanwhile: do not send."""

    async def answer_command(
        self, operation: OperationId, node: NodeId, epoch: int, accepted: bool, code: str, detail: str, now: datetime
    ) -> None:
        """A refused Prepare or Commit is settled by a Stop, whose tombstone is the evidence (P-02). Raises Fenced."""

    async def gateway_of(self, node: NodeId, now: datetime) -> GatewayAddress | None:
        """The gateway that holds the Node's live session."""


class JobStore(Protocol):
    async def submit(
        self,
        job: JobId,
        spec: JobSpec,
        *,
        owner: UserName,
        fleet: FleetId,
        image: str,
        trace: TraceId,
        idempotency_key: str | None,
        now: datetime,
    ) -> Job:
        """Write a queued job and its audit line. The same owner and key again return the first job: that is no second act.

        NotFound for a Fleet, Refused ``no-such-series`` for a pinned series, that was deleted since the job was judged.
        """

    async def get_job(self, job: JobId) -> Job | None: ...

    async def find_submission(self, owner: UserName, idempotency_key: str) -> Job | None:
        """The job that ``owner`` submitted under the key: a repeat is answered before it is judged again."""

    async def list_jobs(
        self, page: Page, *, states: Sequence[JobState] = (), fleet: FleetId | None = None, seen_by: User | None = None
    ) -> tuple[list[JobSummary], str | None]:
        """Newest first; those that ``seen_by`` may see."""

    async def job_access(self, job: JobId) -> JobAccess | None:
        """What decides who may see a job: one look, whether there is one or not."""

    async def waiting_by_reasons(self, *, fleet: FleetId | None = None, seen_by: User | None = None) -> list[WaitingJobs]:
        """All queued jobs that ``seen_by`` may see, put together by Fleet and reasons."""

    async def request_stop(self, job: JobId, by: UserName, now: datetime) -> Job:
        """Accept a stop, once and for ever, in one transaction (R-LCH-12); idempotent. NotFound.

        A queued job is ``stopped`` at once. Otherwise the attempt moves to ``stopping``; a member whose Prepare was never
        sent has its Prepare withdrawn and is ``aborted`` with its holds released; every other live member gets a Stop command.
        Every accepted request has its audit line, of the same unit: who asked again asked, too.
        """

    async def retry(self, job: JobId, by: UserName, now: datetime, *, after: int | None = None) -> Job:
        """Queue a failed job for one more attempt, at once; a repeat before that attempt is placed changes nothing.

        ``after`` is the attempt that the caller saw fail: once a later one was placed, a repeat answers the job as it is.
        The audit line, of the same unit, names the attempt that was asked for.

        NotFound. Refused: ``job-live``, ``job-succeeded``, ``job-stopped`` (a stop is for ever, R-LCH-12),
        ``too-many-attempts``, ``fleet-gone``, ``series-gone``.
        """

    async def timeline(self, job: JobId, limit: int) -> list[TimelineEvent]: ...


class LaunchStore(Protocol):
    """What workers need."""

    async def waiting_fleets(self, now: datetime) -> list[FleetId]:
        """The Fleets that have waiting jobs."""

    async def waiting_jobs(self, fleet: FleetId, limit: int, now: datetime) -> list[Job]:
        """The Fleet's queued jobs whose back-off is over, by priority, then age."""

    async def occupants(self, fleet: FleetId) -> list[Occupant]:
        """Who holds something on the Fleet's Nodes."""

    async def placement_nodes(self, fleet: FleetId, now: datetime) -> list[Node]:
        """All Nodes of a Fleet, capacity and free cards included."""

    async def place(self, job: JobId, attempt: AttemptId, number: int, members: Sequence[PlacedMember], now: datetime) -> bool:
        """Write attempt, plans and holds in one transaction. False when a constraint or a stop says no: look again."""

    async def note_waiting(self, jobs: Sequence[JobId], code: str, reasons: Sequence[Reason], now: datetime) -> None:
        """Keep the reason that ``jobs`` have in common; writes only where it changed, and only of those still queued."""

    async def claim_attempts(self, worker: WorkerId, limit: int, now: datetime, lease_until: datetime) -> list[Claim]:
        """Take attempts that nobody holds or whose lease ran out (SKIP LOCKED); the claim epoch rises."""

    async def renew_claims(self, worker: WorkerId, claims: Sequence[Claim], lease_until: datetime) -> list[Claim]:
        """The claims that are still ours."""

    async def load_launch(self, claim: Claim) -> LaunchView | None:
        """None when the claim is no longer ours (drop it) or the attempt has ended."""

    async def advance(
        self,
        claim: Claim,
        view: LaunchView,
        target: AttemptState,
        action: AttemptAction,
        cause: Cause,
        verdict: Verdict | None,
        now: datetime,
    ) -> bool:
        """Persist one step and its commands in one transaction, WHERE claim_epoch and old state still hold (P-05).

        SEND_PREPARE and SEND_COMMIT insert one command a member; SEND_STOP does what request_stop does for the members;
        CONCLUDE writes the verdict on attempt and job; a verdict of ``queued`` leaves the job waiting for its next attempt,
        not before its back-off is over. A repeat changes nothing. False: the world moved (a stop came, say), look again.
        """

    async def forget_ended(self, older_than: datetime, limit: int, now: datetime) -> int:
        """Persist Forget commands for cleaned members of attempts that ended before ``older_than``."""


class PokeStore(Protocol):
    def open_pokes(self, topics: Sequence[Topic]) -> AbstractAsyncContextManager[AsyncIterator[frozenset[Topic]]]:
        """Coalesced pokes. Also yields *all* ``topics`` once at the start, after every reconnect, and every poll interval."""


class Storage(
    AccountStore,
    ProjectStore,
    AuditStore,
    FleetStore,
    HardwareStore,
    EnrolmentStore,
    NodeStore,
    SessionStore,
    SightStore,
    JobStore,
    LaunchStore,
    IdentityStore,
    PokeStore,
    Protocol,
):
    """All of it, as one object."""

    async def ping(self) -> None:
        """Raise StorageUnavailable unless PostgreSQL answers and its schema is the one we know."""
