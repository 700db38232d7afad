"""Enrolment and Nodes (R-ENR-03, 05, 07, 08; R-LIV-04 to R-LIV-06)."""

from __future__ import annotations

import ipaddress
import re
from datetime import datetime, timedelta

from attrs import asdict, evolve, field, frozen

from tuneplane.domain import codec
from tuneplane.domain.addresses import is_numeric
from tuneplane.domain.clocks import clock_warning
from tuneplane.domain.errors import InvalidInput, NotFound, Refused
from tuneplane.domain.fleet_config import why_other_root
from tuneplane.domain.fleets import Delivery, Fleet
from tuneplane.domain.frames import WIRE_PROTOCOL
from tuneplane.domain.hardware import unknown_card, unknown_cards_of
from tuneplane.domain.ids import SLUG, FleetId, MemberId, NodeId, SeriesId, UserName
from tuneplane.domain.inventory import Budgets, CardBinding, CardFault, EpochHold, Gpu, Interface, Inventory, Stranger
from tuneplane.domain.jobs import JoinRequest, Page, User
from tuneplane.domain.liveness import Liveness, Readiness, has_live_session, liveness, readiness
from tuneplane.domain.nodes import Capacity, Connection, Cordon, Left, Node, NodeState
from tuneplane.domain.secrets import SECRET_ENTROPY_BYTES, SecretKind, secret_hash, spell_secret
from tuneplane.domain.sight import Sight
from tuneplane.domain.text import plain, plain_tree
from tuneplane.domain.timings import PRODUCTION, Timings
from tuneplane.domain.visibility import may_see

from .api_base import Base, log, require_admin
from .api_fleets import Fleets
from .card_answers import CardAnswer, card_answers, check_cards

CREDENTIAL_LIFE = timedelta(days=30)  # R-CRD-01
JOIN_KEY = re.compile(r"^[A-Za-z0-9_=+/-]{16,200}$")
HOST_NAME = re.compile(r"^(?=.{1,253}$)[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$")
JOINING = UserName("(join token)")  # who acts where nobody is known: no name that an account may have
MOST_SECRET = 200  # characters of a Join Token as sent: ours have 47
MOST_PROBLEMS = 64  # a machine has a handful
MOST_INTERFACES = 256  # as many as a frame of the session may carry
MOST_TEXT = 1024  # characters of any text in an inventory
MOST_REASON = 500  # characters of an operator's reason


@frozen(kw_only=True)
class GatewayTrust:
    """What an enrolled Node is told of its gateway (R-TLS-04). An empty ``trust_pem`` means the system's roots."""

    target: str  # host:port
    trust_pem: str


@frozen(kw_only=True)
class JoinAnswer:
    """Answer to a join: the credential is shown this once."""

    id: NodeId
    credential: str = field(repr=False)
    credential_expires_at: datetime
    gateway_target: str
    gateway_trust_pem: str
    warnings: tuple[str, ...]


@frozen(kw_only=True)
class Scheduling:
    """What an operator, the machine and the cordons' owners want; separate from connection and inventory (R-LIV-06)."""

    state: NodeState
    cordons: tuple[Cordon, ...]
    drained: bool  # draining, and nothing is left by confirmed ends (L-F1)
    left: tuple[Left, ...]  # members without a confirmed end: a drain waits for them


@frozen(kw_only=True)
class InventoryAnswer:
    """The machine's own report; ``healthy``: confirmed in this very session and without problems."""

    observed_at: datetime | None
    healthy: bool
    hostname: str
    node_version: str
    cpu_count: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    driver_version: str
    runtime: str
    gpu_runtime: bool
    storage_root: str
    storage_root_seen: bool
    budgets: Budgets
    problems: tuple[str, ...]
    cards_known: bool  # false: its GPU driver did not answer, so no gpus are not no cards
    card_bindings: tuple[CardBinding, ...]  # which card each index of the budget was when the machine first saw it
    card_faults: tuple[CardFault, ...] | None
    strangers: tuple[Stranger, ...]  # what runs there, is ours, and is not known
    hold: EpochHold | None  # the Node holds our commands until an operator accepts this (P-07)
    interfaces: tuple[Interface, ...]
    route_address: str


