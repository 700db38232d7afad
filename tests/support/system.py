"""The whole product as separate real processes: PostgreSQL, api, gateways, workers, and Nodes each on a Podman of its own.

Nothing is shared but PostgreSQL and the storage root; a Node is on a gateway that the API did not start. Every process may
be killed, frozen and started again by name: ``api``, ``gateway``, ``gateway2``, ``worker``, ``node``, ``node2`` and so on. With
more than one gateway every Node dials through a relay of its own (``relays``), which gives each connection the next
gateway and can be cut. Waits are level-triggered and bounded, and say what they last saw.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field

from tuneplane.app.client import ApiClient, ClientError, Credentials
from tuneplane.app.client_commands import follow_log

from .images import busybox_image
from .lab import Host
from .podman import Podman, open_podman
from .postgres import Postgres, open_postgres, private_directory
from .process import WAIT_SECONDS, Process, Spawn, free_port, popen, wait_for
from .registry import Registry, open_registry
from .relay import Relay, open_relay

FACTOR = "0.1"  # of every protocol duration: sessions idle out after 2 s, claims after 1.5 s; still calm on two busy cores
FLEET = "lab"
START_SECONDS = 60.0  # importing the server's libraries takes a second, on two busy cores several
FINAL = frozenset({"succeeded", "failed", "stopped"})
LABEL = "tuneplane.member"
FIRST_PORT = 20000
PORTS_A_NODE = 100


@define(eq=False)
class WholeSystem:
    """All parts; made by :func:`open_system_of_processes`."""

    directory: Path
    postgres: Postgres
    dsn: str
    podmans: dict[str, Podman]  # by the name of the Node that uses it
    registry: Registry
    storage_root: Path
    settings: dict[str, str]
    node_settings: dict[str, str]
    console_url: str
    relays: dict[str, Relay] = field(factory=dict)  # by the name of the Node that dials it
    hosts: dict[str, Host] = field(factory=dict)  # by the name of the Node whose containers have that network
    spawn: Spawn = popen
    processes: dict[str, Process] = field(factory=dict)
    credentials: Credentials = field(init=False)  # of the first administrator
    client: ApiClient = field(init=False)
    node_id: str = field(init=False, default="")  # of the first Node

    @property
    def podman(self) -> Podman:
        """The first Node's."""
        return self.podmans["node"]

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
        """The runtimes' own word: containers of ``job`` on any Node, ended ones too."""
        every = [entry for podman in self.podmans.values() for entry in podman.containers()]
        return [entry for entry in every if any(job in str(name) for name in entry["Names"])]

    # ---------------------------------------------------------------- enrolment

    def enrol(self, name: str = "node", **settings: str) -> None:
        """Join a Node by the command line, as ``name``; start it with :meth:`start`. Its runtime, relay and ports are those
        of its name, where there are any."""
        token = self.client.post(f"/api/fleets/{FLEET}/join-tokens")["token"]
        env = {**self.node_settings, "TUNEPLANE_NODE_STATE_DIR": str(self.directory / f"{name}-state"), **self._place(name), **settings}
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

    def _place(self, name: str) -> dict[str, str]:
        """What sets one Node of this machine apart from the others; they share its network, so the ports are divided."""
        if name not in self.podmans:
            return {}
        first = FIRST_PORT + PORTS_A_NODE * list(self.podmans).index(name)
        place = {
            "TUNEPLANE_NODE_RUNTIME_SOCKET": str(self.podmans[name].socket),
            "TUNEPLANE_NODE_PORT_RANGE": f"{first}-{first + PORTS_A_NODE - 1}",
        }
        if name in self.hosts:
            place["TUNEPLANE_NODE_ADDRESS"] = self.hosts[name].address
        return {**place, "TUNEPLANE_NODE_GATEWAY": self.relays[name].address} if name in self.relays else place

    def id_of(self, name: str) -> str:
        """The id of the Node ``name``, as its enrolment saved it."""
        return str(json.loads((self.directory / f"{name}-state" / "identity.json").read_text())["node"])

    def nodes(self) -> list[dict[str, Any]]:
        return self.client.list_all(f"/api/fleets/{FLEET}/nodes")

    def wait_ready(self, seconds: float = WAIT_SECONDS, *, count: int = 1) -> str:
        """Wait until ``count`` Nodes are ready; the id of one."""

        def look() -> tuple[str | None, object]:
            try:
                nodes = self.nodes()
            except ClientError as error:
                return None, error
            ready = [str(node["id"]) for node in nodes if node["ready"]["value"]]
            return (ready[0] if len(ready) >= count else None), [(node["connection"]["state"], node["ready"]) for node in nodes]

        return wait_for(f"{count} Node(s) to be ready", look, seconds)


