"""As many reasons as a person reads, and never a false one (R-PLC-03, L-L1)."""

from __future__ import annotations

from tuneplane.domain.errors import Reason
from tuneplane.domain.waiting import MOST_REASONS, shorten


def full(number: int, have: int = 0) -> Reason:
    return Reason("insufficient-gpus", f"Node n{number} has {have} GPUs free, the job needs 4", f"n{number}", "gpus", 4, have)


def away(number: int) -> Reason:
    return Reason("not-ready", f"Node n{number} is not ready", f"n{number}")


def test_few_reasons_are_all_shown_open_machines_first() -> None:
    few = Reason("too-few-machines", "needs 2 machines, 0 fit", "lab", "machines", 2, 0)
    assert shorten((few, away(1), full(2), full(3))) == (few, full(2), full(3), away(1))
    assert shorten(()) == ()


def test_many_reasons_are_one_a_cause_with_the_nearest_machine() -> None:
    many = [away(number) for number in range(100)] + [full(number, have=number % 4) for number in range(100, 100 + MOST_REASONS)]
    shown = shorten(many)
    assert [(one.code, one.have) for one in shown] == [("insufficient-gpus", 3), ("not-ready", None)]
    assert shown[0].detail.endswith(f"has 3 GPUs free, the job needs 4 ({MOST_REASONS - 1} more Nodes: insufficient-gpus)")
    assert "99 more" in shown[1].detail


def test_short_form_does_not_change_while_only_other_machines_do() -> None:
    """It is written whenever it changes, for every job that waits for it."""
    before = [full(number, have=1) for number in range(20)]
    assert shorten(before) == shorten([*before[:-1], full(19, have=0)])
