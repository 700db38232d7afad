"""The engine client: three kinds of failure, told apart; what each engine is told; on a real Podman where it matters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.support.podman import Podman, open_podman
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.node_ports import (
    ContainerSpec,
    EngineDown,
    EngineRefused,
    EngineUnclear,
    Life,
    Mount,
    PullFailed,
    PullProgress,
    Refusal,
)
from tuneplane.nodeside.engine import EngineClient, docker_instance, engine_kind, find_socket, open_engine
from tuneplane.nodeside.engine_http import EngineHttp, refusal_kind
from tuneplane.nodeside.engine_pull import read_pull
from tuneplane.nodeside.engine_specs import docker_body, libpod_body, read_container


def opened(podman: Podman, seconds: float = 20.0) -> Any:
    return open_engine(runtime="", socket_path=podman.socket, insecure_registries=frozenset(), call_seconds=seconds)


def spec(name: str, image: str, *command: str, **changes: Any) -> ContainerSpec:
    return ContainerSpec(name=name, image=image, command=command or ("true",), labels={"t": "1"}, **changes)


async def pulled(engine: EngineClient, image: str) -> None:
    await engine.pull(image, lambda progress: None)


@pytest.mark.container
async def test_engine_that_answers_says_which_it_is(podman: Podman) -> None:
    async with opened(podman) as engine:
        info = await engine.info()
        assert (info.kind, info.version, await engine.instance()) == ("podman", "4.3.1", "podman")


@pytest.mark.container
async def test_container_whose_name_is_taken_is_refused_as_such(podman: Podman, image: str) -> None:
    """Podman says it in a 500."""
    async with opened(podman) as engine:
        await pulled(engine, image)
        first = await engine.create(spec("twice", image))
        with pytest.raises(EngineRefused) as caught:
            await engine.create(spec("twice", image))
        assert caught.value.kind is Refusal.NAME_TAKEN
        await engine.remove(first)
        await engine.remove(first)
        assert await engine.inspect(first) is None


@pytest.mark.container
async def test_container_of_an_image_that_is_not_there_is_refused_as_such(podman: Podman, image: str) -> None:
    async with opened(podman) as engine:
        with pytest.raises(EngineRefused) as caught:
            await engine.create(spec("noimage", image[:-8] + "00000000"))
        assert caught.value.kind is Refusal.NO_IMAGE


@pytest.mark.container
async def test_container_with_a_bad_command_is_refused_at_start_and_stays_created(podman: Podman, image: str) -> None:
    async with opened(podman) as engine:
        await pulled(engine, image)
        container = await engine.create(spec("badcmd", image, "/nonexistent"))
        with pytest.raises(EngineRefused, match="/nonexistent"):
            await engine.start(container)
        state = await engine.inspect(container)
        assert state is not None
        assert state.life is Life.CREATED
        with pytest.raises(EngineRefused) as caught:
            await engine.signal(container, "SIGTERM")
        assert caught.value.kind is Refusal.NOT_RUNNING
        await engine.remove(container)


@pytest.mark.container
async def test_containers_of_a_label_are_listed_ended_ones_too(podman: Podman, image: str) -> None:
    async with opened(podman) as engine:
        await pulled(engine, image)
        container = await engine.create(ContainerSpec(name="listed", image=image, command=("true",), labels={"who": "us"}))
        await engine.start(container)
        await engine.wait_ended(container, soon=True)
        found = await engine.list_labelled("who", "us")
        assert [(each.id, each.name, each.life) for each in found] == [(container, "listed", Life.ENDED)]
        assert await engine.list_labelled("who", "them") == []
        await engine.remove(container)


@pytest.mark.container
async def test_engine_that_is_not_there_took_nothing(tmp_path: Path) -> None:
    async with open_engine(runtime="", socket_path=tmp_path / "none.sock", insecure_registries=frozenset(), call_seconds=1) as engine:
        with pytest.raises(EngineDown):
            await engine.inspect("x")


@pytest.mark.container
async def test_engine_that_is_frozen_leaves_the_outcome_unclear(short_tmp: Path) -> None:
    """P-01: a client time-out is not an outcome."""
    with open_podman(short_tmp) as podman:
        async with opened(podman, 2.0) as engine:
            await engine.info()
            podman.pause()
            with pytest.raises(EngineUnclear):
                await engine.inspect("x")
            podman.resume()


@pytest.mark.container
async def test_engine_of_another_kind_than_configured_counts_as_absent(podman: Podman) -> None:
    async with open_engine(runtime="docker", socket_path=podman.socket, insecure_registries=frozenset(), call_seconds=5) as engine:
        with pytest.raises(EngineDown, match="TUNEPLANE_NODE_RUNTIME is docker, but podman answers"):
            await engine.info()


async def test_engine_that_hangs_up_before_it_answers_leaves_the_outcome_unclear(short_tmp: Path) -> None:
    path = short_tmp / "rude.sock"
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(str(path))
    listener.listen()

    async def rude() -> None:
        peer, _ = await listener.accept()
        await peer.recv(1)
        peer.close()

    http = EngineHttp(path, 5.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rude)
        with pytest.raises(EngineUnclear):
            await http.call("creating", "POST", "/containers/create")
    await http.aclose()
    listener.close()


def test_no_socket_anywhere_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-ENR-12."""
    monkeypatch.setattr("tuneplane.nodeside.engine.STANDARD_SOCKETS", {"docker": ("/nowhere/d.sock",), "podman": ("/nowhere/p.sock",)})
    with pytest.raises(InvalidInput, match=r"no container runtime answers at /nowhere/d\.sock, /nowhere/p\.sock"):
        find_socket("")


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (409, 'Conflict. The container name "/x" is already in use by container "y"', Refusal.NAME_TAKEN),
        (500, "creating container storage: that name is already in use", Refusal.NAME_TAKEN),
        (404, "No such image: x@sha256:0", Refusal.NO_IMAGE),
        (500, "x@sha256:0: image not known", Refusal.NO_IMAGE),
        (404, "No such container: x", Refusal.NO_CONTAINER),
        (404, 'no container with name or ID "x" found: no such container', Refusal.NO_CONTAINER),
        (409, "Container x is not running", Refusal.NOT_RUNNING),
        (500, "can only kill running containers. x is in state exited: container state improper", Refusal.NOT_RUNNING),
        (500, "OCI runtime attempted to invoke a command that was not found", Refusal.OTHER),
    ],
)
def test_refusals_of_both_engines_are_told_apart(status: int, text: str, kind: Refusal) -> None:
    assert refusal_kind(status, text) is kind


