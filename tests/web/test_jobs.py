"""Admission, idempotency, stop and visibility of jobs, through the HTTP API on the real storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.images import busybox_image
from tests.support.registry import open_registry
from tests.web.support import IMAGE, job_spec, open_server
from tests.web.world import drive, make_fleet, place_job, ready_node
from tuneplane.domain.ids import JobId
from tuneplane.domain.launch_table import MemberPhase

pytestmark = pytest.mark.postgres
P = MemberPhase


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"command": []}, "spec.command"),
        ({"command": ["a\0"]}, "spec.command[0]"),
        ({"resources": {"pools": [{"gpus_per_node": 1, "cpus": 1}]}}, "spec.resources.pools[0].memory_gb"),
        ({"resources": {"pools": [{"gpus_per_node": 1, "memory_gb": 1}]}}, "spec.resources.pools[0].cpus"),
        ({"resources": {"pools": [{"nodes": 9}]}}, "spec.resources.pools[0].nodes"),
        ({"resources": {"pools": [{}, {"name": "b"}]}}, "spec.resources.pools"),
        ({"resources": {"pools": [{"series": "h100"}]}}, "spec.resources.pools[0].series"),
        ({"resources": {"network": {"transport": "rdma"}}}, "spec.resources.network.transport"),
        ({"orchestrator": "ray"}, "spec.runtime.ray_version"),
        ({"capsule": "sha256:x"}, "spec.capsule"),
        ({"surprise": 1}, "spec.surprise"),
        ({"env": {"TUNEPLANE_X": "1"}}, "spec.env.TUNEPLANE_X"),
        ({"runtime": {"image": "UPPER/case"}}, "spec.runtime.image"),
        ({"runtime": {"image": "x@sha256:short"}}, "spec.runtime.image"),
    ],
)
async def test_bad_job_is_refused_naming_the_field_and_nothing_is_written(
    database: str, tmp_path: Path, body: dict[str, Any], field: str
) -> None:
    """R-LCH-07, R-LCH-08, R-LCH-11."""
    async with open_server(database, tmp_path) as running, running.user() as http:
        await ready_node(running, await make_fleet(running))
        for path in ("/api/jobs", "/api/jobs/preview"):
            refused = await http.post(path, json=job_spec(**body))
            assert (refused.status_code, refused.json().get("field")) == (422, field), refused.text
        assert (await http.get("/api/jobs")).json()["items"] == []


async def test_submit_writes_a_queued_job_on_the_fleet_that_fits(database: str, tmp_path: Path) -> None:
    """R-FLT-09: the reply says which Fleet took it; of those that fit, one with room now."""
    async with open_server(database, tmp_path) as running, running.user() as http:
        await make_fleet(running, "a-serving", capabilities=["serve"])
        await make_fleet(running, "b-empty")
        await ready_node(running, await make_fleet(running, "c-ready"))
        submitted = await http.post("/api/jobs", json=job_spec())
        job = submitted.json()
        assert submitted.status_code == 201
        assert submitted.headers["location"] == f"/api/jobs/{job['id']}"
        assert (job["state"], job["fleet"], job["image"], job["owner"]) == ("queued", "c-ready", IMAGE, "bob")
        assert (await http.get(f"/api/jobs/{job['id']}")).json()["id"] == job["id"]


async def test_job_that_nothing_can_hold_is_refused_with_a_reason_per_visible_fleet(database: str, tmp_path: Path) -> None:
    """R-PLC-02, R-FLT-07: invisible Fleets are neither named nor counted."""
    async with open_server(database, tmp_path) as running, running.user() as http:
        nothing = await http.post("/api/jobs", json=job_spec())
        assert (nothing.status_code, nothing.json()["code"]) == (422, "no-fleet-fits")
        await make_fleet(running, "serving", capabilities=["serve"])
        await make_fleet(running, "big", kind="slurm")
        await make_fleet(running, "secret", visibility="project", project="x")
        await ready_node(running, await make_fleet(running, "small"))
        refused = (await http.post("/api/jobs", json=job_spec(resources={"pools": [{"cpus": 4000}]}))).json()
        reasons = {reason["subject"]: reason["code"] for reason in refused["reasons"]}
        assert reasons == {"serving": "capability", "big": "back-end", "small": "inventory-fit"}
        assert "secret" not in str(refused)


async def test_named_fleet_that_drains_is_refused_with_that_state(database: str, tmp_path: Path) -> None:
    """R-PLC-02."""
    async with open_server(database, tmp_path) as running, running.user() as bob, running.admin() as ada:
        await ready_node(running, await make_fleet(running))
        await ada.patch("/api/fleets/lab", json={"state": "draining"})
        refused = await bob.post("/api/jobs", json=job_spec(fleet="lab"))
        assert (refused.status_code, refused.json()["field"]) == (422, "spec.fleet")
        assert "draining" in refused.json()["detail"]
        assert (await bob.post("/api/jobs", json=job_spec(fleet="absent"))).status_code == 404


async def test_same_idempotency_key_returns_the_first_answer(database: str, tmp_path: Path) -> None:
    """Also after the Fleet drains: a repeat is not judged again. Another body under the key is refused."""
    async with open_server(database, tmp_path) as running, running.user() as bob, running.admin() as ada:
        await ready_node(running, await make_fleet(running))
        key = {"Idempotency-Key": "3f1c"}
        first = (await bob.post("/api/jobs", json=job_spec(), headers=key)).json()
        await ada.patch("/api/fleets/lab", json={"state": "disabled"})
        again = await bob.post("/api/jobs", json=job_spec(), headers=key)
        assert (again.status_code, again.json()) == (201, first)
        other = await bob.post("/api/jobs", json=job_spec(command=["false"]), headers=key)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency-key-reused")
        assert (await ada.post("/api/jobs", json=job_spec(), headers=key)).status_code == 422, "keys belong to their owner"
        assert len((await ada.get("/api/jobs")).json()["items"]) == 1


async def test_preview_says_where_the_job_would_go_and_creates_nothing(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.user() as http:
        node, _ = await ready_node(running, await make_fleet(running))
        preview = (await http.post("/api/jobs/preview", json=job_spec())).json()
        assert (preview["placed"], preview["nodes"], preview["image"]) == (True, [node], IMAGE)
        await running.storage.inventory_stale(node, 1, __import__("tests.web.support", fromlist=["now"]).now())
        waits = (await http.post("/api/jobs/preview", json=job_spec())).json()
        assert (waits["placed"], waits["waiting_code"]) == (False, "no-ready-node")
        assert (await http.get("/api/jobs")).json()["items"] == []


async def test_racing_submissions_under_one_idempotency_key_get_their_own_job_or_a_refusal(database: str, tmp_path: Path) -> None:
    """Nobody is given a job of another specification as the answer to his own."""
    async with open_server(database, tmp_path) as running, running.user() as bob:
        await ready_node(running, await make_fleet(running))
        answers: list[tuple[str, Any]] = []

        async def submit(word: str) -> None:
            answers.append((word, await bob.post("/api/jobs", json=job_spec(command=[word]), headers={"Idempotency-Key": "k"})))

        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(submit, f"word-{number % 3}")
        won = {word for word, answer in answers if answer.status_code == 201}
        assert len(won) == 1
        assert all(answer.json()["spec"]["spec"]["command"] == [word] for word, answer in answers if word in won)
        assert {answer.json()["code"] for word, answer in answers if word not in won} == {"idempotency-key-reused"}


async def test_stop_is_accepted_at_every_phase_and_idempotent(database: str, tmp_path: Path) -> None:
    """R-LCH-12."""
    async with open_server(database, tmp_path) as running, running.user() as http:
        node, epoch = await ready_node(running, await make_fleet(running))
        queued = JobId((await http.post("/api/jobs", json=job_spec())).json()["id"])
        stopped = await http.post(f"/api/jobs/{queued}/stop")
        assert (stopped.status_code, stopped.json()["state"]) == (202, "stopped")
        assert (await http.post(f"/api/jobs/{queued}/stop")).json()["state"] == "stopped"
        running_job = JobId((await http.post("/api/jobs", json=job_spec())).json()["id"])
        member = await place_job(running, running_job, node)
        await drive(running, node, epoch, member, P.PREPARING, P.PREPARED, P.STARTING, P.RUNNING)
        stopping = (await http.post(f"/api/jobs/{running_job}/stop")).json()
        assert (stopping["state"], stopping["stop_asked_by"]) == ("stopping", "bob")
        await drive(running, node, epoch, member, P.TERMINATED, exit_code=143, cleaned=True)
        ended = (await http.get(f"/api/jobs/{running_job}")).json()
        assert (ended["state"], ended["reason_detail"]) == ("stopped", "stopped by bob")


async def test_failed_job_shows_why(database: str, tmp_path: Path) -> None:
    """R-LCH-07: an OOM kill is reported as one."""
    async with open_server(database, tmp_path) as running, running.user() as http:
        node, epoch = await ready_node(running, await make_fleet(running))
        job = JobId((await http.post("/api/jobs", json=job_spec())).json()["id"])
        member = await place_job(running, job, node)
        await drive(running, node, epoch, member, P.PREPARING, P.PREPARED, P.STARTING, P.RUNNING)
        await drive(running, node, epoch, member, P.TERMINATED, exit_code=137, oom_killed=True)
        seen = (await http.get(f"/api/jobs/{job}")).json()
        assert (seen["state"], seen["reason_code"]) == ("failed", "out-of-memory")
        record = seen["attempts"][0]["members"][0]
        assert (record["exit_code"], record["oom_killed"], record["phase"]) == (137, True, "terminated")


@pytest.mark.parametrize("after", [-1, 0, 2, 2**50])
async def test_retry_after_an_attempt_that_nobody_can_have_seen_is_refused(database: str, tmp_path: Path, after: int) -> None:
    """R-LCH-02: naming the field; the job stays as it was."""
    async with open_server(database, tmp_path) as running, running.user() as http:
        node, epoch = await ready_node(running, await make_fleet(running))
        job = JobId((await http.post("/api/jobs", json=job_spec())).json()["id"])
        member = await place_job(running, job, node)
        await drive(running, node, epoch, member, P.PREPARING, P.PREPARED, P.STARTING, P.RUNNING)
        await drive(running, node, epoch, member, P.TERMINATED, exit_code=1)
        refused = await http.post(f"/api/jobs/{job}/retry?after={after}")
        assert (refused.status_code, refused.json()["field"]) == (422, "after")
        assert (await http.get(f"/api/jobs/{job}")).json()["state"] == "failed"
        assert (await http.post(f"/api/jobs/{job}/retry?after=1")).json()["state"] == "queued"


async def test_anothers_job_does_not_exist(database: str, tmp_path: Path) -> None:
    """A job's specification and log may hold secrets: only its owner and administrators see it."""
    async with open_server(database, tmp_path) as running, running.user() as bob, running.admin() as ada:
        await ready_node(running, await make_fleet(running))
        hers = (await ada.post("/api/jobs", json=job_spec())).json()["id"]
        his = (await bob.post("/api/jobs", json=job_spec())).json()["id"]
        for method, path in (("GET", ""), ("POST", "/stop"), ("GET", "/timeline"), ("GET", "/logs"), ("GET", "/logs?follow=true")):
            assert (await bob.request(method, f"/api/jobs/{hers}{path}")).status_code == 404
        assert (await bob.get(f"/api/events?job={hers}")).status_code == 404
        assert [job["id"] for job in (await bob.get("/api/jobs")).json()["items"]] == [his]
        assert {job["id"] for job in (await ada.get("/api/jobs")).json()["items"]} == {his, hers}


