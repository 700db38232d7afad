"""A Podman killed while it creates or removes a container leaves half of one behind; it must not hold anything up."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.nodeside.harness import commit, forget, make_plan, open_node, prepare
from tests.support.podman import Podman, open_podman
from tuneplane.domain.ids import container_name
from tuneplane.domain.member_table import NodePhase
from tuneplane.domain.node_member import LABEL_NODE
from tuneplane.domain.plan import MemberPlan
from tuneplane.nodeside.engine import open_engine

pytestmark = pytest.mark.container

TRIES = 200  # one in five kills hits the moment
STEP_SECONDS = 0.004


@pytest.fixture
def own_podman() -> Iterator[Podman]:
    with open_podman(Path(tempfile.gettempdir())) as opened:
        yield opened


def _ask(podman: Podman, method: str, path: str, body: str = "") -> tuple[int, str]:
    """The engine's answer: status and text; 0 when it died meanwhile."""
    head = f"{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        answer = b""
        try:
            connection.connect(str(podman.socket))
            connection.sendall(f"{head}{body}".encode())
            while piece := connection.recv(65536):
                answer += piece
        except OSError:
            return 0, ""
    status, _, text = answer.decode().partition("\r\n\r\n")
    return (int(status.split(" ")[1]), text) if answer else (0, "")


def _killed_during(podman: Podman, number: int, method: str, path: str, body: str = "") -> None:
    killer = threading.Timer(STEP_SECONDS * (number % 30), podman.kill)
    killer.start()
    _ask(podman, method, f"/v4.0.0/libpod/containers/{path}", body)
    killer.join()
    podman.start()


def _half_remove(podman: Podman, name: str, make: list[str]) -> None:
    """Remove ``name`` and kill Podman meanwhile, until what is left cannot be inspected."""
    for number in range(TRIES):
        _killed_during(podman, number, "DELETE", f"{name}?force=true&v=true&timeout=0")
        status, _ = _ask(podman, "GET", f"/containers/{name}/json")
        if status == 500:
            return
        if status == 404:
            podman.run("run", "--name", name, *make)
    pytest.skip("no kill hit the moment in which a removal is half done")


def _half_create(podman: Podman, name: str, image: str) -> None:
    """Create ``name`` and kill Podman meanwhile, until its storage is there and the container is not."""
    for number in range(TRIES):
        _killed_during(podman, number, "POST", "create", json.dumps({"name": name, "image": image, "command": ["true"]}))
        if name in _ask(podman, "GET", "/v4.0.0/libpod/containers/json?external=true")[1]:
            return
        podman.run("rm", "-f", name, check=False)
    pytest.skip("no kill hit the moment in which a creation is half done")


def _container(plan: MemberPlan, image: str) -> list[str]:
    """As the daemon makes it, as far as it matters here."""
    labels = {"io.tuneplane.member": plan.member, LABEL_NODE: plan.node}
    return ["-d", "--network", "host", *(f"--label={key}={value}" for key, value in labels.items()), image, "sh", "-c", "exit 5"]


@pytest.mark.seconds(120)
async def test_container_half_removed_is_lost_cleaned_and_hides_no_other(tmp_path: Path, own_podman: Podman, image: str) -> None:
    """P-04: no exit code, no success. The holds come back, and the machine's list of containers can be read again."""
    plan = make_plan(image, ("sh", "-c", "while true; do sleep 0.1; done"))
    async with open_node(tmp_path / "state", own_podman) as node:
        await node.send(prepare(plan))
        await node.until_phase(plan.member, NodePhase.PREPARED)
        await node.send(commit(plan))
        await node.until_phase(plan.member, NodePhase.RUNNING)
    name = container_name(plan.member)
    await trio.to_thread.run_sync(_half_remove, own_podman, name, _container(plan, image))
    async with open_engine(runtime="", socket_path=own_podman.socket, insecure_registries=frozenset(), call_seconds=20.0) as engine:
        assert [each.name for each in await engine.list_labelled(LABEL_NODE, plan.node)] == [name]
    async with open_node(tmp_path / "state", own_podman) as node:
        record = await node.until_clean(plan.member)
        assert (record.phase, record.exit_code, record.reason_code) == (NodePhase.TERMINATED, None, "lost")
        assert await node.core.engine.inspect(name) is None
    assert json.loads(own_podman.run("ps", "-a", "--format", "json")) == []


@pytest.mark.seconds(120)
async def test_name_taken_by_a_half_created_container_is_freed_and_fenced(tmp_path: Path, own_podman: Podman, image: str) -> None:
    """P-01: the member is lost only once nothing can be created under its name any more; nothing ever started."""
    plan = make_plan(image, ("sh", "-c", "exit 0"))
    async with open_node(tmp_path / "state", own_podman) as node:
        await node.send(prepare(plan))
        await node.until_phase(plan.member, NodePhase.PREPARED)
        await trio.to_thread.run_sync(_half_create, own_podman, container_name(plan.member), image)
        await node.send(commit(plan))
        record = await node.until_clean(plan.member)
        assert (record.phase, record.exit_code, record.reason_code) == (NodePhase.TERMINATED, None, "lost")
        [fence] = own_podman.containers()
        assert (fence["State"], fence["Labels"]["io.tuneplane.fence"]) == ("created", "1")  # type: ignore[index]
        await node.send(forget(plan))
        await node.until_gone(plan.member)
    assert own_podman.run("ps", "-a", "--external", "-q") == ""
