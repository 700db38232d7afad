"""Every row of R-FLT through the HTTP API, on the real storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.web.support import job_spec, open_server
from tests.web.world import join_body, join_node, look, make_fleet, place_job, ready_node
from tuneplane.control.api_fleets import MOST_FLEETS
from tuneplane.domain.ids import FleetId, JobId
from tuneplane.domain.jobs import Page

pytestmark = pytest.mark.postgres

LAB = {"id": "lab", "kind": "node", "capabilities": ["train"]}


@pytest.mark.parametrize(
    ("given", "answered"),
    [  # R-FLT-01, R-FLT-02, R-FLT-10: what is not said, and what it then is
        ({}, {"delivery": "shared-mount", "visibility": "public", "project": None, "state": "active", "config": {}, "warnings": []}),
        ({"kind": "slurm"}, {"delivery": "shared-mount"}),
        ({"kind": "kubernetes"}, {"delivery": "object-pull"}),
        ({"delivery": "object-pull"}, {"delivery": "object-pull"}),
        ({"kind": "kubernetes", "delivery": "shared-mount"}, {"delivery": "shared-mount"}),
        ({"state": "draining"}, {"state": "draining"}),
        ({"capabilities": ["serve", "train", "serve"]}, {"capabilities": ["serve", "train"]}),  # a set: said twice is said once
        ({"capabilities": ["train", "eval", "serve", "env"]}, {"capabilities": ["train", "eval", "serve", "env"]}),
        ({"config": {"gang_deadline_seconds": "90"}}, {"config": {"gang_deadline_seconds": "90"}, "warnings": []}),
    ],
)
async def test_fleet_is_created_as_said(database: str, tmp_path: Path, given: dict[str, Any], answered: dict[str, Any]) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        made = await http.post("/api/fleets", json=LAB | given)
        assert made.status_code == 201
        assert {name: made.json()[name] for name in answered} == answered
        assert (await http.get("/api/fleets/lab")).json() == made.json()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"capabilities": []}, "capabilities"),
        ({"capabilities": ["fly"]}, "capabilities[0]"),
        ({"state": "gone"}, "state"),
        ({"project": "vision"}, "project"),
        ({"visibility": "project"}, "project"),
        ({"config": {"storage_root": "relative"}}, "config.storage_root"),
        ({"config": {"serving_port_range": "1-2"}}, "config.serving_port_range"),
        ({"id": "other"}, "id"),
        ({"kind": "slurm"}, "kind"),
        ({"delivery": "object-pull"}, "delivery"),
    ],
)
async def test_bad_change_is_refused_naming_the_field_and_nothing_changes(
    database: str, tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    """R-FLT-01, R-FLT-02, R-FLT-10: also what is good in the same request is not done."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        made = (await http.post("/api/fleets", json=LAB)).json()
        refused = await http.patch("/api/fleets/lab", json={"capabilities": ["eval"], "config": {"odd": "1"}} | change)
        assert (refused.status_code, refused.json()["field"]) == (422, field)
        assert (await http.get("/api/fleets/lab")).json() == made


async def test_all_that_may_change_changes(database: str, tmp_path: Path) -> None:
    """R-FLT-01: and what is not named stays; `config` is given as a whole."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await http.post("/api/fleets", json=LAB | {"config": {"storage_root": "/srv", "odd": "1"}})
        for change in ({"capabilities": ["eval", "serve"]}, {"state": "disabled"}, {"config": {"gang_deadline_seconds": "60"}}):
            before = (await http.get("/api/fleets/lab")).json()
            after = (await http.patch("/api/fleets/lab", json=change)).json()
            assert after == before | change | {"warnings": after["warnings"]}
        assert after["warnings"] == []
        assert (await http.patch("/api/fleets/absent", json={"state": "active"})).status_code == 404


async def test_more_fleets_than_a_placement_looks_at_are_refused(database: str, tmp_path: Path) -> None:
    """R-PLC-01: a Fleet beyond them would be a candidate for nothing that does not name it, and nobody would be told."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await http.post("/api/fleets", json=LAB)
        sql = (
            "INSERT INTO fleet (id, kind, delivery, capabilities, visibility, state, config, created_at)"
            " SELECT 'like-' || n, kind, delivery, capabilities, visibility, state, config, created_at FROM fleet, generate_series(2, $1) n"
        )
        await running.storage._db.pool.execute(sql, MOST_FLEETS - 1)
        assert (await http.post("/api/fleets", json=LAB | {"id": "last"})).status_code == 201
        refused = await http.post("/api/fleets", json=LAB | {"id": "one-more"})
        assert (refused.status_code, refused.json()["code"]) == (409, "too-many-fleets")
        assert (await http.get("/api/fleets/one-more")).status_code == 404


