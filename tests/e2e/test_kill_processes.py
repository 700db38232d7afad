"""SIGKILL of each process while a real container runs: it lives on, nothing is doubled, and its true exit code is learnt.

API, gateway, worker and Node are separate processes; the Node is on a gateway that the API did not start.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.support.evidence import Witness, assert_ran_once
from tests.support.system import WholeSystem, wait_for

pytestmark = [pytest.mark.e2e]

ALL = ("postgres", "api", "gateway", "worker", "node")  # in the order in which they come back
LIVE_ON_SECONDS = 1.0  # a container that dies with its daemon is gone within milliseconds


def _start(system: WholeSystem, exit_code: int) -> tuple[str, Witness]:
    witness = Witness.open(system)
    job = system.sh(witness.script(exit_code))
    system.wait_job(job, "running")
    witness.wait_started()
    return job, witness


def _the_container(system: WholeSystem, job: str) -> dict[str, Any]:
    [container] = system.containers(job)
    return container


def _assert_lives_on(system: WholeSystem, job: str, container: dict[str, Any]) -> None:
    ends = time.monotonic() + LIVE_ON_SECONDS
    while time.monotonic() < ends:
        now = _the_container(system, job)
        assert (now["Id"], now["State"]) == (container["Id"], "running")


def _await_end(system: WholeSystem, job: str, exit_code: int) -> None:
    ended = system.wait_job(job)
    [member] = ended["attempts"][-1]["members"]
    assert len(ended["attempts"]) == 1
    assert ended["state"] == ("succeeded" if exit_code == 0 else "failed"), json.dumps(ended, indent=1)
    assert (member["phase"], member["exit_code"], member["reason_code"]) == ("terminated", exit_code, "")


@pytest.fixture
def whole(system: WholeSystem) -> Any:
    """The session's system; whatever a failed test left dead is started again."""
    yield system
    for name in ALL:
        if not _runs(system, name):
            system.restart(name)
    system.wait_ready()


def _runs(system: WholeSystem, name: str) -> bool:
    return system.postgres.runs if name == "postgres" else system.processes[name].child is not None


def _kill_and_restart_while_running(system: WholeSystem, victims: tuple[str, ...]) -> None:
    jobs = {code: _start(system, code) for code in (0, 7)}
    containers = {code: _the_container(system, job) for code, (job, _) in jobs.items()}
    for name in reversed(victims):
        system.kill(name)
    for code, (job, _) in jobs.items():
        _assert_lives_on(system, job, containers[code])
    for name in victims:
        system.restart(name)
    system.wait_ready()
    for code, (job, witness) in jobs.items():
        _assert_lives_on(system, job, containers[code])
        witness.release()
        _await_end(system, job, code)
        assert assert_ran_once(system, job, witness) == containers[code]["Id"]
        assert not witness.signals()
        system.wait_cleaned(job)


@pytest.mark.parametrize("victim", ALL)
def test_container_outlives_a_killed_process_and_ends_with_its_true_exit_code(whole: WholeSystem, victim: str) -> None:
    """L-C20: whoever launched it may die; the container is ours, shown as held, and released by its own evidence."""
    _kill_and_restart_while_running(whole, (victim,))


def test_container_outlives_all_processes_at_once_and_ends_with_its_true_exit_code(whole: WholeSystem) -> None:
    _kill_and_restart_while_running(whole, ALL)


@pytest.mark.parametrize("victims", [("gateway",), ("node",), ("postgres",), ("worker",), ("gateway", "node"), ALL], ids="+".join)
def test_end_that_nobody_saw_is_learnt_afterwards_with_its_true_exit_code(whole: WholeSystem, victims: tuple[str, ...]) -> None:
    """P-04: inspected under the same boot and engine as at the start."""
    jobs = {code: _start(whole, code) for code in (0, 7)}
    for name in reversed(victims):
        whole.kill(name)
    for _, witness in jobs.values():
        witness.release()
    for job, _ in jobs.values():
        _wait_container_ended(whole, job)
    for name in victims:
        whole.restart(name)
    for code, (job, witness) in jobs.items():
        _await_end(whole, job, code)
        assert_ran_once(whole, job, witness)
        whole.wait_cleaned(job)


def _wait_container_ended(system: WholeSystem, job: str) -> None:
    def look() -> tuple[bool | None, object]:
        states = [container["State"] for container in system.containers(job)]
        return (None if "running" in states else True), states

    wait_for(f"the container of {job} to end", look)


@pytest.mark.parametrize("victims", [("gateway",), ("node",), ("node", "gateway")], ids="+".join)
def test_stop_accepted_while_the_node_is_disconnected_takes_effect_on_its_return(whole: WholeSystem, victims: tuple[str, ...]) -> None:
    job, witness = _start(whole, 0)
    container = _the_container(whole, job)
    for name in victims:
        whole.kill(name)
    assert whole.client.post(f"/api/jobs/{job}/stop")["state"] == "stopping"
    _assert_lives_on(whole, job, container)
    assert not witness.signals()
    for name in reversed(victims):
        whole.restart(name)
    stopped = whole.wait_job(job, "stopped")
    assert stopped["attempts"][-1]["members"][0]["exit_code"] == 143
    assert witness.signals() == ["term"]
    assert assert_ran_once(whole, job, witness) == container["Id"]
    whole.wait_cleaned(job)


def test_stop_accepted_while_the_worker_is_dead_needs_no_worker(whole: WholeSystem) -> None:
    """P-23: stops are rows plus a poke."""
    job, witness = _start(whole, 0)
    whole.kill("worker")
    whole.client.post(f"/api/jobs/{job}/stop")
    wait_for("the container to get its signal", lambda: (witness.signals() or None, whole.containers(job)))
    whole.restart("worker")
    whole.wait_job(job, "stopped")
    assert_ran_once(whole, job, witness)


@pytest.mark.parametrize("victim", ["node", "gateway", "worker", "api"])
def test_sigterm_of_a_process_never_touches_the_workload(whole: WholeSystem, victim: str) -> None:
    """L-C21: the daemon is leaving and kill the workload are two different things."""
    job, witness = _start(whole, 7)
    container = _the_container(whole, job)
    assert whole.stop(victim) == 0
    _assert_lives_on(whole, job, container)
    whole.restart(victim)
    whole.wait_ready()
    _assert_lives_on(whole, job, container)
    assert not witness.signals()
    witness.release()
    _await_end(whole, job, 7)
    assert assert_ran_once(whole, job, witness) == container["Id"]


def test_log_is_whole_after_daemon_and_gateway_were_killed(whole: WholeSystem) -> None:
    """R-LCH-13: what was written while nobody watched is there, once."""
    witness = Witness.open(whole)
    job = whole.sh(f"n=0; while [ ! -e {witness.directory}/released ]; do n=$((n+1)); echo line $n; sleep 0.02; done; echo end $n")
    whole.wait_log(job, b"line 5\n")
    for name in ("gateway", "node"):
        whole.kill(name)
        time.sleep(0.3)  # output that nobody reads: the time is the point, nothing is waited for
        whole.restart(name)
    witness.release()
    whole.wait_job(job, "succeeded")
    lines = whole.read_log(job).decode().splitlines()
    last = int(lines[-1].removeprefix("end "))
    assert lines == [*(f"line {number}" for number in range(1, last + 1)), f"end {last}"]
