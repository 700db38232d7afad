"""L-D12: the health table. The kernel's lines are of the driver's own form, PCI addresses changed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplane.domain.card_health import CardHealth, Examination, Fault, KernelLine, bus_address, cards_aside, examine, node_aside
from tuneplane.domain.inventory import CardFault, Gpu, Inventory, MigInstance

from .strategies import EPOCH

KMSG = {
    31: "NVRM: Xid (PCI:0000:3b:00): 31, pid=7194, name=python3, Ch 00000010, intr 10000000. MMU Fault: ENGINE GRAPHICS"
    " GPCCLIENT_T1_0 faulted @ 0x7f4e_a0000000. Fault is of type FAULT_PDE ACCESS_TYPE_READ",
    43: "NVRM: Xid (PCI:0000:3b:00): 43, pid=7194, name=python3, Ch 00000010",
    48: "NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on"
    " GPU in the framebuffer at partition 8, subpartition 1.",
    63: "NVRM: Xid (PCI:0000:3b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to"
    " activate.",
    79: "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    94: "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, name=python3, Ch 00000028, Contained: SM (0x1). RST: No, D-RST: No",
}
CARD = Gpu(index=0, uuid="GPU-a", name="A100", memory_bytes=1, bus="0000:3b:00")
GOOD = CardHealth(uuid="GPU-a", ecc_errors=0, remap_pending=False, remap_failed=False)


def look(
    *lines: str, health: CardHealth | None = GOOD, boot: str = "b1", gpus: tuple[Gpu, ...] = (CARD,), buses: dict[str, str] | None = None
) -> Examination:
    return Examination(
        gpus=gpus,
        health={} if health is None else {health.uuid: health},
        lines=tuple(KernelLine(sequence=at, text=text) for at, text in enumerate(lines)),
        buses={"0000:3b:00": "GPU-a"} if buses is None else buses,
        boot=boot,
        now=EPOCH,
    )


@pytest.mark.parametrize(
    ("xid", "card", "node"),
    [(31, False, False), (43, False, False), (48, True, False), (63, False, False), (79, False, True), (94, True, False)],
)
def test_xid_from_the_kernels_log_is_ignored_or_puts_the_card_or_the_node_aside(xid: int, card: bool, node: bool) -> None:
    """L-D12: replay."""
    faults = examine((), look(KMSG[xid]))
    inventory = _told(faults)
    assert set(cards_aside(inventory)) == ({"GPU-a"} if card else set())
    assert (node_aside(inventory) is not None) == node
    assert all(one.fault.code == f"xid-{xid}" for one in faults)


def _told(faults: tuple[Fault, ...]) -> Inventory:
    instance = MigInstance(uuid="MIG-1", name="1g", memory_bytes=1)
    parent = Gpu(index=1, uuid="GPU-p", name="A100", memory_bytes=1, mig=True, instances=(instance,))
    told = tuple(one.fault for one in faults)
    return Inventory(hostname="h", node_version="1", cpu_count=1, memory_bytes=1, gpus=(CARD, parent), card_faults=told)


def test_replay_of_all_recorded_lines_is_each_fault_once() -> None:
    """The log is read again and again, and after every restart."""
    lines = tuple(KMSG.values())
    faults = examine((), look(*lines))
    assert [one.fault.code for one in faults] == ["xid-48", "xid-79", "xid-94"]
    assert examine(faults, look(*lines)) == faults


def test_double_bit_error_is_cleared_only_by_good_readings_after_a_reset() -> None:
    """L-D12: absence of data never clears."""
    faults = examine((), look(KMSG[48]))
    assert examine(faults, look(health=None)) == faults
    assert examine(faults, look()) == faults  # the counter may come later than the line
    counted = examine(faults, look(health=CardHealth(uuid="GPU-a", ecc_errors=2, remap_pending=True)))
    assert {one.fault.code for one in counted} == {"xid-48", "ecc", "row-remap"}
    assert examine(counted, look(health=None, gpus=(), boot="b2")) == counted  # the driver does not answer
    assert {one.fault.code for one in examine(counted, look(health=CardHealth(uuid="GPU-a"), boot="b2"))} == {"xid-48", "ecc", "row-remap"}
    assert examine(counted, look()) == ()  # reset: the counter is back at zero, the row is remapped
    assert examine(faults, look(boot="b2")) == ()


def test_row_that_waits_for_its_remap_keeps_the_card_aside_until_it_is_remapped() -> None:
    """L-D12: a recovered remap is fine."""
    pending = examine((), look(health=CardHealth(uuid="GPU-a", ecc_errors=0, remap_pending=True)))
    assert [one.fault.code for one in pending] == ["row-remap"]
    assert examine(pending, look(health=CardHealth(uuid="GPU-a", ecc_errors=0))) == pending
    assert examine(pending, look()) == ()
    failed = examine((), look(health=CardHealth(uuid="GPU-a", ecc_errors=0, remap_pending=False, remap_failed=True)))
    assert [one.fault.code for one in failed] == ["row-remap-failed"]


def test_card_off_the_bus_is_back_only_after_a_boot_and_when_it_is_seen() -> None:
    """Its address is known from before: the driver names it no more."""
    faults = examine((), look(KMSG[79], health=None, gpus=()))
    assert faults[0].fault.card == "GPU-a"
    assert examine(faults, look()) == faults
    assert examine(faults, look(health=None, gpus=(), boot="b2")) == faults
    assert examine(faults, look(boot="b2")) == ()


def test_fault_of_a_card_that_nobody_knows_puts_the_node_aside() -> None:
    faults = examine((), look(KMSG[48], buses={}))
    assert (faults[0].fault.card, faults[0].fault.whole_node) == ("", True)
    assert "(unknown)" in (node_aside(_told(faults)) or "")
    assert examine(faults, look()) == faults
    assert examine(faults, look(health=None, gpus=(), boot="b2")) == faults
    assert examine(faults, look(boot="b2")) == ()


def test_fault_of_a_card_in_mig_mode_puts_its_instances_aside() -> None:
    fault = CardFault(card="GPU-p", code="ecc", detail="2 errors", since=EPOCH)
    assert set(cards_aside(_told((Fault(fault=fault, boot="b1"),)))) == {"GPU-p", "MIG-1"}


def test_bus_addresses_of_driver_and_kernel_are_one() -> None:
    assert bus_address("00000000:3B:00.0") == bus_address("0000:3b:00") == "0000:3b:00"


HEALTH = st.builds(
    CardHealth,
    uuid=st.just("GPU-a"),
    ecc_errors=st.sampled_from([None, 0, 1]),
    remap_pending=st.sampled_from([None, False, True]),
    remap_failed=st.sampled_from([None, False, True]),
)
LOOKS = st.builds(
    lambda xids, health, boot, there: look(
        *(KMSG[xid] for xid in xids), health=health if there else None, boot=boot, gpus=(CARD,) if there else ()
    ),
    st.lists(st.sampled_from(sorted(KMSG)), max_size=2),
    st.none() | HEALTH,
    st.sampled_from(["b1", "b2"]),
    st.booleans(),
)


@given(st.lists(LOOKS, max_size=6))
def test_no_fault_is_ever_cleared_by_a_look_that_reads_nothing_of_its_card(looks: list[Examination]) -> None:
    """L-D12, whatever came before."""
    faults: tuple[Fault, ...] = ()
    for seen in looks:
        after = examine(faults, seen)
        lost = {one.fault.code for one in faults} - {one.fault.code for one in after}
        if lost:
            assert seen.gpus == (CARD,)
            assert lost <= {"xid-79"} or "GPU-a" in seen.health
        assert all(one.fault.since <= EPOCH + timedelta(0) for one in after)
        assert examine(after, look(health=None, gpus=(), boot="b3")) == after
        faults = after