async def test_project_fleet_names_a_project_that_there_is(database: str, tmp_path: Path) -> None:
    """R-FLT-01: at creation and at a change; back to public it has none."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        private = {"visibility": "project", "project": "lidar"}
        assert (await http.post("/api/fleets", json=LAB | private)).json()["field"] == "project"
        await http.post("/api/fleets", json=LAB)
        assert (await http.patch("/api/fleets/lab", json=private)).json()["field"] == "project"
        assert (await http.get("/api/fleets/lab")).json()["visibility"] == "public"
        assert (await http.post("/api/projects", json={"id": "lidar"})).status_code == 201
        for change, answered in ((private, "lidar"), ({"state": "draining"}, "lidar"), ({"visibility": "public"}, None)):
            assert (await http.patch("/api/fleets/lab", json=change)).json()["project"] == answered


async def test_unread_config_keys_are_kept_warned_about_and_logged(
    database: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """R-FLT-03: on create, on change, on every read; a key of another kind of Fleet has no effect either."""
    async with open_server(database, tmp_path) as running, running.admin() as http, running.user() as bob:
        made = (await http.post("/api/fleets", json=LAB | {"config": {"slurm_partition": "gpu"}})).json()
        assert "slurm_partition" in made["warnings"][0]
        changed = (await http.patch("/api/fleets/lab", json={"config": {"gang_deadlin_seconds": "9"}})).json()
        assert changed["config"] == {"gang_deadlin_seconds": "9"}
        (warning,) = changed["warnings"]
        assert "'gang_deadlin_seconds'" in warning
        assert "'gang_deadline_seconds'" in warning
        assert (await bob.get("/api/fleets/lab")).json()["warnings"] == [warning]
        assert (await bob.get("/api/fleets")).json()["items"][0]["warnings"] == [warning]
    logged = "".join(capfd.readouterr())
    assert "slurm_partition" in logged
    assert "gang_deadlin_seconds" in logged


async def test_nothing_but_a_request_creates_a_fleet(database: str, tmp_path: Path) -> None:
    """R-FLT-04: start-up, placement and a restart do not, also after the last one was deleted; existing ones stay."""
    async with open_server(database, tmp_path) as running, running.admin() as http, running.user() as bob:
        assert (await http.get("/api/fleets")).json()["items"] == []
        refused = (await bob.post("/api/jobs", json=job_spec())).json()
        assert (refused["code"], refused.get("reasons", [])) == ("no-fleet-fits", [])
        assert (await bob.post("/api/jobs", json=job_spec(fleet="lab"))).status_code == 404
        await look(running)
        assert (await http.get("/api/fleets")).json()["items"] == []


async def test_fleets_outlive_a_restart_and_stay_deleted(database: str, tmp_path: Path) -> None:
    """R-FLT-04."""
    for start in ("first", "second"):
        (tmp_path / start).mkdir()
        async with open_server(database, tmp_path / start, accounts=start == "first") as running:
            if start == "first":
                for name in ("lab", "gone"):
                    await make_fleet(running, name)
                await running.storage.delete_fleet(FleetId("gone"))
            fleets, _ = await running.storage.list_fleets(Page())
            assert [fleet.id for fleet in fleets] == ["lab"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/fleets", LAB | {"id": "mine"}),
        ("PATCH", "/api/fleets/lab", {"state": "draining"}),
        ("DELETE", "/api/fleets/lab", None),
        ("GET", "/api/fleets/lab/join-tokens", None),
        ("POST", "/api/fleets/lab/join-tokens", None),
        ("DELETE", "/api/fleets/lab/join-tokens/jt-1", None),
        ("PATCH", "/api/nodes/node-1", {"state": "draining"}),
        ("DELETE", "/api/nodes/node-1", None),
    ],
)
async def test_only_administrators_change_fleets(database: str, tmp_path: Path, method: str, path: str, body: Any) -> None:
    """R-FLT-05: users pick Fleets to submit to."""
    async with open_server(database, tmp_path) as running, running.user() as bob:
        await make_fleet(running)
        refused = await bob.request(method, path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert (await bob.get("/api/fleets/lab")).json()["state"] == "active"


async def test_fleet_is_deleted_only_when_empty_and_says_what_is_left(database: str, tmp_path: Path) -> None:
    """R-FLT-06: Nodes and work that has not ended; ended work keeps the Fleet's name (R-FLT-09)."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        node, _ = await ready_node(running, await make_fleet(running))
        job = (await http.post("/api/jobs", json=job_spec(fleet="lab"))).json()["id"]
        await place_job(running, JobId(job), node)
        refused = await http.delete("/api/fleets/lab")
        assert (refused.status_code, refused.json()["code"]) == (409, "fleet-in-use")
        assert [(one["code"], one["subject"]) for one in refused.json()["reasons"]] == [("node", node), ("job", job)]
        await http.delete(f"/api/nodes/{node}?force=true")
        for _ in range(3):
            await look(running)
        assert (await http.get(f"/api/jobs/{job}")).json()["state"] == "failed"
        assert (await http.delete("/api/fleets/lab")).status_code == 204
        assert (await http.get("/api/fleets/lab")).status_code == 404
        assert (await http.get(f"/api/jobs/{job}")).json()["fleet"] == "lab"
        assert (await http.get("/api/jobs", params={"fleet": "lab"})).json()["items"][0]["id"] == job


