"""The cards of a Node as the API shows them, and what a machine that joins may say of its own."""

from __future__ import annotations

import re

from attrs import asdict, frozen

from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.inventory import MOST_CARDS, Budgets, Inventory
from tuneplane.domain.nodes import Cordon, Node

CARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,159}")  # the id of one, of its driver: as the wire takes it
MOST_INDEX = 256  # of a card, as the wire takes it; storage holds no larger one than 2**31
MOST_PORT = 65535


@frozen(kw_only=True)
class CardAnswer:
    """A card (or MIG instance) of a Node's GPU budget: who has it, and what keeps new work off it (L-D13)."""

    uuid: str
    index: int | None  # None: granted by UUID, or its index is another card's now
    name: str  # "" while the machine does not show it
    series: str | None
    granted: bool
    occupied: bool  # by a stranger
    member: str | None
    cordons: tuple[Cordon, ...]


def card_answers(node: Node) -> tuple[CardAnswer, ...]:
    """The cards of a Node's budget, with what its inventory and the registry say of them."""
    gpus = node.inventory.gpus if node.inventory is not None else ()
    names = {gpu.uuid: gpu.name for gpu in gpus} | {part.uuid: part.name for gpu in gpus for part in gpu.instances}
    return tuple(
        CardAnswer(name=names.get(card.uuid, ""), series=node.card_series.get(card.uuid), **asdict(card, recurse=False))
        for card in node.cards
    )


def check_cards(inventory: Inventory) -> None:
    """What a machine that joins says of its cards. InvalidInput names the field."""
    if len(inventory.gpus) > MOST_CARDS:
        raise InvalidInput("inventory.gpus", f"at most {MOST_CARDS}")
    for what in ("uuid", "index"):
        if len({getattr(gpu, what) for gpu in inventory.gpus}) != len(inventory.gpus):
            raise InvalidInput("inventory.gpus", f"two cards have the same {what}")
    uuids = [gpu.uuid for gpu in inventory.gpus] + [part.uuid for gpu in inventory.gpus for part in gpu.instances]
    uuids += [link.peer for gpu in inventory.gpus for link in gpu.links] + list(inventory.budgets.gpu_uuids)
    if not all(CARD.fullmatch(uuid) for uuid in uuids):
        raise InvalidInput("inventory.gpus", "a uuid must be 1 to 160 of A-Z, a-z, 0-9 and ._:@/-, starting with a letter or digit")
    if any(len(parts) > MOST_CARDS for gpu in inventory.gpus for parts in (gpu.links, gpu.instances)):
        raise InvalidInput("inventory.gpus", f"at most {MOST_CARDS} links and instances each")
    if any(len(named) > MOST_CARDS for named in (inventory.budgets.gpu_uuids, inventory.budgets.gpu_indexes or ())):
        raise InvalidInput("inventory.budgets", f"at most {MOST_CARDS} cards")
    indexes = [gpu.index for gpu in inventory.gpus] + list(inventory.budgets.gpu_indexes or ())
    if not all(0 <= index <= MOST_INDEX for index in indexes):
        raise InvalidInput("inventory.gpus", f"an index must be 0 to {MOST_INDEX}")
    sizes = [gpu.memory_bytes for gpu in inventory.gpus] + [part.memory_bytes for gpu in inventory.gpus for part in gpu.instances]
    if any(size < 0 for size in sizes):
        raise InvalidInput("inventory.gpus", "memory_bytes must not be negative")
    check_budgets(inventory.budgets)
    if inventory.card_bindings or inventory.card_faults:
        raise InvalidInput("inventory", "a machine that joins remembers no cards yet: bindings and faults are told in a session")


def check_budgets(budgets: Budgets) -> None:
    """What a machine that joins is granted, as a session's frames may say it. InvalidInput names the field."""
    for name in ("cpu_millis", "memory_bytes", "staging_bytes"):
        if (getattr(budgets, name) or 0) < 0:
            raise InvalidInput(f"inventory.budgets.{name}", "must not be negative")
    if not 1 <= budgets.port_first <= budgets.port_last <= MOST_PORT:
        raise InvalidInput("inventory.budgets.port_first", f"must be 1 to {MOST_PORT}, and not above port_last")
