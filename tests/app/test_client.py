"""The client commands against a real HTTPS server that speaks the API's conventions: exit status, JSON, credentials."""

from __future__ import annotations

import base64
import io
import json
import os
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console as RichConsole

from tuneplane.app.cli import main, start
from tuneplane.app.client import ClientError, Credentials, check_url, read_credentials, read_events, write_credentials
from tuneplane.app.data_dir import console_certificate, utc_now
from tuneplane.app.tables import PIPE_WIDTH, job_details, jobs_table, nodes_table, open_console, progress_text, why
from tuneplane.domain import codec
from tuneplane.domain.jobspec import JobSpec, check_job_spec, check_node_fleet_shape, check_supported

TOKEN = "tpu_" + "a" * 43
JOB = {
    "id": "job-1",
    "name": "digits",
    "fleet": "lab",
    "owner": "admin",
    "state": "queued",
    "created_at": "2026-11-30T12:00:00Z",
    "waiting": {"code": "no-free-capacity", "reasons": [{"code": "x", "detail": "Node node-1 has 0 GPUs free, the job needs 1"}]},
    "attempt_number": 2,
    "attempts": [],
}
LOG = bytes(range(256)) * 3


class Console(BaseHTTPRequestHandler):
    """Answers as interfaces.md says; ``requests`` keeps what was asked."""

    protocol_version = "HTTP/1.1"
    requests: ClassVar[list[tuple[str, str, Any]]] = []

    def do_GET(self) -> None:
        self.requests.append(("GET", self.path, self.headers.get("Authorization")))
        path, _, query = self.path.partition("?")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._problem(401, "unauthenticated", "the API token is unknown")
        elif path == "/api/whoami":
            self._json(200, {"username": "admin", "role": "admin", "projects": []})
        elif path == "/api/jobs" and "cursor=c2" in query:
            self._json(200, {"items": [{**JOB, "id": "job-2"}], "next_cursor": None})
        elif path == "/api/jobs":
            self._json(200, {"items": [JOB], "next_cursor": "c2"})
        elif path == "/api/jobs/job-1":
            self._json(200, JOB)
        elif path == "/api/jobs/job-1/logs":
            self._log(query)
        elif path == "/api/fleets":
            self._problem(503, "storage-unavailable", "PostgreSQL does not answer")
        else:
            self._problem(404, "not-found", "no job named 'job-9'")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.requests.append(("POST", self.path, json.loads(body or b"{}")))
        if self.path == "/api/jobs/job-1/retry?after=2":
            self._json(202, {**JOB, "waiting": None})
            return
        if self.path == "/api/nodes/node-1/members/job-1-2-0/declare-lost":
            self._send(204, b"", "application/json", {})
            return
        reasons = [{"code": "capability", "detail": "Fleet a does not declare 'train'", "subject": "a"}]
        self._problem(409, "no-fleet-fits", "no Fleet can hold this job", reasons=reasons)

    def _log(self, query: str) -> None:
        offset = int(dict(pair.split("=") for pair in query.split("&"))["offset"])
        piece = LOG[offset : offset + 300]
        self._send(200, piece, "text/plain", {"X-Next-Offset": str(offset + len(piece))})

    def _json(self, status: int, data: Any) -> None:
        self._send(status, json.dumps(data).encode(), "application/json", {})

    def _problem(self, status: int, code: str, detail: str, **more: Any) -> None:
        data = {"type": "about:blank", "title": code, "status": status, "detail": detail, "code": code, **more}
        self._send(status, json.dumps(data).encode(), "application/problem+json", {})

    def _send(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """(URL, CA file) of a running console."""
    made = console_certificate(tmp_path_factory.mktemp("ca"), ["127.0.0.1", "localhost"], utc_now())
    assert made.ca is not None
    server = ThreadingHTTPServer(("127.0.0.1", 0), Console)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}", made.ca
    server.shutdown()
    thread.join(10)
    server.server_close()


@pytest.fixture
def run(console: tuple[str, Path], tmp_path: Path) -> Any:
    """``run(*arguments)``: the command as a program would call it, signed in by environment."""
    url, ca = console
    env = {"TUNEPLANE_URL": url, "TUNEPLANE_TOKEN": TOKEN, "TUNEPLANE_CA": str(ca), "TUNEPLANE_CREDENTIALS": str(tmp_path / "none.json")}
    Console.requests.clear()

    def invoke(*arguments: str, **more: Any) -> Any:
        return CliRunner().invoke(main, list(arguments), env={**env, **more.pop("env", {})}, **more)

    return invoke


