"""Can the simulator find faults? Each mutation takes a rule out of a copy of the tree; some seed must tell.

``python -m tests.sim.mutants`` searches, at most 2,000 seeds a mutation; ``--record`` keeps what it finds in
``mutants.json``; ``--replay`` runs the recorded seeds, mutated and not, as CI does (``test_mutants``). The list is
``mutation_list``: an edit whose old text does not occur exactly once is stale and fails the run.

Seeds move when the product or the simulator draws another number. So a mutation has a *focus*, the faults that its
rule is about, in which many seeds find it; and a replay that misses tries a window of seeds before it fails.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from attrs import frozen

import tuneplane

from .mutation import Mutation
from .mutation_list import MUTATIONS
from .world import run_seed

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_suffix(".json")
COPIED = ("tuneplane", "tests/__init__.py", "tests/sim")
MOST_SEEDS = 2000  # a rule whose loss hides longer is not held by the simulator
KEPT_SEEDS = 2  # recorded a mutation, so that one that moved is no failure
WINDOW_SEEDS = 40  # tried when no recorded seed kills any more
CHILD_SECONDS = 3000.0
SHOWN = 100  # characters of a failure that are recorded
BROKEN = ("NameError", "ImportError", "SyntaxError", "AttributeError", "UnboundLocalError")  # found by any run, for no merit
GC_THRESHOLD = 50_000  # as __main__


class Stale(Exception):
    """The list does not fit the tree."""


@frozen
class Found:
    """What a run of seeds on a tree came to."""

    mutation: str
    tried: int
    killing: tuple[int, ...] = ()
    failure: str = ""  # of the first one

    def __str__(self) -> str:
        told = self.failure.splitlines()[0] if self.failure else "SURVIVED"
        return f"{self.mutation:34} {', '.join(map(str, self.killing)) or '-':18} after {self.tried:5} seeds: {told}"


# ---------------------------------------------------------------- the mutated tree


def mutated_text(mutation: Mutation, root: Path = ROOT) -> dict[str, str]:
    """The new text of each file that ``mutation`` edits. Raises Stale."""
    texts: dict[str, str] = {}
    for edit in mutation.edits:
        candidates = {path: texts.get(path) or (root / path).read_text() for path in _files(root, edit.path)}
        where = [path for path, text in candidates.items() for _ in range(text.count(edit.old))]
        if len(where) != 1:
            raise Stale(f"{mutation.name}: {len(where)} times in {edit.path}, not once: {edit.old!r}")
        texts[where[0]] = candidates[where[0]].replace(edit.old, edit.new)
    return texts


def _files(root: Path, path: str) -> list[str]:
    return [str(one.relative_to(root)) for one in sorted((root / path).glob("*.py"))] if (root / path).is_dir() else [path]


@contextmanager
def mutated_tree(mutation: Mutation) -> Iterator[Path]:
    """A copy of what the simulator needs, with the edits in it."""
    texts = mutated_text(mutation)
    with tempfile.TemporaryDirectory(prefix="tuneplane-mutant-") as directory:
        copy = Path(directory)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name)
            else:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copy / name)
        for name, text in texts.items():
            (copy / name).write_text(text)
        yield copy


def run_there(mutation: Mutation, seeds: Sequence[int], *, kills: int = 1, jobs: int = 1) -> Found:
    """Run ``seeds`` in a process of its own, on the mutated copy, until ``kills`` of them have failed."""
    with mutated_tree(mutation) as tree:
        command = [sys.executable, "-m", "tests.sim.mutants", "--child", mutation.name, "--kills", str(kills), "--jobs", str(jobs)]
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
        asked = json.dumps(list(seeds))
        done = subprocess.run(
            command, cwd=tree, env=environment, input=asked, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False
        )
    if done.returncode != 0:
        raise RuntimeError(f"{mutation.name}: the run itself failed\n{done.stderr[-4000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    if any(word in told["failure"] for word in BROKEN):
        raise RuntimeError(f"{mutation.name}: the edit breaks more than the rule\n{told['failure']}")
    return Found(mutation.name, told["tried"], tuple(told["killing"]), told["failure"])


# ---------------------------------------------------------------- in the child


def _one(name: str, seed: int) -> tuple[int, str]:
    gc.set_threshold(GC_THRESHOLD)
    return seed, run_seed(seed, MUTATIONS[name].focus).failure


def _pool(jobs: int) -> Any:
    return multiprocessing.get_context("fork").Pool(jobs) if jobs > 1 else nullcontext()


def _run_child(name: str, seeds: Sequence[int], kills: int, jobs: int) -> dict[str, Any]:
    assert Path(tuneplane.__file__).is_relative_to(ROOT), "the mutated tree is not the one that is imported"
    tried, killing, failure = 0, [], ""
    with _pool(jobs) as pool:
        for seed, failed in pool.imap(partial(_one, name), seeds) if pool else map(partial(_one, name), seeds):
            tried += 1
            if failed:
                killing.append(seed)
                failure = failure or failed
                if len(killing) == kills:
                    break
    return {"tried": tried, "killing": killing, "failure": failure}


# ---------------------------------------------------------------- search and replay


def recorded() -> dict[str, dict[str, Any]]:
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


def search(mutation: Mutation, *, jobs: int, most: int = MOST_SEEDS) -> Found:
    return run_there(mutation, range(most), kills=KEPT_SEEDS, jobs=jobs)


def replay_all(jobs: int = 2) -> dict[str, str]:
    """Problems by name of mutation: "" when a recorded seed, or one near it, fails on the mutated tree and holds on ours."""
    with ThreadPoolExecutor(jobs) as pool:
        found = dict(zip(MUTATIONS, pool.map(_replay, MUTATIONS.values()), strict=True))
    failures = held([(name, each.killing[0]) for name, each in found.items() if each.killing], jobs)
    return {name: _problem(MUTATIONS[name], each, failures.get(name, "")) for name, each in found.items()}


def _replay(mutation: Mutation) -> Found:
    seeds: list[int] = recorded().get(mutation.name, {}).get("killing", [])
    window = [seed for seed in range(WINDOW_SEEDS) if seed not in seeds]
    try:
        return run_there(mutation, [*seeds, *window])
    except Stale as stale:
        return Found(mutation.name, 0, failure=str(stale))


def _problem(mutation: Mutation, found: Found, failure: str) -> str:
    if not found.killing:
        return found.failure or f"{mutation.name} ({mutation.rule}) is not found any more, by {found.tried} seeds: {mutation.why}"
    return f"{mutation.name}: seed {found.killing[0]} fails without the mutation: {failure}" if failure else ""


def held(seeds: Sequence[tuple[str, int]], jobs: int) -> dict[str, str]:
    """How ``seeds`` (of mutations, in their focus) fail on the tree as it is; one process for all."""
    command = [sys.executable, "-m", "tests.sim.mutants", "--held", "--jobs", str(jobs)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, input=json.dumps(seeds), capture_output=True, text=True, timeout=CHILD_SECONDS, check=True
    )
    failures: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return failures


def _run_held(seeds: Sequence[tuple[str, int]], jobs: int) -> dict[str, str]:
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        outcomes = pool.starmap(_one, seeds, chunksize=1)
    return {name: failure for (name, _), (_, failure) in zip(seeds, outcomes, strict=True) if failure}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(MUTATIONS), help="names of mutations")
    parser.add_argument("--record", action="store_true", help="keep the killing seeds")
    parser.add_argument("--replay", action="store_true", help="run the recorded seeds")
    parser.add_argument("--most", type=int, default=MOST_SEEDS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kills", type=int, default=KEPT_SEEDS, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--held", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(_run_child(asked.child, json.load(sys.stdin), asked.kills, asked.jobs)))
        return 0
    if asked.held:
        print(json.dumps(_run_held(json.load(sys.stdin), asked.jobs)))
        return 0
    for mutation in MUTATIONS.values():
        mutated_text(mutation)
    if asked.replay:
        problems = [problem for problem in replay_all(asked.jobs).values() if problem]
        print("\n".join(problems) or f"{len(MUTATIONS)} mutations are found by their recorded seeds")
        return 1 if problems else 0
    return _search_all([MUTATIONS[name] for name in asked.only], asked)


def _search_all(mutations: Sequence[Mutation], asked: argparse.Namespace) -> int:
    survived = 0
    for mutation in mutations:
        found = search(mutation, jobs=asked.jobs, most=asked.most)
        print(f"{mutation.rule:9} {found}", flush=True)
        survived += not found.killing
        failures = held([(mutation.name, seed) for seed in found.killing], 1)
        if failures:
            print(f"   WITHOUT the mutation, too: {failures}", flush=True)
        if asked.record and found.killing and not failures:
            kept = {
                **recorded(),
                mutation.name: {"killing": list(found.killing), "tried": found.tried, "failure": found.failure.splitlines()[0][:SHOWN]},
            }
            RECORD.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    print(f"{len(mutations) - survived} of {len(mutations)} mutations found")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
