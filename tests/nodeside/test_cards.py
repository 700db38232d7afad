"""The reader of cards, over what real drivers and kernels said."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pynvml
import pytest

from tests.support.nvml import RecordedDriver, recorded
from tuneplane.domain import codec
from tuneplane.domain.cards import choose_cards
from tuneplane.domain.ids import FleetId, NodeId
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.node_ports import Cards
from tuneplane.domain.nodes import Connection, Node, NodeState
from tuneplane.nodeside.cards import read_kernel_log, read_machine, read_nvml, recorded_cards

RECORDED = Path(__file__).parent / "recorded"


def the(name: str, topology: str = "") -> RecordedDriver:
    return recorded((RECORDED / name).read_text(), (RECORDED / topology).read_text() if topology else "")


def test_read_tells_a_card_in_mig_mode_and_its_instances_from_whole_ones() -> None:
    """L-D7: -L with one MIG card of four."""
    driver = the("one-mig-of-four.txt")
    cards = read_nvml(driver)
    assert [gpu.mig for gpu in cards.gpus] == [False, False, True, False]
    assert [(part.uuid, part.name) for part in cards.gpus[2].instances] == [
        ("MIG-c7384736-a75d-5afc-978f-d2f1294409fd", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        ("MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"),
    ]
    assert (cards.gpus[0].bus, cards.driver_version, cards.problem, driver.open) == ("0000:10:00", "550.54.15", "", 0)


def test_read_takes_ids_of_the_old_form_as_they_are() -> None:
    """L-D6: opaque; what may not be used is said where it is granted."""
    (card,) = read_nvml(the("mig-before-470.txt")).gpus
    assert [part.uuid.removeprefix(f"MIG-{card.uuid}") for part in card.instances] == ["/7/0", "/1/0"]


def test_read_topology_makes_pairs_of_bridged_cards() -> None:
    """L-D14, from what the driver says to the cards that a workload gets."""
    cards = read_nvml(the("eight-bridged.txt", "eight-bridged-topo.txt"))
    assert {(link.nvlinks, link.distance) for gpu in cards.gpus for link in gpu.links} == {(4, 40), (0, 40), (0, 50)}
    uuids = [gpu.uuid for gpu in cards.gpus]
    node = Node(
        id=NodeId("n1"),
        fleet=FleetId("lab"),
        address="a",
        state=NodeState.ACTIVE,
        connection=Connection(state="never"),
        inventory=Inventory(hostname="h", node_version="1", cpu_count=1, memory_bytes=1, gpus=cards.gpus),
        free_gpu_uuids=tuple(uuids),
        created_at=datetime.now(UTC),
    )
    assert choose_cards(node, 2) == (uuids[0], uuids[2])
    assert choose_cards(node, 4) == tuple(uuids[:4])


def test_read_cards_behind_switches_are_all_linked() -> None:
    driver = the("eight-bridged.txt")
    driver.switched = 18
    assert {link.nvlinks for gpu in read_nvml(driver).gpus for link in gpu.links} == {18}


def test_read_of_a_card_that_the_driver_has_lost_shows_the_others() -> None:
    """L-D8: seven of eight is not a driver that does not answer."""
    driver = the("eight-bridged.txt")
    driver.devices[3].lost = True
    cards = read_nvml(driver)
    assert ([gpu.index for gpu in cards.gpus], cards.problem) == ([0, 1, 2, 4, 5, 6, 7], "")


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (pynvml.NVMLError_LibraryNotFound(), False),
        (pynvml.NVMLError_DriverNotLoaded(), False),
        (pynvml.NVMLError_Unknown(), True),
        (pynvml.NVMLError_Timeout(), True),
    ],
)
def test_read_without_a_driver_is_no_cards_and_of_a_silent_one_a_problem(error: Exception, problem: bool) -> None:
    """L-D4."""
    driver = the("eight-bridged.txt")
    driver.down = error
    cards = read_nvml(driver)
    assert (cards.gpus, bool(cards.problem)) == ((), problem)


def test_read_health_is_what_the_card_offers() -> None:
    """L-D12: None is not zero."""
    driver = the("eight-bridged.txt")
    driver.devices[1].ecc, driver.devices[1].remap = None, None
    driver.devices[2].ecc, driver.devices[2].remap = 3, (0, 1, 1, 0)
    health = [(one.ecc_errors, one.remap_pending, one.remap_failed) for one in read_nvml(driver).health]
    assert health[:3] == [(0, False, False), (None, None, None), (3, True, False)]


def test_kernel_log_gives_the_drivers_messages_with_their_numbers() -> None:
    """L-D12: recorded from /dev/kmsg, its continuation lines too."""
    lines = read_kernel_log(RECORDED / "kmsg.txt")
    assert [line.sequence for line in lines] == [1201, 1202, 1204, 1205, 1206, 1207]
    assert read_kernel_log(RECORDED / "nothing-there") == ()


def test_kernel_log_is_read_record_by_record_and_ends_where_nothing_is_left(tmp_path: Path) -> None:
    """As a device that would block at its end."""
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    keep = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(keep, (RECORDED / "kmsg.txt").read_bytes())
        assert len(read_kernel_log(pipe)) == 6
    finally:
        os.close(keep)


def test_kernel_of_a_machine_without_a_driver_is_not_asked() -> None:
    driver = the("eight-bridged.txt")
    assert len(read_machine(driver, RECORDED / "kmsg.txt").messages) == 6
    driver.down = pynvml.NVMLError_LibraryNotFound()
    assert read_machine(driver, RECORDED / "kmsg.txt") == Cards()


async def test_recorded_cards_are_what_the_file_says_and_one_that_is_none_is_a_silent_driver(tmp_path: Path) -> None:
    cards = read_machine(the("one-mig-of-four.txt"), RECORDED / "kmsg.txt")
    (tmp_path / "cards.json").write_bytes(codec.spell(cards))
    assert await recorded_cards(tmp_path / "cards.json")() == cards
    assert "does not answer" in (await recorded_cards(tmp_path / "none.json")()).problem
