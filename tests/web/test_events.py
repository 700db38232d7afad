"""GET /api/events: what changed, to whom it may concern, and never a stale state as a fresh one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.postgres import TEMPLATE, open_postgres
from tests.web.events import open_events
from tests.web.support import PASSWORD, job_spec, make_app, open_server, open_site
from tests.web.world import join_node, make_fleet, ready_node
from tuneplane.domain.ids import FleetId
from tuneplane.web import feed as feed_module
from tuneplane.web import streams

pytestmark = pytest.mark.postgres


async def _next_changes(events: Any) -> set[tuple[str, str]]:
    with trio.fail_after(10):
        name, data = await anext(events)
    assert name == "changed"
    return {(change["kind"], change["state"]) for change in data["changes"]}


async def test_watcher_is_told_what_changed_after_a_first_look_at_everything(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        async with open_events(http, "/api/events") as events:
            name, data = await anext(events)
            assert (name, data) == ("changed", {"changes": [], "complete": False})
            fleet = await make_fleet(running)
            told = await _next_changes(events)
            assert ("fleet", "active") in told
            assert {kind for kind, _ in told} == {"fleet", "audit"}
            node, _ = await ready_node(running, fleet)
            seen: set[tuple[str, str]] = set()
            while ("node", "connected") not in seen:
                seen |= await _next_changes(events)
            job = (await http.post("/api/jobs", json=job_spec())).json()
            assert ("job", "queued") in await _next_changes(events)
            await http.post(f"/api/jobs/{job['id']}/stop")
            assert ("job", "stopped") in await _next_changes(events)
            await http.delete(f"/api/nodes/{node}?force=true")
            assert ("node", "") in await _next_changes(events)


async def test_users_are_told_only_of_what_they_may_see(database: str, tmp_path: Path) -> None:
    """R-FLT-08."""
    async with open_server(database, tmp_path) as running, running.user() as bob, running.admin() as ada:
        await ready_node(running, await make_fleet(running))
        async with open_events(bob, "/api/events") as events:
            await anext(events)
            await make_fleet(running, "hidden", visibility="project", project="x")
            await join_node(running, FleetId("hidden"))
            await ada.post("/api/jobs", json=job_spec())
            await ada.post("/api/hardware", json={"series": "b300", "card_names": ["NVIDIA B300"]})
            await bob.post("/api/jobs", json=job_spec())
            told: set[tuple[str, str]] = set()
            while ("job", "queued") not in told:
                told |= await _next_changes(events)
            assert told - {("hardware", "known")} == {("job", "queued")}  # the registry is for everybody, the rest is not his


async def test_users_are_told_of_the_hardware_registry(database: str, tmp_path: Path) -> None:
    """R-ADM-04: what the hardware page shows does not stay old."""
    async with (
        open_server(database, tmp_path) as running,
        running.user() as bob,
        running.admin() as ada,
        open_events(bob, "/api/events") as events,
    ):
        await anext(events)
        await ada.post("/api/hardware", json={"series": "b300", "card_names": ["NVIDIA B300"]})
        assert await _next_changes(events) == {("hardware", "known")}
        await ada.delete("/api/hardware/b300")
        assert await _next_changes(events) == {("hardware", "")}


@pytest.mark.seconds(60)
async def test_lost_database_is_told_as_stale_and_readiness_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-TEL-02, R-ADM-04: healthz stays, readyz and every route say 503, the stream stays open and says not fresh."""
    monkeypatch.setattr(feed_module, "FRESH_SECONDS", 1.0)
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.2)
    with open_postgres() as server:
        await trio.to_thread.run_sync(_make_template, server)
        with server.fresh_database(TEMPLATE) as database:
            async with open_server(database, tmp_path) as running, running.admin() as http:
                async with open_events(http, "/api/events", alive=True) as events:
                    await _await_fresh(events, True)
                    server.kill()
                    not_ready = await http.get("/readyz")
                    assert (not_ready.status_code, not_ready.json()["code"]) == (503, "not-ready")
                    assert (await http.get("/healthz")).status_code == 200
                    away = await http.get("/api/fleets")
                    assert (away.status_code, away.json()["code"]) == (503, "storage-unavailable")
                    await _await_fresh(events, False)
                    server.start()
                    await _await_fresh(events, True)
                assert (await http.get("/readyz")).status_code == 200
                assert (await http.get("/api/fleets")).status_code == 200


def _make_template(server: Any) -> None:
    server.make_template()


async def _await_fresh(events: Any, fresh: bool) -> None:
    with trio.fail_after(20):
        async for name, data in events:
            if name == "alive" and data["fresh"] is fresh:
                return


async def test_stream_of_a_disabled_account_ends_within_the_check(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-ADM-01: disabling takes effect at once everywhere."""
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(streams, "ALIVE_SECONDS", 0.1)
    async with open_server(database, tmp_path) as running, running.user() as bob:
        async with open_events(bob, "/api/events") as events:
            await anext(events)
            await running.storage._db.pool.execute("UPDATE account SET disabled = true WHERE username = 'bob'")
            with trio.fail_after(10):
                async for name, data in events:
                    if name == "error":
                        assert data["code"] == "unauthenticated"
        assert (await bob.get("/api/whoami")).status_code == 401
        async with running.client() as http:
            assert (await http.post("/api/auth/login", json={"username": "bob", "password": PASSWORD})).status_code == 401


@pytest.mark.parametrize("target", ["/api/events", "/api/jobs/{job}/logs?follow=true"])
async def test_stream_of_a_revoked_token_ends_within_the_check(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """R-ADM-01: a leaked token that was revoked reads no further, though its owner's account is fine."""
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(streams, "ALIVE_SECONDS", 0.1)
    async with open_server(database, tmp_path) as running, running.user() as bob:
        await ready_node(running, await make_fleet(running))
        job = (await bob.post("/api/jobs", json=job_spec())).json()["id"]
        leaked = (await bob.post("/api/tokens", json={"name": "leaked"})).json()
        async with running.client(leaked["token"]) as thief, open_events(thief, target.format(job=job)) as events:
            await anext(events)
            await bob.delete(f"/api/tokens/{leaked['id']}")
            with trio.fail_after(10):
                last = [(name, data) async for name, data in events][-1]
        assert (last[0], last[1]["code"]) == ("error", "unauthenticated")
        assert (await bob.get("/api/whoami")).status_code == 200


async def test_streams_are_bounded_per_account(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_STREAMS_A_USER", 2)
    async with open_server(database, tmp_path) as running, running.user() as bob, running.admin() as ada:
        async with open_events(bob, "/api/events") as one, open_events(bob, "/api/events") as two:
            await anext(one)
            await anext(two)
            refused = await bob.get("/api/events")
            assert (refused.status_code, refused.json()["code"]) == (503, "busy")
            async with open_events(ada, "/api/events") as hers:
                await anext(hers)


async def test_feed_does_not_read_lists_while_nobody_watches(database: str) -> None:
    """Ten thousand Nodes must not be read every second for nobody."""
    async with open_site(database) as running:
        make_app(running)
        await running.site.feed._look(running.api, running.storage)
        assert running.site.feed._last is None
        assert running.site.feed.fresh