@frozen(kw_only=True)
class NodeAnswer:
    """A Node as the API shows it."""

    id: NodeId
    fleet: FleetId
    address: str
    connection: Connection
    scheduling: Scheduling
    inventory: InventoryAnswer | None  # None: the machine has not reported yet
    card_series: dict[str, SeriesId]  # by the card's UUID (R-ENR-06)
    unknown_cards: tuple[str, ...]  # names that the hardware registry does not have: no job that pins a series gets these
    capacity: Capacity | None
    cards: tuple[CardAnswer, ...]  # of its GPU budget
    members: tuple[str, ...]
    violations: tuple[str, ...]  # what had ended and is reported alive all the same; it is being stopped
    ready: Readiness
    liveness: Liveness  # what its silence means, a capability of its Fleet (R-LIV-01)
    warnings: tuple[str, ...]  # what people should know and nothing depends on, such as a clock that is off
    created_at: datetime
    enrolled_by: UserName | None


@frozen(kw_only=True)
class NodePatch:
    """Body of ``PATCH /api/nodes/{id}``."""

    state: NodeState
    reason: str = ""


@frozen(kw_only=True)
class LossDeclaration:
    """Body of ``POST /api/nodes/{id}/members/{member}/declare-lost``: how the operator knows that it runs no more."""

    reason: str


@frozen(kw_only=True)
class StrangerStop:
    """Body of ``POST /api/nodes/{id}/stop-stranger``: container and member label, both as the inventory shows them."""

    container: str
    member: str


@frozen(kw_only=True)
class EpochAcceptance:
    """Body of ``POST /api/nodes/{id}/accept-epoch``: the id of the hold, as the Node's inventory shows it."""

    hold: str


