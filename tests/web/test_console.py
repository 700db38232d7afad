"""R-ADM-04: the console, as HTML and in real Chromium."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import define, evolve, field

from tests.web.support import Running, job_spec, make_app, now, open_server, open_site
from tests.web.world import INVENTORY, connect_node, drive, join_node, make_fleet, place_job, ready_node
from tuneplane.domain import codec
from tuneplane.domain.ids import JobId
from tuneplane.domain.inventory import Gpu
from tuneplane.domain.jobspec import JobSpec
from tuneplane.domain.launch_table import MemberPhase
from tuneplane.web.console import show_size
from tuneplane.web.routes import ROUTES
from tuneplane.web.routing import Who

pytestmark = pytest.mark.postgres
P = MemberPhase
PAGES = ("/fleets", "/fleets/lab", "/hardware", "/nodes", "/jobs", "/users", "/projects", "/audit")


async def test_every_page_sends_a_stranger_to_the_sign_in_and_back(database: str) -> None:
    async with open_site(database) as running:
        client = make_app(running).test_client()
        for route in ROUTES:
            if route.page is not None and route.who is not Who.ALL:
                answer = await client.get(route.path.replace("{", "x").replace("}", "x"))
                assert answer.status_code == 303, route.path
                assert answer.headers["location"].startswith("/signin?next=/")


@pytest.mark.parametrize("target", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "\t//evil", "x"])
async def test_sign_in_leads_only_to_paths_of_this_console(database: str, target: str) -> None:
    async with open_site(database) as running:
        answer = await make_app(running).test_client().get("/signin", query_string={"next": target})
        assert 'data-next="/"' in await answer.get_data(as_text=True)


async def test_pages_have_a_strict_policy_and_nothing_inline(database: str) -> None:
    async with open_site(database) as running:
        await ready_node(running, await make_fleet(running))
        client = make_app(running).test_client()
        for path in (*PAGES, "/signin"):
            answer = await client.get(path, headers={"Authorization": f"Bearer {running.admin_token}"})
            html = await answer.get_data(as_text=True)
            policy = answer.headers["content-security-policy"]
            assert answer.status_code == 200
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert not re.search(r"<script(?![^>]*src=)|\son[a-z]+=|style=|https?://(?!www\.w3\.org)", html), path
            for address in re.findall(r'(?:src|href)="(/static/[^"]+)"', html):
                assert (await client.get(address)).status_code == 200


async def test_names_and_reasons_of_strangers_are_escaped(database: str) -> None:
    async with open_site(database) as running:
        fleet = await make_fleet(running, config={"<script>alert(1)</script>": "x"})
        await ready_node(running, fleet)
        client = make_app(running).test_client()
        for path in PAGES:
            html = await (await client.get(path, headers={"Authorization": f"Bearer {running.admin_token}"})).get_data(as_text=True)
            assert "<script>alert" not in html
        html = await (await client.get("/fleets", headers={"Authorization": f"Bearer {running.admin_token}"})).get_data(as_text=True)
        assert "&lt;script&gt;alert(1)" in html


async def test_job_page_offers_another_attempt_of_what_failed_and_names_whom_it_waits_for(database: str) -> None:
    """P-11: a held job says for whom; interfaces.md: a failed one can be tried again, a stopped one cannot."""
    async with open_site(database) as running:
        node, epoch = await ready_node(running, await make_fleet(running))
        client = make_app(running).test_client()
        caller = await running.api.accounts.user_of_token(running.admin_token)

        async def page(job: JobId) -> str:
            answer = await client.get(f"/jobs/{job}", headers={"Authorization": f"Bearer {running.admin_token}"})
            return str(await answer.get_data(as_text=True))

        spec = codec.decode(JobSpec, job_spec())
        jobs = [(await running.api.jobs.submit(caller, spec)).id for _ in range(2)]
        members = [await place_job(running, job, node) for job in jobs]
        for member in members:
            await drive(running, node, epoch, member, P.PREPARED, P.RUNNING)
        await drive(running, node, epoch, members[0], P.TERMINATED, exit_code=1, cleaned=True)
        assert f"POST /api/jobs/{jobs[0]}/retry?after=1" in await page(jobs[0])
        await running.storage.close_session(node, epoch, "cut", now())
        stopping = await running.storage.request_stop(jobs[1], caller.username, now())
        assert not stopping.ended_at
        text = await page(jobs[1])
        assert f"{members[1]} is held by Node {node}, silent since" in text
        assert "/retry" not in text


async def test_user_sees_no_buttons_that_would_be_refused(database: str) -> None:
    async with open_site(database) as running:
        await ready_node(running, await make_fleet(running))
        client = make_app(running).test_client()
        for path in ("/fleets", "/fleets/lab", "/hardware", "/nodes"):
            html = await (await client.get(path, headers={"Authorization": f"Bearer {running.user_token}"})).get_data(as_text=True)
            assert "data-call" not in html
            assert "data-mint" not in html
            assert "<form" not in html


async def test_unknown_page_object_is_a_page_that_says_so(database: str) -> None:
    async with open_site(database) as running:
        client = make_app(running).test_client()
        answer = await client.get("/jobs/job-nowhere", headers={"Authorization": f"Bearer {running.admin_token}"})
        assert answer.status_code == 404
        assert "text/html" in answer.headers["content-type"]
        assert (await client.get("/static/passwd")).status_code == 404
        assert (await client.get("/static/..%2f..%2fapp.py")).status_code == 404


@pytest.mark.parametrize(("amount", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_500_000, "1.5 MB"), (64 * 10**9, "64 GB")])
def test_sizes_are_shown_in_the_units_of_the_api(amount: int, text: str) -> None:
    assert show_size(amount) == text


@pytest.mark.e2e
@pytest.mark.seconds(150)
@pytest.mark.parametrize("width", [1200, 360])
async def test_person_in_chromium_signs_in_creates_mints_follows_stops_and_loses_the_connection(
    database: str, tmp_path: Path, width: int
) -> None:
    """Works by keyboard and at 360 px; live; says when it is not."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        fleet = await make_fleet(running)
        node = await join_node(running, fleet)
        card = Gpu(index=0, uuid="GPU-0", name="NVIDIA B300", memory_bytes=288 * 10**9)
        epoch = await connect_node(running, fleet, node, evolve(INVENTORY, gpus=(card,)))
        job = JobId((await http.post("/api/jobs", json=job_spec())).json()["id"])
        former = await place_job(running, job, node)
        await drive(running, node, epoch, former, P.PREPARED, P.RUNNING, P.TERMINATED, exit_code=1, cleaned=True)
        running.logs.write(former, b"the first try\n")
        assert (await http.post(f"/api/jobs/{job}/retry")).status_code == 202
        member = await place_job(running, job, node, 2)
        await drive(running, node, epoch, member, P.PREPARING, P.PREPARED, P.STARTING, P.RUNNING)
        running.logs.write(member, b"epoch 1\n<script>alert(1)</script> \xe2\x80\xae evil \x1b[31mred\x1b[2J \xff\x00\n")
        lines = await _browse(running, job, width)
        assert [line for line in lines if line.startswith("done:")][-1:] == ["done: sign_out"], "\n".join(lines[-40:])


