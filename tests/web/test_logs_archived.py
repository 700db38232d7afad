"""R-LCH-13, L-E7: an ended member's log when its Node is silent, gone, or has forgotten it: from the storage root."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.web.events import open_events
from tests.web.support import Running, job_spec, now, open_server
from tests.web.world import drive, make_fleet, place_job, ready_node
from tuneplane.domain.ids import AttemptId, JobId, MemberId, NodeId, UserName
from tuneplane.domain.launch_table import MemberPhase
from tuneplane.domain.log_archive import archive_path, choose_parts, spell_header

pytestmark = pytest.mark.postgres
P = MemberPhase
STARTED = (P.PREPARING, P.PREPARED, P.STARTING, P.RUNNING)
DATA = b"".join(b"line %d \xff\n" % number for number in range(20_000))


async def a_job(running: Running, fleet: str = "lab", **config: str) -> tuple[JobId, MemberId, NodeId, int]:
    made = await make_fleet(running, fleet, **({"config": config} if config else {}))
    node, epoch = await ready_node(running, made)
    async with running.user() as http:
        job = JobId((await http.post("/api/jobs", json=job_spec(fleet=fleet))).json()["id"])
    return job, await place_job(running, job, node), node, epoch


def archive(root: Path, job: JobId, member: MemberId, data: bytes) -> None:
    path = root.joinpath(*archive_path(job, AttemptId(f"{job}-1"), member))
    path.parent.mkdir(parents=True)
    path.write_bytes(spell_header(choose_parts(0, len(data))) + data)


@pytest.mark.parametrize("gone", ["silent", "forgotten", "removed"])
async def test_log_is_read_and_followed_from_the_archive_when_the_node_has_it_no_more(database: str, tmp_path: Path, gone: str) -> None:
    root = tmp_path / "root"
    async with open_server(database, tmp_path, storage_root=str(root)) as running, running.user() as http:
        job, member, node, epoch = await a_job(running)
        await drive(running, node, epoch, member, *STARTED, P.TERMINATED, exit_code=0, cleaned=True)
        archive(root, job, member, DATA)
        if gone == "forgotten":
            running.logs.forgotten.add(member)
        else:
            running.logs.away = True
        if gone == "removed":
            await running.storage.delete_node(node, True, UserName("ada"), now())
        whole = await http.get(f"/api/jobs/{job}/logs")
        assert (whole.status_code, whole.content) == (200, DATA)
        assert (whole.headers["x-next-offset"], whole.headers["x-ended"]) == (str(len(DATA)), "true")
        tail = await http.get(f"/api/jobs/{job}/logs?tail_lines=1")
        assert tail.content == b"line 19999 \xff\n"
        middle = await http.get(f"/api/jobs/{job}/logs?offset=100&max_bytes=10&member={member}&attempt=1")
        assert (middle.content, middle.headers["x-ended"]) == (DATA[100:110], "false")
        beyond = await http.get(f"/api/jobs/{job}/logs?offset={len(DATA) + 1}")
        assert (beyond.content, beyond.headers["x-next-offset"]) == (b"", str(len(DATA)))
        got = b""
        async with open_events(http, f"/api/jobs/{job}/logs?follow=true&offset=7") as events:
            async for name, data in events:
                got += base64.b64decode(data["data"]) if name == "log" else b""
        assert (name, data["next_offset"], got) == ("end", len(DATA), DATA[7:])


async def test_follow_that_loses_its_node_at_the_end_goes_on_in_the_archive(database: str, tmp_path: Path) -> None:
    """No byte twice, none lost: the offset is the same in both."""
    root = tmp_path / "root"
    async with open_server(database, tmp_path, storage_root=str(root)) as running, running.user() as http:
        job, member, node, epoch = await a_job(running)
        await drive(running, node, epoch, member, *STARTED)
        running.logs.write(member, DATA[:1000])
        got = b""
        async with open_events(http, f"/api/jobs/{job}/logs?follow=true") as events:
            name, data = await anext(events)
            got += base64.b64decode(data["data"])
            archive(root, job, member, DATA)
            await drive(running, node, epoch, member, P.TERMINATED, exit_code=0, cleaned=True)
            running.logs.forgotten.add(member)
            running.logs.end(member)  # the read on the Node ends early
            async for name, data in events:
                got += base64.b64decode(data["data"]) if name == "log" else b""
        assert (name, got) == ("end", DATA)


async def test_archive_is_looked_for_where_the_fleet_says(database: str, tmp_path: Path) -> None:
    """R-ENR-11: a Fleet may name its own storage root."""
    own = tmp_path / "own"
    async with open_server(database, tmp_path, storage_root=str(tmp_path / "root")) as running, running.user() as http:
        job, member, node, epoch = await a_job(running, storage_root=str(own))
        await drive(running, node, epoch, member, *STARTED, P.TERMINATED, exit_code=0, cleaned=True)
        archive(own, job, member, b"mine\n")
        running.logs.away = True
        assert (await http.get(f"/api/jobs/{job}/logs")).content == b"mine\n"


async def test_archive_stays_where_its_attempt_was_planned_when_the_fleet_moves_on(database: str, tmp_path: Path) -> None:
    """R-FLT-10: another `storage_root` is for later attempts; this one says where it wrote, and its log is read there."""
    old, new = tmp_path / "old", tmp_path / "new"
    async with open_server(database, tmp_path) as running, running.admin() as http:
        node, epoch = await ready_node(running, await make_fleet(running, config={"storage_root": str(old)}))
        job = JobId((await http.post("/api/jobs", json=job_spec(fleet="lab"))).json()["id"])
        member = await place_job(running, job, node, root=str(old))
        await drive(running, node, epoch, member, *STARTED)
        await http.patch("/api/fleets/lab", json={"config": {"storage_root": str(new)}})
        assert (await http.get(f"/api/jobs/{job}")).json()["state"] == "running"
        await drive(running, node, epoch, member, P.TERMINATED, exit_code=0, cleaned=True)
        archive(old, job, member, b"mine\n")
        running.logs.away = True
        assert (await http.get(f"/api/jobs/{job}/logs")).content == b"mine\n"
        assert (await http.get(f"/api/jobs/{job}")).json()["attempts"][0]["output_dir"] == f"{old}/jobs/{job}/{job}-1"


async def test_log_of_a_running_member_is_never_taken_from_an_archive(database: str, tmp_path: Path) -> None:
    """A file that somebody planted there is not its log."""
    root = tmp_path / "root"
    async with open_server(database, tmp_path, storage_root=str(root)) as running, running.user() as http:
        job, member, node, epoch = await a_job(running)
        await drive(running, node, epoch, member, *STARTED)
        archive(root, job, member, b"planted\n")
        running.logs.away = True
        assert (await http.get(f"/api/jobs/{job}/logs")).json()["code"] == "node-unreachable"


async def test_log_that_is_nowhere_is_said_so_and_a_follow_of_it_ends(database: str, tmp_path: Path) -> None:
    """A removed Node never answers again: following must not wait for it for ever."""
    async with open_server(database, tmp_path, storage_root=str(tmp_path / "root")) as running, running.user() as http:
        job, member, node, epoch = await a_job(running)
        await drive(running, node, epoch, member, *STARTED, P.TERMINATED, exit_code=0, cleaned=True)
        running.logs.removed = True
        refused = await http.get(f"/api/jobs/{job}/logs")
        assert (refused.status_code, refused.json()["code"]) == (410, "node-removed")
        async with open_events(http, f"/api/jobs/{job}/logs?follow=true") as events:
            assert [name async for name, _ in events] == ["interrupted", "end"]


async def test_member_that_never_started_has_an_empty_log_whatever_became_of_its_node(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.user() as http:
        job, member, node, epoch = await a_job(running)
        await drive(running, node, epoch, member, P.PREPARING, P.ABORTED, reason_code="image-unavailable", cleaned=True)
        running.logs.away = True
        empty = await http.get(f"/api/jobs/{job}/logs")
        assert (empty.content, empty.headers["x-ended"]) == (b"", "true")


async def test_read_right_after_the_end_is_not_called_complete_before_the_rest_was_copied(database: str, tmp_path: Path) -> None:
    """R-LCH-13: a container has ended before its last lines are in the Node's log; X-Ended waits for the clean-up."""
    async with open_server(database, tmp_path) as running, running.user() as http:
        job, member, node, epoch = await a_job(running)
        await drive(running, node, epoch, member, *STARTED)
        running.logs.write(member, b"first\n")
        await drive(running, node, epoch, member, P.TERMINATED, exit_code=0)
        early = await http.get(f"/api/jobs/{job}/logs")
        assert (early.content, early.headers["x-ended"]) == (b"first\n", "false")
        running.logs.write(member, b"last\n")
        await drive(running, node, epoch, member, P.TERMINATED, exit_code=0, cleaned=True)
        late = await http.get(f"/api/jobs/{job}/logs?offset={early.headers['x-next-offset']}")
        assert (late.content, late.headers["x-ended"]) == (b"last\n", "true")
