"""The container runtime: Docker and Podman through the Engine API on a Unix socket (one client, no command lines).

Docker speaks its own API. Podman is asked through ``/libpod`` where its compatible API is wrong or poorer: create (GPU
requests are ignored in silence, ulimits are swapped), pull (no way to name an insecure registry), wait (polls slowly).
An action that was asked for twice may happen twice (Podman starts an ended container again), so nothing here retries.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import trio
from attrs import define, field, frozen

from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.faultpoint import fault_point
from tuneplane.domain.node_ports import (
    ContainerSpec,
    ContainerState,
    EngineDown,
    EngineInfo,
    EngineRefused,
    PullFailed,
    PullProgress,
    Refusal,
)

from .cdi import read_cdi
from .engine_http import Body, Demux, EngineHttp, refused
from .engine_logfile import LogFile, open_log_file
from .engine_peer import engine_pid
from .engine_pull import read_pull
from .engine_specs import LOG_DRIVER, docker_body, libpod_body, read_container, read_summary

API = "v1.41"  # what both engines of the field speak; a newer daemon's own minimum is taken instead
LIBPOD = "/v4.0.0/libpod"
# State, in Podman's own list, of a container that it was removing when it was killed. Its inspection is answered with a
# 500 ("container not known", "layer not known"), and so is the compatible list of all containers.
HALF_REMOVED = "removing"
HALF_CREATED = "storage"  # state of storage that a create was cut off from
CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
WAIT_SECONDS = 300.0  # one wait; the caller inspects and waits again, so a lost answer costs this at most
NOTICE_MILLISECONDS = 250  # how often Podman looks for the end of a container
NOTICE_SOON_MILLISECONDS = 20  # the same while a person waits for a stop
STANDARD_SOCKETS = {"docker": ("/run/docker.sock", "/var/run/docker.sock"), "podman": ("/run/podman/podman.sock",)}
DOCKER_PID_FILE = Path("/run/docker.pid")


@frozen
class _Spoken:
    """What answers at the socket."""

    podman: bool
    version: str
    server: str = ""  # its Server header, which names program and version


@define(eq=False)
class EngineClient:
    """Implements :class:`~tuneplane.domain.node_ports.Engine` for one socket. Close it with ``aclose``.

    It need not answer yet: which engine it is, is asked at first use. ``runtime`` ("" = any) must then match.
    """

    runtime: str
    _http: EngineHttp
    insecure_registries: frozenset[str] = frozenset()
    _spoken: _Spoken | None = field(default=None, init=False)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _podman(self) -> bool:
        return (self._spoken or await self._ask_version()).podman

    async def _ask_version(self) -> _Spoken:
        response = await self._http.call("asking for the runtime's version", "GET", "/version", bare=True)
        if response.status_code != 200:
            raise refused("asking for the runtime's version", response.status_code, response.content)
        data = response.json()
        kind = engine_kind(data)
        if self.runtime and self.runtime != kind:
            raise EngineDown(f"TUNEPLANE_NODE_RUNTIME is {self.runtime}, but {kind} answers at {self._http.socket}")
        self._http.prefix = "" if kind == "podman" else f"/{_api_version(data)}"
        self._spoken = _Spoken(kind == "podman", str(data.get("Version", "")), response.headers.get("Server", ""))
        return self._spoken

    async def _still_spoken(self) -> _Spoken:
        """What answers now. A ping is enough while the engine's own name stays: Podman's /version and /info each run
        package queries for a quarter of a second of CPU, and a Node looks every few seconds."""
        if self._spoken is None or not self._spoken.server:
            return await self._ask_version()
        response = await self._http.call("asking whether the runtime answers", "GET", "/_ping", bare=True)
        known = response.status_code == 200 and response.headers.get("Server", "") == self._spoken.server
        return self._spoken if known else await self._ask_version()

    async def instance(self) -> str:
        if await self._podman():
            return "podman"
        return docker_instance(self._http.socket)

    async def info(self) -> EngineInfo:
        spoken = await self._still_spoken()
        if spoken.podman:
            names = read_cdi()
            return EngineInfo(kind="podman", version=spoken.version, gpu_runtime=bool(names), cards=names)
        response = await self._http.call("asking for the runtime's state", "GET", "/info")
        if response.status_code != 200:
            raise refused("asking for the runtime's state", response.status_code, response.content)
        gpu = bool(read_cdi()) or "nvidia" in (response.json().get("Runtimes") or {})
        return EngineInfo(kind="docker", version=spoken.version, gpu_runtime=gpu)

    async def has_image(self, image: str) -> bool:
        await self._podman()
        response = await self._http.call(f"looking for image {image}", "GET", f"/images/{quote(image, safe='/:@')}/json")
        if response.status_code not in (200, 404):
            raise refused(f"looking for image {image}", response.status_code, response.content)
        return response.status_code == 200

    async def any_image(self) -> str | None:
        await self._podman()
        response = await self._http.call("listing images", "GET", "/images/json")
        images = response.json() if response.status_code == 200 else []
        return str(images[0]["Id"]) if images else None

    async def pull(self, image: str, progress: Callable[[PullProgress], None]) -> None:
        doing = f"pulling image {image}"
        if await self._podman() and self._is_insecure(image):
            path, params = f"{LIBPOD}/images/pull", {"reference": image, "tlsVerify": "false"}
        else:
            path, params = "/images/create", {"fromImage": image}
        with fault_point("node.engine.pull"):
            async with self._http.stream(doing, "POST", path, params) as body:
                status = body.response.status_code
                if status != 200:
                    error = refused(doing, status, await body.read_all())
                    raise PullFailed(image, error.detail, lasting=status in (400, 404))
                await read_pull(image, body, progress)

    def _is_insecure(self, image: str) -> bool:
        """Plain HTTP is allowed for loopback and for registries an operator listed, and for nothing else."""
        registry = image.split("/", 1)[0]
        host = registry.rsplit(":", 1)[0]
        return registry in self.insecure_registries or host in ("localhost", "[::1]") or re.fullmatch(r"127(\.\d+){3}", host) is not None

    async def create(self, spec: ContainerSpec) -> str:
        doing = f"creating container {spec.name}"
        podman = await self._podman()
        with fault_point("node.engine.create"):
            if podman:
                response = await self._http.call(doing, "POST", f"{LIBPOD}/containers/create", body=libpod_body(spec))
            else:
                response = await self._http.call(doing, "POST", "/containers/create", params={"name": spec.name}, body=docker_body(spec))
        if response.status_code != 201:
            error = refused(doing, response.status_code, response.content)
            if podman and error.kind is Refusal.NAME_TAKEN:
                await self._clear_half_created(spec.name)
            missing = error.kind is Refusal.NO_CONTAINER  # a 404 to a create can only be about its image
            raise EngineRefused(doing, Refusal.NO_IMAGE, error.detail, error.status) if missing else error
        return str(response.json()["Id"])

    async def _clear_half_created(self, name: str) -> None:
        """Remove what a Podman that was killed while it created ``name`` left behind: storage without a container, which
        takes the name and which nothing finds. The refusal stands; another create of that name can then succeed."""
        response = await self._http.call("listing storage", "GET", f"{LIBPOD}/containers/json", params={"external": "true"})
        rows = response.json() if response.status_code == 200 else []
        for row in rows:
            if row.get("State") == HALF_CREATED and name in (row.get("Names") or ()):
                await self.remove(str(row["Id"]))

    async def start(self, container: str) -> None:
        await self._podman()
        with fault_point("node.engine.start"):
            response = await self._http.call(f"starting container {container[:12]}", "POST", f"/containers/{container}/start")
        if response.status_code not in (204, 304):
            raise refused(f"starting container {container[:12]}", response.status_code, response.content)

    async def inspect(self, container: str) -> ContainerState | None:
        podman = await self._podman()
        response = await self._http.call(f"inspecting container {container}", "GET", f"/containers/{container}/json")
        if response.status_code == 404:
            return None
        if podman and response.status_code == 500 and (remains := await self._remains(container)) is not None:
            return remains
        if response.status_code != 200:
            raise refused(f"inspecting container {container}", response.status_code, response.content)
        return read_container(response.json())

    async def wait_ended(self, container: str, *, soon: bool = False) -> None:
        doing = f"waiting for container {container[:12]}"
        if await self._podman():
            interval = NOTICE_SOON_MILLISECONDS if soon else NOTICE_MILLISECONDS
            path, params = f"{LIBPOD}/containers/{container}/wait", {"condition": "stopped", "interval": f"{interval}ms"}
        else:
            path, params = f"/containers/{container}/wait", {"condition": "not-running"}
        with trio.move_on_after(WAIT_SECONDS):
            await self._long_call(doing, path, params)

    async def signal(self, container: str, signal: str) -> None:
        await self._podman()
        doing = f"sending {signal} to container {container[:12]}"
        with fault_point("node.engine.signal"):
            response = await self._http.call(doing, "POST", f"/containers/{container}/kill", params={"signal": signal})
        if response.status_code not in (200, 204):
            error = refused(doing, response.status_code, response.content)
            stopped = error.kind is Refusal.OTHER and error.status == 409
            raise EngineRefused(doing, Refusal.NOT_RUNNING, error.detail, error.status) if stopped else error

    async def remove(self, container: str) -> None:
        doing = f"removing container {container}"
        podman = await self._podman()
        with fault_point("node.engine.remove"):
            if podman:
                params: dict[str, Any] = {"force": "true", "v": "true", "timeout": 0}
                response = await self._http.call(doing, "DELETE", f"{LIBPOD}/containers/{container}", params=params)
            else:
                response = await self._http.call(doing, "DELETE", f"/containers/{container}", params={"force": "true", "v": "true"})
        if response.status_code not in (200, 204, 404):
            raise refused(doing, response.status_code, response.content)

    async def _remains(self, container: str) -> ContainerState | None:
        """What is left of a container whose removal a killed Podman did not finish: no inspection tells of it any more, but
        its name is taken, and it can be removed again."""
        by = "id" if CONTAINER_ID.fullmatch(container) else "name"
        left = [read_summary(row) for row in await self._list(by, container) if row.get("State") == HALF_REMOVED]
        return next((each for each in left if container in (each.id, each.name)), None)

    async def list_labelled(self, label: str, value: str) -> list[ContainerState]:
        return [read_summary(row) for row in await self._list("label", f"{label}={value}")]

    async def _list(self, by: str, value: str) -> list[dict[str, Any]]:
        path = f"{LIBPOD}/containers/json" if await self._podman() else "/containers/json"  # see HALF_REMOVED
        params = {"all": "true", "filters": json.dumps({by: [value]})}
        response = await self._http.call("listing containers", "GET", path, params=params)
        if response.status_code != 200:
            raise refused("listing containers", response.status_code, response.content)
        return list(response.json())

    @asynccontextmanager
    async def open_logs(self, container: str, *, follow: bool) -> AsyncIterator[AsyncIterator[bytes]]:
        if await self._podman() and (file := await self._log_file(container, follow=follow)) is not None:
            try:
                yield file
            finally:
                file.close()
            return
        doing = f"reading the log of container {container[:12]}"
        params = {"stdout": "true", "stderr": "true", "follow": "true" if follow else "false"}
        async with self._http.stream(doing, "GET", f"/containers/{container}/logs", params) as body:
            if body.response.status_code != 200:
                raise refused(doing, body.response.status_code, await body.read_all())
            yield _Payloads(body)

    async def _log_file(self, container: str, *, follow: bool) -> LogFile | None:
        doing = f"looking for the log of container {container[:12]}"
        response = await self._http.call(doing, "GET", f"{LIBPOD}/containers/{container}/json")
        if response.status_code != 200:
            raise refused(doing, response.status_code, response.content)
        where = (response.json().get("HostConfig") or {}).get("LogConfig") or {}
        return open_log_file(Path(where["Path"]), follow=follow) if where.get("Type") == LOG_DRIVER and where.get("Path") else None

    async def _long_call(self, doing: str, path: str, params: dict[str, str]) -> None:
        async with self._http.stream(doing, "POST", path, params, begins_late=True) as body:
            text = await body.read_all()
            status = body.response.status_code
        if status != 200 and (error := refused(doing, status, text)).kind is not Refusal.NO_CONTAINER:
            raise error


@define(eq=False)
class _Payloads:
    """A log stream without its frame headers."""

    _body: Body
    _demux: Demux = field(factory=Demux)

    def __aiter__(self) -> _Payloads:
        return self

    async def __anext__(self) -> bytes:
        while True:
            if payload := self._demux.feed(await anext(self._body)):
                return payload


# ---------------------------------------------------------------- finding it


@asynccontextmanager
async def open_engine(
    *, runtime: str, socket_path: Path | None, insecure_registries: frozenset[str], call_seconds: float
) -> AsyncIterator[EngineClient]:
    """The configured engine, or the first whose socket is at its usual place (InvalidInput when there is none)."""
    client = EngineClient(runtime, EngineHttp(socket_path or find_socket(runtime), call_seconds), insecure_registries)
    try:
        yield client
    finally:
        with trio.move_on_after(1, shield=True):
            await client.aclose()


def find_socket(runtime: str) -> Path:
    """The usual socket of ``runtime`` ("" = any). Raises InvalidInput naming what was looked for."""
    names = [name for kind, paths in STANDARD_SOCKETS.items() if runtime in ("", kind) for name in paths]
    for name in names:
        if Path(name).is_socket():
            return Path(name)
    detail = f"no container runtime answers at {', '.join(names)}: install Docker or Podman, start its API service, or name its socket"
    raise InvalidInput("TUNEPLANE_NODE_RUNTIME_SOCKET", detail)


def engine_kind(version: dict[str, Any]) -> str:
    """Told by the answer, not by the path: a Podman may sit behind Docker's socket."""
    names = [str(component.get("Name", "")) for component in version.get("Components") or []]
    return "podman" if any("podman" in name.lower() for name in names) else "docker"


def _api_version(version: dict[str, Any]) -> str:
    least = str(version.get("MinAPIVersion", "1.24"))
    ours = tuple(map(int, API[1:].split(".")))
    return f"v{least}" if tuple(map(int, least.split("."))) > ours else API


def docker_instance(path: Path) -> str:
    """The running dockerd: its process and start time, so that a restart shows (P-04).

    Behind a socket that systemd opened the peer is systemd; then the pid file is asked, and without one a restart
    cannot be told. (Podman has no such process: conmon keeps each container and its exit code.)
    """
    pid = engine_pid(path)
    try:
        pid = int(DOCKER_PID_FILE.read_text()) if pid <= 1 else pid
        started = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, ValueError, IndexError):
        return "docker"
    return f"docker-{pid}-{started}"