@frozen(kw_only=True)
class Nodes(Base):
    """Machines: joining, looking, draining, removing."""

    fleets: Fleets
    gateway: GatewayTrust
    timings: Timings = PRODUCTION

    async def join(self, fleet: FleetId, request: JoinRequest) -> JoinAnswer:
        """Enrol a machine with a Join Token. Refused with the token's own reason; nothing else is burnt (R-ENR-03)."""
        _check_join(request)
        request = _plain(request)
        credential = spell_secret(SecretKind.NODE_CREDENTIAL, self.entropy(SECRET_ENTROPY_BYTES))
        now = self.clock()
        expires = now + CREDENTIAL_LIFE
        try:
            node = await self.storage.join(
                fleet,
                request,
                node=NodeId(self.new_id("node")),
                token_hash=secret_hash(request.token),
                join_key_hash=secret_hash(request.join_key),
                credential_hash=secret_hash(credential),
                credential_expires_at=expires,
                now=now,
            )
        except Refused as refusal:
            await self._note_refusal(fleet, request, refusal)  # noqa: ASYNC120 - a caller that is gone needs no refusal
            raise
        warnings = await self._join_warnings(node, request)
        self.tell(node.enrolled_by or JOINING, "node.join", node.id, f"{fleet} at {request.address}")
        return JoinAnswer(
            id=node.id,
            credential=credential,
            credential_expires_at=expires,
            gateway_target=self.gateway.target,
            gateway_trust_pem=self.gateway.trust_pem,
            warnings=warnings,
        )

    async def _note_refusal(self, fleet: FleetId, request: JoinRequest, refusal: Refused) -> None:
        """L-A13: an operator sees refused joins. Unknown tokens are only logged: a stranger must not fill the audit log."""
        log.warning("join refused", fleet=fleet, address=request.address, code=refusal.code)
        if refusal.code != "token-unknown":
            await self.audit(JOINING, "node.join-refused", fleet, f"{refusal.code} at {request.address}")

    async def _join_warnings(self, node: Node, request: JoinRequest) -> tuple[str, ...]:
        warnings = []
        fleet = await self.storage.get_fleet(node.fleet)
        inventory = request.inventory
        if fleet is not None and fleet.delivery is Delivery.SHARED_MOUNT and not inventory.storage_root_seen:
            root = inventory.storage_root or "TUNEPLANE_STORAGE_ROOT, which is not set"
            warnings.append(f"this machine does not see the storage root ({root}): it stays storage-cordoned until it does")
        other_root = why_other_root(fleet.config, inventory.storage_root) if fleet is not None else ""
        warnings += [f"this machine takes no work: {other_root}"] if other_root else []
        others = await self.storage.nodes_at_address(node.fleet, request.address, node.id)
        if others:
            again = "if this machine joined again, remove the old record, or its cards are counted twice"
            warnings.append(f"another live Node already answers at {request.address}: {', '.join(others)}; {again}")
        warnings += [unknown_card(name) for name in unknown_cards_of(node)]
        return tuple(warnings)

    async def get(self, caller: User, node: NodeId) -> NodeAnswer:
        """NotFound also for a Node of a Fleet that the caller may not see."""
        fleet, now = await self.check(caller, node), self.clock()
        found = await self.storage.get_node(node, now)
        if found is None:
            raise NotFound("Node", node)
        return await self._answer(found, fleet, now)

    async def check(self, caller: User, node: NodeId) -> Fleet:
        """The Fleet of a Node that the caller may see; or the same NotFound, after the same one look, as where there is none."""
        fleet = await self.storage.fleet_of_node(node)
        if fleet is None or not may_see(caller, fleet):
            raise NotFound("Node", node)
        return fleet

    async def list_page(self, caller: User, fleet: FleetId | None, page: Page) -> tuple[list[NodeAnswer], str | None]:
        """The Nodes of one Fleet, or of all that the caller may see."""
        now = self.clock()
        fleets = [await self.fleets.get(caller, fleet)] if fleet is not None else await self.fleets.visible(caller)
        by_id = {one.id: one for one in fleets}
        nodes, cursor = await self.storage.list_nodes(fleet, page, now, seen_by=caller)
        sight = await self.storage.load_sight(now)
        return [answer_node(node, by_id[node.fleet], sight, now, self.timings) for node in nodes if node.fleet in by_id], cursor

    async def _answer(self, node: Node, fleet: Fleet, now: datetime) -> NodeAnswer:
        return answer_node(node, fleet, await self.storage.load_sight(now), now, self.timings)

    async def set_state(self, caller: User, node: NodeId, patch: NodePatch) -> NodeAnswer:
        """Drain, cordon or activate: new work stops or starts, running work goes on (R-LIV-04)."""
        require_admin(caller)
        if len(patch.reason) > MOST_REASON:
            raise InvalidInput("reason", f"at most {MOST_REASON} characters")
        await self.get(caller, node)
        now = self.clock()
        changed = await self.storage.set_node_state(node, patch.state, patch.reason, now, by=caller.username)
        self.tell(caller.username, f"node.{patch.state.value}", node, patch.reason)
        return await self._answer(changed, await self._fleet_of(caller, changed), now)

    async def accept_epoch(self, caller: User, node: NodeId, order: EpochAcceptance) -> NodeAnswer:
        """Let a Node that holds our commands, because our session epochs went back, obey them again (P-07)."""
        require_admin(caller)
        await self.get(caller, node)
        now = self.clock()
        changed = await self.storage.accept_epoch(node, order.hold, caller.username, now)
        self.tell(caller.username, "node.accept-epoch", node, order.hold)
        return await self._answer(changed, await self._fleet_of(caller, changed), now)

    async def stop_stranger(self, caller: User, node: NodeId, order: StrangerStop) -> NodeAnswer:
        """Stop what nobody claims, by an operator's word (P-07). The Node looks again before it obeys."""
        require_admin(caller)
        await self.get(caller, node)
        if SLUG.match(order.member) is None:
            raise InvalidInput("member", "is no label that Tuneplane gives: stop that container on its machine")
        now = self.clock()
        changed = await self.storage.stop_stranger(node, order.container, MemberId(order.member), caller.username, now)
        self.tell(caller.username, "node.stop-stranger", node, f"{order.member} {order.container}")
        return await self._answer(changed, await self._fleet_of(caller, changed), now)

    async def delete(self, caller: User, node: NodeId, *, force: bool) -> None:
        """Remove a Node: drained and empty, or with ``force`` one that is gone; its credential dies with it (R-CRD-04)."""
        require_admin(caller)
        await self.get(caller, node)
        await self.storage.delete_node(node, force, caller.username, self.clock())
        self.tell(caller.username, "node.delete", node, forced=force)

    async def declare_lost(self, caller: User, node: NodeId, member: MemberId, word: LossDeclaration) -> None:
        """End a member of a silent Node by an operator's word, and release what it holds (P-11). Recorded as forced."""
        require_admin(caller)
        reason = word.reason.strip()
        if len(reason) > MOST_REASON or not any(map(str.isalnum, reason)):  # blank to the eye is blank, whatever its letters are
            raise InvalidInput("reason", f"must say in 1 to {MOST_REASON} characters how you know that it runs no more")
        await self.get(caller, node)
        await self.storage.declare_lost(node, member, caller.username, reason, self.clock())
        self.tell(caller.username, "member.declare-lost", member, f"on Node {node}: {reason}", forced=True)

    async def _fleet_of(self, caller: User, node: Node) -> Fleet:
        try:
            return await self.fleets.get(caller, node.fleet)
        except NotFound:
            raise NotFound("Node", node.id) from None