async def test_jobs_are_filtered_by_state_and_fleet(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.user() as http:
        await ready_node(running, await make_fleet(running))
        ids = [(await http.post("/api/jobs", json=job_spec())).json()["id"] for _ in range(3)]
        await http.post(f"/api/jobs/{ids[0]}/stop")

        async def listed(query: str) -> list[str]:
            return [job["id"] for job in (await http.get(f"/api/jobs?{query}")).json()["items"]]

        assert await listed("state=stopped") == [ids[0]]
        assert await listed("state=queued&state=running") == [ids[2], ids[1]]
        assert await listed("fleet=other") == []
        assert (await http.get("/api/jobs?state=sleeping")).status_code == 422


@pytest.mark.container
async def test_tag_is_resolved_to_the_registrys_digest_once(database: str, tmp_path: Path) -> None:
    """R-LCH-06: and one that cannot be is refused, naming the field."""
    with open_registry(tmp_path) as registry:
        pinned = busybox_image(registry)
        repository, digest = pinned.split("@")
        async with open_server(database, tmp_path) as running, running.user() as http:
            await ready_node(running, await make_fleet(running))
            tag = f"{repository}:1"
            job = (await http.post("/api/jobs", json=job_spec(runtime={"image": tag}))).json()
            assert job["image"] == pinned, job
            assert job["spec"]["spec"]["runtime"]["image"] == tag
            for image in (f"{repository}:nope", f"{registry.address}/absent/image:1", "127.0.0.1:1/x/y:1"):
                refused = (await http.post("/api/jobs", json=job_spec(runtime={"image": image}))).json()
                assert (refused["status"], refused["code"], refused["field"]) == (422, "image-unresolved", "spec.runtime.image")
        assert digest.startswith("sha256:")
