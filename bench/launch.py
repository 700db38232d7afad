"""Submit to running and stop to terminated, against the container runtime's own create + start called directly.

The whole product runs as separate processes at production durations (API, gateway, worker, Node, PostgreSQL) with the
image present. In every round one job is launched and stopped, then the reference does what nobody can go below: create
and start of the same image, limits and network through the same socket, and for a stop SIGTERM and the runtime's own
wait. A launch ends when PostgreSQL holds ``running``, which the timeline dates; no poll disturbs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from statistics import median
from typing import Any

import httpx
from attrs import define

from tests.support.system import WholeSystem, open_system_of_processes

from .figures import Figure

ROUNDS = 30
WARM_ROUNDS = 3  # imports, first connections, page cache
OVERHEAD_BUDGET_MS = 150.0
REST_SECONDS = 0.3  # the clean-up of one job does not run into the next
SLEEPER = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done"]
LIBPOD = "/v4.0.0/libpod/containers"


@define
class Samples:
    """Seconds, one entry a round."""

    launch: list[float]
    launch_reference: list[float]
    stop: list[float]
    stop_reference: list[float]


def figures() -> Iterator[Figure]:
    with open_system_of_processes(factor="1") as system, _open_engine(system) as engine:
        for _ in range(WARM_ROUNDS):
            _round(system, engine, Samples([], [], [], []))
        samples = Samples([], [], [], [])
        for _ in range(ROUNDS):
            _round(system, engine, samples)
    yield from _compare("launch.submit_to_running", samples.launch, samples.launch_reference, OVERHEAD_BUDGET_MS)
    yield from _compare("launch.stop_to_terminated", samples.stop, samples.stop_reference, None)


def _compare(name: str, ours: list[float], reference: list[float], budget: float | None) -> Iterator[Figure]:
    detail: dict[str, object] = {
        "p50_ms": _ms(ours, 50),
        "p95_ms": _ms(ours, 95),
        "reference_p50_ms": _ms(reference, 50),
        "rounds": len(ours),
    }
    over = (median(ours) - median(reference)) * 1e3
    yield Figure(name=f"{name}.overhead_p50", value=over, unit="ms", budget=budget, lower_is_better=True, detail=detail)
    yield Figure(name=f"{name}.ratio_p50", value=median(ours) / median(reference), unit="of the runtime's own", lower_is_better=True)


def _ms(samples: list[float], percent: int) -> float:
    return round(sorted(samples)[min(len(samples) - 1, len(samples) * percent // 100)] * 1e3, 1)


def _open_engine(system: WholeSystem) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(system.podman.socket)), base_url="http://d", timeout=60)


def _round(system: WholeSystem, engine: httpx.Client, samples: Samples) -> None:
    began = time.time()
    job = system.submit(SLEEPER)
    system.wait_job(job, "running")
    samples.launch.append(_dated(system, job, "member.running") - began)
    time.sleep(REST_SECONDS)
    began = time.time()
    system.client.post(f"/api/jobs/{job}/stop")
    system.wait_job(job, "stopped")
    samples.stop.append(_dated(system, job, "member.terminated") - began)
    system.wait_cleaned(job)
    time.sleep(REST_SECONDS)
    container = _timed(samples.launch_reference, lambda: _start(system, engine))
    time.sleep(REST_SECONDS)
    _timed(samples.stop_reference, lambda: _stop(engine, container))
    engine.delete(f"{LIBPOD}/{container}", params={"force": "true"}).raise_for_status()


def _timed(into: list[float], act: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    result = act()
    into.append(time.perf_counter() - began)
    return result


def _dated(system: WholeSystem, job: str, kind: str) -> float:
    """When PostgreSQL took the event, as a Unix time."""
    events = system.client.get(f"/api/jobs/{job}/timeline")["items"]
    at = next(event["at"] for event in events if event["kind"] == kind)
    return datetime.fromisoformat(at).astimezone(UTC).timestamp()


def _start(system: WholeSystem, engine: httpx.Client) -> str:
    body = {
        "image": system.image(),
        "entrypoint": SLEEPER,
        "command": [],
        "netns": {"nsmode": "host"},
        "resource_limits": {"cpu": {"quota": 20_000, "period": 100_000}, "memory": {"limit": 64_000_000, "swap": 64_000_000}},
        "no_new_privileges": True,
        "log_configuration": {"driver": "k8s-file"},
    }
    created = engine.post(f"{LIBPOD}/create", json=body)
    created.raise_for_status()
    container = str(created.json()["Id"])
    engine.post(f"{LIBPOD}/{container}/start").raise_for_status()
    return container


def _stop(engine: httpx.Client, container: str) -> None:
    engine.post(f"{LIBPOD}/{container}/kill", params={"signal": "SIGTERM"}).raise_for_status()
    engine.post(f"{LIBPOD}/{container}/wait").raise_for_status()
