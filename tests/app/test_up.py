"""``tuneplane up`` as a person starts it: one command, an embedded PostgreSQL, secrets printed once (R-ADM-01, R-OPS-03)."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import private_directory
from tuneplane.app.client import ApiClient, Credentials

pytestmark = [pytest.mark.postgres]

PROGRAM = str(Path(sys.executable).with_name("tuneplane"))
START_SECONDS = 60.0
END_SECONDS = 60.0
TLS = ("gateway", "internal")


def _environment(**settings: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TUNEPLANE_")}
    loopback = {"TUNEPLANE_CONSOLE_LISTEN": "127.0.0.1:0", "TUNEPLANE_GATEWAY_LISTEN": "127.0.0.1:0"}
    return {**clean, **loopback, "TUNEPLANE_NODE_GATEWAY_TARGET": "127.0.0.1:8443", **settings}


class Up:
    """One ``tuneplane up`` on ``data``; ``output`` and ``errors`` are files beside it."""

    def __init__(self, data: Path, **settings: str) -> None:
        self.data = data
        self.output, self.errors = data.with_suffix(".out"), data.with_suffix(".err")
        (data / "up.json").unlink(missing_ok=True)  # of one that was killed
        with self.output.open("wb") as out, self.errors.open("ab") as err:
            command, env = [PROGRAM, "up", "--data-dir", str(data)], _environment(**settings)
            self.child = subprocess.Popen(command, env=env, cwd=data.parent, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def wait_up(self) -> dict[str, Any]:
        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends:
            if self.child.poll() is not None:
                raise AssertionError(f"up ended with {self.child.returncode}: {self.errors.read_text()[-2000:]}")
            try:
                return dict(json.loads((self.data / "up.json").read_text()))
            except (OSError, ValueError):
                time.sleep(0.05)
        raise AssertionError(f"up is not up: {self.errors.read_text()[-2000:]}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.child.send_signal(number)
        return self.child.wait(END_SECONDS)

    def client(self) -> ApiClient:
        admin = json.loads((self.data / "admin.json").read_text())
        url = json.loads((self.data / "up.json").read_text())["console"]
        return ApiClient(Credentials(url=url, token=admin["token"], ca_pem=(self.data / "console-ca.pem").read_text()))


@contextmanager
def running(data: Path, **settings: str) -> Iterator[Up]:
    up = Up(data, **settings)
    try:
        up.wait_up()
        yield up
    finally:
        if up.child.poll() is None:
            assert up.end() == 0, up.errors.read_text()[-2000:]


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory that PostgreSQL's own account can reach."""
    with private_directory("tp-up-") as place:
        yield place / "data"


