"""Attempts of one job on a real machine: each in a container of its own, its log kept, and never after a stop."""

from __future__ import annotations

import pytest

from tests.support.evidence import history
from tests.support.system import WholeSystem
from tuneplane.app.client import ApiRefused

pytestmark = [pytest.mark.e2e]

SCRIPT = 'echo "this is attempt $TUNEPLANE_ATTEMPT"; [ "$TUNEPLANE_ATTEMPT" -ge "$ENOUGH" ]'


def submit(system: WholeSystem, *, enough: int, retries: int) -> str:
    spec = system.spec(["sh", "-c", SCRIPT], retries=retries, env={"ENOUGH": str(enough)})
    return str(system.client.post("/api/jobs", spec)["id"])


def test_job_is_tried_again_until_it_succeeds_and_every_log_stays_readable(system: WholeSystem) -> None:
    """L-E7, R-LCH-02: three attempts, three containers, three logs; each attempt has its own cause."""
    job = submit(system, enough=3, retries=5)
    ended = system.wait_job(job, "succeeded")
    assert [attempt["reason_code"] for attempt in ended["attempts"]] == ["exit-code", "exit-code", ""]
    for number in (1, 2, 3):
        data, _ = system.client.read_log(job, offset=0, attempt=number)
        assert data == f"this is attempt {number}\n".encode()
    assert len(history(system.podman, job).started) == 3
    kinds = [event["kind"] for event in system.client.get(f"/api/jobs/{job}/timeline")["items"]]
    assert kinds.count("job.queued-again") == 2
    assert kinds.index("attempt.ended") < kinds.index("job.queued-again")


def test_job_that_failed_for_good_is_tried_once_more_by_hand(system: WholeSystem) -> None:
    job = submit(system, enough=2, retries=0)
    assert system.wait_job(job, "failed")["attempt_number"] == 1
    for _ in range(2):  # a repeat is the same wish
        system.client.post(f"/api/jobs/{job}/retry?after=1")
    ended = system.wait_job(job, "succeeded")
    assert [attempt["number"] for attempt in ended["attempts"]] == [1, 2]
    with pytest.raises(ApiRefused, match="has succeeded"):
        system.client.post(f"/api/jobs/{job}/retry")
