"""R-LCH-13: bounded reads, tails, following; any bytes; a reader that goes away cancels the read."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.web.events import open_events
from tests.web.support import Running, job_spec, open_server
from tests.web.world import drive, make_fleet, place_job, ready_node
from tuneplane.domain.ids import JobId, MemberId, NodeId
from tuneplane.domain.launch_table import MemberPhase

pytestmark = pytest.mark.postgres
P = MemberPhase
STARTED = (P.PREPARING, P.PREPARED, P.STARTING, P.RUNNING)


@asynccontextmanager
async def open_job(database: str, tmp: Path, *phases: MemberPhase) -> AsyncIterator[tuple[Running, JobId, MemberId, NodeId, int]]:
    """A server with one job of bob's, driven through ``phases``."""
    async with open_server(database, tmp) as running, running.user() as http:
        node, epoch = await ready_node(running, await make_fleet(running))
        job = JobId((await http.post("/api/jobs", json=job_spec())).json()["id"])
        member = await place_job(running, job, node)
        if phases:
            await drive(running, node, epoch, member, *phases)
        yield running, job, member, node, epoch


async def test_bounded_read_gives_exact_bytes_and_where_to_go_on(database: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 1000
    async with open_job(database, tmp_path, *STARTED) as (running, job, member, _, _), running.user() as http:
        running.logs.write(member, data)
        whole = await http.get(f"/api/jobs/{job}/logs")
        assert (whole.content, whole.headers["x-next-offset"], whole.headers["x-ended"]) == (data, str(len(data)), "false")
        read, offset = b"", 0
        while offset < len(data):
            piece = await http.get(f"/api/jobs/{job}/logs?offset={offset}&max_bytes=100000")
            assert len(piece.content) <= 100000
            assert piece.headers["x-offset"] == str(offset)
            read, offset = read + piece.content, int(piece.headers["x-next-offset"])
        assert read == data
        tail = await http.get(f"/api/jobs/{job}/logs?tail_lines=2")
        assert data.endswith(tail.content)
        assert tail.headers["x-next-offset"] == str(len(data))
        beyond = await http.get(f"/api/jobs/{job}/logs?offset=99999999")
        assert (beyond.status_code, beyond.content) == (200, b"")
        assert (beyond.headers["x-offset"], beyond.headers["x-next-offset"]) == (str(len(data)), str(len(data)))


async def test_follow_from_beyond_the_end_is_told_where_the_log_ends(database: str, tmp_path: Path) -> None:
    async with open_job(database, tmp_path, *STARTED) as (running, job, member, node, epoch), running.user() as http:
        running.logs.write(member, b"0123456789")
        await drive(running, node, epoch, member, P.TERMINATED, exit_code=0, cleaned=True)
        running.logs.end(member)
        async with open_events(http, f"/api/jobs/{job}/logs?follow=true&offset=999") as events:
            assert [(name, data["next_offset"]) async for name, data in events] == [("end", 10)]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("offset=-1", "offset"),
        ("offset=18446744073709551616", "offset"),
        ("tail_lines=-1", "tail_lines"),
        ("offset=1&tail_lines=1", "tail_lines"),
        ("max_bytes=0", "max_bytes"),
        ("max_bytes=99999999", "max_bytes"),
        ("follow=maybe", "follow"),
        ("attempt=x", "attempt"),
    ],
)
async def test_bad_choice_is_refused_naming_the_parameter(database: str, tmp_path: Path, query: str, field: str) -> None:
    async with open_job(database, tmp_path) as (running, job, _, _, _), running.user() as http:
        for follow in ("", "&follow=true"):
            refused = await http.get(f"/api/jobs/{job}/logs?{query}" + (follow if "follow" not in query else ""))
            assert (refused.status_code, refused.json()["field"]) == (422, field)


async def test_unknown_member_or_attempt_is_not_found_before_the_stream(database: str, tmp_path: Path) -> None:
    async with open_job(database, tmp_path, *STARTED) as (running, job, _, _, _), running.user() as http:
        for query in ("member=7", "attempt=9", "member=7&follow=true"):
            assert (await http.get(f"/api/jobs/{job}/logs?{query}")).status_code == 404


async def test_silent_node_is_said_so(database: str, tmp_path: Path) -> None:
    async with open_job(database, tmp_path, *STARTED) as (running, job, _, node, _), running.user() as http:
        running.logs.away = True
        refused = await http.get(f"/api/jobs/{job}/logs")
        assert (refused.status_code, refused.json()["code"]) == (503, "node-unreachable")
        assert node in refused.json()["detail"]
        assert "retry-after" in refused.headers


async def test_follow_from_before_the_start_to_after_the_end(database: str, tmp_path: Path) -> None:
    """Waits for the container, gives every byte once, survives the gateway's absence, ends when the job has ended."""
    async with open_job(database, tmp_path) as (running, job, member, node, epoch), running.user() as http:
        got = b""
        async with open_events(http, f"/api/jobs/{job}/logs?follow=true") as events:
            name, data = await anext(events)
            assert name == "waiting", data
            running.logs.away = True
            await drive(running, node, epoch, member, *STARTED)
            running.logs.write(member, b"first \xff\x00\n")
            while name != "interrupted":
                name, data = await anext(events)
            running.logs.away = False
            while name != "log":
                name, data = await anext(events)
            got += base64.b64decode(data["data"])
            running.logs.write(member, b"second")
            name, data = await anext(events)
            got += base64.b64decode(data["data"])
            assert data["next_offset"] == len(got)
            await drive(running, node, epoch, member, P.TERMINATED, exit_code=0, cleaned=True)
            running.logs.end(member)
            name, data = await anext(events)
            assert (name, data["state"], data["next_offset"]) == ("end", "succeeded", len(got))
            assert [event async for event in events] == []
        assert got == b"first \xff\x00\nsecond"


