"""What this machine is and has, and every reason why it cannot take work yet (R-ENR-05, R-ENR-09, R-ENR-12)."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable

from attrs import evolve, frozen

from tuneplane.domain import codec
from tuneplane.domain.inventory import Budgets, EpochHold, Interface, Inventory, Stranger
from tuneplane.domain.node_member import Grants
from tuneplane.domain.node_ports import Engine, EngineDown, EngineInfo, EngineRefused, EngineUnclear, Network, NetworkHidden
from tuneplane.wire.fields import INTERFACE_NAME

from .address import Reach, route_address
from .card_desk import CardSight
from .machine import node_version
from .storage_probe import StorageSight, probe_storage

MAX_INTERFACES = 64  # with addresses of their own: more than any machine has, unless each container brings one
MAX_ADDRESSES = 16  # of one interface: more than aliases of a card, less than kube-proxy gives its own (one a service)


@frozen
class Survey:
    """One look at the machine."""

    inventory: Inventory
    grants: Grants
    digest: str


async def survey(
    *,
    budgets: Budgets,
    storage_root: str,
    mark: str,
    engine: Engine,
    network: Network,
    reach: Reach,
    look_at_cards: Callable[[], Awaitable[CardSight]],
    alarms: tuple[str, ...] = (),
    hold: EpochHold | None = None,
    strangers: tuple[Stranger, ...] = (),
) -> Survey:
    """Look once; bounded in time by its parts, raises nothing. ``mark`` names the probe file, ``alarms`` are others' problems."""
    info, engine_problem = await _ask_engine(engine)
    interfaces, network_problem = await _ask_network(network) if info is not None else ((), "")
    sight_of_cards = await look_at_cards()
    cards = sight_of_cards.cards
    sight = await probe_storage(storage_root, mark) if storage_root else StorageSight(False)
    gpu_runtime = info is not None and info.gpu_runtime
    problems = (
        *missing_budgets(budgets),
        *([engine_problem] if engine_problem else []),
        *([network_problem] if network_problem else []),
        *sight_of_cards.problems,
        *runtime_problems(budgets, info, sight_of_cards.granted),
        *([sight.problem] if sight.problem else []),
        *alarms,
    )
    inventory = Inventory(
        hostname=socket.gethostname(),
        node_version=node_version(),
        cpu_count=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=cards.gpus,
        driver_version=cards.driver_version,
        runtime=f"{info.kind} {info.version}" if info is not None else "",
        gpu_runtime=gpu_runtime,
        storage_root=storage_root,
        storage_root_seen=sight.seen,
        budgets=budgets,
        problems=problems,
        hold=hold,
        strangers=strangers,
        cards_known=not cards.problem,
        card_bindings=sight_of_cards.bindings,
        card_faults=sight_of_cards.faults,
        interfaces=interfaces,
        route_address=await route_address(reach, network) if interfaces else "",
    )
    occupied = {uuid for one in strangers for uuid in one.gpu_uuids or ()}
    granted = sight_of_cards.granted - occupied
    return Survey(
        inventory, Grants(budgets=budgets, gpu_uuids=granted, storage_root=storage_root), codec.digest(codec.canonical(inventory))
    )


async def _ask_network(network: Network) -> tuple[tuple[Interface, ...], str]:
    """The interfaces that a gang could use: those of containers and tunnels come and go, but have no such address.

    The kernel allows more than a gateway takes, in names and in number; what is too much is left out.
    """
    try:
        found = await network.interfaces()
    except (EngineDown, NetworkHidden, OSError) as error:
        return (), f"the network of workloads cannot be looked at: {error}"
    useful = [one for one in found if one.addresses and INTERFACE_NAME.fullmatch(one.name)]
    return tuple(evolve(one, addresses=one.addresses[:MAX_ADDRESSES]) for one in useful[:MAX_INTERFACES]), ""


async def _ask_engine(engine: Engine) -> tuple[EngineInfo | None, str]:
    try:
        return await engine.info(), ""
    except (EngineDown, EngineUnclear, EngineRefused) as error:
        return None, str(error)


def missing_budgets(budgets: Budgets) -> tuple[str, ...]:
    """R-ENR-09: an unset variable is named."""
    declared = {
        "TUNEPLANE_NODE_CPUS": budgets.cpu_millis,
        "TUNEPLANE_NODE_MEMORY_GB": budgets.memory_bytes,
        "TUNEPLANE_NODE_GPU_IDS": budgets.gpu_indexes,
    }
    return tuple(
        f"{variable} is not set: declare what this machine may give to jobs" for variable, value in declared.items() if value is None
    )


def runtime_problems(budgets: Budgets, info: EngineInfo | None, granted: frozenset[str]) -> tuple[str, ...]:
    """R-ENR-12. Which cards are there, and whether they are those of the budget, is judged by domain/card_grants.py."""
    if not (budgets.gpu_indexes or budgets.gpu_uuids):
        return ()
    if info is None or not info.gpu_runtime:
        return ("GPUs are granted, but the container runtime offers none: install the NVIDIA Container Toolkit (or CDI)",)
    hidden = sorted(granted - info.cards) if info.cards is not None else []
    if not hidden:
        return ()
    way = "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml"
    return (f"the CDI specifications of this machine name no device {', '.join(hidden)}: every job on it would fail; run {way}",)
