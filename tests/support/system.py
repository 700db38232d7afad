"""The whole product as separate real processes: PostgreSQL, api, gateway, worker and a Node on its own Podman.

Nothing is shared but PostgreSQL and the storage root; the Node is on a gateway that the API did not start. Every process
may be killed and started again by name. Waits are level-triggered and bounded, and say what they last saw.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from attrs import define, field

from tuneplane.app.client import ApiClient, ClientError, Credentials
from tuneplane.app.client_commands import follow_log

from .images import busybox_image
from .podman import Podman, open_podman
from .postgres import Postgres, open_postgres, private_directory
from .registry import Registry, open_registry

T = TypeVar("T")

FACTOR = "0.1"  # of every protocol duration: sessions idle out after 2 s, claims after 1.5 s; still calm on two busy cores
FLEET = "lab"
START_SECONDS = 60.0  # importing the server's libraries takes a second, on two busy cores several
WAIT_SECONDS = 60.0
LOOK_SECONDS = 0.05
END_SECONDS = 60.0
FINAL = frozenset({"succeeded", "failed", "stopped"})
LABEL = "tuneplane.member"


class Running(Protocol):
    """A started process: what subprocess.Popen offers, as far as it is needed here."""

    pid: int
    returncode: Any

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> int: ...

    def send_signal(self, number: signal.Signals) -> None: ...

    def kill(self) -> None: ...


Spawn = Callable[[list[str], dict[str, str], Path, Path], Running]
"""``spawn(command, env, cwd, log)``"""


def popen(command: list[str], env: dict[str, str], cwd: Path, log: Path) -> Running:
    """As an init system starts it."""
    with log.open("ab") as output:
        return subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


@define(eq=False)
class Process:
    """One process of ours and how to start it again."""

    name: str
    command: list[str]
    env: dict[str, str]
    log: Path
    spawn: Spawn = popen
    child: Running | None = None
    log_from: int = 0  # where the present run's log begins

    def start(self) -> None:
        assert self.child is None, f"{self.name} runs already"
        self.log_from = self.log.stat().st_size if self.log.exists() else 0
        self.child = self.spawn(self.command, self.env, self.log.parent, self.log)

    def end(self, number: signal.Signals) -> int:
        """Send ``number`` and wait; the exit status."""
        child, self.child = self.child, None
        assert child is not None, f"{self.name} does not run"
        child.send_signal(number)
        try:
            return child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(END_SECONDS)
            raise AssertionError(f"{self.name} did not end {END_SECONDS:g} s after {number.name}: {self.tail()}") from None

    def is_up(self) -> tuple[bool | None, str]:
        """Up is what its own log says; a process that ended says so at once."""
        if self.child is not None and self.child.poll() is not None:
            raise AssertionError(f"{self.name} ended with status {self.child.returncode}: {self.tail()}")
        return (True if self.says_up() else None), self.tail()

    def says_up(self) -> bool:
        return b'"event": "up"' in self._this_run()

    def events(self) -> list[dict[str, Any]]:
        """The JSON log lines of the present run."""
        return [json.loads(line) for line in self._this_run().decode(errors="replace").splitlines() if line.startswith("{")]

    def tail(self) -> str:
        return self._this_run().decode(errors="replace")[-3000:]

    def _this_run(self) -> bytes:
        with self.log.open("rb") as file:
            file.seek(self.log_from)
            return file.read()


def wait_for(what: str, look: Callable[[], tuple[T | None, object]], seconds: float = WAIT_SECONDS) -> T:
    """``look`` answers (value or None, what it saw); the value, or AssertionError with what was last seen."""
    ends = time.monotonic() + seconds
    while True:
        found, seen = look()
        if found is not None:
            return found
        if time.monotonic() > ends:
            raise AssertionError(f"waited {seconds:g} s for {what}; last seen: {seen}")
        time.sleep(LOOK_SECONDS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@define(eq=False)
class WholeSystem:
    """All parts; made by :func:`open_system_of_processes`."""

    directory: Path
    postgres: Postgres
    dsn: str
    podman: Podman
    registry: Registry
    storage_root: Path
    settings: dict[str, str]
    node_settings: dict[str, str]
    console_url: str
    spawn: Spawn = popen
    processes: dict[str, Process] = field(factory=dict)
    client: ApiClient = field(init=False)
    node_id: str = field(init=False, default="")

    # ---------------------------------------------------------------- processes

    def add(self, name: str, command: list[str], env: Mapping[str, str]) -> Process:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TUNEPLANE_")}
        program = str(Path(sys.executable).with_name(command[0]))
        process = Process(name, [program, *command[1:]], {**clean, **env}, self.directory / f"{name}.log", self.spawn)
        self.processes[name] = process
        return process

    def start(self, *names: str) -> None:
        """Start, and wait until all say that they are up."""
        for name in names:
            self.processes[name].start()
        for name in names:
            wait_for(f"{name} to be up", self.processes[name].is_up, START_SECONDS)

    def kill(self, name: str) -> None:
        """SIGKILL, as a machine would. ``postgres`` too."""
        if name == "postgres":
            self.postgres.kill()
        else:
            self.processes[name].end(signal.SIGKILL)

    def stop(self, name: str) -> int:
        """SIGTERM; its exit status."""
        return self.processes[name].end(signal.SIGTERM)

    def restart(self, name: str) -> None:
        """Start again after :meth:`kill` or :meth:`stop`."""
        if name == "postgres":
            self.postgres.start()
        else:
            self.start(name)

    # ---------------------------------------------------------------- jobs

    def image(self) -> str:
        return busybox_image(self.registry)

    def spec(self, command: list[str], **body: Any) -> dict[str, Any]:
        """A JobSpec on busybox; ``body`` replaces or adds keys of ``spec``."""
        return {
            "apiVersion": "tuneplane/v1",
            "kind": "TrainingJob",
            "metadata": {"name": "test"},
            "spec": {
                "fleet": FLEET,
                "runtime": {"image": self.image()},
                "command": command,
                "resources": {"pools": [{"name": "main", "cpus": 0.2, "memory_gb": 0.064}]},
                "stop": {"signal": "SIGTERM", "grace_seconds": 2.0},
                **body,
            },
        }

    def submit(self, command: list[str], **body: Any) -> str:
        return str(self.client.post("/api/jobs", self.spec(command, **body))["id"])

    def sh(self, script: str, **body: Any) -> str:
        """Submit a shell script."""
        return self.submit(["sh", "-c", script], **body)

    def job(self, job: str) -> dict[str, Any]:
        return dict(self.client.get(f"/api/jobs/{job}"))

    def member(self, job: str) -> dict[str, Any]:
        """The one member of the latest attempt; empty before there is one."""
        attempts = self.job(job)["attempts"]
        return dict(attempts[-1]["members"][0]) if attempts else {}

    def wait_job(self, job: str, *states: str, seconds: float = WAIT_SECONDS) -> dict[str, Any]:
        """Wait for one of ``states`` (default: any end). A job that ended otherwise fails the wait at once."""
        wanted = set(states) or FINAL

        def look() -> tuple[dict[str, Any] | None, object]:
            try:
                seen = self.job(job)
            except ClientError as error:  # a process is being restarted
                return None, error
            if seen["state"] in FINAL - wanted:
                raise AssertionError(f"{job} is {seen['state']} instead of {wanted}: {json.dumps(seen, indent=1)}")
            return (seen if seen["state"] in wanted else None), seen

        return wait_for(f"{job} to be {' or '.join(sorted(wanted))}", look, seconds)

    def wait_cleaned(self, job: str, seconds: float = WAIT_SECONDS) -> dict[str, Any]:
        """Wait until clean-up is confirmed (R-LCH-14) and the runtime has no container of the job."""

        def look() -> tuple[dict[str, Any] | None, object]:
            member = self.member(job)
            left = self.containers(job)
            return (member if member.get("cleaned") and not left else None), (member, left)

        return wait_for(f"the member of {job} to be cleaned", look, seconds)

    def read_log(self, job: str, **where: Any) -> bytes:
        """The whole log of an ended job; what there is now of another, by bounded reads."""
        if not where and self.job(job)["state"] in FINAL:
            return self.follow_log(job)
        data, offset = b"", 0
        while True:
            piece, offset = self.client.read_log(job, **{"offset": offset, **where})
            if not piece:
                return data
            data += piece
            where = {}

    def follow_log(self, job: str, **where: Any) -> bytes:
        """Every byte until the log ends, without a gap."""
        data = bytearray()

        def take(piece: dict[str, Any]) -> None:
            assert not piece["gap"], piece["gap"]
            data.extend(base64.b64decode(piece["data"]))

        follow_log(self.client, job, take, **where)
        return bytes(data)

    def wait_log(self, job: str, text: bytes, seconds: float = WAIT_SECONDS) -> bytes:
        """Wait until the log holds ``text``."""

        def look() -> tuple[bytes | None, object]:
            try:
                data = self.read_log(job)
            except Exception as error:  # not yet, or a process is away: any answer but the log is "not yet" here
                return None, error
            return (data if text in data else None), data[-300:]

        return wait_for(f"{text!r} in the log of {job}", look, seconds)

    def containers(self, job: str) -> list[dict[str, Any]]:
        """The runtime's own word: containers of ``job``, ended ones too."""
        return [entry for entry in self.podman.containers() if any(job in str(name) for name in entry["Names"])]

    # ---------------------------------------------------------------- enrolment

    def enrol(self, name: str = "node", **settings: str) -> None:
        """Join a Node by the command line, as ``name``; start it with :meth:`start`."""
        token = self.client.post(f"/api/fleets/{FLEET}/join-tokens")["token"]
        env = {**self.node_settings, "TUNEPLANE_NODE_STATE_DIR": str(self.directory / f"{name}-state"), **settings}
        process = self.add(name, ["tuneplane-node", "serve"], env)
        join = [process.command[0], "join", "--server", self.console_url]
        done = subprocess.run(
            join,
            env={**process.env, "TUNEPLANE_FLEET": FLEET, "TUNEPLANE_JOIN_TOKEN": token},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        assert done.returncode == 0, f"join: {done.stdout}\n{done.stderr}"
        assert token not in done.stdout + done.stderr, "the Join Token shows in the output (R-CRD-05)"

    def nodes(self) -> list[dict[str, Any]]:
        return self.client.list_all(f"/api/fleets/{FLEET}/nodes")

    def wait_ready(self, seconds: float = WAIT_SECONDS) -> str:
        """Wait until a Node is ready; its id."""

        def look() -> tuple[str | None, object]:
            try:
                nodes = self.nodes()
            except ClientError as error:
                return None, error
            ready = [str(node["id"]) for node in nodes if node["ready"]["value"]]
            return (ready[0] if ready else None), [(node["connection"]["state"], node["ready"]) for node in nodes]

        return wait_for("a Node to be ready", look, seconds)


@contextmanager
def open_system_of_processes(*, factor: str = FACTOR, node: bool = True, spawn: Spawn = popen) -> Iterator[WholeSystem]:
    """Everything up, the first administrator signed in, Fleet ``lab`` with one ready Node (unless ``node`` is False)."""
    with ExitStack() as stack:
        directory = stack.enter_context(private_directory("tp-e2e-"))
        system = _compose(stack, directory, factor, spawn)
        stack.callback(_end_all, system)
        system.start("api", "gateway", "worker")
        admin = json.loads((directory / "data" / "admin.json").read_text())
        ca_pem = (directory / "data" / "console-ca.pem").read_text()
        system.client = ApiClient(Credentials(url=system.console_url, token=admin["token"], ca_pem=ca_pem))
        stack.callback(system.client.close)
        system.client.post("/api/fleets", {"id": FLEET, "kind": "node", "capabilities": ["train"]})
        if node:
            system.enrol()
            system.start("node")
            system.node_id = system.wait_ready()
        yield system


def _compose(stack: ExitStack, directory: Path, factor: str, spawn: Spawn) -> WholeSystem:
    postgres = stack.enter_context(open_postgres())
    registry = stack.enter_context(open_registry(directory))
    podman = stack.enter_context(open_podman(Path(tempfile.gettempdir())))
    storage_root = directory / "storage"
    storage_root.mkdir(mode=0o755)
    dsn = stack.enter_context(postgres.fresh_database())
    console, gateway = free_port(), free_port()
    common = {"TUNEPLANE_STORAGE_ROOT": str(storage_root), "TUNEPLANE_TIMINGS_FACTOR": factor}
    settings = {
        **common,
        "TUNEPLANE_DATABASE_URL": dsn,
        "TUNEPLANE_SECRET_ENC_KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
        "TUNEPLANE_JWT_SECRET": secrets.token_urlsafe(48),
        "TUNEPLANE_DATA_DIR": str(directory / "data"),
        "TUNEPLANE_CONSOLE_LISTEN": f"127.0.0.1:{console}",
        "TUNEPLANE_PUBLIC_URL": f"https://127.0.0.1:{console}",
        "TUNEPLANE_GATEWAY_LISTEN": f"127.0.0.1:{gateway}",
        "TUNEPLANE_NODE_GATEWAY_TARGET": f"127.0.0.1:{gateway}",
    }
    node_settings = {
        **common,
        "TUNEPLANE_NODE_ENROLLMENT_TRUST_BUNDLE": str(directory / "data" / "console-ca.pem"),
        "TUNEPLANE_NODE_RUNTIME": "podman",
        "TUNEPLANE_NODE_RUNTIME_SOCKET": str(podman.socket),
        "TUNEPLANE_NODE_CPUS": "4",
        "TUNEPLANE_NODE_MEMORY_GB": "4",
        "TUNEPLANE_NODE_GPU_IDS": "",
        "TUNEPLANE_NODE_ADDRESS": "127.0.0.1",
    }
    system = WholeSystem(
        directory=directory,
        postgres=postgres,
        dsn=dsn,
        podman=podman,
        registry=registry,
        storage_root=storage_root,
        settings=settings,
        node_settings=node_settings,
        console_url=f"https://127.0.0.1:{console}",
        spawn=spawn,
    )
    _migrate(system)
    for name in ("api", "gateway", "worker"):
        env = settings if name == "api" else {**settings, "TUNEPLANE_DATA_DIR": str(directory / f"{name}-data")}
        system.add(name, ["tuneplane", name], env)
    return system


def _migrate(system: WholeSystem) -> None:
    process = system.add("migrate", ["tuneplane", "migrate"], system.settings)
    done = subprocess.run(process.command, env=process.env, capture_output=True, text=True, timeout=START_SECONDS, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    del system.processes["migrate"]


def _end_all(system: WholeSystem) -> None:
    """Node first, so that it does not see its gateway go. Kill what does not stop."""
    for name in sorted(system.processes, key=lambda each: not each.startswith("node")):
        process = system.processes[name]
        if process.child is not None:
            process.end(signal.SIGTERM)