@pytest.mark.parametrize(
    ("fleet", "code", "says"),
    [
        ({"capabilities": ["eval", "serve", "env"]}, "capability", "'train'"),  # R-FLT-07
        ({"state": "draining"}, "fleet-state", "draining"),
        ({"state": "disabled"}, "fleet-state", "disabled"),
        ({"kind": "slurm"}, "back-end", "'slurm'"),
        ({"kind": "kubernetes"}, "back-end", "'kubernetes'"),
    ],
)
async def test_fleet_that_cannot_take_the_work_refuses_it_at_admission(
    database: str, tmp_path: Path, fleet: dict[str, Any], code: str, says: str
) -> None:
    """R-FLT-01, R-FLT-07: named or not, with the reason, and nothing is written."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        name = await make_fleet(running, **fleet)
        if fleet.get("kind", "node") == "node":
            await ready_node(running, name)
        for spec, expected in ((job_spec(fleet="lab"), "fleet-refused"), (job_spec(), "no-fleet-fits")):
            refused = (await http.post("/api/jobs", json=spec)).json()
            assert (refused["status"], refused["code"]) == (422, expected)
            (reason,) = refused["reasons"]
            assert (reason["code"], reason["subject"]) == (code, "lab")
            assert says in reason["detail"]
        assert (await http.get("/api/jobs")).json()["items"] == []


async def test_draining_a_fleet_keeps_what_runs_and_takes_nothing_new(database: str, tmp_path: Path) -> None:
    """R-LIV-04, "Drain, cordon, remove": neither state kills anything; a job that waits there goes on waiting."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        node, _ = await ready_node(running, await make_fleet(running))
        first, second = [JobId((await http.post("/api/jobs", json=job_spec(fleet="lab"))).json()["id"]) for _ in range(2)]
        await place_job(running, first, node)
        for state in ("draining", "disabled"):
            await http.patch("/api/fleets/lab", json={"state": state})
            assert (await http.get(f"/api/jobs/{first}")).json()["state"] == "preparing"
            assert (await http.get(f"/api/jobs/{second}")).json()["state"] == "queued"
            reasons = (await http.get(f"/api/nodes/{node}")).json()["ready"]["reasons"]
            assert any(state in reason for reason in reasons)


async def test_other_kinds_are_registered_and_enrol_nobody(database: str, tmp_path: Path) -> None:
    """R-ENR-08: with the reason, at the Join Token and at the machine."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        token = (await http.post("/api/fleets/lab/join-tokens")).json()["token"]
        for kind in ("slurm", "kubernetes"):
            await make_fleet(running, f"a-{kind}", kind=kind)
            refused = (await http.post(f"/api/fleets/a-{kind}/join-tokens")).json()
            assert (refused["code"], kind in refused["detail"]) == ("not-a-node-fleet", True)
            for fleet in (f"a-{kind}", "absent"):  # whoever has no token of it learns nothing of it
                joined = (await http.post(f"/api/fleets/{fleet}/nodes", json=join_body(token))).json()
                assert joined["code"] == "token-unknown"
                assert "only Fleets of kind 'node'" in joined["detail"]
        assert (await http.post("/api/fleets/lab/nodes", json=join_body(token))).status_code == 201


async def test_config_is_in_effect_for_the_next_attempt_and_moves_no_running_one(database: str, tmp_path: Path) -> None:
    """R-FLT-10: a machine that was told another storage root takes no more work, and says so with both names (R-ENR-11)."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        node = await join_node(running, await make_fleet(running))
        moved = await http.patch("/api/fleets/lab", json={"config": {"storage_root": "/mnt/new"}})
        assert moved.json()["warnings"] == []
        reasons = (await http.get(f"/api/nodes/{node}")).json()["ready"]["reasons"]
        assert any("/srv/tuneplane" in reason and "/mnt/new" in reason for reason in reasons)
        token = (await http.post("/api/fleets/lab/join-tokens")).json()["token"]
        joined = (await http.post("/api/fleets/lab/nodes", json=join_body(token))).json()
        assert any("/srv/tuneplane" in warning and "/mnt/new" in warning for warning in joined["warnings"])
        assert (await running.storage.get_fleet(FleetId("lab"))).config == {"storage_root": "/mnt/new"}
