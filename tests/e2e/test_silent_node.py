"""A Node that falls silent, and what is true when it comes back: nothing is doubled, replaced, restarted or made up (L-C)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.evidence import Witness, assert_ran_once, history
from tests.support.system import FACTOR, WholeSystem, wait_for
from tuneplane.domain.timings import PRODUCTION

pytestmark = [pytest.mark.e2e]

TIMINGS = PRODUCTION.scaled(float(FACTOR))
SILENCE_SECONDS = 3 * max(TIMINGS.session_idle, TIMINGS.gateway_lease, TIMINGS.claim_lease)  # every lease ran out thrice


@pytest.fixture
def whole(system: WholeSystem) -> Iterator[WholeSystem]:
    """The session's system; its Node runs again afterwards."""
    system.wait_ready()
    yield system
    node = system.processes["node"]
    node.thaw()
    if node.child is None:
        system.restart("node")
    system.wait_ready()


def _start(system: WholeSystem, exit_code: int) -> tuple[str, Witness]:
    witness = Witness.open(system)
    job = system.sh(witness.script(exit_code))
    system.wait_job(job, "running")
    witness.wait_started()
    return job, witness


def _wait_silent(system: WholeSystem, job: str) -> dict[str, Any]:
    """Wait until the job's page says that its member is held by a silent Node, and since when."""

    def look() -> tuple[dict[str, Any] | None, object]:
        member = system.member(job)
        return (member if member["node_silent_since"] else None), member

    return wait_for(f"the Node of {job} to be shown as silent", look)


def _used(system: WholeSystem) -> tuple[int, int]:
    [node] = [each for each in system.nodes() if each["id"] == system.node_id]
    return node["capacity"]["cpu_millis_used"], node["capacity"]["memory_bytes_used"]


@pytest.mark.parametrize("silence", ["frozen", "killed"])
def test_silent_node_keeps_its_hold_and_its_container_and_nothing_replaces_it(whole: WholeSystem, silence: str) -> None:
    """L-C2, L-C20, R-LCH-03, P-11: exactly one container throughout; the hold is shown as held; other work waits with the reason."""
    job, witness = _start(whole, 0)
    held = _used(whole)
    if silence == "frozen":
        whole.processes["node"].freeze()
    else:
        whole.kill("node")
    _wait_silent(whole, job)
    other = whole.sh("exit 0")
    ends = time.monotonic() + SILENCE_SECONDS
    while time.monotonic() < ends:
        now = whole.job(job)
        assert (now["state"], len(now["attempts"])) == ("running", 1)
        assert _used(whole) == held
        assert [container["State"] for container in whole.containers(job)] == ["running"]
    waiting = whole.job(other)
    assert (waiting["state"], waiting["waiting"]["code"]) == ("queued", "no-ready-node")
    if silence == "frozen":
        whole.processes["node"].thaw()
    else:
        whole.restart("node")
    whole.wait_job(other, "succeeded")
    assert whole.member(job)["node_silent_since"] is None
    witness.release()
    whole.wait_job(job, "succeeded")
    assert_ran_once(whole, job, witness)
    assert not witness.signals()
    whole.wait_cleaned(job)
    wait_for("all holds to be released", lambda: (True if _used(whole) == (0, 0) else None, _used(whole)))


def test_what_became_of_each_member_is_learnt_on_the_nodes_return(whole: WholeSystem) -> None:
    """L-C3, L-C12, R-LCH-05: one runs on, one ended well, one badly, one container was removed; a reboot is in the Node's own tests."""
    running, well, badly, missing = (_start(whole, code) for code in (0, 0, 7, 0))
    whole.kill("node")
    for _, witness in (well, badly):
        witness.release()
    for job, _ in (well, badly):
        _wait_ended_in_runtime(whole, job)
    [removed] = whole.containers(missing[0])
    whole.podman.run("rm", "--force", "--time", "0", removed["Id"])
    whole.restart("node")
    assert whole.wait_job(well[0], "succeeded")["attempts"][0]["members"][0]["exit_code"] == 0
    [failed] = whole.wait_job(badly[0], "failed")["attempts"][0]["members"]
    assert (failed["exit_code"], failed["reason_code"]) == (7, "")
    [lost] = whole.wait_job(missing[0], "failed")["attempts"][0]["members"]
    assert (lost["phase"], lost["exit_code"], lost["reason_code"]) == ("terminated", None, "lost")
    assert whole.job(running[0])["state"] == "running"
    running[1].release()
    whole.wait_job(running[0], "succeeded")
    for job, witness in (running, well, badly):
        assert_ran_once(whole, job, witness)
    assert len(missing[1].starts()) == 1
    assert len(history(whole.podman, missing[0]).started) == 1, "the fence that holds its name is never started"
    for job, _ in (running, well, badly):
        whole.wait_cleaned(job)
    assert whole.member(missing[0])["cleaned"], "only its fence stays, until it is forgotten"


def test_member_that_was_declared_lost_is_not_started_when_its_node_returns(whole: WholeSystem) -> None:
    """L-C1, P-11: daemon and container are killed, an operator ends the member; the Node returns to a tombstone, not to a start."""
    job, witness = _start(whole, 0)
    whole.kill("node")
    whole.podman.run("rm", "--force", "--time", "0", whole.containers(job)[0]["Id"])
    member = _wait_silent(whole, job)
    lost = f"/api/nodes/{whole.node_id}/members/{member['id']}/declare-lost"
    whole.client.post(lost, {"reason": "its power supply burnt"})
    ended = whole.wait_job(job, "failed")
    assert (ended["attempts"][0]["members"][0]["reason_code"], len(ended["attempts"])) == ("declared-lost", 1)
    assert _used(whole) == (0, 0)
    whole.restart("node")
    whole.wait_ready()
    after = whole.sh("exit 0")
    whole.wait_job(after, "succeeded")  # the Node has had its commands, and works
    assert len(witness.starts()) == 1
    assert len(history(whole.podman, job).started) == 1
    assert whole.job(job)["attempts"] == ended["attempts"] or whole.member(job)["phase"] == "terminated"
    wait_for(f"the container and the fence of {job} to be gone or inert", lambda: _nothing_runs(whole, job))


def _nothing_runs(system: WholeSystem, job: str) -> tuple[bool | None, object]:
    states = [container["State"] for container in system.containers(job)]
    return (None if "running" in states else True), states


def _wait_ended_in_runtime(system: WholeSystem, job: str) -> None:
    wait_for(f"the container of {job} to end", lambda: _nothing_runs(system, job))
