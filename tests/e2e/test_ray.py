"""Ray gangs end to end: the real Ray in real containers, on two Nodes whose containers have networks of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.lab import open_pair
from tests.support.process import wait_for
from tests.support.ray import VERSION, load_ray
from tests.support.system import WholeSystem, open_system_of_processes

pytestmark = [pytest.mark.e2e, pytest.mark.seconds(400)]
RAY_SECONDS = 240.0  # until a gang has met: 15 s alone, several times that when others use the cores
TOKEN = "5f0c1e7a" * 8
DRIVER = """
import json, os, ray
ray.init()
@ray.remote(num_cpus=1)
def where():
    return ray.util.get_node_ip_address(), os.environ["TUNEPLANE_MACHINE_RANK"], os.environ["TUNEPLANE_JOB_ID"]
asked = [where.options(resources={f"tuneplane_rank_{rank}": 0.1}).remote() for rank in range(int(os.environ["TUNEPLANE_MACHINE_COUNT"]))]
print("answers", json.dumps(ray.get(asked)), flush=True)
"""
WAITS = """
import ray, time
ray.init()
print("machines", len([node for node in ray.nodes() if node["Alive"]]), flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[WholeSystem, str]]:
    """The system, and the Ray image that both Nodes have."""
    with open_pair() as hosts, open_system_of_processes(nodes=2, hosts=hosts) as system:
        images = {load_ray(podman) for podman in system.podmans.values()}
        assert len(images) == 1
        yield system, images.pop()


def submit(pair: tuple[WholeSystem, str], program: str, *, nodes: int = 2, version: str = VERSION, **body: Any) -> str:
    system, image = pair
    return system.submit(
        ["python3", "-c", program],
        runtime={"image": image, "ray_version": version},
        orchestrator="ray",
        resources={"pools": [{"name": "main", "nodes": nodes, "cpus": 1, "memory_gb": 1}]},
        stop={"signal": "SIGTERM", "grace_seconds": 20},
        **body,
    )


def members(system: WholeSystem, job: str) -> list[dict[str, Any]]:
    return list(system.job(job)["attempts"][-1]["members"])


def wait_all_cleaned(system: WholeSystem, job: str) -> None:
    """R-LCH-14: of every member, and the runtimes agree."""

    def look() -> tuple[bool | None, object]:
        seen, left = [(member["id"], member["cleaned"]) for member in members(system, job)], system.containers(job)
        return (True if all(clean for _, clean in seen) and not left else None), (seen, left)

    wait_for(f"the members of {job} to be cleaned", look)


def test_ray_gangs_two_at_once_on_the_same_machines_run_a_task_on_every_rank(pair: tuple[WholeSystem, str]) -> None:
    """R-LCH-09, L-H3, L-H5: each job has its own Ray, on leased ports of its own, at the address that peers route to. One
    of the two uses Ray's authentication by token."""
    system, _ = pair
    jobs = [submit(pair, DRIVER), submit(pair, DRIVER, env={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN})]
    for job in jobs:
        system.wait_job(job, "succeeded", seconds=RAY_SECONDS)
        log = system.read_log(job).decode()
        answers = json.loads(log.partition("answers ")[2].partition("\n")[0])
        addresses = [
            system.hosts[name].address for member in members(system, job) for name in system.hosts if system.id_of(name) == member["node"]
        ]
        assert answers == [[address, str(rank), job] for rank, address in enumerate(addresses)]
        assert len(set(addresses)) == 2
        assert "tuneplane-ray: all 2 members have joined" in log
        assert TOKEN not in log
    for job in jobs:
        wait_all_cleaned(system, job)
    assert [(node["capacity"]["cpu_millis_used"], node["members"]) for node in system.nodes()] == [(0, [])] * 2


def test_ray_gang_whose_image_has_another_version_fails_with_that_reason(pair: tuple[WholeSystem, str]) -> None:
    """R-LCH-09: found out in the container, told on the job and in the log."""
    system, _ = pair
    job = submit(pair, DRIVER, version="2.59.1")
    seen = system.wait_job(job, "failed", seconds=RAY_SECONDS)
    assert "does not have exactly the Ray that the job asks for" in json.dumps(seen)
    assert f"the job asks for Ray 2.59.1, and this image has Ray {VERSION}" in system.read_log(job).decode()
    wait_all_cleaned(system, job)


def test_ray_gang_that_is_stopped_leaves_no_container(pair: tuple[WholeSystem, str]) -> None:
    """R-LCH-09, R-LCH-14: head, members and all that Ray started."""
    system, _ = pair
    job = submit(pair, WAITS)
    system.wait_log(job, b"machines 2", seconds=RAY_SECONDS)
    system.client.post(f"/api/jobs/{job}/stop")
    system.wait_job(job, "stopped", seconds=RAY_SECONDS)
    wait_all_cleaned(system, job)