def answer_node(node: Node, fleet: Fleet, sight: Sight | None, now: datetime, timings: Timings) -> NodeAnswer:
    """The API's shape of a Node, with readiness and liveness derived now."""
    clock = clock_warning(node.connection.clock_offset_seconds, node.connection.clock_error_seconds)
    return NodeAnswer(
        id=node.id,
        fleet=node.fleet,
        address=node.address,
        connection=_connection(node.connection, now),
        scheduling=Scheduling(state=node.state, cordons=node.cordons, drained=node.is_drained, left=node.left),
        inventory=_inventory(node, now),
        card_series=node.card_series,
        unknown_cards=unknown_cards_of(node),
        capacity=node.capacity,
        cards=card_answers(node),
        members=node.members,
        violations=node.violations,
        ready=readiness(node, fleet, now),
        liveness=liveness(node, fleet, sight, now, timings),
        warnings=(clock,) if clock else (),
        created_at=node.created_at,
        enrolled_by=node.enrolled_by,
    )


def _inventory(node: Node, now: datetime) -> InventoryAnswer | None:
    """What a Node that is silent by now last confirmed is no longer confirmed (R-ADM-04)."""
    if node.inventory is None:
        return None
    report = asdict(node.inventory, recurse=False)
    return InventoryAnswer(observed_at=node.inventory_observed_at, healthy=node.inventory_healthy and has_live_session(node, now), **report)


def _connection(connection: Connection, now: datetime) -> Connection:
    """A session whose gateway's lease ran out is shown as lost, never as connected (R-ADM-04)."""
    lease = connection.lease_expires_at
    if connection.state == "connected" and (lease is None or lease <= now):
        return evolve(connection, state="disconnected")
    return connection


def _check_join(request: JoinRequest) -> None:
    if not 1 <= len(request.token) <= MOST_SECRET:
        raise InvalidInput("token", "is not a Join Token")
    if not JOIN_KEY.fullmatch(request.join_key):
        raise InvalidInput("join_key", "must be 16 to 200 random characters of base64 or hex")
    if not 1 <= request.try_ <= 1_000_000:
        raise InvalidInput("try", "must be between 1 and 1000000")
    if request.protocol != WIRE_PROTOCOL:
        raise Refused("wire-protocol", f"this console speaks wire protocol {WIRE_PROTOCOL}, the Node speaks {request.protocol}")
    _check_address(request.address)
    if len(request.node_version) > MOST_TEXT:
        raise InvalidInput("node_version", f"at most {MOST_TEXT} characters")
    _check_inventory(request.inventory)


def _plain(request: JoinRequest) -> JoinRequest:
    """What the machine says of itself, as it may be shown on a terminal: the gateway's frames are treated alike."""
    inventory = codec.decode(Inventory, plain_tree(codec.encode(request.inventory)))
    return evolve(request, node_version=plain(request.node_version), inventory=inventory)


def _check_address(address: str) -> None:
    if HOST_NAME.fullmatch(address):
        return
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise InvalidInput("address", "must be a host name or an IP address, without scheme or port") from None


def _check_inventory(inventory: Inventory) -> None:
    check_cards(inventory)
    texts = (inventory.hostname, inventory.node_version, inventory.driver_version, inventory.runtime, inventory.storage_root)
    cards = [text for gpu in inventory.gpus for text in (gpu.uuid, gpu.name)]
    if any(len(text) > MOST_TEXT for text in (*texts, *cards, *inventory.problems)):
        raise InvalidInput("inventory", f"a text in it has more than {MOST_TEXT} characters")
    _check_network(inventory)
    if inventory.strangers or inventory.hold is not None:
        raise InvalidInput("inventory", "a machine that joins has no journal yet: strangers and holds are told in a session")
    if len(inventory.problems) > MOST_PROBLEMS:
        raise InvalidInput("inventory.problems", f"at most {MOST_PROBLEMS}")
    if inventory.cpu_count < 1 or inventory.memory_bytes < 1:
        raise InvalidInput("inventory", "cpu_count and memory_bytes must be above 0")


def _check_network(inventory: Inventory) -> None:
    if len(inventory.interfaces) > MOST_INTERFACES or any(len(one.addresses) > MOST_INTERFACES for one in inventory.interfaces):
        raise InvalidInput("inventory.interfaces", f"at most {MOST_INTERFACES}, with as many addresses each")
    addresses = [address for one in inventory.interfaces for address in one.addresses]
    if not all(map(is_numeric, addresses)) or (inventory.route_address and not is_numeric(inventory.route_address)):
        raise InvalidInput("inventory.interfaces", "addresses must be numeric")
    if any(not 1 <= len(one.name) <= 15 for one in inventory.interfaces):
        raise InvalidInput("inventory.interfaces", "a name has 1 to 15 characters")
