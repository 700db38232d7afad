"""The health table of cards: what the kernel and the driver say of one, and what that keeps from new work (L-D12).

Pure. A fault is raised by evidence and cleared by evidence: a driver that does not answer, a reading that it does not offer,
a log that cannot be read clear nothing. What runs on a card that is put aside goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum

from attrs import evolve, frozen

from .inventory import CardFault, Gpu, Inventory

MOST_DETAIL = 300  # characters of a kernel's line: what it names is in its first half


class XidAction(Enum):
    """What a kernel message of the GPU driver means for new work."""

    IGNORE = "ignore"  # the program's own fault, or mended by the driver
    CARD = "quarantine card"
    NODE = "cordon node"


# NVIDIA's catalogue of Xid errors. What is not here is ignored: most are a program's own doing, and a healthy card that is
# put aside by mistake costs as much as a bad one. A row that waits for its remap is read from the driver, not from Xid 63.
XIDS: dict[int, XidAction] = {
    13: XidAction.IGNORE,  # an exception in a program's own kernel
    31: XidAction.IGNORE,  # a program's bad address
    43: XidAction.IGNORE,  # a program's channel stopped
    45: XidAction.IGNORE,  # the clean-up after another error
    48: XidAction.CARD,  # double-bit ECC error
    62: XidAction.CARD,  # its controller halted
    63: XidAction.IGNORE,  # a row was remapped, or will be at the next reset
    64: XidAction.CARD,  # a row could not be remapped
    74: XidAction.CARD,  # NVLink error
    79: XidAction.NODE,  # fallen off the bus: what else hangs there is not to be trusted until the machine has booted again
    94: XidAction.CARD,  # uncorrectable memory error, contained to one program
    95: XidAction.CARD,  # the same, not contained
    119: XidAction.CARD,  # its system processor does not answer
    120: XidAction.CARD,  # its system processor failed
    140: XidAction.CARD,  # unrecovered ECC error
}
MEMORY_XIDS = frozenset({48, 64, 94, 95, 140})  # mended only when its memory is read as good again
XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?(?: GPU-[^)]{1,40})?\): ([0-9]{1,4})\b[, ]*(.*)"
)
ECC, REMAP, REMAP_FAILED = "ecc", "row-remap", "row-remap-failed"


@frozen(kw_only=True)
class CardHealth:
    """A card's memory as the driver reads it; None: it does not say."""

    uuid: str
    ecc_errors: int | None = None  # uncorrectable, since the card was last reset
    remap_pending: bool | None = None  # a bad row waits for the next reset
    remap_failed: bool | None = None  # no spare row was left

    @property
    def is_good(self) -> bool:
        return self.ecc_errors == 0 and self.remap_pending is False and not self.remap_failed


@frozen(kw_only=True)
class KernelLine:
    """One message of the kernel's log of this boot."""

    sequence: int
    text: str


@frozen(kw_only=True)
class Fault:
    """A fault as the Node remembers it. ``counted``: the most ECC errors read since: back at 0, the card was reset."""

    fault: CardFault
    boot: str  # in which it was raised
    counted: int = 0


@frozen(kw_only=True)
class Examination:
    """What one look at the machine shows. ``gpus`` is what the driver names, () when it does not answer."""

    gpus: tuple[Gpu, ...]
    health: Mapping[str, CardHealth]  # by UUID
    lines: tuple[KernelLine, ...]  # not looked at before
    buses: Mapping[str, str]  # PCI address -> UUID, as ever seen: a card that fell off the bus is still named by it
    boot: str
    now: datetime


def bus_address(said: str) -> str:
    """A PCI address as the driver or the kernel spells it, without function and with a domain of four digits."""
    domain, _, rest = said.partition(":")
    return f"{int(domain, 16):04x}:{rest.partition('.')[0]}".lower()


def examine(faults: Iterable[Fault], seen: Examination) -> tuple[Fault, ...]:
    """The faults after one look, by card and code: those still there, and the new ones."""
    kept = {(one.fault.card, one.fault.code): _count(one, seen) for one in faults if not _is_mended(one, seen)}
    for found in (*_from_kernel(seen), *_from_driver(seen)):
        kept.setdefault((found.card, found.code), _count(Fault(fault=found, boot=seen.boot), seen))
    return tuple(kept[key] for key in sorted(kept))


def cards_aside(inventory: Inventory) -> dict[str, str]:
    """UUID -> why it gets no new work: each card with a fault, and its MIG instances."""
    parts = {gpu.uuid: (gpu.uuid, *(one.uuid for one in gpu.instances)) for gpu in inventory.gpus}
    told: dict[str, list[str]] = {}
    for fault in inventory.card_faults or ():
        for uuid in parts.get(fault.card, (fault.card,)) if fault.card and not fault.whole_node else ():
            told.setdefault(uuid, []).append(f"{fault.code}: {fault.detail}")
    return {uuid: "; ".join(reasons) for uuid, reasons in told.items()}


def node_aside(inventory: Inventory) -> str | None:
    """Why the whole machine gets no new work."""
    grave = [f"{one.code} of card {one.card or '(unknown)'}: {one.detail}" for one in inventory.card_faults or () if one.whole_node]
    return "; ".join(grave) if grave else None


def _from_kernel(seen: Examination) -> list[CardFault]:
    found = []
    for line in seen.lines:
        match = XID.search(line.text)
        if match is None:
            continue
        action = XIDS.get(int(match[2]), XidAction.IGNORE)
        if action is not XidAction.IGNORE:
            card = seen.buses.get(bus_address(match[1]), "")
            whole = action is XidAction.NODE or not card  # of a card that nobody can name, any may be meant
            detail = f"the kernel says of {bus_address(match[1])}: {match[3]}"[:MOST_DETAIL]
            found.append(CardFault(card=card, code=f"xid-{match[2]}", detail=detail, whole_node=whole, since=seen.now))
    return found


def _from_driver(seen: Examination) -> list[CardFault]:
    found = []
    for uuid, health in sorted(seen.health.items()):
        signs = {
            ECC: f"{health.ecc_errors} uncorrectable memory errors since its last reset" if health.ecc_errors else "",
            REMAP: "a bad row of its memory waits for a reset of the card" if health.remap_pending else "",
            REMAP_FAILED: "a bad row of its memory could not be remapped: no spare one is left" if health.remap_failed else "",
        }
        found += [CardFault(card=uuid, code=code, detail=detail, since=seen.now) for code, detail in signs.items() if detail]
    return found


def _count(fault: Fault, seen: Examination) -> Fault:
    health = seen.health.get(fault.fault.card)
    errors = (health.ecc_errors or 0) if health is not None else 0
    return evolve(fault, counted=errors) if errors > fault.counted else fault


def _is_mended(one: Fault, seen: Examination) -> bool:
    """Only what was read proves it (L-D12)."""
    fault, health = one.fault, seen.health.get(one.fault.card)
    if fault.code in (ECC, REMAP, REMAP_FAILED):
        reading = {ECC: health.ecc_errors, REMAP: health.remap_pending, REMAP_FAILED: health.remap_failed}[fault.code] if health else None
        return reading is not None and not reading
    booted = one.boot != seen.boot
    if not fault.card:  # whichever it was: the driver has looked at all of them since
        return booted and bool(seen.gpus)
    if int(fault.code.removeprefix("xid-")) in MEMORY_XIDS:
        was_reset = booted or (one.counted > 0 and health is not None and health.ecc_errors == 0)
        return was_reset and health is not None and health.is_good
    return booted and fault.card in {gpu.uuid for gpu in seen.gpus}