def test_jobs_in_a_table_shows_why_one_waits(run: Any) -> None:
    result = run("jobs")
    assert result.exit_code == 0
    assert "job-1" in result.stdout
    assert "needs 1" in result.stdout.replace("\n", " ")


def test_tables_in_a_pipe_keep_a_row_on_a_line_and_in_a_narrow_terminal_the_id_whole() -> None:
    """A person pipes to grep, and copies an id from the screen."""
    job: dict[str, Any] = {"id": "job-vztpb7sm7ebgrzot", "name": "n" * 60, "fleet": "lab", "owner": "admin", "state": "queued"}
    job |= {"created_at": "2026-11-30T12:00:00Z", "waiting": {"code": "x", "reasons": [{"detail": "why " * 60}]}}
    for width, lines in ((PIPE_WIDTH, 2), (80, None)):
        screen = io.StringIO()
        RichConsole(width=width, file=screen).print(jobs_table([job]))
        shown = screen.getvalue().splitlines()
        assert any(line.startswith("job-vztpb7sm7ebgrzot ") for line in shown)
        assert lines is None or len(shown) == lines


def test_jobs_with_json_prints_one_document(run: Any) -> None:
    assert [job["id"] for job in json.loads(run("jobs", "--json").stdout)] == ["job-1"]


def test_jobs_with_all_follows_the_cursor(run: Any) -> None:
    assert [job["id"] for job in json.loads(run("jobs", "--all", "--json").stdout)] == ["job-1", "job-2"]


def test_job_that_does_not_exist_is_refused_with_status_two(run: Any) -> None:
    result = run("jobs", "job-9")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no job named" in result.stderr


def test_console_that_fails_gives_status_one(run: Any) -> None:
    result = run("fleets")
    assert result.exit_code == 1
    assert "PostgreSQL does not answer" in result.stderr


def test_console_that_cannot_be_reached_gives_status_one(run: Any) -> None:
    result = run("jobs", env={"TUNEPLANE_URL": "https://127.0.0.1:1"})
    assert result.exit_code == 1
    assert "cannot reach the console" in result.stderr


def test_console_whose_certificate_is_not_trusted_is_not_talked_to(run: Any) -> None:
    result = run("jobs", env={"TUNEPLANE_CA": ""})
    assert result.exit_code == 1
    assert "certificate" in result.stderr.lower()
    assert not Console.requests  # the token never left


