"""A bounded number of seeds for every change; ``python -m tests.sim --seeds 20000`` is the long run.

Seeds that once failed stay here, each with what it found.
"""

from __future__ import annotations

import time

import pytest

from .world import run_seed

BUDGET_SECONDS = 40.0  # of the real clock, on two busy cores
FIRST_SEED, MOST_SEEDS = 100_000, 400

REGRESSIONS = {
    0: "a journal that could not take the session epoch crashed the session, and a full disk then the whole daemon",
    5044: "an engine that restarted between the questions for its instance and for an exit made that exit count as witnessed",
    5173: "a database slow by more than the start deadline crashed the presence of a starting gateway",
    221: "a member stopped through a new journal after the old one, which had seen it run, was lost",
}


@pytest.mark.parametrize("seed", REGRESSIONS, ids=lambda seed: f"seed-{seed}")
def test_seed_that_once_failed_holds(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.failure, f"{outcome.failure}\n{REGRESSIONS[seed]}\n{outcome.history}"


def test_fresh_seeds_hold() -> None:
    """House, Proof: invariants after every event, then everything comes to rest."""
    until = time.monotonic() + BUDGET_SECONDS
    for seed in range(FIRST_SEED, FIRST_SEED + MOST_SEEDS):
        outcome = run_seed(seed)
        assert not outcome.failure, f"{outcome.failure}\nagain with: python -m tests.sim --start {seed} --seeds 1\n{outcome.history}"
        if time.monotonic() > until:
            break


def test_same_seed_is_the_same_history() -> None:
    """A seed is worth something only if it can be run again."""
    assert run_seed(7, tell=True).history == run_seed(7, tell=True).history