async def test_follow_resumes_behind_the_last_event(database: str, tmp_path: Path) -> None:
    """A browser reconnects with Last-Event-ID: no byte twice, none lost."""
    async with open_job(database, tmp_path, *STARTED) as (running, job, member, _, _), running.user() as http:
        running.logs.write(member, b"0123456789")
        async with open_events(http, f"/api/jobs/{job}/logs?follow=true&tail_lines=5", {"Last-Event-ID": "4"}) as events:
            name, data = await anext(events)
            assert (name, data["offset"], base64.b64decode(data["data"])) == ("log", 4, b"456789")
        async with open_events(http, f"/api/jobs/{job}/logs?follow=true", {"Last-Event-ID": "1.7"}) as events:
            name, data = await anext(events)
            assert (name, data["attempt"], base64.b64decode(data["data"])) == ("log", 1, b"789")
        for wrong in ("x", "1.x", ".4", "1.", "1.2.3", "-1"):
            refused = await http.get(f"/api/jobs/{job}/logs?follow=true", headers={"Last-Event-ID": wrong})
            assert refused.status_code == 422, wrong
        missing = await http.get(f"/api/jobs/{job}/logs?follow=true", headers={"Last-Event-ID": "2.4"})
        assert missing.status_code == 404


async def test_follow_stays_with_its_attempt_when_another_begins(database: str, tmp_path: Path) -> None:
    """L-E7: offsets are those of one attempt's log; a browser that comes back goes on with that one."""
    async with open_job(database, tmp_path, *STARTED) as (running, job, first, node, epoch), running.user() as http:
        running.logs.write(first, b"one")
        async with open_events(http, f"/api/jobs/{job}/logs?follow=true") as events:
            name, data = await anext(events)
            assert (name, data["attempt"], base64.b64decode(data["data"])) == ("log", 1, b"one")
        await drive(running, node, epoch, first, P.TERMINATED, exit_code=1, cleaned=True)
        assert (await http.post(f"/api/jobs/{job}/retry?after=1")).status_code == 202
        second = await place_job(running, job, node, 2)
        await drive(running, node, epoch, second, *STARTED)
        running.logs.write(second, b"another log")
        running.logs.write(first, b" more")
        running.logs.end(first)
        last = f"{data['attempt']}.{data['next_offset']}"
        async with open_events(http, f"/api/jobs/{job}/logs?follow=true", {"Last-Event-ID": last}) as events:
            seen = [(name, data) async for name, data in events if name in ("log", "end")]
        assert [name for name, _ in seen] == ["log", "end"]
        assert (seen[0][1]["attempt"], seen[0][1]["offset"], base64.b64decode(seen[0][1]["data"])) == (1, 3, b" more")
        async with open_events(http, f"/api/jobs/{job}/logs?follow=true") as events:
            name, data = await anext(events)
            assert (name, data["attempt"], base64.b64decode(data["data"])) == ("log", 2, b"another log")


async def test_follow_by_a_client_that_goes_away_cancels_the_read(database: str, tmp_path: Path) -> None:
    """L-I3, L-E6: upstream is left at once, and nothing is left open after many aborted follows."""
    async with open_job(database, tmp_path, *STARTED) as (running, job, member, _, _), running.user() as http:
        running.logs.write(member, b"x" * 1_000_000)
        for _ in range(30):
            async with open_events(http, f"/api/jobs/{job}/logs?follow=true") as events:
                await anext(events)
                assert running.logs.open_reads >= 1
        with trio.fail_after(5):
            while running.logs.open_reads or running.site.streams.total:
                await trio.testing.wait_all_tasks_blocked(0.01)


async def test_slow_follower_holds_a_bounded_number_of_pieces(database: str, tmp_path: Path) -> None:
    """L-E5: a reader that does not read stops the source; others go on."""
    async with open_job(database, tmp_path, *STARTED) as (running, job, member, _, _), running.user() as http:
        running.logs.write(member, b"y" * 50_000_000)
        async with open_events(http, f"/api/jobs/{job}/logs?follow=true&offset=0") as events:
            await anext(events)
            assert (await http.get("/healthz")).status_code == 200
            assert (await http.get(f"/api/jobs/{job}/logs?tail_lines=0")).status_code == 200


async def test_ended_job_that_never_ran_has_an_empty_log(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.user() as http:
        await ready_node(running, await make_fleet(running))
        job = (await http.post("/api/jobs", json=job_spec())).json()["id"]
        assert (await http.get(f"/api/jobs/{job}/logs")).headers["x-ended"] == "false"
        await http.post(f"/api/jobs/{job}/stop")
        empty = await http.get(f"/api/jobs/{job}/logs")
        assert (empty.content, empty.headers["x-ended"]) == (b"", "true")
        async with open_events(http, f"/api/jobs/{job}/logs?follow=true") as events:
            assert [name async for name, _ in events] == ["end"]
