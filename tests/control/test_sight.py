"""How long a process has seen without a gap, on the mock clock (P-16, L-B9)."""

from __future__ import annotations

import trio
import trio.testing

from tuneplane.control.sight import Sight

GAP = 15.0


async def test_sight_grows_while_looks_follow_one_another(autojump_clock: trio.testing.MockClock) -> None:
    sight = Sight(gap_seconds=GAP)
    assert sight.looked() == 0.0
    for _ in range(300):
        await trio.sleep(2.0)
        seen = sight.looked()
    assert seen == 600.0


async def test_sight_begins_anew_after_the_database_did_not_answer(autojump_clock: trio.testing.MockClock) -> None:
    """P-16: however short it was away."""
    sight = Sight(gap_seconds=GAP)
    sight.looked()
    await trio.sleep(2.0)
    sight.lost()
    assert sight.looked() == 0.0
    await trio.sleep(2.0)
    assert sight.looked() == 2.0


async def test_sight_begins_anew_after_this_process_was_stalled(autojump_clock: trio.testing.MockClock) -> None:
    """L-B9: its event loop was blocked for three minutes, and it looks again as if nothing had been."""
    sight = Sight(gap_seconds=GAP)
    sight.looked()
    await trio.sleep(GAP)
    assert sight.looked() == GAP
    await trio.sleep(180.0)
    assert sight.looked() == 0.0
