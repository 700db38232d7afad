"""What strangers send: every answer is a problem document, and nobody else notices."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.web.support import Running, job_spec, open_server
from tests.web.world import join_body, make_fleet

pytestmark = pytest.mark.postgres

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 422, "body"),
        (b"{", 422, "body"),
        (b"null", 422, "body"),
        (b"[]", 422, "body"),
        (b'"x"', 422, "body"),
        (b"\xff\xfe{}", 422, "body"),
        (b'{"id": "\xff"}', 422, "body"),
        (b'{"id": NaN}', 422, "body"),
        (b'{"id": "a", "id": "b"}', 422, "id"),
        (b'{"id": "a\\u0000"}', 422, "id"),
        (b'{"id": "\\ud800"}', 422, "id"),
        (b'{"id": 1e999}', 422, "id"),
        (b'{"id": ' + b"9" * 5000 + b"}", 422, "body"),
        (b'{"id": 99999999999999999999}', 422, "id"),
        (b"[" * 100_000, 422, "body"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, 422, None),
        (b'{"id": "lab", "kind": "node", "capabilities": ["train"], "surprise": 1}', 422, "surprise"),
        (b'{"id": "lab", "kind": "node", "capabilities": "train"}', 422, "capabilities"),
        (b'{"id": 5, "kind": "node", "capabilities": ["train"]}', 422, "id"),
        (b'{"id": "lab", "kind": "moon", "capabilities": ["train"]}', 422, "kind"),
        (b'{"id": "lab", "kind": "node"}', 422, "capabilities"),
    ],
)
async def test_bad_body_is_refused_naming_the_field(database: str, tmp_path: Path, body: bytes, status: int, field: str | None) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        answer = await http.post("/api/fleets", content=body, headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (status, "invalid-input")
        assert field is None or answer.json()["field"] == field


async def test_wrong_media_type_method_and_address_are_problems(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        assert (await http.post("/api/fleets", content=b"{}")).json()["code"] == "unsupported-media-type"
        assert (await http.post("/api/fleets", data={"id": "x"})).status_code == 415
        wrong = await http.put("/api/fleets", json={})
        assert (wrong.status_code, wrong.json()["code"]) == (405, "method-not-allowed")
        assert set(wrong.headers["allow"].split(", ")) >= {"GET", "POST"}
        for path in ("/api/nothing", "/api/fleets/%00", "/api/fleets/a%2Fb", "/api/fleets/%ff%fe", "/api/fleets/" + "x" * 3000):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "not-found"), path
        assert (await http.options("/api/fleets")).status_code == 405


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "limit=x", "limit=1&limit=2", "limit=", "cursor=", "cursor=%00", "cursor=nonsense", "surprise=1"]
)
async def test_bad_query_is_refused_naming_the_parameter(database: str, tmp_path: Path, query: str) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        for path in ("/api/fleets", "/api/jobs", "/api/nodes"):
            answer = await http.get(f"{path}?{query}")
            assert (answer.status_code, answer.json()["field"]) == (422, query.partition("=")[0]), path


async def test_body_beyond_the_limit_is_refused_with_and_without_a_length(database: str, tmp_path: Path) -> None:
    async def pieces() -> Any:
        for _ in range(40):
            yield b"x" * 65536

    async with open_server(database, tmp_path) as running, running.admin() as http:
        huge = await http.post("/api/fleets", content=b"x" * (2 << 20), headers=JSON)
        assert (huge.status_code, huge.json()["code"]) == (413, "body-too-large")
        chunked = await http.post("/api/fleets", content=pieces(), headers=JSON)
        assert chunked.status_code == 413
        assert (await http.get("/healthz")).status_code == 200


async def test_headers_beyond_the_limit_are_a_problem_document(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running:
        for raw in (
            b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 8000 + b"\r\n",
            b"nonsense\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
            b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        ):
            answer = await _raw(running, raw)
            assert answer.startswith(b"HTTP/1.1 4"), answer[:100]
            assert b"application/problem+json" in answer, answer[:400]


async def _raw(running: Running, data: bytes) -> bytes:
    """Send bytes over TLS and read until the server closes."""
    host, port = running.url.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=str(running.ca))
    answer = bytearray()
    stream = await trio.open_ssl_over_tcp_stream(host, int(port), ssl_context=context, https_compatible=True)
    async with stream:
        with suppress(trio.BrokenResourceError):  # refused in the middle: the answer is there already
            await stream.send_all(data)
        with trio.fail_after(10), suppress(trio.BrokenResourceError):
            while piece := await stream.receive_some(65536):
                answer += piece
    return bytes(answer)


async def test_broken_peers_harm_nobody_else(database: str, tmp_path: Path) -> None:
    """Plain text on the TLS port, a half handshake, a cut in the middle of a body, a websocket upgrade."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        host, port = running.url.removeprefix("https://").split(":")
        for garbage in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01", b"", b"\x00" * 100):
            with socket.create_connection((host, int(port))) as sock:
                sock.sendall(garbage)
        context = ssl.create_default_context(cafile=str(running.ca))
        stream = await trio.open_ssl_over_tcp_stream(host, int(port), ssl_context=context, https_compatible=True)
        await stream.send_all(b"POST /api/fleets HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\nContent-Type: application/json\r\n\r\n{")
        await trio.aclose_forcefully(stream)
        upgrade = b"GET /api/events HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        upgrade += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        answer = await _raw(running, upgrade)
        assert answer.startswith(b"HTTP/1.1 404"), answer[:200]
        assert (await http.get("/readyz")).status_code == 200
        assert running.system is not None
        assert running.system.find("web/server").alive


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"address": "http://x"}, "address"),
        ({"address": "a\n"}, "address"),
        ({"address": "x" * 300}, "address"),
        ({"join_key": "short"}, "join_key"),
        ({"try": 0}, "try"),
        ({"token": ""}, "token"),
        ({"try_": 1}, "try_"),
    ],
)
async def test_bad_join_is_refused_naming_the_field_and_burns_nothing(
    database: str, tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        token = (await http.post("/api/fleets/lab/join-tokens")).json()["token"]
        answer = await http.post("/api/fleets/lab/nodes", json=join_body(token) | changes)
        assert (answer.status_code, answer.json()["field"]) == (422, field)
        assert (await http.post("/api/fleets/lab/nodes", json=join_body(token))).status_code == 201


CARD = {"index": 0, "uuid": "GPU-a", "name": "A100", "memory_bytes": 1}


@pytest.mark.parametrize(
    ("gpus", "budgets", "field"),
    [
        ([CARD | {"index": -1}], {"gpu_indexes": [-1]}, "inventory.gpus"),
        ([CARD | {"index": 2**40}], {"gpu_indexes": [2**40]}, "inventory.gpus"),
        ([], {"gpu_indexes": [2**40]}, "inventory.gpus"),
        ([CARD | {"memory_bytes": -1}], {}, "inventory.gpus"),
        ([], {"cpu_millis": -1}, "inventory.budgets.cpu_millis"),
        ([], {"memory_bytes": -1}, "inventory.budgets.memory_bytes"),
        ([], {"staging_bytes": -1}, "inventory.budgets.staging_bytes"),
        ([], {"port_last": 2**40}, "inventory.budgets.port_first"),
        ([], {"port_first": 0}, "inventory.budgets.port_first"),
    ],
)
async def test_join_with_numbers_that_no_machine_has_is_refused_and_burns_nothing(
    database: str, tmp_path: Path, gpus: list[Any], budgets: dict[str, Any], field: str
) -> None:
    """The bounds of a session's frames hold at the first word too: one was an error of the database."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        token = (await http.post("/api/fleets/lab/join-tokens")).json()["token"]
        body = join_body(token)
        inventory = body["inventory"] | {"gpus": gpus, "budgets": body["inventory"]["budgets"] | budgets}
        answer = await http.post("/api/fleets/lab/nodes", json=body | {"inventory": inventory})
        assert (answer.status_code, answer.json()["field"]) == (422, field)
        assert (await http.post("/api/fleets/lab/nodes", json=join_body(token))).status_code == 201


async def test_body_where_none_is_expected_is_refused(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        assert (await http.post("/api/fleets/lab/join-tokens", json={})).status_code == 201
        assert (await http.post("/api/fleets/lab/join-tokens", json={"hours": 99})).status_code == 422


@pytest.mark.parametrize("key", ["", "x" * 201, "a\tb"])
async def test_bad_idempotency_key_is_refused(database: str, tmp_path: Path, key: str) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        answer = await http.post("/api/jobs", json=job_spec(), headers={"Idempotency-Key": key})
        assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key")


async def test_query_parameter_of_a_change_that_does_not_read_it_is_refused_and_nothing_is_done(database: str, tmp_path: Path) -> None:
    """Heard and ignored would be a lie: an empty Fleet does not go by force, and nobody asked for a dry run that there is not."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        refused = [
            await http.delete("/api/fleets/lab?force=true"),
            await http.patch("/api/fleets/lab?dry_run=1", json={"state": "disabled"}),
            await http.post("/api/fleets/lab/join-tokens?hours=99"),
        ]
        assert [(one.status_code, one.json()["field"]) for one in refused] == [
            (422, "force"),
            (422, "dry_run"),
            (422, "hours"),
        ]
        assert (await http.get("/api/fleets/lab")).json()["state"] == "active"
        assert (await http.get("/healthz?from=monitor")).status_code == 200
