"""The Node daemon put together: locks, journal, engine, and the supervision tree over them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial

from tuneplane.actors import Backoff, Budget, ChildSpec, Strategy, SupervisorSpec
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.node_member import Grants
from tuneplane.domain.node_ports import Machine
from tuneplane.wire.link import run_node_session
from tuneplane.wire.tls import client_context

from .address import reach_of
from .board import Board
from .card_desk import CardDesk, CardReader, look_once
from .cards import read_cards
from .config import NodeConfig, prepare_state_dir
from .core import NodeCore
from .engine import find_socket, open_engine
from .identity import Identity, load_identity
from .inventory import survey
from .inventory_actor import InventoryActor
from .journal import open_journal
from .locks import hold_runtime, hold_state_dir
from .logs import LogStore
from .machine import LinuxMachine
from .member_actors import Steward
from .network import LinuxNetwork
from .runner import ThreadRunner
from .session import Dial, SessionActor

# A member whose actor keeps crashing must not take the others with it: its restarts are slowed to one in 30 s, and more
# of them than a machine has members fit the budget.
MEMBER_BUDGET = Budget(restarts=500, seconds=60.0)
MEMBER_BACKOFF = Backoff(first=0.2, most=30.0)


@asynccontextmanager
async def open_node(config: NodeConfig, *, machine: Machine | None = None, cards: CardReader = read_cards) -> AsyncIterator[SupervisorSpec]:
    """All that the daemon holds, as long as the block runs; yields the tree to run in it.

    Raises InvalidInput (a setting, naming it), NotFound (not enrolled), Refused (another daemon has the state directory
    or the runtime), JournalUnusable. Leaving closes the journal and drops the locks; containers are not touched (L-C21).
    """
    prepare_state_dir(config)
    socket = config.runtime_socket or find_socket(config.runtime)
    with ExitStack() as held:
        held.enter_context(hold_state_dir(config.state_dir))
        identity = load_identity(config.state_dir)
        held.enter_context(hold_runtime(socket, config.state_dir))
        async with (
            open_journal(config.state_dir, ThreadRunner()) as journal,
            open_engine(
                runtime=config.runtime,
                socket_path=socket,
                insecure_registries=config.insecure_registries,
                call_seconds=config.timings.engine_call,
            ) as engine,
        ):
            core = NodeCore(
                node=identity.node,
                fleet=identity.fleet,
                state_dir=config.state_dir,
                journal=journal,
                engine=engine,
                machine=machine or LinuxMachine(),
                network=LinuxNetwork(socket),
                logs=LogStore(config.state_dir / "logs", ThreadRunner()),
                disk=ThreadRunner(),
                timings=config.timings,
                grants=Grants(budgets=config.budgets, storage_root=config.storage_root),
            )
            yield node_root(core, config, await make_dial(config, identity), cards)


def node_root(core: NodeCore, config: NodeConfig, dial: Dial, cards: CardReader = read_cards) -> SupervisorSpec:
    """The tree: members first, so that they drive on whatever happens to the rest; the session last.

    The steward starts again together with the members' pool (it holds the pool), the session with the steward.
    """
    board, reach = Board(), reach_of(dial.address, dial.target)
    desk = CardDesk(cards, config.budgets, core.state_dir, core.machine, core.disk)
    return SupervisorSpec(
        name="node",
        strategy=Strategy.REST_FOR_ONE,
        children=(
            SupervisorSpec(name="members", strategy=Strategy.POOL, budget=MEMBER_BUDGET, backoff=MEMBER_BACKOFF),
            ChildSpec(name="steward", factory=lambda: Steward(core), start_seconds=60.0),
            ChildSpec(
                name="inventory",
                factory=lambda: InventoryActor(core, board, config.budgets, config.storage_root, desk, reach),
            ),
            ChildSpec(name="session", factory=lambda: SessionActor(core, board, dial)),
        ),
    )


async def make_dial(config: NodeConfig, identity: Identity) -> Dial:
    """The gateway by precedence: what the operator set, then what enrolment saved (R-TLS-04)."""
    target = config.gateway or identity.gateway_target
    if not target:
        raise InvalidInput("TUNEPLANE_NODE_GATEWAY", "is not set, and enrolment saved no gateway address")
    trust = config.trust_pem if config.trust_pem is not None else identity.gateway_trust_pem or None
    try:
        tls = client_context(trust_pem=trust)
    except (OSError, ValueError) as error:
        raise InvalidInput("TUNEPLANE_NODE_TRUST_BUNDLE", f"is not a usable trust bundle: {error}") from error
    return Dial(target=target, tls=tls, credential=identity.credential, address=config.address or identity.address, run=run_node_session)


async def look_at_machine(config: NodeConfig, *, cards: CardReader = read_cards) -> Inventory:
    """The inventory that a join reports (R-ENR-05). InvalidInput when no container runtime is there."""
    socket = config.runtime_socket or find_socket(config.runtime)
    async with open_engine(
        runtime=config.runtime,
        socket_path=socket,
        insecure_registries=config.insecure_registries,
        call_seconds=config.timings.engine_call,
    ) as engine:
        found = await survey(
            budgets=config.budgets,
            storage_root=config.storage_root,
            mark="join",
            engine=engine,
            network=LinuxNetwork(socket),
            reach=reach_of(config.address, config.gateway),
            look_at_cards=partial(look_once, cards, config.budgets),
        )
    return found.inventory
