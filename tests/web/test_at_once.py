"""R-ADM-01: what happens to an account takes effect at once everywhere: in requests and open streams, in every API process.

Acts go to one process, what is looked at is another that shares only the database. The streams' own periodic check is put
off for ever, so that only the account's change can end them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from attrs import evolve, frozen

from tests.web.events import Events, open_events
from tests.web.support import PASSWORD, SECRET, TIMINGS, Running, job_spec, make_certificate, now, open_server, open_site
from tests.web.world import drive, make_fleet, make_project, place_job, ready_node
from tuneplane.actors import open_system
from tuneplane.control.api import TokenDraft
from tuneplane.domain import codec
from tuneplane.domain.accounts import AccountChange
from tuneplane.domain.errors import InvalidInput, NotFound, Refused
from tuneplane.domain.fleets import Visibility
from tuneplane.domain.ids import FleetId, JobId, ProjectId, UserName
from tuneplane.domain.jobs import Page
from tuneplane.domain.jobspec import JobSpec
from tuneplane.domain.launch_table import MemberPhase
from tuneplane.web import streams
from tuneplane.web.server import WhereListening, make_site, site_tree
from tuneplane.web.sessions import CSRF_HEADER

pytestmark = [pytest.mark.postgres, pytest.mark.seconds(60)]
P = MemberPhase


@asynccontextmanager
async def open_replica(running: Running, tmp: Path) -> AsyncIterator[Running]:
    """Another API process, as far as memory goes: it shares the storage and the secret, and knows of no request but its own."""
    site = make_site(running.api, running.storage, jwt_secret=SECRET, clock=now, entropy=running.site.entropy)
    with make_certificate(tmp) as paths:
        root = site_tree(site, listen=("127.0.0.1", 0), certificate=paths.certificate, key=paths.key, timings=TIMINGS)
        async with open_system("replica", root) as system:
            _, bound = await system.find("web/server").ask(WhereListening(), 5)
            other = Running(running.api, running.storage, running.logs, site, running.admin_token, running.user_token)
            other.url, other.ca, other.system = f"https://localhost:{bound}", paths.ca, system
            yield other


def _folder(tmp: Path) -> Path:
    """A certificate's own."""
    (tmp / "other").mkdir()
    return tmp / "other"


@pytest.fixture
def only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "ALIVE_SECONDS", 1e6)
    monkeypatch.setattr(streams, "CHECK_SECONDS", 1e6)


async def _ended(events: Events) -> dict[str, Any]:
    """The error by which the stream ends; it must come without anybody's waiting for the periodic check."""
    with trio.fail_after(30):
        async for name, data in events:
            if name == "error":
                return dict(data)
    raise AssertionError("the stream ended without a word")


async def _running_job(running: Running, http: httpx.AsyncClient, **fleet: Any) -> JobId:
    node, epoch = await ready_node(running, await make_fleet(running, **fleet))
    job = JobId((await http.post("/api/jobs", json=job_spec())).json()["id"])
    member = await place_job(running, job, node)
    await drive(running, node, epoch, member, P.PREPARED, P.RUNNING)
    running.logs.write(member, b"hello\n")
    return job


async def _disable(ada: httpx.AsyncClient, bob: httpx.AsyncClient) -> int:
    return (await ada.patch("/api/users/bob", json={"disabled": True})).status_code


async def _revoke(ada: httpx.AsyncClient, bob: httpx.AsyncClient) -> int:
    return (await ada.patch("/api/users/bob", json={"revoke_tokens": True})).status_code


@pytest.mark.parametrize("act", [_disable, _revoke])
async def test_account_that_loses_its_tokens_loses_requests_and_streams_in_every_process(
    database: str, tmp_path: Path, only_when_told: None, act: Callable[..., Awaitable[int]]
) -> None:
    async with open_server(database, tmp_path) as running, open_replica(running, _folder(tmp_path)) as other:
        async with running.admin() as ada, other.user() as bob:
            job = await _running_job(running, bob)
            async with open_events(bob, "/api/events") as events, open_events(bob, f"/api/jobs/{job}/logs?follow=true") as log:
                assert (await anext(events))[0] == "changed"
                assert (await anext(log))[0] == "log"
                assert await act(ada, bob) == 200
                assert (await bob.get("/api/whoami")).status_code == 401
                assert (await _ended(events))["code"] == "unauthenticated"
                assert (await _ended(log))["code"] == "unauthenticated"
            assert (await ada.get(f"/api/jobs/{job}")).json()["state"] == "running", "what he started runs on"


@asynccontextmanager
async def _signed_in(running: Running, name: str) -> AsyncIterator[httpx.AsyncClient]:
    async with running.client() as browser:
        answer = await browser.post("/api/auth/login", json={"username": name, "password": PASSWORD})
        browser.headers[CSRF_HEADER] = answer.json()["csrf_token"]
        cookie = answer.headers["set-cookie"].split(";")[0]
        browser.cookies.clear()
        browser.headers["Cookie"] = cookie
        yield browser


async def _sign_out(ada: httpx.AsyncClient, browser: httpx.AsyncClient) -> int:
    return (await browser.post("/api/auth/logout")).status_code


async def _new_password(ada: httpx.AsyncClient, browser: httpx.AsyncClient) -> int:
    return (await ada.patch("/api/users/bob", json={"password": PASSWORD + "!"})).status_code


