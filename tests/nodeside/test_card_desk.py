"""L-D1, L-D4, L-D12: what the daemon makes of its cards, and what it remembers across its own restarts and the machine's."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve

from tests.support.nvml import recorded
from tuneplane.domain.card_grants import Sight, change_id
from tuneplane.domain.card_health import CardHealth
from tuneplane.domain.faultpoint import AnswerLost, install_fault_hook
from tuneplane.domain.inventory import Budgets, CardBinding, Gpu
from tuneplane.domain.node_ports import Cards
from tuneplane.nodeside.card_desk import CardDesk, CardSight
from tuneplane.nodeside.card_memory import FILE_NAME, load_memory
from tuneplane.nodeside.cards import read_machine

RECORDED = Path(__file__).parent / "recorded"
TWO = Budgets(gpu_indexes=(0, 1))


@define(eq=False)
class Box:
    """A machine whose cards, boot and disk a test sets. ``look`` is a daemon's look; ``restart`` ends the daemon."""

    state_dir: Path
    cards: Cards
    budgets: Budgets = TWO
    boot: str = "b1"
    desk: CardDesk | None = None

    def boot_id(self) -> str:
        return self.boot

    def machine_id(self) -> str:
        return "m"

    def boot_seconds(self) -> float:
        return 1.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def show(self, *uuids: str, **more: Any) -> None:
        gpus = tuple(Gpu(index=at, uuid=uuid, name="A100", memory_bytes=1, bus=f"0000:{0x10 + at:02x}:00") for at, uuid in enumerate(uuids))
        self.cards = Cards(gpus=gpus, health=tuple(good(uuid) for uuid in uuids), **more)

    def restart(self) -> None:
        self.desk = None

    async def look(self, accepted: str = "") -> CardSight:
        if self.desk is None:
            self.desk = CardDesk(self._read, self.budgets, self.state_dir, self, self._run)
        return await self.desk.look(accepted)

    async def _read(self) -> Cards:
        return self.cards

    async def _run(self, work: Any) -> Any:
        return work()


def good(uuid: str) -> CardHealth:
    return CardHealth(uuid=uuid, ecc_errors=0, remap_pending=False, remap_failed=False)


@pytest.fixture
def box(tmp_path: Path) -> Box:
    made = Box(tmp_path, Cards())
    made.show("GPU-a", "GPU-b")
    return made


async def test_cards_are_bound_at_first_sight_and_swapped_ones_get_no_work_after_a_reboot(box: Box) -> None:
    """L-D1: never silently remapped; the card that was, back in its place, is good again."""
    first = await box.look()
    assert (first.granted, first.problems) == ({"GPU-a", "GPU-b"}, ())
    assert load_memory(box.state_dir).bindings == first.bindings == (CardBinding(index=0, uuid="GPU-a"), CardBinding(index=1, uuid="GPU-b"))
    box.restart()
    box.boot = "b2"
    box.show("GPU-b", "GPU-a")
    swapped = await box.look()
    assert (swapped.granted, swapped.bindings) == (set(), first.bindings)
    box.show("GPU-a", "GPU-b")
    assert (await box.look()).granted == first.granted


async def test_accepted_change_is_bound_anew_and_only_that_one(box: Box) -> None:
    """L-D1: what an operator accepted is what was shown, not what it became since."""
    await box.look()
    box.show("GPU-b", "GPU-a")
    change = change_id(Sight(TWO, box.cards.gpus))
    box.show("GPU-b", "GPU-c")
    assert (await box.look(change)).granted == set()
    box.show("GPU-b", "GPU-a")
    accepted = await box.look(change)
    assert accepted.granted == {"GPU-a", "GPU-b"}
    box.restart()
    assert (await box.look()).bindings == (CardBinding(index=0, uuid="GPU-b"), CardBinding(index=1, uuid="GPU-a"))
    box.show("GPU-a", "GPU-b")
    assert (await box.look(change)).granted == set()  # the old word does not cover the old order


