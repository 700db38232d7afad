"""R-FLT-08, R-PLC-02: a project's Fleet, and all that is on it, is *not found* from outside: by status, body and work done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from attrs import define, field

from tests.web.support import Running, job_spec, open_server
from tests.web.world import drive, join_body, make_fleet, make_project, place_job, ready_node
from tuneplane.domain.ids import JobId
from tuneplane.domain.launch_table import MemberPhase
from tuneplane.storage.database import Database
from tuneplane.web.feed import Feed
from tuneplane.web.routes import API_ROUTES, ROUTES
from tuneplane.web.routing import Route, Who

pytestmark = [pytest.mark.postgres, pytest.mark.seconds(90)]
P = MemberPhase
ABSENT = {"fleet": "veilec", "node": "node-aaaaaaaaaaaaaaaa", "job": "job-aaaaaaaaaaaaaaaa"}


@define
class Hidden:
    """What is on a Fleet that only the members of a project see."""

    names: dict[str, str] = field(factory=dict)  # path part -> the name of what is there


async def _hide(running: Running, ada: httpx.AsyncClient) -> Hidden:
    """A Fleet of project ``vision`` with a Node, and a running job of an administrator on it."""
    fleet = await make_fleet(running, "veiled", visibility="project", project="vision")
    node, epoch = await ready_node(running, fleet)
    job = JobId((await ada.post("/api/jobs", json=job_spec(fleet="veiled"))).json()["id"])
    member = await place_job(running, job, node)
    await drive(running, node, epoch, member, P.PREPARED, P.RUNNING)
    running.logs.write(member, b"secret\n")
    token = (await ada.post("/api/fleets/veiled/join-tokens")).json()["id"]
    return Hidden({"fleet": fleet, "node": node, "job": job, "member": member, "token": token})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements and units that the database was asked for by requests, in order: the feed, which looks by itself, sleeps."""
    made: list[str] = []
    for name in ("fetch", "fetchrow", "fetchval", "read", "write"):
        real = getattr(Database, name)

        async def counted(self: Database, first: Any, *args: Any, _real: Any = real, _name: str = name) -> Any:
            made.append(f"{_name} {first if isinstance(first, str) else first.__name__}")
            return await _real(self, first, *args)

        monkeypatch.setattr(Database, name, counted)

    async def asleep(*_: Any) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Feed, "run", asleep)
    return made


def _addresses(route: Route, names: dict[str, str]) -> str | None:
    """The route's address with these names; None when it is about none of them."""
    if not any(f"{{{part}}}" in route.path for part in ABSENT):
        return None
    address = route.path
    for part, name in {"series": "x", "card": "GPU-x", "container": "c", **names}.items():
        address = address.replace(f"{{{part}}}", name)
    return address


BODIES = {
    "POST /api/fleets/{fleet}/nodes": join_body("tpj_" + "x" * 43),
}


async def _ask(http: httpx.AsyncClient, asked: list[str], route: Route, address: str) -> tuple[Any, ...]:
    """All that an outsider can tell from the answer, and what was done for it."""
    body = BODIES.get(f"{route.method} {route.path}")
    await http.get("/api/whoami")  # the token's use is noted at most once a minute: not between the two that are compared
    asked.clear()
    answer = await http.request(route.method, address, content=json.dumps(body).encode() if body else None, headers=_json(body))
    await answer.aread()
    told = answer.json()
    told.pop("trace", None)
    headers = {name for name in answer.headers if name not in ("date", "x-trace-id")}
    return answer.status_code, json.dumps(told, sort_keys=True), headers, tuple(asked)


def _json(body: object) -> dict[str, str]:
    return {"Content-Type": "application/json"} if body else {}


async def test_every_route_about_something_hidden_answers_as_about_nothing(database: str, tmp_path: Path, asked: list[str]) -> None:
    """Generated from the routes: the same status, body and statements, whether it is there or not."""
    async with open_server(database, tmp_path) as running, running.admin() as ada, running.user() as bob:
        hidden = await _hide(running, ada)
        absent = {**hidden.names, **ABSENT}
        tried = 0
        for route in API_ROUTES:
            there, nowhere = _addresses(route, hidden.names), _addresses(route, absent)
            if there is None or nowhere is None:
                continue
            tried += 1
            for query in ("", "?follow=true") if route.path.endswith("/logs") else ("",):
                is_there = await _ask(bob, asked, route, there + query)
                is_not = await _ask(bob, asked, route, nowhere + query)
                spelt = is_not[1]
                for part, name in ABSENT.items():
                    spelt = spelt.replace(name, hidden.names[part])
                assert is_there == (is_not[0], spelt, *is_not[2:]), f"{route.method} {route.path}{query}"
                assert is_there[0] in (403, 404, 422), f"{route.method} {route.path}{query}: {is_there}"
                if route.method == "GET" and route.who is Who.USER:
                    assert is_there[0] == 404, route.path
        assert tried >= 15


