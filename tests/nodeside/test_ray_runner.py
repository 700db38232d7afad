"""The runner of a Ray member against the real Ray, as the first process of real containers (R-LCH-09, L-H3)."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.domain.test_ray import ray_plan
from tests.support.podman import Podman, open_podman
from tests.support.process import wait_for
from tests.support.ray import NAME, VERSION, load_ray
from tuneplane.domain.plan import LOOPBACK
from tuneplane.domain.ray import RUNNER, runner_settings
from tuneplane.nodeside import ray_runner

pytestmark = [pytest.mark.container, pytest.mark.seconds(300)]
FIRST = 21000  # outside of what Nodes of other tests lease
START_SECONDS = 120.0  # of Ray: 5 s alone, far more when others use the cores
ENDS_RAY = """
import os, pathlib, signal, sys, time, ray
ray.init(log_to_driver=False)
ray.shutdown()
def end(*_):
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        if b"gcs_server" in (process / "cmdline").read_bytes().split(b"\\0")[0]:
            os.kill(int(process.name), signal.SIGKILL)
    pathlib.Path("/tmp/ended").touch()
signal.signal(signal.SIGUSR1, end)
print("ready", os.environ["RAY_ADDRESS"], flush=True)
while not pathlib.Path("/tmp/ended").exists():
    time.sleep(0.1)
while any(b"\\0--block\\0" in path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")):
    time.sleep(0.1)
sys.exit(7)
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with open_podman(Path(tempfile.gettempdir())) as opened:
        load_ray(opened)
        yield opened


def launch(podman: Podman, name: str, first: int, command: tuple[str, ...], told: Any = None, head: int = 0, **said: Any) -> None:
    """A container as a Node makes it: of a member whose head is at port ``head``, or of a head."""
    plan = attrs.evolve(
        ray_plan(1 if head else 0),
        address=LOOPBACK,
        main_address=LOOPBACK,
        main_port=head or first,
        ports=tuple(range(first, first + 64)),
        ray_version=said.get("version", VERSION),
        world=said.get("world", 1),
        cpu_millis=2000,
        gpu_uuids=(),
        command=command,
    )
    settings = json.dumps({**runner_settings(plan), **(told or {})})
    runner = f"{ray_runner.__file__}:/tuneplane/plan/{RUNNER}:ro"
    program = json.dumps(["python3", f"/tuneplane/plan/{RUNNER}", settings, *command])
    options = ["--net=host", "--cpus=2", "-m=1g", "--memory-swap=1g", "--shm-size=512m", "-v", runner, "--entrypoint", program]
    podman.run("run", "-d", "--name", name, *options, NAME)


def wait_said(podman: Podman, name: str, text: str) -> None:
    def look() -> tuple[bool | None, object]:
        log = logs(podman, name)
        return (True if text in log else None), log[-800:]

    wait_for(f"{text!r} from {name}", look, START_SECONDS)


def logs(podman: Podman, name: str) -> str:
    done = subprocess.run(["podman", "logs", name], env=podman.env, cwd=podman.directory, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def exit_code(podman: Podman, name: str) -> int:
    done = subprocess.run(["podman", "wait", name], env=podman.env, cwd=podman.directory, capture_output=True, timeout=START_SECONDS)
    return int(done.stdout)


def test_runner_of_another_version_says_both(podman: Podman) -> None:
    launch(podman, "version", FIRST, ("true",), version="2.59.1")
    assert exit_code(podman, "version") == ray_runner.VERSION
    assert logs(podman, "version") == f"tuneplane-ray: the job asks for Ray 2.59.1, and this image has Ray {VERSION}\n"


def test_runner_with_a_leased_port_in_use_names_it(podman: Podman) -> None:
    """L-H3: a foreign listener is named before Ray would stumble over it; on a worker's port it is worked around."""
    with socket.socket() as fixed, socket.socket() as worker:
        for listener, port in ((fixed, FIRST + 106), (worker, FIRST + 120)):
            listener.bind((LOOPBACK, port))
            listener.listen()
        launch(podman, "taken", FIRST + 100, ("true",))
        assert exit_code(podman, "taken") == ray_runner.PORT_TAKEN
    assert f"port {FIRST + 106} is in use" in logs(podman, "taken")


def test_runner_passes_signals_on_and_the_commands_own_end_counts(podman: Podman) -> None:
    """A signal reaches the command; a command that ends its Ray, and then itself, is judged by its own exit code. The
    member whose head is gone has nothing to say about that: it ends with 0. Both are on one machine, as in a trial."""
    launch(podman, "signal", FIRST + 200, ("python3", "-c", ENDS_RAY), world=2)
    launch(podman, "member", FIRST + 264, ("never",), head=FIRST + 200, world=2)
    wait_said(podman, "signal", f"ready {LOOPBACK}:{FIRST + 200}")
    podman.run("kill", "-s", "USR1", "signal")
    assert exit_code(podman, "signal") == 7
    assert "while the command was running" in logs(podman, "signal")
    assert exit_code(podman, "member") == 0
    assert "the head is gone" in logs(podman, "member")


def test_runner_whose_peers_stay_away_names_them(podman: Podman) -> None:
    launch(podman, "peers", FIRST + 400, ("true",), {"join_seconds": 1.0}, world=3)
    assert exit_code(podman, "peers") == ray_runner.PEERS_MISSING
    assert "waiting for rank 1, 2 to join" in logs(podman, "peers")
    assert "gave up after 1 s waiting for 3 members to join" in logs(podman, "peers")
