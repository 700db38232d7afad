"""``python -m tests.sim --seeds N [--start S]``: run seeds, say how many a second, stop at the first bad one."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time

from .world import Outcome, run_seed

GC_THRESHOLD = 50_000  # a seed makes little garbage in cycles, and lives a fraction of a second


def _one(seed: int) -> Outcome:
    gc.set_threshold(GC_THRESHOLD)
    return run_seed(seed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; seeds know nothing of each other")
    parser.add_argument("--history", type=int, default=200, help="lines of history to show of a bad seed")
    parser.add_argument("--show", action="store_true", help="show the history of a good seed, too")
    arguments = parser.parse_args()
    began, jobs, starts, virtual = time.perf_counter(), 0, 0, 0.0
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        for outcome in pool.imap(_one, range(arguments.start, arguments.start + arguments.seeds)):
            if arguments.show or outcome.failure:
                print("\n".join(outcome.history.splitlines()[-arguments.history :]))
            if outcome.failure:
                print(f"\nseed {outcome.seed}: {outcome.failure}\n\nagain with: python -m tests.sim --start {outcome.seed} --seeds 1")
                return 1
            jobs, starts, virtual = jobs + outcome.jobs, starts + outcome.starts, virtual + outcome.virtual_seconds
    took = time.perf_counter() - began
    print(
        f"{arguments.seeds} seeds from {arguments.start} held: {arguments.seeds / took:.1f} seeds/s,"
        f" {jobs} jobs, {starts} containers started, {virtual / took:.0f} virtual seconds a second"
    )
    return 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of names must be the same in every run
        os.execve(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
