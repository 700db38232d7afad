"""Joining against a real HTTPS console that can misbehave: verified TLS, lost answers, refusals in its own words."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from attrs import define, evolve, field

from tests.nodeside.harness import private
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.ids import FleetId
from tuneplane.domain.inventory import Inventory
from tuneplane.nodeside.identity import load_identity
from tuneplane.nodeside.join import JoinFailed, JoinOrder, clock_warning, join_fleet

INVENTORY = Inventory(hostname="h", node_version="0", cpu_count=1, memory_bytes=1)
ANSWER = {
    "id": "node-a",
    "credential": "tpn_x",
    "credential_expires_at": "2026-12-30T00:00:00Z",
    "gateway_target": "gateway.example:8443",
    "gateway_trust_pem": "",
    "warnings": ["another Node answers at this address"],
}
HANG_UP = (0, {})  # take the request, answer nothing


@define(eq=False)
class Console:
    """Answers each request with the next script entry (the last one for ever)."""

    url: str
    trust_pem: str
    script: list[tuple[int, dict[str, Any]]]
    date: Callable[[], datetime] = lambda: datetime.now(UTC)
    seen: list[tuple[str, dict[str, Any]]] = field(factory=list)

    async def serve(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            await self._serve(stream)
        except trio.BrokenResourceError:
            return  # a client that does not trust us

    async def _serve(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        data = b""
        async with stream:
            while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < _length(data):
                piece = await stream.receive_some()
                if not piece:
                    return
                data += piece
            head, _, body = data.partition(b"\r\n\r\n")
            self.seen.append((head.split(b" ")[1].decode(), json.loads(body)))
            status, answer = self.script[min(len(self.seen), len(self.script)) - 1]
            if status:
                text = json.dumps(answer).encode()
                lines = [f"HTTP/1.1 {status} X", f"date: {format_datetime(self.date(), usegmt=True)}", f"content-length: {len(text)}"]
                await stream.send_all("\r\n".join([*lines, "connection: close", "", ""]).encode() + text)


def _length(data: bytes) -> int:
    fields = dict(line.lower().split(b": ", 1) for line in data.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:])
    return int(fields.get(b"content-length", b"0"))


@asynccontextmanager
async def open_console(*script: tuple[int, dict[str, Any]], **validity: Any) -> AsyncIterator[Console]:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", **validity).configure_cert(context)
    async with trio.open_nursery() as nursery:
        console = Console("", authority.cert_pem.bytes().decode(), list(script))

        async def serve(task_status: trio.TaskStatus[Any]) -> None:
            await trio.serve_ssl_over_tcp(console.serve, 0, context, host="127.0.0.1", https_compatible=True, task_status=task_status)

        listeners = await nursery.start(serve)
        console.url = f"https://127.0.0.1:{listeners[0].transport_listener.socket.getsockname()[1]}"
        yield console
        nursery.cancel_scope.cancel()


def order(console: Console, **changes: Any) -> JoinOrder:
    value = JoinOrder(server=console.url, fleet=FleetId("lab"), token="tpj_t", address="10.0.0.9", trust_pem=console.trust_pem)
    return evolve(value, **changes)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuneplane.nodeside.join.RETRY_WAITS_SECONDS", (0.01, 0.01))


async def test_join_saves_the_identity_and_passes_warnings_on(tmp_path: Path) -> None:
    """R-ENR-02, R-ENR-04, R-ENR-05, R-TLS-04."""
    state = private(tmp_path / "state")
    async with open_console((201, ANSWER)) as console:
        joined = await join_fleet(order(console), state, INVENTORY)
        path, body = console.seen[0]
    assert path == "/api/fleets/lab/nodes"
    assert set(body) == {"token", "join_key", "try", "address", "node_version", "protocol", "inventory"}
    assert (body["token"], body["try"], body["address"], body["protocol"]) == ("tpj_t", 1, "10.0.0.9", 1)
    assert joined.warnings == ("another Node answers at this address",)
    assert load_identity(state) == joined.identity
    assert (joined.identity.node, joined.identity.gateway_target) == ("node-a", "gateway.example:8443")
    assert sorted(each.name for each in state.iterdir()) == ["identity.json"]


async def test_join_whose_answer_is_lost_asks_again_with_the_same_key_and_a_higher_try(tmp_path: Path) -> None:
    """L-A12, P-14."""
    async with open_console(HANG_UP, (503, {}), (201, ANSWER)) as console:
        await join_fleet(order(console), private(tmp_path / "state"), INVENTORY)
        bodies = [body for _, body in console.seen]
    assert len({body["join_key"] for body in bodies}) == 1
    assert [body["try"] for body in bodies] == [1, 2, 3]


async def test_join_repeated_by_hand_after_giving_up_goes_on_with_the_same_key(tmp_path: Path) -> None:
    state = private(tmp_path / "state")
    async with open_console(HANG_UP, HANG_UP, HANG_UP, (201, ANSWER)) as console:
        with pytest.raises(JoinFailed, match="does not answer") as caught:
            await join_fleet(order(console), state, INVENTORY)
        assert caught.value.code == "console-unreachable"
        assert (state / "join.json").stat().st_mode & 0o777 == 0o600
        assert "tpj_t" not in (state / "join.json").read_text()
        await join_fleet(order(console), state, INVENTORY)
        assert [body["try"] for _, body in console.seen] == [1, 2, 3, 4]
        assert len({body["join_key"] for _, body in console.seen}) == 1


async def test_join_with_another_token_is_another_join(tmp_path: Path) -> None:
    """R-ENR-14."""
    state = private(tmp_path / "state")
    async with open_console(HANG_UP, HANG_UP, HANG_UP, (201, ANSWER)) as console:
        with pytest.raises(JoinFailed):
            await join_fleet(order(console), state, INVENTORY)
        await join_fleet(order(console, token="tpj_other"), state, INVENTORY)
        assert len({body["join_key"] for _, body in console.seen}) == 2


async def test_join_that_is_refused_says_why_and_does_not_ask_again(tmp_path: Path) -> None:
    """R-ENR-03, L-A13."""
    problem = {"code": "token-used", "detail": "this Join Token was used by Node node-b at 12:00", "status": 409}
    state = private(tmp_path / "state")
    async with open_console((409, problem)) as console:
        with pytest.raises(JoinFailed, match="used by Node node-b") as caught:
            await join_fleet(order(console), state, INVENTORY)
        assert (caught.value.code, len(console.seen)) == ("token-used", 1)
    assert not (state / "identity.json").exists()


async def test_machine_that_is_enrolled_joins_again_by_force_only(tmp_path: Path) -> None:
    """R-ENR-04."""
    state = private(tmp_path / "state")
    async with open_console((201, ANSWER), (201, {**ANSWER, "id": "node-b"})) as console:
        await join_fleet(order(console), state, INVENTORY)
        with pytest.raises(JoinFailed, match="--force") as caught:
            await join_fleet(order(console), state, INVENTORY)
        assert caught.value.code == "already-enrolled"
        assert (await join_fleet(order(console, force=True), state, INVENTORY)).identity.node == "node-b"


@pytest.mark.parametrize("server", ["http://console.example", "console.example", "https://", "https://u@x", "ftp://x"])
async def test_join_over_anything_but_https_is_refused(tmp_path: Path, server: str) -> None:
    """R-ENR-02."""
    with pytest.raises(InvalidInput, match="--server"):
        await join_fleet(JoinOrder(server=server, fleet=FleetId("lab"), token="t"), tmp_path, INVENTORY)


async def test_join_to_a_certificate_of_the_future_says_that_it_is_not_yet_valid(tmp_path: Path) -> None:
    """L-A3: the TLS reason, at once, not a time-out."""
    later = datetime.now(UTC) + timedelta(minutes=5)
    async with open_console((201, ANSWER), not_before=later) as console:
        with pytest.raises(JoinFailed, match="not yet valid") as caught:
            await join_fleet(order(console), private(tmp_path / "state"), INVENTORY)
        assert caught.value.code == "tls-failed"


async def test_join_to_a_console_of_an_unknown_authority_is_refused(tmp_path: Path) -> None:
    async with open_console((201, ANSWER)) as console:
        with pytest.raises(JoinFailed, match=r"certificate|self"):
            await join_fleet(order(console, trust_pem=None), private(tmp_path / "state"), INVENTORY)
        assert console.seen == []


async def test_trust_bundle_with_a_private_key_or_nonsense_is_refused(tmp_path: Path) -> None:
    """R-TLS-09."""
    leaf = trustme.CA().issue_cert("x")
    for bundle in (leaf.private_key_and_cert_chain_pem.bytes().decode(), "nonsense"):
        with pytest.raises(InvalidInput, match="--trust-bundle"):
            await join_fleet(JoinOrder(server="https://x", fleet=FleetId("f"), token="t", trust_pem=bundle), tmp_path, INVENTORY)


async def test_join_on_a_machine_whose_clock_is_off_names_the_offset(tmp_path: Path) -> None:
    """L-A1."""
    async with open_console((201, ANSWER)) as console:
        console.date = lambda: datetime.now(UTC) - timedelta(minutes=10)
        joined = await join_fleet(order(console), private(tmp_path / "state"), INVENTORY)
    assert "clock is +600 s" in joined.warnings[0] or "clock is +601 s" in joined.warnings[0]


@pytest.mark.parametrize("date", [None, "", "yesterday", "Mon, 30 Feb 2026 99:99:99 GMT"])
def test_clock_of_a_console_that_tells_no_time_is_not_judged(date: str | None) -> None:
    assert clock_warning(date, datetime.now(UTC)) == ()


async def test_answer_that_lacks_a_field_is_a_clear_failure(tmp_path: Path) -> None:
    async with open_console((201, {"id": "node-a"})) as console:
        with pytest.raises(JoinFailed, match="lacks"):
            await join_fleet(order(console), private(tmp_path / "state"), INVENTORY)
