"""The hardware registry: to which series a card belongs, by the name that its driver reports (R-ENR-06).

Names are compared as a person reads them: case, runs of white space and a leading "NVIDIA" make no difference (drivers
before R495 said "A100-SXM4-40GB", later ones "NVIDIA A100-SXM4-40GB" of the same card). A name belongs to one series.
"""

from __future__ import annotations

import shlex

from attrs import evolve, field, frozen

from .card_grants import declared_cards
from .errors import InvalidInput
from .fleets import check_slug
from .ids import SeriesId
from .inventory import Gpu, Inventory, MigInstance
from .nodes import Node
from .text import plain

MOST_SERIES = 500  # one page of the list holds them all; the market has some fifty
MOST_CARD_NAMES = 100  # of one series: a dozen variants each, and then some
MOST_CARD_NAME = 256  # characters, as many as the wire carries; NVML gives at most 96 bytes
VENDOR = "nvidia "


@frozen(kw_only=True)
class Series:
    """A series and the cards in it, named as NVML reports them."""

    series: SeriesId
    card_names: tuple[str, ...]


@frozen
class Registry:
    """All series, as one look found them. ``series_of`` asks it."""

    series: tuple[Series, ...] = ()
    by_key: dict[str, SeriesId] = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        known = {card_key(name): one.series for one in self.series for name in one.card_names}
        object.__setattr__(self, "by_key", known)


def card_key(name: str) -> str:
    """What two spellings of one card's name have in common; "" when nothing of a name is left."""
    return " ".join(name.casefold().split()).removeprefix(VENDOR)


def series_of(card_name: str, registry: Registry) -> SeriesId | None:
    """None for a card that the registry does not know."""
    return registry.by_key.get(card_key(card_name))


def names_of_cards(inventory: Inventory) -> dict[str, str]:
    """What work can be bound to, by UUID, with its name: a card, or the instances of one in MIG mode (L-D7)."""
    names: dict[str, str] = {}
    for gpu in inventory.gpus:
        names |= {part.uuid: _instance_name(gpu, part) for part in gpu.instances} if gpu.mig else {gpu.uuid: gpu.name}
    return names


def _instance_name(gpu: Gpu, part: MigInstance) -> str:
    """Always with the card's own name, as NVML gives it: the profile alone is that of several kinds of cards."""
    return part.name if card_key(part.name).startswith(card_key(gpu.name)) else f"{gpu.name} {part.name}"


def series_by_card(inventory: Inventory | None, registry: Registry) -> dict[str, SeriesId]:
    """The series of each known card, by its UUID."""
    if inventory is None or not registry.by_key:
        return {}
    found = ((uuid, series_of(name, registry)) for uuid, name in names_of_cards(inventory).items())
    return {uuid: series for uuid, series in found if series is not None}


def unknown_cards_of(node: Node) -> tuple[str, ...]:
    """The names of its cards that the registry does not know, each once."""
    if node.inventory is None:
        return ()
    return tuple(sorted({name for uuid, name in names_of_cards(node.inventory).items() if uuid not in node.card_series}))


def unknown_card(name: str) -> str:
    """What an operator is told of such a card, and what to do about it."""
    return (
        f"the hardware registry does not know the card {name!r}: jobs that pin a series are not placed on it"
        f" until an administrator adds it (tuneplane hardware add SERIES {shlex.quote(name)})"
    )


def only_series(node: Node, series: str | None) -> Node:
    """``node`` as a job sees it that pins ``series``: with the cards of that series alone. None: as it is."""
    if series is None:
        return node
    theirs = {uuid for uuid, name in node.card_series.items() if name == series}
    free = tuple(uuid for uuid in node.free_gpu_uuids if uuid in theirs)
    if node.capacity is None or node.inventory is None:
        return evolve(node, free_gpu_uuids=free)
    granted = theirs & declared_cards(node.inventory)
    held = {card.uuid for card in node.cards if card.member is not None} if node.cards else granted - set(free)
    return evolve(node, free_gpu_uuids=free, capacity=evolve(node.capacity, gpus=len(granted), gpus_used=len(granted & held)))


def check_series(series: Series) -> Series:
    """The series with clean names, each once (the first spelling stays). InvalidInput names the field."""
    check_slug(series.series, "series")
    if not 1 <= len(series.card_names) <= MOST_CARD_NAMES:
        raise InvalidInput("card_names", f"must have 1 to {MOST_CARD_NAMES} names")
    names: dict[str, str] = {}
    for at, name in enumerate(series.card_names):
        key = card_key(name)
        if not key or len(name) > MOST_CARD_NAME or plain(name) != name:
            rule = f"must be a card's name as its driver reports it, at most {MOST_CARD_NAME} printable characters"
            raise InvalidInput(f"card_names[{at}]", rule)
        names.setdefault(key, " ".join(name.split()))
    return evolve(series, card_names=tuple(names.values()))
