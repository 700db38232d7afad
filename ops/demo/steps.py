"""The steps of the demo, in order; each says what it does before it does it and raises DemoFailed when it cannot."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attrs import define, field

from tests.support.podman import Podman, open_podman
from tests.support.registry import Registry, open_registry
from tuneplane.app.client import ApiClient, ClientError, Credentials
from tuneplane.app.client_commands import follow_log, wait_for_job
from tuneplane.app.data_dir import choose_port
from tuneplane.app.settings import CONSOLE_PORT, GATEWAY_PORT

from .image import demo_image
from .processes import Child, DemoFailed, start_child, wait_until

FLEET = "local"
LEAST_ACCURACY = 0.9
EPOCHS = 20
UP_SECONDS = 120.0  # the first start makes a database cluster; two busy cores may take a minute
READY_SECONDS = 60.0
JOB_SECONDS = 300.0
GRACE_SECONDS = 10.0
STOP_OVERHEAD_SECONDS = 10.0  # noticing the end, cleaning up and reporting it
EPOCHS_BEFORE_STOP = 5


def say(text: str) -> None:
    print(f"\033[1m==>\033[0m {text}" if sys.stdout.isatty() else f"==> {text}", flush=True)


@define(eq=False)
class Demo:
    """What the steps share."""

    work: Path
    stack: ExitStack
    storage_root: Path
    children: list[Child] = field(factory=list)

    def start(self, name: str, command: list[str], **env: str) -> Child:
        child = start_child(name, command, {**clean_environment(), **env}, self.work)
        self.stack.callback(child.stop)
        self.children.append(child)
        return child


def clean_environment() -> dict[str, str]:
    """Our environment without settings that a person's shell may hold."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TUNEPLANE_")}


def program(name: str) -> str:
    """A command of this very installation."""
    return str(Path(sys.executable).with_name(name))


def run_demo(stack: ExitStack, cache: Path, scripts: list[Path]) -> None:
    """All steps; whatever they start is on ``stack`` and ends with it."""
    check_machine()
    demo = open_demo(stack)
    archive = demo_image(cache, scripts, say)
    say("starting a registry and a Podman service of the demo's own")
    registry = stack.enter_context(open_registry(demo.work))
    podman = stack.enter_context(open_podman(demo.work))
    image = push(registry, archive)
    data_dir, client = start_control_plane(demo)
    enrol(demo, client, podman, data_dir)
    train(demo, client, image)
    stop_endless(client, image)


def check_machine() -> None:
    """One clear sentence for what is missing."""
    if os.geteuid() != 0:
        raise DemoFailed("the demo runs a container engine of its own and needs root for it")
    for command in ("podman", "runc", "skopeo", "docker-registry"):
        if shutil.which(command, path=os.environ.get("PATH", "") + ":/usr/sbin") is None:
            raise DemoFailed(f"this machine lacks {command}: ./ops/up --demo installs it on Debian")


def open_demo(stack: ExitStack) -> Demo:
    work = Path(tempfile.mkdtemp(prefix="tuneplane-demo-"))
    work.chmod(0o711)  # PostgreSQL runs under an account of its own and must pass through
    stack.callback(shutil.rmtree, work, ignore_errors=True)
    storage_root = work / "storage"
    storage_root.mkdir(mode=0o755)
    return Demo(work, stack, storage_root)


def push(registry: Registry, archive: Path) -> str:
    say(f"pushing the demo image to {registry.address}")
    return registry.push(archive, "tuneplane/demo:1")


