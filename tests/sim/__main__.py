"""``python -m tests.sim --seeds N [--start S]``: run seeds, say how many a second, stop at the first bad one."""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
from functools import partial
from pathlib import Path

from attrs import define

from .world import Outcome, run_seed

CHUNK = 4  # seeds that a process takes at once
PROGRESS_SECONDS = 10.0  # between two lines on stderr: a long run takes half an hour
CHUNKS = 8  # that a process takes in its life: nothing is collected in it, and a seed leaves 3 MB in cycles


@define
class Tally:
    """What a run came to."""

    began: float
    seeds: int = 0
    told: float = 0.0  # when progress was last shown
    jobs: int = 0
    starts: int = 0
    virtual_seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.jobs += outcome.jobs
        self.starts += outcome.starts
        self.virtual_seconds += outcome.virtual_seconds

    def tell_progress(self, of: int) -> None:
        """A line on stderr, now and then."""
        now = time.perf_counter()
        if now - max(self.told, self.began) >= PROGRESS_SECONDS:
            self.told = now
            print(f"{self.seeds} of {of} seeds held, {self.seeds / (now - self.began):.1f} seeds/s", file=sys.stderr, flush=True)

    def summary(self, start: int, processes: int, failed: Outcome | None) -> dict[str, object]:
        took = time.perf_counter() - self.began
        return {
            "start": start,
            "seeds": self.seeds,
            "processes": processes,
            "seconds": round(took, 1),
            "seeds_per_second": round(self.seeds / took, 2),
            "jobs": self.jobs,
            "containers_started": self.starts,
            "virtual_seconds": round(self.virtual_seconds),
            "failed_seed": failed.seed if failed else None,
            "failure": failed.failure if failed else "",
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; seeds know nothing of each other")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more seeds after that; what was run held")
    parser.add_argument("--history", type=int, default=200, help="lines of history to show of a bad seed")
    parser.add_argument("--show", action="store_true", help="show the history of a good seed, too")
    parser.add_argument("--json", type=Path, help="write the summary there, too")
    arguments = parser.parse_args()
    tally, failed = _run(arguments)
    summary = tally.summary(arguments.start, arguments.jobs, failed)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(summary, indent=2) + "\n")
    print(
        f"{summary['seeds']} seeds from {arguments.start} {'held' if failed is None else 'run'}: {summary['seeds_per_second']} seeds/s,"
        f" {tally.jobs} jobs, {tally.starts} containers started, {tally.virtual_seconds:.0f} virtual seconds"
    )
    return 0 if failed is None else 1


def _run(arguments: argparse.Namespace) -> tuple[Tally, Outcome | None]:
    """Stops at the first bad seed, in the order of seeds, and shows it."""
    tally = Tally(time.perf_counter())
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    many = arguments.seeds > CHUNK * arguments.jobs
    if many:
        run_seed(arguments.start)  # what is made on first use, and the bytecode that has warmed up, is there in every process
    gc.collect()
    gc.freeze()  # what is loaded now is never garbage
    with multiprocessing.get_context("fork").Pool(arguments.jobs, gc.disable, maxtasksperchild=CHUNKS) as pool:
        for outcome in pool.imap(partial(run_seed, tell=arguments.show), seeds, CHUNK if many else 1):
            tally.add(outcome)
            if arguments.show or outcome.failure:
                print("\n".join(outcome.history.splitlines()[-arguments.history :]))
            if outcome.failure:
                print(f"\nseed {outcome.seed}: {outcome.failure}\n\nagain with: python -m tests.sim --start {outcome.seed} --seeds 1")
                return tally, outcome
            tally.tell_progress(arguments.seeds)
            if time.perf_counter() - tally.began > arguments.seconds:
                break
    return tally, None


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of names must be the same in every run
        os.execve(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
