"""Jobs from submission to evidence, across api, gateway, worker and Node as separate processes (R-SES-01, R-LCH-01)."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.support.system import FLEET, WholeSystem, wait_for
from tuneplane.app.client import ApiRefused

pytestmark = [pytest.mark.e2e]


def _pool(**amounts: Any) -> dict[str, Any]:
    return {"pools": [{"name": "main", **amounts}]}


def test_job_that_ends_well_succeeds_and_leaves_its_output(system: WholeSystem) -> None:
    job = system.sh("echo hello; echo saved > $TUNEPLANE_OUTPUT_DIR/result")
    ended = system.wait_job(job, "succeeded")
    member = ended["attempts"][0]["members"][0]
    assert (member["phase"], member["exit_code"], member["oom_killed"]) == ("terminated", 0, False)
    assert system.read_log(job) == b"hello\n"
    results = list((system.storage_root / "jobs" / job).rglob("result"))
    assert [path.read_text() for path in results] == ["saved\n"]


def test_job_that_ends_before_the_first_look_has_its_true_exit_code(system: WholeSystem) -> None:
    jobs = {code: system.submit(["sh", "-c", f"exit {code}"]) for code in (0, 7)}
    assert system.wait_job(jobs[0])["state"] == "succeeded"
    failed = system.wait_job(jobs[7])
    assert failed["state"] == "failed"
    assert failed["attempts"][0]["members"][0]["exit_code"] == 7
    assert "exit code 7" in failed["reason_detail"]


def test_job_gets_the_promised_environment(system: WholeSystem) -> None:
    job = system.sh("env", env={"GREETING": "grüß dich"})
    system.wait_job(job, "succeeded")
    env = dict(line.split("=", 1) for line in system.read_log(job).decode().splitlines() if "=" in line)
    assert env["GREETING"] == "grüß dich"
    assert env["TUNEPLANE_JOB_ID"] == job
    assert env["TUNEPLANE_ATTEMPT"] == "1"
    assert env["TUNEPLANE_MACHINE_RANK"] == "0"
    assert env["TUNEPLANE_MACHINE_COUNT"] == "1"
    assert env["TUNEPLANE_OUTPUT_DIR"].startswith(str(system.storage_root))
    leaked = [name for name in env if "TOKEN" in name or "SECRET" in name or "CREDENTIAL" in name]
    assert not leaked  # R-CRD-05


def test_container_has_the_limits_the_job_declared(system: WholeSystem) -> None:
    """R-LCH-07, asked of the runtime itself."""
    job = system.sh("sleep 600", resources=_pool(cpus=0.3, memory_gb=0.1))
    system.wait_job(job, "running")
    [container] = system.containers(job)
    found = json.loads(system.podman.run("inspect", str(container["Id"])))[0]["HostConfig"]
    assert found["Memory"] == 100_000_000
    assert found["NanoCpus"] == 300_000_000 or found["CpuQuota"] / found["CpuPeriod"] == pytest.approx(0.3)
    system.client.post(f"/api/jobs/{job}/stop")
    system.wait_job(job, "stopped")


def test_job_that_uses_too_much_memory_is_reported_as_out_of_memory(system: WholeSystem) -> None:
    """R-LCH-07."""
    job = system.sh("tail /dev/zero", resources=_pool(cpus=0.5, memory_gb=0.03))
    failed = system.wait_job(job, "failed")
    member = failed["attempts"][0]["members"][0]
    assert member["oom_killed"]
    assert failed["reason_code"] == "out-of-memory"


def test_command_that_does_not_exist_fails_with_that_reason(system: WholeSystem) -> None:
    job = system.submit(["/no/such/program"])
    failed = system.wait_job(job, "failed")
    assert failed["reason_code"] == "start-failed"
    assert "/no/such/program" in failed["reason_detail"]
    system.wait_cleaned(job)


def test_image_that_cannot_be_pulled_fails_with_that_reason(system: WholeSystem) -> None:
    image = system.image().split("@")[0] + "@sha256:" + "0" * 64
    job = system.submit(["true"], runtime={"image": image})
    failed = system.wait_job(job, "failed")
    assert failed["reason_code"] == "image-unavailable"
    system.wait_cleaned(job)


def test_image_tag_is_pinned_to_its_digest_at_admission(system: WholeSystem) -> None:
    """R-LCH-06."""
    pinned = system.image()
    tag = pinned.split("@")[0] + ":1"
    job = system.submit(["true"], runtime={"image": tag})
    assert system.job(job)["image"] == pinned
    system.wait_job(job, "succeeded")


def test_image_tag_that_cannot_be_resolved_is_refused(system: WholeSystem) -> None:
    """R-LCH-06."""
    with pytest.raises(ApiRefused) as refused:
        system.submit(["true"], runtime={"image": f"{system.registry.address}/no/such:1"})
    assert (refused.value.code, refused.value.field) == ("image-unresolved", "spec.runtime.image")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"command": []}, "spec.command"),
        ({"surprise": 1}, "spec.surprise"),
        ({"resources": _pool(gpus_per_node=1, memory_gb=1)}, "spec.resources.pools[0].cpus"),
        ({"resources": _pool(gpus_per_node=1, cpus=1)}, "spec.resources.pools[0].memory_gb"),
        ({"resources": _pool(nodes=9)}, "spec.resources.pools[0].nodes"),
    ],
)
def test_spec_that_breaks_a_rule_is_refused_by_field(system: WholeSystem, change: dict[str, Any], field: str) -> None:
    """R-LCH-07, R-LCH-08."""
    before = len(system.client.list_all("/api/jobs"))
    with pytest.raises(ApiRefused) as refused:
        system.client.post("/api/jobs", system.spec(**{"command": ["true"], **change}))
    assert (refused.value.status, refused.value.field) == (422, field)
    assert len(system.client.list_all("/api/jobs")) == before


def test_job_too_large_for_every_machine_is_refused_with_the_reason(system: WholeSystem) -> None:
    """R-PLC-02."""
    with pytest.raises(ApiRefused) as refused:
        system.submit(["true"], resources=_pool(cpus=64, memory_gb=1))
    assert refused.value.reasons[0].code == "inventory-fit"


def test_job_that_must_wait_says_for_what_and_starts_when_there_is_room(system: WholeSystem) -> None:
    """R-PLC-03, R-LCH-14: capacity comes back with the clean-up."""
    first = system.sh("sleep 600", resources=_pool(cpus=3.9, memory_gb=0.1))
    system.wait_job(first, "running")
    second = system.sh("true", resources=_pool(cpus=3.9, memory_gb=0.1))

    def look() -> tuple[dict[str, Any] | None, object]:
        seen = system.job(second)
        looked_at = seen["waiting"] and seen["waiting"]["code"] != "in-line"  # as it says until the allocator has looked
        return (seen["waiting"] if looked_at else None), seen

    waiting = wait_for(f"{second} to say why it waits", look)
    assert waiting["code"] == "no-free-capacity"
    assert "3900" in waiting["reasons"][0]["detail"]
    system.client.post(f"/api/jobs/{first}/stop")
    system.wait_job(second, "succeeded")


def test_same_idempotency_key_gives_the_first_job(system: WholeSystem) -> None:
    key = str(uuid.uuid4())
    spec = system.spec(["true"])
    first, again = (system.client.post("/api/jobs", spec, idempotency_key=key)["id"] for _ in range(2))
    assert first == again
    system.wait_job(first, "succeeded")


def test_ended_job_leaves_nothing_behind_on_the_machine(system: WholeSystem) -> None:
    """R-LCH-14."""
    job = system.sh("true")
    system.wait_job(job, "succeeded")
    member = system.wait_cleaned(job)
    assert member["cleaned"]
    [node] = system.nodes()
    assert member["id"] not in node["members"]


def test_timeline_tells_the_launch_in_causal_order(system: WholeSystem) -> None:
    job = system.sh("true")
    system.wait_job(job, "succeeded")
    kinds = [event["kind"] for event in system.client.get(f"/api/jobs/{job}/timeline")["items"]]
    order = [kinds.index(kind) for kind in ("job.submitted", "attempt.committed", "member.terminated")]
    assert order == sorted(order)


def test_node_shows_connection_scheduling_and_inventory_apart(system: WholeSystem) -> None:
    """R-LIV-06, R-ENR-05."""
    [node] = system.nodes()
    assert node["fleet"] == FLEET
    assert node["connection"]["state"] == "connected"
    assert node["connection"]["epoch"] >= 1
    assert {**node["scheduling"], "left": []} == {"state": "active", "cordons": [], "drained": False, "left": []}
    assert node["inventory"]["healthy"]
    assert node["inventory"]["runtime"].startswith("podman")
    assert node["inventory"]["storage_root_seen"]
