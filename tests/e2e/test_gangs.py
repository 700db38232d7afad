"""Gangs of real containers on three Nodes, each with a Podman of its own: they find each other, and end together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.meeting import MEET
from tests.support.process import wait_for
from tests.support.system import FLEET, WholeSystem, open_system_of_processes
from tuneplane.app.client import ApiRefused

pytestmark = [pytest.mark.e2e, pytest.mark.seconds(240)]

SIZE = 3
FAILURE_SECONDS = 10.0  # L-H1: from the first failure to the end of the rest


@pytest.fixture(scope="module")
def gangs() -> Iterator[WholeSystem]:
    with open_system_of_processes(nodes=SIZE) as opened:
        yield opened


def pools(nodes: int) -> dict[str, Any]:
    return {"pools": [{"name": "main", "nodes": nodes, "cpus": 0.2, "memory_gb": 0.064}]}


def members(system: WholeSystem, job: str) -> list[dict[str, Any]]:
    return list(system.job(job)["attempts"][-1]["members"])


def wait_all_cleaned(system: WholeSystem, *jobs: str) -> None:
    """R-LCH-14: of every member, and the runtimes agree."""

    def look() -> tuple[bool | None, object]:
        seen = [(member["id"], member["cleaned"]) for job in jobs for member in members(system, job)]
        left = [container["Names"] for job in jobs for container in system.containers(job)]
        return (True if all(clean for _, clean in seen) and not left else None), (seen, left)

    wait_for(f"the members of {jobs} to be cleaned", look)


def held(system: WholeSystem) -> list[tuple[object, ...]]:
    return [(node["capacity"]["cpu_millis_used"], node["members"]) for node in system.nodes()]


def test_gangs_of_real_containers_meet_at_the_address_they_are_told(gangs: WholeSystem) -> None:
    """R-LCH-08, R-LCH-09, L-H3: two at once on the same machines, each at a leased port of its own."""
    jobs = [gangs.sh(MEET, resources=pools(SIZE)) for _ in range(2)]
    for job in jobs:
        gangs.wait_job(job, "succeeded")
        assert len({member["node"] for member in members(gangs, job)}) == SIZE
        assert [member["exit_code"] for member in members(gangs, job)] == [0] * SIZE
    wait_all_cleaned(gangs, *jobs)
    assert held(gangs) == [(0, [])] * SIZE


def test_gang_of_real_containers_ends_with_its_first_failure(gangs: WholeSystem) -> None:
    """L-H1: rank 2 exits 1, the rest would sleep for ever; the gang has ended soon after, and the cause is rank 2's."""
    fails = 'trap "exit 0" TERM; if [ "$TUNEPLANE_MACHINE_RANK" = 2 ]; then sleep 1; exit 1; fi; while :; do sleep 0.1; done'
    job = gangs.sh(fails, resources=pools(SIZE))
    gangs.wait_job(job, "running")
    failed = wait_for(f"rank 2 of {job} to fail", lambda: _ended_at(gangs, job))
    gangs.wait_job(job, "failed")
    assert time.monotonic() - failed < FAILURE_SECONDS
    seen = gangs.job(job)
    assert seen["reason_code"] == "exit-code"
    assert f"{job}-1-2" in seen["reason_detail"]
    assert seen["attempts"][0]["members"][2]["exit_code"] == 1
    assert len(seen["attempts"]) == 1
    wait_all_cleaned(gangs, job)
    assert held(gangs) == [(0, [])] * SIZE


def _ended_at(system: WholeSystem, job: str) -> tuple[float | None, object]:
    rank_2 = members(system, job)[2]
    return (time.monotonic() if rank_2["phase"] == "terminated" else None), rank_2


def test_gang_of_real_containers_is_stopped_as_a_whole(gangs: WholeSystem) -> None:
    """R-LCH-12."""
    job = gangs.sh("while :; do sleep 0.1; done", resources=pools(SIZE))
    gangs.wait_job(job, "running")
    gangs.client.post(f"/api/jobs/{job}/stop")
    gangs.wait_job(job, "stopped")
    wait_all_cleaned(gangs, job)


def test_gang_that_names_an_interface_that_no_machine_has_is_refused_while_the_submitter_is_looking(gangs: WholeSystem) -> None:
    """R-LCH-11, R-PLC-02."""
    network = {"network": {"transport": "tcp", "isolation": "fleet", "interface": "bond7"}}
    with pytest.raises(ApiRefused, match=f"needs {SIZE} machines with interface bond7, Fleet {FLEET} has 0"):
        gangs.submit(["true"], resources={**pools(SIZE), **network})