def start_control_plane(demo: Demo) -> tuple[Path, ApiClient]:
    """``tuneplane up`` on an empty data directory, and a client as its first administrator."""
    say("starting console, gateway and worker (tuneplane up) on an embedded PostgreSQL")
    data_dir = demo.work / "data"
    command = [program("tuneplane"), "up", "--data-dir", str(data_dir)]
    listen = {
        "TUNEPLANE_CONSOLE_LISTEN": f"127.0.0.1:{choose_port('127.0.0.1', CONSOLE_PORT)}",
        "TUNEPLANE_GATEWAY_LISTEN": f"127.0.0.1:{choose_port('127.0.0.1', GATEWAY_PORT)}",
    }
    up = demo.start("tuneplane up", command, TUNEPLANE_STORAGE_ROOT=str(demo.storage_root), **listen)
    facts = wait_until("tuneplane up to answer", lambda: read_json(data_dir / "up.json"), UP_SECONDS, up)
    admin = json.loads((data_dir / "admin.json").read_text())
    client = ApiClient(Credentials(url=facts["console"], token=admin["token"], ca_pem=(data_dir / "console-ca.pem").read_text()))
    demo.stack.callback(client.close)
    who = client.get("/api/whoami")
    say(f"the console answers at {facts['console']}; signed in as {who['username']}")
    return data_dir, client


def read_json(path: Path) -> tuple[Any, str]:
    try:
        return json.loads(path.read_text()), "read"
    except (OSError, ValueError) as error:
        return None, str(error)


def enrol(demo: Demo, client: ApiClient, podman: Podman, data_dir: Path) -> None:
    """Fleet ``local``, a Join Token, ``tuneplane-node join`` and ``serve``; waits until the Node is ready."""
    say(f"creating the Fleet {FLEET!r} and enrolling this machine in it (Podman)")
    client.post("/api/fleets", {"id": FLEET, "kind": "node", "capabilities": ["train"]})
    token = client.post(f"/api/fleets/{FLEET}/join-tokens")["token"]
    env = {
        "TUNEPLANE_NODE_STATE_DIR": str(demo.work / "node"),
        "TUNEPLANE_NODE_ENROLLMENT_TRUST_BUNDLE": str(data_dir / "console-ca.pem"),
        "TUNEPLANE_NODE_RUNTIME": "podman",
        "TUNEPLANE_NODE_RUNTIME_SOCKET": str(podman.socket),
        "TUNEPLANE_NODE_CPUS": str(os.cpu_count() or 1),
        "TUNEPLANE_NODE_MEMORY_GB": "2",
        "TUNEPLANE_NODE_GPU_IDS": "",
        "TUNEPLANE_NODE_ADDRESS": "127.0.0.1",
        "TUNEPLANE_STORAGE_ROOT": str(demo.storage_root),
    }
    join = subprocess.run(
        [program("tuneplane-node"), "join", "--server", client.url],
        env={**clean_environment(), **env, "TUNEPLANE_FLEET": FLEET, "TUNEPLANE_JOIN_TOKEN": token},
        cwd=demo.work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=READY_SECONDS,
    )
    if join.returncode != 0:
        raise DemoFailed(f"tuneplane-node join ended with status {join.returncode}: {(join.stderr or join.stdout).strip()}")
    for line in join.stdout.splitlines():
        say(f"  {line}")
    node = demo.start("tuneplane-node serve", [program("tuneplane-node"), "serve"], **env)
    wait_until("the Node to be ready", lambda: ready_node(client), READY_SECONDS, node, *demo.children)
    say("the Node is connected and ready")


def ready_node(client: ApiClient) -> tuple[str | None, str]:
    nodes = client.list_all(f"/api/fleets/{FLEET}/nodes")
    ready = [node["id"] for node in nodes if node["ready"]["value"]]
    return (ready[0] if ready else None), "; ".join(str(node["ready"]["reasons"]) for node in nodes) or "no Node"


def job_spec(name: str, image: str, **env: str) -> dict[str, Any]:
    return {
        "apiVersion": "tuneplane/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "fleet": FLEET,
            "runtime": {"image": image},
            "command": ["python", "/workspace/train_digits.py"],
            "env": env,
            "resources": {"pools": [{"name": "main", "cpus": 1, "memory_gb": 1}]},
            "stop": {"signal": "SIGTERM", "grace_seconds": GRACE_SECONDS},
            "max_runtime_seconds": JOB_SECONDS,
        },
    }