def full_spec(**changes: Any) -> ContainerSpec:
    return spec(
        "n",
        "i@sha256:0",
        "a",
        "b",
        env={"E": "1"},
        workdir="/w",
        mounts=(Mount(source="/p", target="/plan", read_only=True), Mount(source="/s", target="/s")),
        cpu_millis=1500,
        memory_bytes=100,
        pids_limit=7,
        **changes,
    )


def test_both_engines_are_told_the_same_limits() -> None:
    docker, podman = docker_body(full_spec()), libpod_body(full_spec())
    host, limits = docker["HostConfig"], podman["resource_limits"]
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (1_500_000_000, 100, 100, 7)
    assert limits == {"cpu": {"quota": 150_000, "period": 100_000}, "memory": {"limit": 100, "swap": 100}, "pids": {"limit": 7}}
    assert (host["RestartPolicy"], podman["restart_policy"]) == ({"Name": "no"}, "no")
    assert host["OomScoreAdj"] == podman["oom_score_adj"] > 0  # L-B11
    assert (host["SecurityOpt"], podman["no_new_privileges"]) == (["no-new-privileges"], True)
    assert (docker["Entrypoint"], docker["Cmd"], podman["entrypoint"], podman["command"]) == (["a", "b"], [], ["a", "b"], [])
    assert [mount["ReadOnly"] for mount in host["Mounts"]] == [True, False]
    assert [mount["options"][1] for mount in podman["mounts"]] == ["ro", "rw"]