async def _browse(running: Running, job: JobId, width: int) -> list[str]:
    """Run the person of ``browse.py`` behind a proxy that freezes and thaws when asked; what it printed."""
    lines: list[str] = []
    host, port = running.url.removeprefix("https://").split(":")
    proxy = Proxy(host, int(port))
    asked = {"please: freeze": proxy.freeze, "please: thaw": proxy.thaw}
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    own = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, proxy.carry, listeners)
        command = [sys.executable, "-m", "tests.web.browse", f"https://localhost:{own}", job, str(width)]
        process = await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False))
        rest = b""
        async for piece in process.stdout:
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                lines.append(line.decode())
                asked.get(lines[-1], lambda: None)()
        nursery.cancel_scope.cancel()
    return lines


@define
class Proxy:
    """A TCP proxy that can fall silent: connections stay open and carry nothing, like a cable that was pulled."""

    host: str
    port: int
    _frozen: bool = False
    _open: set[trio.SocketStream] = field(factory=set)

    def freeze(self) -> None:
        self._frozen = True

    def thaw(self) -> None:
        """New connections work again; the old ones are reset, as routers do."""
        self._frozen = False
        for stream in self._open:
            stream.socket.close()

    async def carry(self, near: trio.SocketStream) -> None:
        """One connection, both ways."""
        far = await trio.open_tcp_stream(self.host, self.port)
        self._open |= {near, far}
        async with near, far, trio.open_nursery() as nursery:
            nursery.start_soon(self._copy, near, far)
            nursery.start_soon(self._copy, far, near)
        self._open -= {near, far}

    async def _copy(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for piece in source:
                if not self._frozen:
                    await target.send_all(piece)
            if not self._frozen:
                await target.send_eof()
