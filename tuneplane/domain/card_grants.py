"""Which cards a budget grants, and whether they are still the ones that it meant (L-D1, L-D6, L-D7, L-D8).

Work is bound to cards by UUID. A budget that names indexes means the cards that were there when they were first seen: an
index that is another card's now is never followed, the Node is cordoned until an operator accepts the change, or names the
cards by UUID. The Node keeps what it saw first in a file of its own, the control plane in its database; both are asked.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from . import codec
from .inventory import Budgets, CardBinding, Gpu, Inventory

OLD_MIG_PREFIX = "MIG-GPU-"  # MIG-GPU-<uuid of the card>/<instance>/<part>, until driver 470
NOT_WHOLE = "is in MIG mode and no whole card: grant its instances by UUID"


@frozen
class Bound:
    """What a binding of indexes comes to. ``reason``: why the Node takes no new work; None when all is as it was."""

    granted: frozenset[str]
    new: tuple[CardBinding, ...]  # indexes that are seen for the first time
    reason: str | None


@frozen
class Sight:
    """A budget and the cards that a machine shows."""

    budgets: Budgets
    gpus: tuple[Gpu, ...]

    @property
    def indexes(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.budgets.gpu_indexes or ())))

    @property
    def named(self) -> frozenset[str]:
        return frozenset(self.budgets.gpu_uuids)

    def by_index(self) -> dict[int, Gpu]:
        """The cards at the indexes of the budget, in their order."""
        return {gpu.index: gpu for gpu in sorted(self.gpus, key=lambda gpu: gpu.index) if gpu.index in self.indexes}

    def usable(self) -> frozenset[str]:
        """Whole cards and MIG instances that can be granted by their UUIDs."""
        whole = {gpu.uuid for gpu in self.gpus if not gpu.mig}
        return frozenset(whole | {one.uuid for gpu in self.gpus for one in gpu.instances if why_not_instance(one.uuid) is None})


def sight_of(inventory: Inventory) -> Sight:
    return Sight(inventory.budgets, inventory.gpus)


def declared_cards(inventory: Inventory) -> frozenset[str]:
    """UUIDs of all that the budget names and the machine shows, whatever was bound before: for counting, not for giving."""
    sight = sight_of(inventory)
    return frozenset(gpu.uuid for gpu in sight.by_index().values() if not gpu.mig) | (sight.named & sight.usable())


def change_id(sight: Sight) -> str:
    """Names what the indexes of the budget mean now: an operator accepts this, and not what it has become meanwhile."""
    now = [[index, gpu.uuid] for index, gpu in sight.by_index().items()]
    return "cards-" + codec.digest(codec.canonical(now)).removeprefix("sha256:")[:12]


def judge_cards(inventory: Inventory, bound: Mapping[int, str]) -> Bound:
    """The control plane's judgement: ``bound`` is its own memory of the indexes, and the Node's counts as much (L-D1)."""
    ours = bind_cards(sight_of(inventory), bound)
    if not inventory.card_bindings:
        return ours
    theirs = bind_cards(sight_of(inventory), {one.index: one.uuid for one in inventory.card_bindings})
    return Bound(ours.granted & theirs.granted, ours.new, ours.reason or theirs.reason)


def bind_cards(sight: Sight, bound: Mapping[int, str]) -> Bound:
    """Compare a budget with cards that are known, ``bound`` being what its indexes meant so far."""
    seen = sight.by_index()
    taken = set(bound.values())
    new = {index: gpu.uuid for index, gpu in seen.items() if index not in bound and gpu.uuid not in taken}
    meant = {**bound, **new}
    whole = {gpu.uuid for index, gpu in seen.items() if not gpu.mig and meant.get(index) == gpu.uuid}
    reasons = (*_missing(sight, meant), *_changed(sight, meant), *_unusable(sight))
    return Bound(
        granted=frozenset(whole | (sight.named & sight.usable())),
        new=tuple(CardBinding(index=index, uuid=uuid) for index, uuid in new.items()),
        reason="; ".join(reasons) if reasons else None,
    )


def why_not_instance(uuid: str) -> str | None:
    """L-D6: an id is taken as reported, unless no container runtime could be asked for it."""
    if uuid.startswith(OLD_MIG_PREFIX) or "/" in uuid:
        return f"{uuid} is a MIG id of a driver before 470, which cannot name a device of a container (CDI): update the driver"
    return None


def _missing(sight: Sight, meant: Mapping[int, str]) -> tuple[str, ...]:
    """L-D8: fewer cards than granted, by name; one in MIG mode is not there as a whole (L-D7)."""
    seen, visible = sight.by_index(), {gpu.uuid for gpu in sight.gpus}
    gone = [f"{meant[index]} (index {index}) is missing" for index in sight.indexes if index in meant and meant[index] not in visible]
    gone += [f"no card has index {index}" for index in sight.indexes if index not in meant and index not in seen]
    parted = [f"{gpu.uuid} (index {index}) {NOT_WHOLE}" for index, gpu in seen.items() if gpu.mig]
    if not gone and not parted:
        return ()
    expected = len(sight.indexes)
    return (f"expects {expected} cards, sees {expected - len(gone) - len(parted)}: {', '.join(gone + parted)}",)


def _changed(sight: Sight, meant: Mapping[int, str]) -> tuple[str, ...]:
    """Not told where a missing card has only moved the others up: then that one is the news."""
    changed = [(index, meant.get(index), gpu.uuid) for index, gpu in sight.by_index().items() if meant.get(index) != gpu.uuid]
    visible = {gpu.uuid for gpu in sight.gpus}
    lost = any(index in meant and meant[index] not in visible for index in sight.indexes)
    if not changed or (lost and all(now in meant.values() for _, _, now in changed)):
        return ()
    told = ", ".join(f"index {index} was {was or 'another index'} and is {now} now" for index, was, now in changed)
    way = f"accept it (tuneplane accept-cards, change {change_id(sight)}), or grant the cards by UUID in TUNEPLANE_NODE_GPU_IDS"
    return (f"the cards changed: {told}; if that is right, {way}",)


def _unusable(sight: Sight) -> tuple[str, ...]:
    """What is granted by UUID and is not there, or is none that can be given."""
    lacking = sorted(sight.named - sight.usable())
    if not lacking:
        return ()
    parted = {gpu.uuid for gpu in sight.gpus if gpu.mig}
    told = [f"{uuid} {NOT_WHOLE}" if uuid in parted else why_not_instance(uuid) or f"{uuid} is missing" for uuid in lacking]
    return (f"expects {len(sight.named)} cards by UUID, sees {len(sight.named) - len(lacking)}: {', '.join(told)}",)
