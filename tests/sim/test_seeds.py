"""A bounded number of seeds for every change; docs/simulator.md has the long run.

Seeds that once failed stay here, each with what it found. A seed is a story of the simulator of its day: when the chances
change it tells another one, so what it found is also kept by a test of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from . import loop, quick
from .world import run_seed

SEEDS, FIRST_SEED = 1000, 100_000
BUDGET_SECONDS = 100  # after that no more are begun: on quiet cores all have run by then
LEAST_SEEDS = 50  # on a machine with much else to do
HANG_SECONDS = 400.0

REGRESSIONS = {
    0: "a journal that could not take the session epoch crashed the session, and a full disk then the whole daemon",
    5044: "an engine that restarted between the questions for its instance and for an exit made that exit count as witnessed",
    5173: "a database slow by more than the start deadline crashed the presence of a starting gateway",
    149: "a stop that waited for its confirmation was told in prose, which no gateway takes, and cost the Node every session",
    500395: "a journal put back from before the stop of a member told its end as a success",
    900359: "a full disk at the end of a log whose container was gone felled the member's driver",
    700829: "a journal put back counted up again to the revision that was known, with another story, and its hold stayed for ever",
    221: "a member stopped through a new journal after the old one, which had seen it run, was lost",
}


@pytest.mark.parametrize("seed", REGRESSIONS, ids=lambda seed: f"seed-{seed}")
def test_seed_that_once_failed_holds(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.failure, f"{outcome.failure}\n{REGRESSIONS[seed]}\n{outcome.history}"


def test_fresh_seeds_hold(tmp_path: Path) -> None:
    """House, Proof: invariants after every event, then everything comes to rest. As many processes as there are cores."""
    summary = tmp_path / "summary.json"
    command = (sys.executable, "-m", "tests.sim", "--seeds", str(SEEDS), "--start", str(FIRST_SEED), "--seconds", str(BUDGET_SECONDS))
    run = subprocess.run((*command, "--json", summary), check=False, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert run.returncode == 0, run.stdout + run.stderr
    assert json.loads(summary.read_text())["seeds"] >= LEAST_SEEDS


def test_same_seed_is_the_same_history() -> None:
    """A seed is worth something only if it can be run again."""
    assert run_seed(7, tell=True).history == run_seed(7, tell=True).history


@pytest.mark.parametrize("seed", [3, 7, 11])
def test_short_ways_through_trio_tell_the_history_that_trio_tells(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loop, scopes, wake-ups and cancellations of ``loop`` and ``quick`` are copies: nothing that a seed does may depend on them."""
    short = run_seed(seed, tell=True)
    monkeypatch.setattr(loop, "MADE_FOR", ())
    assert run_seed(seed, tell=True).history == short.history != ""


def test_trio_is_its_own_again_after_a_seed() -> None:
    """Other tests of the same process run on Trio as it is."""
    run_seed(3)
    assert all(vars(owner)[name] is original for owner, name, original, _ in quick.PLACES)