async def test_what_names_something_hidden_in_a_body_or_a_query_is_answered_as_naming_nothing(
    database: str, tmp_path: Path, asked: list[str]
) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as ada, running.user() as bob:
        hidden = await _hide(running, ada)
        job, nothing = hidden.names["job"], ABSENT["job"]
        pairs = [(f"/api/events?job={job}", f"/api/events?job={nothing}"), ("/api/jobs?fleet=veiled", "/api/jobs?fleet=veilec")]
        for there, nowhere in pairs:
            one, other = await bob.get(there), await bob.get(nowhere)
            assert _told(one) == _told(other).replace(nothing, job)
        for path in ("/api/jobs", "/api/jobs/preview"):
            asked.clear()
            one = await bob.post(path, json=job_spec(fleet="veiled"))
            for_one = tuple(asked)
            asked.clear()
            other = await bob.post(path, json=job_spec(fleet="veilec"))
            assert (one.status_code, _told(one)) == (404, _told(other).replace("veilec", "veiled"))
            assert for_one == tuple(asked)
        for project in ("vision", "nowhere"):
            refused = (await bob.post("/api/jobs", json={**job_spec(), "metadata": {"name": "x", "project": project}})).json()
            assert (refused["code"], refused["field"]) == ("invalid-input", "metadata.project")
            assert (
                refused["detail"].replace(project, "P")
                == "metadata.project: you are a member of no project 'P'; leave it out for a job of your own"
            )


def _told(answer: httpx.Response) -> str:
    value = answer.json()
    value.pop("trace", None)
    return json.dumps(value, sort_keys=True)


LISTS = (
    "/api/waiting",
    "/api/fleets",
    "/api/fleets?limit=1",
    "/api/nodes",
    "/api/nodes?limit=1",
    "/api/jobs",
    "/api/jobs?limit=1",
    "/api/whoami",
)


async def test_lists_refusals_and_pages_tell_nothing_of_what_is_hidden(database: str, tmp_path: Path) -> None:
    """Before and after: an outsider's answers are the same, byte by byte; so are the reasons why no Fleet fits."""
    async with open_server(database, tmp_path) as running, running.admin() as ada, running.user() as bob:
        too_large = job_spec(resources={"pools": [{"cpus": 4000}]})

        async def look() -> list[str]:
            answers = [_told(await bob.get(path)) for path in LISTS]
            return [
                *answers,
                _told(await bob.post("/api/jobs", json=too_large)),
                _told(await bob.post("/api/jobs/preview", json=too_large)),
            ]

        before = await look()
        hidden = await _hide(running, ada)
        assert await look() == before
        bob.event_hooks["response"] = []  # pages are not in the document
        for route in ROUTES:
            if route.page is not None and route.who is Who.USER and "{" not in route.path:
                text = (await bob.get(route.path)).text
                assert not [name for name in hidden.names.values() if name in text], route.path
        assert (await bob.get(f"/jobs/{hidden.names['job']}")).status_code == 404
        assert "veiled" not in (await bob.get("/metrics")).text


async def test_members_see_the_fleet_and_each_others_jobs_and_stop_only_their_own(database: str, tmp_path: Path) -> None:
    """Who sees whose jobs: the members of the job's project; to stop or retry one takes its owner, or an administrator."""
    async with open_server(database, tmp_path) as running, running.admin() as ada, running.user() as bob:
        await make_project(running, "vision", "bob", "ada")
        await ready_node(running, await make_fleet(running, "veiled", visibility="project", project="vision"))
        shared = {**job_spec(fleet="veiled"), "metadata": {"name": "shared", "project": "vision"}}
        theirs = (await ada.post("/api/jobs", json=shared)).json()["id"]
        own = (await ada.post("/api/jobs", json=job_spec(fleet="veiled"))).json()["id"]
        assert (await bob.get(f"/api/jobs/{theirs}")).json()["owner"] == "ada"
        assert [job["id"] for job in (await bob.get("/api/jobs")).json()["items"]] == [theirs]
        assert (await bob.get(f"/api/jobs/{own}")).status_code == 404, "a job of no project is its owner's alone"
        for act in ("stop", "retry"):
            refused = await bob.post(f"/api/jobs/{theirs}/{act}")
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert (await bob.get(f"/api/jobs/{theirs}/timeline")).status_code == 200
        mine = (await bob.post("/api/jobs", json=shared)).json()["id"]
        assert (await bob.post(f"/api/jobs/{mine}/stop")).status_code == 202
        assert (await ada.post("/api/jobs", json={**shared, "metadata": {"name": "x", "project": "nowhere"}})).status_code == 422


async def test_fleet_of_a_project_that_does_not_exist_is_refused(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as ada:
        await make_fleet(running)
        made = {"id": "x", "kind": "node", "capabilities": ["train"], "visibility": "project", "project": "nowhere"}
        for answer in (
            await ada.post("/api/fleets", json=made),
            await ada.post("/api/fleets", json={**made, "project": "default"}),
            await ada.patch("/api/fleets/lab", json={"visibility": "project", "project": "nowhere"}),
        ):
            assert (answer.status_code, answer.json()["field"]) == (422, "project")
        assert (await ada.post("/api/projects", json={"id": "default"})).status_code == 422