def test_submit_that_is_refused_shows_every_reason(run: Any, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("metadata: {name: x}\n")
    result = run("submit", str(spec))
    assert result.exit_code == 2
    assert "does not declare 'train'" in result.stderr
    assert Console.requests == [("POST", "/api/jobs", {"metadata": {"name": "x"}})]


def test_submit_of_a_file_that_is_no_yaml_is_wrong_usage(run: Any, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("{")
    assert run("submit", str(spec)).exit_code == 2
    assert not Console.requests


def test_retry_names_the_attempt_that_it_follows(run: Any) -> None:
    """P-09: so that a repeat of the request is not another attempt."""
    done = run("retry", "job-1", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["id"] == "job-1"
    assert ("POST", "/api/jobs/job-1/retry?after=2", {}) in Console.requests


def test_declare_lost_needs_a_reason_and_sends_it(run: Any) -> None:
    """P-11."""
    assert run("declare-lost", "node-1", "job-1-2-0").exit_code == 2
    done = run("declare-lost", "node-1", "job-1-2-0", "--reason", "it burnt")
    assert done.exit_code == 0, done.output
    assert ("POST", "/api/nodes/node-1/members/job-1-2-0/declare-lost", {"reason": "it burnt"}) in Console.requests


def test_logs_are_printed_byte_for_byte(run: Any) -> None:
    """R-LCH-13: any bytes, in bounded reads."""
    result = run("logs", "job-1")
    assert result.exit_code == 0
    assert result.stdout_bytes == LOG


def test_logs_with_json_carry_bytes_in_base64(run: Any) -> None:
    pieces = [json.loads(line) for line in run("logs", "job-1", "--json").stdout.splitlines()]
    assert b"".join(base64.b64decode(piece["data"]) for piece in pieces) == LOG
    assert [piece["offset"] for piece in pieces] == [0, 300, 600]


def test_command_without_login_says_how_to(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["jobs"], env={"TUNEPLANE_CREDENTIALS": str(tmp_path / "none.json"), "TUNEPLANE_URL": ""})
    assert result.exit_code == 1
    assert "tuneplane login" in result.stderr


def test_login_keeps_credentials_private_and_never_prints_the_token(console: tuple[str, Path], tmp_path: Path) -> None:
    """R-CRD-05."""
    url, ca = console
    path = tmp_path / "config" / "credentials.json"
    env = {"TUNEPLANE_CREDENTIALS": str(path), "TUNEPLANE_TOKEN": "", "TUNEPLANE_URL": "", "TUNEPLANE_CA": ""}
    result = CliRunner().invoke(main, ["login", url, "--ca", str(ca), "--token-file", "-"], input=TOKEN + "\n", env=env)
    assert result.exit_code == 0, result.output
    assert TOKEN not in result.output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert CliRunner().invoke(main, ["jobs", "--json"], env=env).exit_code == 0


def test_login_with_a_wrong_token_keeps_nothing(console: tuple[str, Path], tmp_path: Path) -> None:
    url, ca = console
    path = tmp_path / "credentials.json"
    arguments = ["login", url, "--ca", str(ca), "--token-file", "-"]
    result = CliRunner().invoke(main, arguments, input="tpu_wrong\n", env={"TUNEPLANE_CREDENTIALS": str(path), "TUNEPLANE_TOKEN": ""})
    assert result.exit_code == 2
    assert not path.exists()


@pytest.mark.parametrize("url", ["http://console.example", "console.example", "https://", "https://c.example/path"])
def test_url_that_is_not_plain_https_is_refused(url: str) -> None:
    with pytest.raises(ClientError):
        check_url(url)


def test_credentials_of_the_environment_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_credentials(Credentials(url="https://a.example", token="one"), path)
    found = read_credentials({"TUNEPLANE_CREDENTIALS": str(path), "TUNEPLANE_TOKEN": "two"})
    assert (found.url, found.token) == ("https://a.example", "two")
    assert "two" not in repr(found)


def test_token_with_a_newline_is_used_without_it_and_a_broken_one_is_never_shown(run: Any) -> None:
    """R-CRD-05: the HTTP library shows a header that it refuses."""
    assert run("jobs", "--json", env={"TUNEPLANE_TOKEN": TOKEN + "\n"}).exit_code == 0
    for broken in ("tpu_se\ncret", "tpu_sécret", "tpu_se cret"):
        result = run("jobs", env={"TUNEPLANE_TOKEN": broken})
        assert result.exit_code == 1
        assert "the API token has characters" in result.output
        assert "cret" not in result.output


def test_output_that_cannot_be_written_is_one_sentence_and_status_one(console: tuple[str, Path]) -> None:
    url, ca = console
    env = {**os.environ, "TUNEPLANE_URL": url, "TUNEPLANE_TOKEN": TOKEN, "TUNEPLANE_CA": str(ca)}
    for arguments in (["jobs", "--json"], ["jobs"]):
        with Path("/dev/full").open("w") as full:
            program = [sys.executable, "-c", "from tuneplane.app.cli import main; main()", *arguments]
            done = subprocess.run(program, env=env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (1, "error: [Errno 28] No space left on device\n")


def test_events_are_read_over_comments_and_split_data() -> None:
    lines = [": keep-alive", "", "event: end", 'data: {"a":', "data: 1}", "", 'data: {"b": 2}', ""]
    assert list(read_events(iter(lines))) == [("end", {"a": 1}), ("message", {"b": 2})]


def test_why_prefers_the_waiting_reason_then_progress_then_the_cause() -> None:
    assert why(JOB).startswith("Node node-1")
    pulling = {"phase": "pull", "done": 5_000_000, "total": 10_000_000, "unit": "bytes"}
    preparing = {**JOB, "state": "preparing", "waiting": None, "attempts": [{"number": 1, "members": [{"progress": pulling}]}]}
    assert why(preparing) == "pull 5.0/10.0 MB"
    assert why({**JOB, "state": "failed", "waiting": None, "reason_detail": "out of memory"}) == "out of memory"


def test_why_names_the_silent_node_that_holds_a_job() -> None:
    """P-11: a job that is stopping for ever says for whom it waits."""
    held = {"code": "silent-node", "detail": "job-1-2-0 is held by Node node-1, silent since 2026-11-30 12:00:00Z", "subject": "node-1"}
    attempt = {"number": 2, "members": [], "waits_for": [held]}
    assert why({**JOB, "state": "stopping", "waiting": None, "attempts": [attempt]}) == held["detail"]


def test_words_of_a_machine_are_printed_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path in brackets is not markup: it neither vanishes nor breaks the command."""
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    said = "cannot open [/dev/nvidia0] of [fd00::1]:6379 :warning:"
    job_details({**JOB, "waiting": {"code": "x", "reasons": [{"detail": said}]}}, open_console())
    assert screen.getvalue().count(said) == 2


def test_progress_without_amounts_is_its_phase() -> None:
    assert progress_text({"phase": "waiting", "done": 0, "total": 0, "unit": "bytes"}) == "waiting"
    assert progress_text(None) == ""


def test_server_command_on_a_disk_that_refuses_says_so_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """A full or read-only disk is an operator's business, not a traceback."""

    def run() -> None:
        raise PermissionError(13, "Permission denied", "/srv/gateway-tls")

    with pytest.raises(SystemExit) as ended:
        start(run)
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: [Errno 13] Permission denied: '/srv/gateway-tls'\n"


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_a_spec_that_a_node_fleet_could_take(path: Path) -> None:
    spec = codec.decode(JobSpec, yaml.safe_load(path.read_text(encoding="utf-8")), "")
    check_job_spec(spec)
    check_supported(spec.spec)
    check_node_fleet_shape(spec.spec)


GANG = {
    **JOB,
    "state": "preparing",
    "attempts": [
        {
            "number": 1,
            "main_address": "10.0.0.1",
            "main_port": 20999,
            "members": [
                {
                    "id": "job-1-1-0",
                    "node": "n1",
                    "phase": "prepared",
                    "progress": {"phase": "wait-for-peers", "done": 1, "total": 2, "unit": "members"},
                },
                {
                    "id": "job-1-1-1",
                    "node": "n2",
                    "phase": "preparing",
                    "progress": {"phase": "pull", "done": 5_000_000, "total": 0, "unit": "bytes"},
                },
            ],
        }
    ],
}


def test_a_gang_shows_where_it_meets_and_first_what_keeps_the_others_waiting() -> None:
    """R-LCH-15."""
    out = io.StringIO()
    job_details(GANG, RichConsole(file=out, width=PIPE_WIDTH))
    assert "attempt 1 meets at 10.0.0.1 port 20999" in out.getvalue()
    assert "wait-for-peers 1/2 members" in out.getvalue()
    assert why(GANG) == "pull 5.0 MB"


def test_each_attempt_of_a_job_shows_its_own_cause() -> None:
    """L-H1: also when a later one succeeded."""
    causes = ("job-1-1-0 ended with exit code 1", "out of memory", "")
    attempts = [{"number": number, "members": [], "reason_detail": cause} for number, cause in enumerate(causes, 1)]
    out = io.StringIO()
    job_details({**JOB, "state": "succeeded", "attempts": attempts}, RichConsole(file=out, width=PIPE_WIDTH))
    assert "attempt 1 ended: job-1-1-0 ended with exit code 1\n  attempt 2 ended: out of memory\n" in out.getvalue()
    assert "attempt 3" not in out.getvalue()


def test_a_node_shows_the_numeric_address_that_gangs_use_where_it_is_another() -> None:
    node = {
        "id": "n1",
        "fleet": "lab",
        "address": "host-a",
        "connection": {"state": "connected"},
        "scheduling": {"state": "active"},
        "ready": {"value": True, "reasons": []},
    }
    shown = {"": "host-a", "10.0.0.5": "host-a (10.0.0.5)"}
    for numeric, text in shown.items():
        out = io.StringIO()
        RichConsole(file=out, width=PIPE_WIDTH).print(nodes_table([{**node, "inventory": {"route_address": numeric}}]))
        assert f" {text} " in out.getvalue()