async def test_driver_that_does_not_answer_leaves_all_as_it_was(box: Box) -> None:
    """L-D4: not zero cards; before it ever answered nothing is granted, and nothing is bound."""
    box.cards = Cards(problem="stuck")
    mute = await box.look()
    assert (mute.granted, mute.bindings, mute.faults, mute.problems) == (set(), (), (), ("stuck",))
    assert not (box.state_dir / FILE_NAME).exists()
    box.show("GPU-a", "GPU-b")
    await box.look()
    box.cards = Cards(problem="stuck")
    assert (await box.look()).granted == {"GPU-a", "GPU-b"}


async def test_budget_by_uuid_and_a_machine_without_gpus_need_no_memory(box: Box) -> None:
    box.budgets = Budgets(gpu_indexes=(), gpu_uuids=("GPU-b",))
    assert (await box.look()).granted == {"GPU-b"}
    box.budgets, box.cards = Budgets(gpu_indexes=()), Cards()
    box.restart()
    assert (await box.look()).bindings == ()


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_binding_that_cannot_be_kept_grants_nothing_and_is_made_at_the_next_look(box: Box, moment: str) -> None:
    """P-09, L-J8: a full disk, or an answer that was lost."""
    strikes = ["x"]

    def strike(name: str, at: str) -> None:
        if (name, at) == ("node.cards.write", moment) and strikes:
            strikes.pop()
            raise AnswerLost(name)

    install_fault_hook(strike)
    try:
        failed = await box.look()
        assert (failed.granted, failed.faults) == (set(), None)
        assert "cannot be kept" in failed.problems[0]
        assert (await box.look()).granted == {"GPU-a", "GPU-b"}
    finally:
        install_fault_hook(None)


UNREADABLE = (
    *("{", "[]", '{"version": 2}', '{"version": 1, "bindings": 3}', "[" * 100_000),
    *('{"version": 1, "bindings": [{"index": -1, "uuid": "GPU-a"}]}', '{"version": 1, "bindings": [{"index": 0, "uuid": ""}]}'),
)


@pytest.mark.parametrize("text", UNREADABLE)
async def test_memory_that_is_not_readable_is_a_problem_and_left_alone(box: Box, text: str) -> None:
    (box.state_dir / FILE_NAME).write_text(text)
    seen = await box.look()
    assert (seen.granted, seen.faults) == (set(), None)
    assert "cannot be read" in seen.problems[0]
    assert (box.state_dir / FILE_NAME).read_text() == text


async def test_faults_from_the_kernels_log_outlive_daemon_and_boot_until_good_readings(tmp_path: Path) -> None:
    """L-D12: replay of the recorded log on the recorded machine."""
    driver = recorded((RECORDED / "one-mig-of-four.txt").read_text())
    box = Box(tmp_path, read_machine(driver, RECORDED / "kmsg.txt"), Budgets(gpu_indexes=(0, 1)))
    told = (await box.look()).faults
    assert told is not None
    uuids = [device.uuid for device in driver.devices]
    expected = {(uuids[1], "xid-48", False), (uuids[2], "xid-94", False), (uuids[3], "xid-79", True)}
    assert {(one.card, one.code, one.whole_node) for one in told} == expected
    box.restart()
    assert (await box.look()).faults == told
    box.boot = "b2"
    box.cards = Cards(problem="stuck")
    assert (await box.look()).faults == told
    box.cards = evolve(read_machine(driver, RECORDED / "nothing-there"), messages=())
    assert (await box.look()).faults == ()


async def test_fault_that_was_mended_by_a_reset_is_not_raised_again_by_the_same_lines(tmp_path: Path) -> None:
    """The log of this boot is read again after each restart of the daemon."""
    driver = recorded((RECORDED / "one-mig-of-four.txt").read_text())
    box = Box(tmp_path, read_machine(driver, RECORDED / "kmsg.txt"), Budgets(gpu_indexes=(0, 1)))
    await box.look()
    driver.devices[1].ecc = 2
    box.cards = read_machine(driver, RECORDED / "kmsg.txt")
    await box.look()
    driver.devices[1].ecc = 0
    box.cards = read_machine(driver, RECORDED / "kmsg.txt")
    mended = (await box.look()).faults
    assert mended is not None
    assert {one.code for one in mended} == {"xid-94", "xid-79"}
    box.restart()
    assert (await box.look()).faults == mended
