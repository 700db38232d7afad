"""What waits and why, previews, and lists that stay small: through the HTTP API on the real storage (R-PLC-03, L-L2, L-L4)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from attrs import evolve

from tests.support.postgres import Postgres, database_name
from tests.web.support import IMAGE, job_spec, open_server
from tests.web.world import INVENTORY, connect_node, join_node, make_fleet, ready_node
from tuneplane.control.allocator import JOBS_A_LOOK
from tuneplane.control.api_jobs import JOBS_LOOKED_AT

pytestmark = pytest.mark.postgres

CAUSES = ("insufficient-gpus", "insufficient-cpus", "insufficient-memory", "no-free-port", "not-ready", "behind")
WAITING_SECONDS = 0.2  # L-L4


def queue(postgres: Postgres, database: str, count: int, like: str) -> None:
    """``count`` more waiting jobs ``like`` one that was submitted: of six causes, a sixth each."""
    made = [json.dumps([{"code": code, "detail": f"why {code}", "subject": "n1", "unit": "", "need": 4, "have": 1}]) for code in CAUSES]
    reasons = ", ".join(f"'{one}'" for one in made)
    postgres.sql(
        "INSERT INTO job (id, name, project, owner, fleet_id, spec, image, trace, priority, created_at, waiting_code, waiting_reasons,"
        " waiting_since) SELECT 'job-' || n, name, project, owner, fleet_id, spec, image, trace, priority, created_at - n * interval '1 s',"
        f" 'no-free-capacity', (ARRAY[{reasons}])[1 + n % 6]::json, created_at - n * interval '1 s'"
        f" FROM job, generate_series(1, {count}) AS n WHERE id = '{like}'",
        database_name(database),
    )


async def test_waiting_is_grouped_by_cause_with_counts(database: str, tmp_path: Path, postgres: Postgres) -> None:
    """L-L4: 500 waiting jobs of 6 causes; of the caller's own jobs unless he is an administrator (R-PLC-02)."""
    async with open_server(database, tmp_path) as running, running.user() as bob, running.admin() as ada:
        await ready_node(running, await make_fleet(running))
        first = (await bob.post("/api/jobs", json=job_spec())).json()["id"]
        queue(postgres, database, 499, first)
        took = []
        for _ in range(5):  # the first prepares its statement; the fastest is the one that others left alone
            began = time.perf_counter()
            page = await ada.get("/api/waiting")
            took.append(time.perf_counter() - began)
        assert min(took) < WAITING_SECONDS
        found = page.json()
        assert found["jobs"] == 500
        counts = {one["cause"]: one["jobs"] for one in found["items"]}
        assert counts == dict(zip(CAUSES, (83, 84, 83, 83, 83, 83), strict=True)) | {"in-line": 1}
        cpus = next(one for one in found["items"] if one["cause"] == "insufficient-cpus")
        assert (cpus["fleet"], cpus["code"], cpus["oldest"], cpus["detail"]) == (
            "lab",
            "no-free-capacity",
            "job-499",
            "why insufficient-cpus",
        )
        assert found == (await bob.get("/api/waiting?fleet=lab")).json()
        assert (await bob.get("/api/waiting?fleet=other")).json()["jobs"] == 0
        again = await bob.get("/api/waiting", headers={"If-None-Match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


async def test_somebody_elses_waiting_jobs_are_not_counted(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.user() as bob, running.admin() as ada:
        await ready_node(running, await make_fleet(running))
        assert (await ada.post("/api/jobs", json=job_spec())).status_code == 201
        assert (await bob.get("/api/waiting")).json() == {"items": [], "next_cursor": None, "jobs": 0}
        assert (await ada.get("/api/waiting")).json()["jobs"] == 1


async def test_a_job_that_nobody_has_looked_at_says_so(database: str, tmp_path: Path) -> None:
    """R-PLC-03: every waiting job shows why, and since when."""
    async with open_server(database, tmp_path) as running, running.user() as bob:
        await ready_node(running, await make_fleet(running))
        job = (await bob.post("/api/jobs", json=job_spec())).json()
        found = (await bob.get(f"/api/jobs/{job['id']}")).json()
        assert (found["waiting"]["code"], found["waiting"]["since"]) == ("in-line", job["created_at"])
        (listed,) = (await bob.get("/api/jobs")).json()["items"]
        assert listed["waiting"]["code"] == "in-line"


async def test_the_list_is_short_and_knows_when_nothing_changed(database: str, tmp_path: Path) -> None:
    """L-L2: no specifications in the list, and nothing sent again that the client has."""
    async with open_server(database, tmp_path) as running, running.user() as bob:
        await ready_node(running, await make_fleet(running))
        for _ in range(3):
            await bob.post("/api/jobs", json=job_spec(env={"LONG": "x" * 100_000}))
        page = await bob.get("/api/jobs")
        assert len(page.content) < 3 * 2000
        assert {"spec", "attempts", "image"}.isdisjoint(page.json()["items"][0])
        for known in (page.headers["etag"], f'"other", W/{page.headers["etag"]}'):
            again = await bob.get("/api/jobs", headers={"If-None-Match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", page.headers["etag"])
        await bob.post("/api/jobs", json=job_spec())
        changed = await bob.get("/api/jobs", headers={"If-None-Match": page.headers["etag"]})
        assert (changed.status_code, len(changed.json()["items"])) == (200, 4)


async def test_preview_is_what_a_submission_would_meet_and_creates_nothing(database: str, tmp_path: Path, postgres: Postgres) -> None:
    """R-PLC-03: its place in the queue counts, and what keeps machines free for whom."""
    assert JOBS_LOOKED_AT == JOBS_A_LOOK
    async with open_server(database, tmp_path) as running, running.user() as bob:
        fleet = await make_fleet(running)
        for number in range(2):
            node = await join_node(running, fleet)
            await connect_node(running, fleet, node, evolve(INVENTORY, route_address=f"10.0.0.{number}"))
        answer = (await bob.post("/api/jobs/preview", json=job_spec())).json()
        assert (answer["fleet"], answer["image"], answer["placed"], answer["ahead"]) == ("lab", IMAGE, True, 0)
        assert (await bob.get("/api/jobs")).json()["items"] == []
        gang = job_spec(resources={"pools": [{"nodes": 2, "cpus": 6}]})
        ahead = [(await bob.post("/api/jobs", json=gang)).json()["id"] for _ in range(2)]
        late = (await bob.post("/api/jobs/preview", json=job_spec(resources={"pools": [{"cpus": 6}]}))).json()
        assert (late["placed"], late["ahead"], late["waiting_code"]) == (False, 2, "no-free-capacity")
        assert [(one["code"], one["need"], one["have"]) for one in late["reasons"]] == [("insufficient-cpus", 6000, 2000)] * 2
        urgent = (await bob.post("/api/jobs/preview", json=job_spec(resources={"pools": [{"cpus": 6}]}, priority=1))).json()
        assert (urgent["placed"], urgent["ahead"]) == (True, 0)
        name = database_name(database)
        postgres.sql("UPDATE job SET created_at = created_at - interval '1 h'", name)
        small = (await bob.post("/api/jobs/preview", json=job_spec(resources={"pools": [{"cpus": 1}]}))).json()
        assert (small["waiting_code"], small["reasons"][0]["subject"]) == ("behind", ahead[1])
        assert small["reasons"][0]["detail"] == f"waits behind job {ahead[1]}, for which 2 machines are kept free"


async def test_preview_refuses_as_the_submission_does(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.user() as bob:
        fleet = await make_fleet(running)
        await connect_node(running, fleet, await join_node(running, fleet))
        for spec in (job_spec(resources={"pools": [{"cpus": 4000}]}), job_spec(fleet="absent"), job_spec(command=[])):
            answers = [(await bob.post(path, json=spec)).json() for path in ("/api/jobs", "/api/jobs/preview")]
            assert {**answers[0], "trace": ""} == {**answers[1], "trace": ""}
