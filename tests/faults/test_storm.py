"""Many launches and stops while processes die at random moments: no story is told, the invariants must hold all the same."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest
from attrs import define, field

from tests.support.evidence import Witness, assert_ran_at_most_once, history

from .rig import SERVICES, Rig

pytestmark = [pytest.mark.e2e]

JOBS = 12
KILLS = 20
CALM_SECONDS = 60.0  # two cores start twelve containers and heal the last kills within a few seconds
END_CODE = 5
EXCUSES = {"lost", "prepare-deadline", "commit-deadline"}  # the latter two on a machine that is very busy besides
SEED = os.environ.get("TUNEPLANE_STORM_SEED")
VICTIMS = (*SERVICES, "postgres", "podman")


@define
class Submitted:
    """A job and what became true of it, by its own files."""

    job: str
    witness: Witness
    stopped: bool = field(default=False)

    @property
    def ended_by_itself(self) -> bool:
        return (self.witness.directory / "ended").exists()


@pytest.mark.parametrize("seed", [SEED] if SEED else ["one", "two"])
def test_storm_of_kills_starts_nothing_twice_and_every_job_converges(rig: Rig, seed: str) -> None:
    """P-01 to P-09 at once. A failing seed is printed in the test's name; TUNEPLANE_STORM_SEED repeats it."""
    chance = random.Random(seed)
    jobs: list[Submitted] = []
    for number in range(KILLS):
        if number < JOBS:
            jobs.append(_submit(rig, chance.uniform(0.0, 1.5)))
        if chance.random() < 0.2:
            _stop(rig, chance.choice(jobs))
        time.sleep(chance.uniform(0.0, 0.4))  # the moment of the next kill: chance is the point
        _kill(rig, chance.choice(VICTIMS))
    for submitted in jobs:
        _check(rig, submitted)


def _submit(rig: Rig, seconds: float) -> Submitted:
    witness = Witness.open(rig.system)
    here = witness.directory
    script = f"cat /proc/sys/kernel/random/uuid >> {here}/starts; sleep {seconds:.2f}; touch {here}/ended; exit {END_CODE}"
    return Submitted(rig.submit(script), witness)


def _stop(rig: Rig, submitted: Submitted) -> None:
    rig.stop(submitted.job)
    submitted.stopped = True


def _kill(rig: Rig, victim: str) -> None:
    """Kill and start again at once, without waiting for anybody to be ready."""
    special: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "postgres": (rig.system.postgres.kill, rig.system.postgres.start),
        "podman": (rig.system.podman.kill, rig.system.podman.start),
    }
    if victim in special:
        end, begin = special[victim]
        end()
        begin()
        return
    process = rig.system.processes[victim]
    if process.child is not None and process.child.poll() is None:
        rig.system.kill(victim)
    process.child = None
    process.start()


def _check(rig: Rig, submitted: Submitted) -> None:
    """At most one start, by the runtime; an end that was told is the end that was; everything is given back."""
    job, witness = submitted.job, submitted.witness
    ended = rig.wait_state(job, "succeeded", "failed", "stopped", seconds=CALM_SECONDS)
    rig.wait_cleaned(job)
    started = assert_ran_at_most_once(rig.system, job, witness, runtime_killed=True)
    members = [member for attempt in ended["attempts"] for member in attempt["members"]]
    told = {(ended["state"], member["exit_code"], member["reason_code"]) for member in members}
    if ("failed", END_CODE, "") in told or any(member["exit_code"] == END_CODE for member in members):
        assert submitted.ended_by_itself
        assert started == 1
    elif submitted.stopped and ended["state"] == "stopped":
        assert all(member["phase"] in ("terminated", "aborted") for member in members)
    else:
        assert ended["reason_code"] in EXCUSES, (ended, history(rig.system.podman, job).events)
        assert ended["state"] == "failed"
    assert not rig.holds(job)