def train(demo: Demo, client: ApiClient, image: str) -> None:
    """A real training run: its log as it is written, its accuracy, its checkpoint on the storage root."""
    say("submitting a training job: a classifier on 1,797 images of handwritten digits")
    job = client.post("/api/jobs", job_spec("digits", image, EPOCHS=str(EPOCHS)))["id"]
    log = LineCollector(show=True)
    wait_for_job(client, job, lambda text: say(f"  {job}: {text}"), until=frozenset({"running"}))
    follow_log(client, job, log.take)
    ended = wait_for_job(client, job, lambda text: say(f"  {job}: {text}"))
    if ended["state"] != "succeeded":
        raise DemoFailed(f"the training job ended {ended['state']}: {ended.get('reason_detail')}")
    facts = log.facts()
    epochs = [fact for fact in facts if fact["event"] == "epoch"]
    if len(epochs) != EPOCHS:
        raise DemoFailed(f"the log shows {len(epochs)} epochs instead of {EPOCHS}")
    done = facts[-1]
    if not done.get("accuracy", 0) > LEAST_ACCURACY:
        raise DemoFailed(f"the accuracy is {done.get('accuracy')}, not above {LEAST_ACCURACY}")
    checkpoint = Path(done["checkpoint"])
    if demo.storage_root not in checkpoint.parents or not checkpoint.is_file() or checkpoint.stat().st_size == 0:
        raise DemoFailed(f"there is no checkpoint at {checkpoint}")
    say(f"accuracy {done['accuracy']:.4f} on images it had not seen; checkpoint of {checkpoint.stat().st_size} bytes on the storage root")


@define(eq=False)
class LineCollector:
    """Log pieces as lines, shown as they come."""

    show: bool
    data: bytearray = field(factory=bytearray)
    shown: int = 0

    def take(self, piece: dict[str, Any]) -> None:
        self.data += base64.b64decode(piece["data"])
        end = self.data.rfind(b"\n") + 1
        if self.show and end > self.shown:
            for line in self.data[self.shown : end].decode(errors="replace").splitlines():
                print(f"    {line}", flush=True)
            self.shown = end

    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data.decode(errors="replace").splitlines() if line.startswith("{")]


def stop_endless(client: ApiClient, image: str) -> None:
    """A job that would train for ever is stopped within its grace, and nothing of it is left running."""
    say("submitting a second job that would train for ever")
    job = client.post("/api/jobs", job_spec("endless", image, EPOCHS="0", PAUSE_SECONDS="0.2"))["id"]
    wait_for_job(client, job, lambda text: say(f"  {job}: {text}"), until=frozenset({"running"}))
    log = LineCollector(show=False)
    wait_until("the endless job to train", lambda: epochs_seen(client, job, log), READY_SECONDS)
    say(f"stopping {job}")
    began = time.monotonic()
    client.post(f"/api/jobs/{job}/stop")
    ended = wait_for_job(client, job, lambda text: say(f"  {job}: {text}"))
    took = time.monotonic() - began
    member = ended["attempts"][-1]["members"][0]
    if ended["state"] != "stopped" or member["phase"] != "terminated" or member["exit_code"] != 0:
        raise DemoFailed(f"after the stop the job is {ended['state']}, its member {member['phase']} with exit code {member['exit_code']}")
    if took > GRACE_SECONDS + STOP_OVERHEAD_SECONDS:
        raise DemoFailed(f"the stop took {took:.1f} s, its grace is {GRACE_SECONDS:g} s")
    say(f"the job stopped in {took:.1f} s (grace {GRACE_SECONDS:g} s) after finishing its epoch, exit code 0")


def epochs_seen(client: ApiClient, job: str, log: LineCollector) -> tuple[int | None, str]:
    """Bounded reads until enough epochs are in the log."""
    try:
        data, _ = client.read_log(job, offset=len(log.data))
    except ClientError as error:
        return None, str(error)
    log.data += data
    epochs = log.data.count(b'"event": "epoch"')
    return (epochs if epochs >= EPOCHS_BEFORE_STOP else None), f"{epochs} epochs"
