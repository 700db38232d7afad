"""Stop works at every phase, is idempotent and always wins (R-LCH-12), across separate processes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.system import WholeSystem

pytestmark = [pytest.mark.e2e]

OVERHEAD_SECONDS = 10.0  # noticing, cleaning and reporting on two busy cores, on top of the grace


def _stop(system: WholeSystem, job: str) -> dict[str, Any]:
    return dict(system.client.post(f"/api/jobs/{job}/stop"))


def test_running_job_gets_its_signal_and_keeps_its_own_exit_code(system: WholeSystem) -> None:
    job = system.sh("trap 'echo bye; exit 3' TERM; echo up; while true; do sleep 0.1; done")
    system.wait_log(job, b"up\n")
    _stop(system, job)
    stopped = system.wait_job(job, "stopped")
    member = stopped["attempts"][0]["members"][0]
    assert (member["phase"], member["exit_code"]) == ("terminated", 3)
    assert system.read_log(job) == b"up\nbye\n"
    assert stopped["reason_detail"] == "stopped by admin"
    system.wait_cleaned(job)


def test_job_may_choose_its_signal(system: WholeSystem) -> None:
    script = "trap 'echo usr1; exit 0' USR1; echo up; while true; do sleep 0.1; done"
    job = system.sh(script, stop={"signal": "SIGUSR1", "grace_seconds": 5})
    system.wait_log(job, b"up\n")
    _stop(system, job)
    system.wait_job(job, "stopped")
    assert system.read_log(job) == b"up\nusr1\n"


def test_job_that_ignores_its_signal_is_killed_after_its_grace(system: WholeSystem) -> None:
    job = system.sh("trap '' TERM; echo up; while true; do sleep 0.1; done", stop={"signal": "SIGTERM", "grace_seconds": 1})
    system.wait_log(job, b"up\n")
    began = time.monotonic()
    _stop(system, job)
    stopped = system.wait_job(job, "stopped")
    took = time.monotonic() - began
    assert stopped["attempts"][0]["members"][0]["exit_code"] == 137
    assert 1.0 <= took <= 1.0 + OVERHEAD_SECONDS


def test_stop_is_idempotent(system: WholeSystem) -> None:
    job = system.sh("sleep 600")
    system.wait_job(job, "running")
    first = _stop(system, job)
    again = _stop(system, job)
    assert first["stop_asked_at"] == again["stop_asked_at"]
    system.wait_job(job, "stopped")
    assert _stop(system, job)["state"] == "stopped"


def test_stop_of_an_ended_job_changes_nothing(system: WholeSystem) -> None:
    job = system.sh("true")
    system.wait_job(job, "succeeded")
    assert _stop(system, job)["state"] == "succeeded"


def test_stop_at_once_after_submission_never_starts_it_later(system: WholeSystem) -> None:
    """Many stops race with many launches: each job ends stopped, and nothing of it runs afterwards."""
    jobs = [system.sh("touch $TUNEPLANE_OUTPUT_DIR/ran; sleep 600") for _ in range(6)]
    for number, job in enumerate(jobs):
        time.sleep(0.03 * number)  # spread over the phases: queued, preparing, starting, running
        _stop(system, job)
    for job in jobs:
        system.wait_job(job, "stopped")
    for job in jobs:
        assert not [container for container in system.containers(job) if container["State"] == "running"]


def test_stop_of_a_waiting_job_ends_it_without_an_attempt(system: WholeSystem) -> None:
    large = {"pools": [{"name": "main", "cpus": 3.9, "memory_gb": 0.1}]}
    first = system.sh("sleep 600", resources=large)
    system.wait_job(first, "running")
    waiting = system.sh("true", resources=large)
    assert _stop(system, waiting)["state"] == "stopped"
    assert system.job(waiting)["attempts"] == []
    _stop(system, first)
    system.wait_job(first, "stopped")


def test_job_that_runs_too_long_is_ended_with_that_reason(system: WholeSystem) -> None:
    job = system.sh("sleep 600", max_runtime_seconds=1)
    failed = system.wait_job(job, "failed")
    assert failed["reason_code"] == "max-runtime"


def test_daemon_that_leaves_during_a_grace_ends_at_once_and_the_stop_goes_on_without_it(system: WholeSystem) -> None:
    """L-E11, L-C21: no time without heartbeats before its end, no second grace after it, and the job's own exit code."""
    script = "trap 'echo told; sleep 8; exit 7' TERM; echo up; while true; do sleep 0.1; done"
    job = system.sh(script, stop={"signal": "SIGTERM", "grace_seconds": 60})
    system.wait_log(job, b"up\n")
    _stop(system, job)
    system.wait_log(job, b"told\n")
    began = time.monotonic()
    assert system.stop("node") == 0
    assert time.monotonic() - began < 7, "the daemon waited for the job"
    assert [container["State"] for container in system.containers(job)] == ["running"]
    system.start("node")
    stopped = system.wait_job(job, "stopped")
    assert stopped["attempts"][0]["members"][0]["exit_code"] == 7
    assert system.read_log(job) == b"up\ntold\n"