@pytest.mark.parametrize(("act", "tokens_live"), [(_sign_out, True), (_new_password, True), (_disable, False)])
async def test_session_that_ends_is_over_in_every_process_cookie_stream_and_all(
    database: str, tmp_path: Path, only_when_told: None, act: Callable[..., Awaitable[int]], tokens_live: bool
) -> None:
    async with open_server(database, tmp_path) as running, open_replica(running, _folder(tmp_path)) as other:
        async with running.admin() as ada, _signed_in(running, "bob") as here, _signed_in(other, "bob") as mine:
            mine.headers.update({name: here.headers[name] for name in ("Cookie", CSRF_HEADER)})  # one session, in two processes
            assert (await mine.get("/api/whoami")).json()["username"] == "bob"
            async with open_events(mine, "/api/events") as events:
                assert (await anext(events))[0] == "changed"
                assert await act(ada, here) in (200, 204)
                assert (await mine.get("/api/whoami")).status_code == 401
                assert (await _ended(events))["code"] == "unauthenticated"
            async with other.user() as token:
                assert ((await token.get("/api/whoami")).status_code == 200) is tokens_live


async def test_member_taken_out_loses_sight_and_streams_of_what_is_the_projects(
    database: str, tmp_path: Path, only_when_told: None
) -> None:
    """R-FLT-08: his own job on the project's Fleet included."""
    async with open_server(database, tmp_path) as running, open_replica(running, _folder(tmp_path)) as other:
        async with running.admin() as ada, other.user() as bob:
            await make_project(running, "vision", "bob")
            job = await _running_job(running, bob, fleet="hidden", visibility="project", project="vision")
            assert (await bob.get("/api/whoami")).json()["projects"] == ["vision"]
            async with open_events(bob, f"/api/events?job={job}") as events, open_events(bob, f"/api/jobs/{job}/logs?follow=true") as log:
                assert (await anext(events))[0] == "changed"
                assert (await anext(log))[0] == "log"
                assert (await ada.delete("/api/projects/vision/members/bob")).status_code == 204
                assert (await _ended(log))["code"] == "not-found"
                assert (await _ended(events))["code"] == "not-found"
            for path in (f"/api/jobs/{job}", "/api/fleets/hidden", f"/api/jobs/{job}/logs"):
                assert (await bob.get(path)).status_code == 404, path
            assert (await bob.post(f"/api/jobs/{job}/stop")).status_code == 404
            assert (await bob.get("/api/jobs")).json()["items"] == []


async def test_fleet_that_becomes_a_projects_own_leaves_the_sight_of_all_others(
    database: str, tmp_path: Path, only_when_told: None
) -> None:
    """R-FLT-08: a Fleet's visibility may change; who followed a log there follows it no more."""
    async with open_server(database, tmp_path) as running, running.admin() as ada, running.user() as bob:
        job = await _running_job(running, bob)
        await make_project(running, "vision")
        async with open_events(bob, f"/api/jobs/{job}/logs?follow=true") as log, open_events(bob, "/api/events") as events:
            assert (await anext(log))[0] == "log"
            await anext(events)
            assert (await ada.patch("/api/fleets/lab", json={"visibility": "project", "project": "vision"})).status_code == 200
            assert (await _ended(log))["code"] == "not-found"
            with trio.fail_after(20):
                _, data = await anext(events)
            assert ("fleet", "lab", "") in {(change["kind"], change["id"], change["state"]) for change in data["changes"]}


async def test_administrator_made_a_user_hears_only_what_a_user_may(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as ada:
        caller = await running.api.accounts.user_of_token(running.admin_token)
        await running.api.accounts.create_user(caller.username, "cy", "admin", PASSWORD)
        token = (await running.api.accounts.create_token("cy", TokenDraft(name="t"))).token  # type: ignore[arg-type]
        async with running.client(token) as cy, open_events(cy, "/api/events") as events:
            await anext(events)
            assert (await ada.patch("/api/users/cy", json={"role": "user"})).status_code == 200
            assert (await cy.get("/api/users")).status_code == 403
            with trio.fail_after(20):
                while (told := await anext(events))[1]["complete"] is not False:
                    pass
            assert told[1]["changes"] == []
            await make_fleet(running, "hidden", visibility="project", project="vision")
            await make_fleet(running, "open")
            with trio.fail_after(20):
                _, data = await anext(events)
            assert [(change["kind"], change["id"]) for change in data["changes"]] == [("fleet", FleetId("open"))]


@frozen
class SlowRegistry:
    """An image source in front of which something happens."""

    meanwhile: Callable[[], Awaitable[object]]

    async def resolve(self, image: str) -> str:
        await self.meanwhile()
        return f"{image}@sha256:{'0' * 64}"


@pytest.mark.parametrize("what", ["disabled", "out of the project", "out of the Fleet"])
async def test_who_is_shut_out_while_an_image_is_resolved_submits_nothing(database: str, what: str) -> None:
    """R-ADM-01, R-FLT-08: a registry may take ten seconds, and at once is at once."""
    async with open_site(database) as running:
        fleet, storage, ada, bob = await make_fleet(running), running.storage, UserName("ada"), UserName("bob")
        await ready_node(running, fleet)
        await make_project(running, "vision", bob)

        async def meanwhile() -> None:
            if what == "disabled":
                await storage.update_user(bob, AccountChange(disabled=True), ada, now())
            elif what == "out of the project":
                await storage.set_member(ProjectId("vision"), bob, False, ada, now())
            else:
                await make_project(running, "secret")
                kept = {"capabilities": None, "state": None, "config": None}
                await storage.update_fleet(fleet, visibility=Visibility.PROJECT, project="secret", **kept)  # type: ignore[arg-type]

        caller = await running.api.accounts.user_of_token(running.user_token)
        spec = codec.decode(JobSpec, job_spec())
        spec = evolve(spec, metadata=evolve(spec.metadata, project="vision"))
        jobs = evolve(running.api.jobs, images=SlowRegistry(meanwhile))
        with pytest.raises((Refused, NotFound, InvalidInput)):
            await jobs.submit(caller, spec)
        assert await storage.list_jobs(Page(limit=10)) == ([], None)