def _command(data: Path, *arguments: str, standard_input: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    command, env = [PROGRAM, *arguments], _environment(**settings)
    return subprocess.run(command, env=env, cwd=data.parent, input=standard_input, capture_output=True, text=True, timeout=60)


def test_up_first_start_prints_the_secrets_once_and_keeps_them_private(data: Path) -> None:
    with running(data) as up:
        admin = json.loads((data / "admin.json").read_text())
        printed = up.output.read_text()
        assert admin["password"] in printed
        assert admin["token"] in printed
        with up.client() as client:
            assert client.get("/api/whoami")["role"] == "admin"
            assert client.list_all("/api/fleets") == []  # R-FLT-04
    with running(data) as up, up.client() as client:
        assert client.get("/api/whoami")["username"] == admin["username"]
        assert admin["token"] not in up.output.read_text()
        assert client.list_all("/api/fleets") == []
    for private in ("admin.json", "secrets.json", "console/ca.key", "console/tls.key", *(f"{name}-tls/current/tls.key" for name in TLS)):
        assert stat.S_IMODE((data / private).stat().st_mode) == 0o600, private
    for secret in (admin["token"], admin["password"]):
        assert secret not in up.errors.read_text()  # R-CRD-05
    assert not (data / "up.json").exists()


def test_up_killed_comes_back_with_everything(data: Path) -> None:
    """SIGKILL leaves an orphan PostgreSQL behind; the next start takes the data over. Trust never changes (R-TLS-01)."""
    with running(data) as up:
        with up.client() as client:
            client.post("/api/fleets", {"id": "kept", "kind": "node", "capabilities": ["train"]})
        trust = [(data / name).read_bytes() for name in ("console-ca.pem", "gateway-tls/current/tls.crt")]
        up.end(signal.SIGKILL)
    with running(data) as up, up.client() as client:
        assert [fleet["id"] for fleet in client.list_all("/api/fleets")] == ["kept"]
        assert [(data / name).read_bytes() for name in ("console-ca.pem", "gateway-tls/current/tls.crt")] == trust


def test_up_on_a_directory_in_use_is_refused(data: Path) -> None:
    with running(data):
        second = _command(data, "up", "--data-dir", str(data))
        assert second.returncode == 1
        assert "another `tuneplane up`" in second.stderr


def test_up_with_its_default_ports_taken_chooses_others_and_keeps_the_gateway_one(data: Path) -> None:
    holders = []
    for port in (9443, 8443):
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("0.0.0.0", port))
            holder.listen()
        except OSError:
            pass  # another process holds it: taken all the same
        holders.append(holder)
    defaults = {"TUNEPLANE_CONSOLE_LISTEN": "", "TUNEPLANE_GATEWAY_LISTEN": "", "TUNEPLANE_NODE_GATEWAY_TARGET": ""}
    try:
        with running(data, **defaults) as up:
            first = up.wait_up()
        assert not first["console"].endswith(":9443")
        assert not first["gateway"].endswith(":8443")
    finally:
        for holder in holders:
            holder.close()
    with running(data, **defaults) as up:
        assert up.wait_up()["gateway"] == first["gateway"]


def test_up_with_a_wrong_setting_stops_with_its_name_and_rule(data: Path) -> None:
    done = _command(data, "up", "--data-dir", str(data), TUNEPLANE_TIMINGS_FACTOR="2")
    assert (done.returncode, done.stderr) == (2, "error: TUNEPLANE_TIMINGS_FACTOR must be above 0 and at most 1\n")
    assert not data.exists()


@pytest.mark.parametrize("process", ["api", "gateway", "worker"])
def test_process_without_its_database_names_the_variable(process: str, data: Path) -> None:
    done = _command(data, process, TUNEPLANE_SECRET_ENC_KEY="QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=", TUNEPLANE_JWT_SECRET="j" * 40)
    assert (done.returncode, done.stderr) == (2, "error: TUNEPLANE_DATABASE_URL must be set\n")


def test_user_and_token_are_made_while_it_runs_and_while_it_is_stopped(data: Path) -> None:
    with running(data) as up:
        made = _command(data, "user", "add", "bob", "--data-dir", str(data), standard_input="correct horse battery\n")
        assert made.returncode == 0, made.stderr
        minted = _command(data, "token", "create", "--user", "bob", "--data-dir", str(data))
        with ApiClient(Credentials(url=up.client().url, token=minted.stdout.strip(), ca_pem=(data / "console-ca.pem").read_text())) as bob:
            assert bob.get("/api/whoami")["role"] == "user"
    again = _command(data, "user", "add", "bob", "--data-dir", str(data), standard_input="correct horse battery\n")
    assert again.returncode == 2  # the name is taken
    assert _command(data, "token", "create", "--user", "nobody", "--data-dir", str(data)).returncode == 2
    stopped = json.loads(_command(data, "token", "create", "--user", "bob", "--json", "--data-dir", str(data)).stdout)
    assert stopped["token"].startswith("tpu_")
    assert stopped["token"] not in up.errors.read_text()


def test_migrate_brings_an_external_database_up_and_says_when_there_is_nothing_to_do(blank_database: str, data: Path) -> None:
    """R-SES-09: what runs on it refuses it before."""
    settings = {"TUNEPLANE_DATABASE_URL": blank_database}
    refused = _command(data, "worker", **settings)
    assert refused.returncode == 1
    assert "migrate" in refused.stderr
    assert "applied" in _command(data, "migrate", **settings).stdout
    assert "up to date" in _command(data, "migrate", **settings).stdout