def test_cards_are_given_by_uuid_and_nobody_else_gets_any() -> None:
    """L-D1: DeviceRequests for Docker, CDI for Podman, whose compatible API ignores them in silence."""
    docker, podman = docker_body(full_spec(gpu_uuids=("GPU-a", "GPU-b"))), libpod_body(full_spec(gpu_uuids=("GPU-a",)))
    assert docker["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["GPU-a", "GPU-b"]
    assert podman["devices"] == [{"path": "nvidia.com/gpu=GPU-a"}]
    part = libpod_body(full_spec(gpu_uuids=("MIG-c7384736-a75d-5afc-978f-d2f1294409fd",)))  # L-D2, L-D6: explicit CDI names
    assert part["devices"] == [{"path": "nvidia.com/gpu=MIG-c7384736-a75d-5afc-978f-d2f1294409fd"}]
    assert podman["env"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "NVIDIA_VISIBLE_DEVICES=void" in docker_body(full_spec())["Env"]


@pytest.mark.parametrize(
    ("status", "started", "life"),
    [
        ("created", "0001-01-01T00:00:00Z", Life.CREATED),
        ("created", "2026-11-30T17:52:10.811172607Z", Life.ENDED),  # a runtime that forgot the start, after a reboot
        ("running", "2026-11-30T17:52:10.811172607Z", Life.RUNNING),
        ("paused", "2026-11-30T17:52:10Z", Life.RUNNING),
        ("exited", "2026-11-30T17:52:10.8111726+02:00", Life.ENDED),
        ("dead", "2026-11-30T17:52:10Z", Life.ENDED),
    ],
)
def test_inspect_answers_are_read_with_started_at_any_time_in_mind(status: str, started: str, life: Life) -> None:
    """P-03: started at any time means never again."""
    state = {"Status": status, "Running": status == "running", "StartedAt": started, "FinishedAt": started, "ExitCode": 0}
    read = read_container({"Id": "x", "Name": "/n", "State": state, "Config": {"Labels": None}})
    assert (read.life, read.name) == (life, "n")
    assert (read.exit_code is not None) == (life is Life.ENDED)


def test_engine_kind_comes_from_the_answer() -> None:
    assert engine_kind({"Components": [{"Name": "Podman Engine"}]}) == "podman"
    assert engine_kind({"Components": [{"Name": "Engine"}]}) == "docker"
    assert engine_kind({}) == "docker"


@pytest.mark.container
def test_docker_instance_names_the_process_behind_the_socket(podman: Podman) -> None:
    """P-04: a restart shows as another process."""
    assert podman.process is not None
    assert docker_instance(podman.socket).startswith(f"docker-{podman.process.pid}-")


# ---------------------------------------------------------------- pull


class Played:
    """Pieces as a stream; dropping it half-way needs no care."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = iter(pieces)

    def __aiter__(self) -> Played:
        return self

    async def __anext__(self) -> bytes:
        for piece in self.pieces:
            return piece
        raise StopAsyncIteration


async def test_pull_adds_up_the_layers_bytes() -> None:
    seen: list[PullProgress] = []
    lines = [
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 5, "total": 10}},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 1, "total": 30}},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 10, "total": 10}},
        {"status": "Extracting", "id": "a", "progressDetail": {"current": 3, "total": 10}},
        {"status": "Pull complete", "id": "a"},
    ]
    data = b"".join(json.dumps(line).encode() + b"\r\n" for line in lines)
    await read_pull("i", Played(data[:33], data[33:70], data[70:]), seen.append)
    assert (seen[-1].done_bytes, seen[-1].total_bytes) == (11, 40)


@pytest.mark.parametrize(
    ("line", "lasting"),
    [
        (b'{"errorDetail":{"message":"manifest unknown"},"error":"manifest unknown"}', True),
        (b'{"error":"denied: requested access to the resource is denied"}', True),
        (b'{"error":"dial tcp 127.0.0.1:1: connect: connection refused"}', False),
        (b"<html>", False),
    ],
)
async def test_pull_errors_inside_a_200_are_errors_and_lasting_ones_are_told(line: bytes, lasting: bool) -> None:
    """L-K3."""
    with pytest.raises(PullFailed) as caught:
        await read_pull("i", Played(b'{"status":"x"}\n' + line), lambda progress: None)
    assert caught.value.lasting is lasting


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_pull_of_any_bytes_ends_or_fails_typed(pieces: list[bytes]) -> None:
    async def run() -> None:
        try:
            await read_pull("i", Played(*pieces), lambda progress: None)
        except PullFailed:
            return

    trio.run(run)


@pytest.mark.parametrize(
    ("image", "insecure"),
    [
        ("127.0.0.1:5000/x@sha256:0", True),
        ("localhost:5000/x@sha256:0", True),
        ("[::1]:5000/x@sha256:0", True),
        ("lab.corp:5000/x@sha256:0", True),
        ("lab.corp/x@sha256:0", False),
        ("127.0.0.1.evil.example/x@sha256:0", False),
        ("registry.example/127.0.0.1/x@sha256:0", False),
    ],
)
def test_plain_http_is_for_loopback_and_listed_registries_only(tmp_path: Path, image: str, insecure: bool) -> None:
    client = EngineClient("", EngineHttp(tmp_path / "s", 1), frozenset({"lab.corp:5000"}))
    assert client._is_insecure(image) is insecure
