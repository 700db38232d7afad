"""A Docker Engine API without containers: a process of its own at a Unix socket, for a thousand jobs through the real daemon.

The Node's daemon, its engine client included, runs unchanged against it. A container is a row with a clock: its command is
``sim SECONDS EXIT_CODE``, a signal ends it with 128 + its number. What is created and started is noted in ``record``, one line
``EVENT NAME ID`` each, before the answer leaves: that file is the runtime's own word, which no table of ours has touched.

Run as ``python -m tests.support.engine_stub SOCKET RECORD``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from attrs import define, field

READY_SECONDS = 20.0  # measured 0.1 s; two busy cores may take far longer
ZERO_TIME = "0001-01-01T00:00:00Z"


# ---------------------------------------------------------------- the test's side


@define(eq=False)
class EngineStub:
    """The running stub."""

    socket: Path
    record: Path
    process: subprocess.Popen[bytes]

    def events(self, what: str) -> list[tuple[str, str]]:
        """(name, id) of every ``create`` or ``start``, in their order."""
        lines = [line.split(" ") for line in self.record.read_text().splitlines()]
        return [(name, container) for event, name, container in lines if event == what]


@contextmanager
def open_engine_stub(directory: Path, name: str) -> Iterator[EngineStub]:
    """Ready when its socket is there; killed at the end."""
    socket, record = directory / f"{name}.sock", directory / f"{name}.record"
    command = [sys.executable, "-m", "tests.support.engine_stub", str(socket), str(record)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL) as process:
        try:
            ends = time.monotonic() + READY_SECONDS
            while not record.exists():  # made after the socket
                assert process.poll() is None
                assert time.monotonic() < ends, "the engine stub does not start"
                time.sleep(0.01)
            yield EngineStub(socket, record, process)
        finally:
            process.kill()


# ---------------------------------------------------------------- the stub's side


@define(eq=False)
class _Container:
    id: str
    name: str
    labels: dict[str, str]
    seconds: float
    exit_code: int
    started: float | None = None
    killed: tuple[float, int] | None = None  # when, and with which exit code

    def ends_at(self) -> float | None:
        if self.started is None:
            return None
        by_itself = self.started + self.seconds
        return min(by_itself, self.killed[0]) if self.killed else by_itself

    @property
    def running(self) -> bool:
        ends = self.ends_at()
        return ends is not None and time.time() < ends

    def state(self) -> dict[str, Any]:
        ends, running = self.ends_at(), self.running
        code = self.killed[1] if self.killed and ends == self.killed[0] else self.exit_code
        status = "created" if self.started is None else "running" if running else "exited"
        return {
            "Status": status,
            "Running": running,
            "StartedAt": _moment(self.started),
            "FinishedAt": _moment(ends) if status == "exited" else ZERO_TIME,
            "ExitCode": code if status == "exited" else 0,
        }


@define(eq=False)
class _World:
    record: Path
    containers: dict[str, _Container] = field(factory=dict)
    changed: threading.Condition = field(factory=threading.Condition)

    def note(self, event: str, container: _Container) -> None:
        with self.record.open("a") as file:
            file.write(f"{event} {container.name} {container.id}\n")

    def find(self, key: str) -> _Container | None:
        return self.containers.get(key) or next((one for one in self.containers.values() if one.name == key), None)


def _moment(seconds: float | None) -> str:
    return ZERO_TIME if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


class _Handler(BaseHTTPRequestHandler):
    """One connection. Every method answers (status, body)."""

    protocol_version = "HTTP/1.1"
    world: _World

    def log_message(self, *args: object) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        url = urlsplit(self.path)
        path = re.sub(r"^/v1\.\d+", "", unquote(url.path))
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        for method, pattern, act in ROUTES:
            match = re.fullmatch(pattern, path)
            if method == self.command and match:
                status, answer = getattr(self, act)(query, body, *match.groups())
                self._answer(status, answer)
                return
        self._answer(404, {"message": f"no such path {path}"})

    def _answer(self, status: int, answer: Any) -> None:
        data = answer if isinstance(answer, bytes) else b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    # ------------------------------------------------ the engine

    def version(self, query: dict[str, str], body: Any) -> tuple[int, Any]:
        return 200, {"Version": "20.10.24", "ApiVersion": "1.41", "MinAPIVersion": "1.12", "Components": [{"Name": "Engine"}]}

    def ping(self, query: dict[str, str], body: Any) -> tuple[int, Any]:
        return 200, b"OK"

    def info(self, query: dict[str, str], body: Any) -> tuple[int, Any]:
        return 200, {"Runtimes": {"runc": {}}}

    def image(self, query: dict[str, str], body: Any, name: str) -> tuple[int, Any]:
        return 200, {"Id": "sha256:" + "0" * 64}

    def images(self, query: dict[str, str], body: Any) -> tuple[int, Any]:
        return 200, [{"Id": "sha256:" + "0" * 64}]

    # ------------------------------------------------ containers

    def create(self, query: dict[str, str], body: Any) -> tuple[int, Any]:
        command = body["Entrypoint"]
        seconds, code = (float(command[1]), int(command[2])) if command[0] == "sim" else (0.0, 0)
        with self.world.changed:
            if self.world.find(query["name"]) is not None:
                return 409, {"message": f"the name {query['name']} is already in use"}
            container = _Container(os.urandom(32).hex(), query["name"], body["Labels"], seconds, code)
            self.world.containers[container.id] = container
            self.world.note("create", container)
        return 201, {"Id": container.id}

    def start(self, query: dict[str, str], body: Any, key: str) -> tuple[int, Any]:
        with self.world.changed:
            container = self.world.find(key)
            if container is None:
                return 404, {"message": f"no such container: {key}"}
            if container.running:
                return 304, None
            self.world.note("start", container)  # an ended one would be started again, as a real engine does
            container.started, container.killed = time.time(), None
            self.world.changed.notify_all()
        return 204, None

    def inspect(self, query: dict[str, str], body: Any, key: str) -> tuple[int, Any]:
        container = self.world.find(key)
        if container is None:
            return 404, {"message": f"no such container: {key}"}
        return 200, {"Id": container.id, "Name": f"/{container.name}", "State": container.state(), "Config": {"Labels": container.labels}}

    def list(self, query: dict[str, str], body: Any) -> tuple[int, Any]:
        with self.world.changed:
            every = list(self.world.containers.values())
        wanted = dict(text.split("=", 1) for text in json.loads(query.get("filters", "{}")).get("label", []))
        chosen = [one for one in every if wanted.items() <= one.labels.items()]
        return 200, [{"Id": one.id, "Names": [f"/{one.name}"], "Labels": one.labels, "State": one.state()["Status"]} for one in chosen]

    def wait(self, query: dict[str, str], body: Any, key: str) -> tuple[int, Any]:
        container = self.world.find(key)
        if container is None:
            return 404, {"message": f"no such container: {key}"}
        self._wait_ended(container)
        return 200, {"StatusCode": container.state()["ExitCode"]}

    def _wait_ended(self, container: _Container) -> None:
        with self.world.changed:
            while container.running:
                ends = container.ends_at()
                assert ends is not None
                self.world.changed.wait(max(0.0, ends - time.time()))

    def kill(self, query: dict[str, str], body: Any, key: str) -> tuple[int, Any]:
        number = signal.Signals[query.get("signal", "SIGKILL")]
        with self.world.changed:
            container = self.world.find(key)
            if container is None:
                return 404, {"message": f"no such container: {key}"}
            if not container.running:
                return 409, {"message": f"container {key} is not running"}
            container.killed = (time.time(), 128 + number)
            self.world.changed.notify_all()
        return 204, None

    def remove(self, query: dict[str, str], body: Any, key: str) -> tuple[int, Any]:
        with self.world.changed:
            container = self.world.find(key)
            if container is None:
                return 404, {"message": f"no such container: {key}"}
            del self.world.containers[container.id]
        return 204, None

    def logs(self, query: dict[str, str], body: Any, key: str) -> tuple[int, Any]:
        """One line, when it has ended: nobody here follows a job."""
        container = self.world.find(key)
        if container is None:
            return 404, {"message": f"no such container: {key}"}
        if query.get("follow") == "true":
            self._wait_ended(container)
        text = f"{container.name}\n".encode()
        return 200, b"\x01\0\0\0" + struct.pack(">I", len(text)) + text


ROUTES = (
    ("GET", r"/version", "version"),
    ("GET", r"/_ping", "ping"),
    ("GET", r"/info", "info"),
    ("GET", r"/images/json", "images"),
    ("GET", r"/images/(.+)/json", "image"),
    ("POST", r"/containers/create", "create"),
    ("GET", r"/containers/json", "list"),
    ("POST", r"/containers/([^/]+)/start", "start"),
    ("GET", r"/containers/([^/]+)/json", "inspect"),
    ("POST", r"/containers/([^/]+)/wait", "wait"),
    ("POST", r"/containers/([^/]+)/kill", "kill"),
    ("GET", r"/containers/([^/]+)/logs", "logs"),
    ("DELETE", r"/containers/([^/]+)", "remove"),
)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: object, client_address: object) -> None:
        """A daemon that was killed in the middle of a call: no news."""


def _main() -> None:
    path, record = Path(sys.argv[1]), Path(sys.argv[2])
    _Handler.world = _World(record)
    with _Server(str(path), _Handler) as server:
        record.touch()
        server.serve_forever()


if __name__ == "__main__":
    _main()