@contextmanager
def open_system_of_processes(
    *,
    factor: str = FACTOR,
    node: bool = True,
    spawn: Spawn = popen,
    nodes: int = 1,
    gateways: int = 1,
    workers: int = 1,
    hosts: tuple[Host, ...] = (),
) -> Iterator[WholeSystem]:
    """Everything up, the first administrator signed in, Fleet ``lab`` with ``nodes`` ready Nodes (unless ``node`` is False).

    ``hosts``: networks for the containers of the first Nodes, instead of this machine's own.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(private_directory("tp-e2e-"))
        at = dict(zip(numbered("node", nodes), hosts, strict=False))
        system = _compose(stack, directory, factor, spawn, at, nodes, gateways, workers)
        stack.callback(_end_all, system)
        system.start(*system.processes)
        admin = json.loads((directory / "data" / "admin.json").read_text())
        ca_pem = (directory / "data" / "console-ca.pem").read_text()
        system.credentials = Credentials(url=system.console_url, token=admin["token"], ca_pem=ca_pem)
        system.client = ApiClient(system.credentials)
        stack.callback(system.client.close)
        system.client.post("/api/fleets", {"id": FLEET, "kind": "node", "capabilities": ["train"]})
        if node:
            for name in system.podmans:
                system.enrol(name)
            system.start(*system.podmans)
            system.wait_ready(count=nodes)
            system.node_id = system.id_of("node")
        yield system


def numbered(name: str, count: int) -> list[str]:
    """``name``, ``name2``, ``name3`` …"""
    return [name, *(f"{name}{number}" for number in range(2, count + 1))]


def _compose(
    stack: ExitStack, directory: Path, factor: str, spawn: Spawn, hosts: dict[str, Host], nodes: int, gateways: int, workers: int
) -> WholeSystem:
    postgres = stack.enter_context(open_postgres())
    storage_root = directory / "storage"
    storage_root.mkdir(mode=0o755)
    dsn = stack.enter_context(postgres.fresh_database())
    place = Path(tempfile.gettempdir())
    spaces = {name: hosts[name].netns if name in hosts else None for name in numbered("node", nodes)}
    podmans = {name: stack.enter_context(open_podman(place, netns=netns)) for name, netns in spaces.items()}
    console = free_port()
    listens = {name: free_port() for name in numbered("gateway", gateways)}
    common = {"TUNEPLANE_STORAGE_ROOT": str(storage_root), "TUNEPLANE_TIMINGS_FACTOR": factor}
    system = WholeSystem(
        directory=directory,
        postgres=postgres,
        dsn=dsn,
        podmans=podmans,
        registry=stack.enter_context(open_registry(directory)),
        storage_root=storage_root,
        settings={**common, **_control_settings(directory, dsn, console, listens["gateway"])},
        node_settings={**common, **_node_settings(directory, podmans["node"])},
        console_url=f"https://127.0.0.1:{console}",
        hosts=hosts,
        spawn=spawn,
    )
    if gateways > 1:
        system.relays = {name: stack.enter_context(open_relay(*listens.values())) for name in system.podmans}
    _migrate(system)
    for name in ("api", *listens, *numbered("worker", workers)):
        data = directory / ("data" if name == "api" else f"{name}-data")
        listen = {"TUNEPLANE_GATEWAY_LISTEN": f"127.0.0.1:{listens[name]}"} if name in listens else {}
        system.add(name, ["tuneplane", name.rstrip("0123456789")], {**system.settings, **listen, "TUNEPLANE_DATA_DIR": str(data)})
    return system


def _control_settings(directory: Path, dsn: str, console: int, gateway: int) -> dict[str, str]:
    return {
        "TUNEPLANE_DATABASE_URL": dsn,
        "TUNEPLANE_SECRET_ENC_KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
        "TUNEPLANE_JWT_SECRET": secrets.token_urlsafe(48),
        "TUNEPLANE_DATA_DIR": str(directory / "data"),
        "TUNEPLANE_CONSOLE_LISTEN": f"127.0.0.1:{console}",
        "TUNEPLANE_PUBLIC_URL": f"https://127.0.0.1:{console}",
        "TUNEPLANE_GATEWAY_LISTEN": f"127.0.0.1:{gateway}",
        "TUNEPLANE_NODE_GATEWAY_TARGET": f"127.0.0.1:{gateway}",
    }


def _node_settings(directory: Path, podman: Podman) -> dict[str, str]:
    return {
        "TUNEPLANE_NODE_ENROLLMENT_TRUST_BUNDLE": str(directory / "data" / "console-ca.pem"),
        "TUNEPLANE_NODE_RUNTIME": "podman",
        "TUNEPLANE_NODE_RUNTIME_SOCKET": str(podman.socket),
        "TUNEPLANE_NODE_CPUS": "4",
        "TUNEPLANE_NODE_MEMORY_GB": "4",
        "TUNEPLANE_NODE_GPU_IDS": "",
        "TUNEPLANE_NODE_ADDRESS": "127.0.0.1",
    }


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
            process.thaw()
            process.end(signal.SIGTERM)
