"""The border and the connections: errors and cancellations each go to their owner; slow and broken peers harm themselves."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field

from tests.web.events import open_events
from tests.web.support import make_app, make_certificate, open_server, open_site
from tests.web.world import make_fleet
from tuneplane.actors import ChildSpec, SupervisorSpec, SystemFailed, open_system
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.web import app as app_module
from tuneplane.web import connection
from tuneplane.web.border import Border
from tuneplane.web.metrics import Metrics
from tuneplane.web.routing import Answer, Call, Route, Who
from tuneplane.web.server import Place, WebServer
from tuneplane.web.site import Site

pytestmark = pytest.mark.postgres
Body = Callable[[], Awaitable[Answer]]


def _route(body: Body) -> Route:
    async def handler(site: Site, call: Call) -> Answer:
        return await body()

    return Route(method="GET", path="/api/try", who=Who.ALL, summary="", handler=handler)


async def _try(database: str, body: Body) -> tuple[int, dict[str, Any]]:
    """The answer of a route whose handler is ``body``, through the whole application."""
    async with open_site(database, accounts=False) as running:
        app = make_app(running)
        app._bind(_route(body))
        answer = await app.test_client().get("/api/try")
        return answer.status_code, await answer.get_json()


async def test_error_that_is_not_ours_is_internal_and_its_text_stays_in_the_log(database: str, capfd: pytest.CaptureFixture[str]) -> None:
    async def body() -> Answer:
        raise RuntimeError("the secret inside")

    status, problem = await _try(database, body)
    assert (status, problem["code"]) == (500, "internal")
    assert "secret" not in str(problem)
    logged = "".join(capfd.readouterr())
    assert "the secret inside" in logged
    assert problem["trace"] in logged


async def test_group_of_errors_is_one_problem(database: str) -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def body() -> Answer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, ValueError("a"))
            nursery.start_soon(fail, KeyError("b"))
        return Answer()

    status, problem = await _try(database, body)
    assert (status, problem["code"]) == (500, "internal")


async def test_storage_that_is_away_is_a_503_with_retry(database: str) -> None:
    async def body() -> Answer:
        raise StorageUnavailable("no")

    assert (await _try(database, body))[1]["code"] == "storage-unavailable"


async def test_handler_beyond_the_deadline_is_cancelled_and_told_as_overdue(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "REQUEST_SECONDS", 0.05)
    cancelled = False

    async def body() -> Answer:
        nonlocal cancelled
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled = True
            raise
        return Answer()

    status, problem = await _try(database, body)
    assert (status, problem["code"], cancelled) == (503, "overdue", True)


async def test_cancelled_request_with_an_error_logs_the_error_and_stays_cancelled(database: str, capfd: pytest.CaptureFixture[str]) -> None:
    """quart-trio keeps the cancellation and drops the error; hypercorn the other way round."""

    async def body() -> Answer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_fail_when_cancelled)
            await trio.sleep_forever()
        return Answer()

    async with open_site(database, accounts=False) as running:
        app = make_app(running)
        app._bind(_route(body))
        with trio.move_on_after(0.2) as scope:
            await app.test_client().get("/api/try")
    assert scope.cancelled_caught
    assert "went wrong while leaving" in "".join(capfd.readouterr())


class _FailsAtExit:
    """Clean-up with a fault in it."""

    async def __aenter__(self) -> None:
        """Nothing to open."""

    async def __aexit__(self, *exc: object) -> None:
        raise RuntimeError("went wrong while leaving")


async def _fail_when_cancelled() -> None:
    async with _FailsAtExit():
        await trio.sleep_forever()


async def _run_border(app: Any) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    await Border(app)({"type": "http", "method": "GET", "path": "/"}, receive, send)
    return sent


async def test_border_mixed_group_logs_the_errors_and_raises_the_cancelled_part(capfd: pytest.CaptureFixture[str]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_fail_when_cancelled)
            await trio.sleep_forever()

    with trio.move_on_after(0.05) as scope:
        await _run_border(app)
    assert scope.cancelled_caught
    assert "went wrong while leaving" in "".join(capfd.readouterr())


async def test_border_error_before_the_answer_is_a_problem_and_after_it_is_cut(capfd: pytest.CaptureFixture[str]) -> None:
    async def early(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("early")

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("late")

    start, body = await _run_border(early)
    assert start["status"] == 500
    assert b'"code": "internal"' in body["body"]
    assert [message["type"] for message in await _run_border(late)] == ["http.response.start"]
    assert "late" in "".join(capfd.readouterr())


@define
class _BrokenApp:
    """An ASGI application that fails in ways that Quart would not let through."""

    calls: int = field(default=0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = b"x" * (64 << 20)  # beyond what two sockets buffer
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def _serve_app(app: Any, tmp: Path, nursery: trio.Nursery) -> tuple[connection.Connections, int, ssl.SSLContext]:
    with make_certificate(tmp) as paths:
        config = connection.make_config(str(paths.certificate), str(paths.key))
        connections = connection.Connections(Border(app), config, Metrics())
        listeners = await trio.open_ssl_over_tcp_listeners(0, config.create_ssl_context(), host="127.0.0.1", https_compatible=True)
        port = listeners[0].transport_listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, connections.serve, listeners)
        return connections, port, ssl.create_default_context(cafile=str(paths.ca))


async def test_reader_that_stops_reading_is_closed_within_the_send_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """Stock hypercorn shields its send without a deadline: such a client holds the task for ever."""
    monkeypatch.setattr(connection, "SEND_SECONDS", 0.3)
    connections, port, trust = await _serve_app(_BrokenApp(), tmp_path, nursery)
    stream = await trio.open_ssl_over_tcp_stream("localhost", port, ssl_context=trust, https_compatible=True)
    await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    with trio.fail_after(10):
        while not connections._open:
            await trio.testing.wait_all_tasks_blocked(0.01)
        while connections._open:
            await trio.testing.wait_all_tasks_blocked(0.01)
    await trio.aclose_forcefully(stream)


async def test_abandon_ends_a_send_that_nobody_reads(tmp_path: Path, nursery: trio.Nursery) -> None:
    connections, port, trust = await _serve_app(_BrokenApp(), tmp_path, nursery)
    stream = await trio.open_ssl_over_tcp_stream("localhost", port, ssl_context=trust, https_compatible=True)
    await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    with trio.fail_after(10):
        while not connections._open:
            await trio.testing.wait_all_tasks_blocked(0.01)
        await trio.testing.wait_all_tasks_blocked(0.05)
        connections.abandon()
        while connections._open:
            await trio.testing.wait_all_tasks_blocked(0.01)
    await trio.aclose_forcefully(stream)


async def test_too_many_connections_are_closed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> None:
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 1)
    _, port, trust = await _serve_app(_BrokenApp(), tmp_path, nursery)
    one = await trio.open_ssl_over_tcp_stream("localhost", port, ssl_context=trust, https_compatible=True)
    await one.do_handshake()
    two = await trio.open_ssl_over_tcp_stream("localhost", port, ssl_context=trust, https_compatible=True)
    with pytest.raises(trio.BrokenResourceError):
        await two.do_handshake()
    await trio.aclose_forcefully(one)
    await trio.aclose_forcefully(two)


async def test_idle_handshake_is_closed_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.2)
    _, port, _ = await _serve_app(_BrokenApp(), tmp_path, nursery)
    silent = await trio.open_tcp_stream("localhost", port)
    with trio.fail_after(5):
        assert await silent.receive_some(1) == b""
    await silent.aclose()


async def test_http2_serves_and_a_large_upload_to_a_refusing_route_does_not_block_the_connection(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.client(running.admin_token, http2=True) as http:
        first = await http.get("/api/whoami")
        assert first.http_version == "HTTP/2"
        huge = await http.post("/api/fleets", content=b"x" * (3 << 20), headers={"Content-Type": "application/json"})
        assert huge.status_code == 413
        assert (await http.get("/api/whoami")).status_code == 200


async def test_stop_finishes_the_request_in_hand_and_ends_streams(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        assert running.system is not None
        async with open_events(http, "/api/events") as events:
            await anext(events)
            running.system.find("web/server").stop()
            with trio.fail_after(5):
                assert [event async for event in events] == []


async def test_restarted_server_comes_back_to_the_port_that_the_kernel_chose(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running:
        assert running.system is not None
        before = running.system.find("web/server")
        before.kill()
        await before.wait_exit()
        async with running.admin() as http:
            with trio.fail_after(10):
                while (ref := running.system.ref("web/server")) is None or ref is before:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            assert (await http.get("/healthz")).status_code == 200


async def test_port_that_is_taken_fails_the_start_with_a_sentence(database: str, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with open_server(database, tmp_path / "one") as running:
        port = int(running.url.rsplit(":", 1)[1])
        with make_certificate(tmp_path / "two") as paths:
            child = ChildSpec(
                name="server",
                factory=lambda: WebServer(running.site, Place("127.0.0.1", port), paths.certificate, paths.key),
            )
            with pytest.raises(SystemFailed) as failed:
                async with open_system("second", SupervisorSpec(name="web", children=(child,))):
                    pass
    assert "cannot listen on 127.0.0.1" in str(failed.value)
