"""A container in the words of each engine, and each engine's answer as a value. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tuneplane.domain.node_ports import ContainerSpec, ContainerState, Life

NETWORK = "host"  # peers, port holds and named interfaces refer to the machine's own network (R-LCH-11)
CPU_PERIOD_MICROSECONDS = 100_000
LOG_BYTES = 1 << 30  # a flood must not fill the engine's disk; our own capture holds the log (L-E5)
LOG_DRIVER = "k8s-file"  # Podman's: journald forgets and cannot be read from its first byte
OOM_SCORE = 500  # of workloads: a kernel short of memory takes them before the daemon that must tell of it (L-B11)
ZERO_TIME = "0001-01-01"


def docker_body(spec: ContainerSpec) -> dict[str, Any]:
    """Body of ``POST /containers/create`` for Docker."""
    host: dict[str, Any] = {
        "NetworkMode": NETWORK,
        "RestartPolicy": {"Name": "no"},
        "OomScoreAdj": OOM_SCORE,
        "SecurityOpt": ["no-new-privileges"],
        "Mounts": [{"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only} for mount in spec.mounts],
        "LogConfig": {"Type": "json-file", "Config": {"max-size": str(LOG_BYTES), "max-file": "2"}},
    }
    if spec.cpu_millis:
        host["NanoCpus"] = spec.cpu_millis * 1_000_000
    if spec.memory_bytes:
        host |= {"Memory": spec.memory_bytes, "MemorySwap": spec.memory_bytes, "ShmSize": spec.memory_bytes // 2}
    if spec.pids_limit:
        host["PidsLimit"] = spec.pids_limit
    if spec.gpu_uuids:
        host["DeviceRequests"] = [{"Driver": "nvidia", "DeviceIDs": list(spec.gpu_uuids), "Capabilities": [["gpu"]]}]
    return {
        "Image": spec.image,
        "Entrypoint": list(spec.command),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in container_env(spec).items()],
        "Labels": spec.labels,
        "WorkingDir": spec.workdir or "",
        "StopSignal": spec.stop_signal,
        "HostConfig": host,
    }


def libpod_body(spec: ContainerSpec) -> dict[str, Any]:
    """Body of ``POST /libpod/containers/create``: the compatible API ignores GPU requests in silence."""
    limits: dict[str, Any] = {}
    if spec.cpu_millis:
        limits["cpu"] = {"quota": spec.cpu_millis * CPU_PERIOD_MICROSECONDS // 1000, "period": CPU_PERIOD_MICROSECONDS}
    if spec.memory_bytes:
        limits["memory"] = {"limit": spec.memory_bytes, "swap": spec.memory_bytes}
    if spec.pids_limit:
        limits["pids"] = {"limit": spec.pids_limit}
    body: dict[str, Any] = {
        "name": spec.name,
        "image": spec.image,
        "entrypoint": list(spec.command),
        "command": [],
        "env": container_env(spec),
        "labels": spec.labels,
        "netns": {"nsmode": NETWORK},
        "mounts": [
            {
                "type": "bind",
                "source": mount.source,
                "destination": mount.target,
                "options": ["rbind", "ro" if mount.read_only else "rw"],
            }
            for mount in spec.mounts
        ],
        "resource_limits": limits,
        "no_new_privileges": True,
        "restart_policy": "no",
        "oom_score_adj": OOM_SCORE,
        "log_configuration": {"driver": LOG_DRIVER, "size": LOG_BYTES},
        "devices": [{"path": f"nvidia.com/gpu={uuid}"} for uuid in spec.gpu_uuids],
    }
    if spec.memory_bytes:
        body["shm_size"] = spec.memory_bytes // 2  # data loaders need more than the default 64 MB; it counts as memory
    if spec.workdir:
        body["work_dir"] = spec.workdir
    return body


def container_env(spec: ContainerSpec) -> dict[str, str]:
    """The variables, and the two that keep card numbers honest (L-D1): no image gets cards it was not given."""
    cards = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if spec.gpu_uuids else {"NVIDIA_VISIBLE_DEVICES": "void"}
    return {**cards, **spec.env}


def read_container(data: dict[str, Any]) -> ContainerState:
    """An inspect answer."""
    state = data["State"]
    life = _life(str(state.get("Status", "")), _moment(state.get("StartedAt")) is not None, bool(state.get("Running")))
    ended = life is Life.ENDED
    return ContainerState(
        id=data["Id"],
        name=str(data["Name"]).lstrip("/"),
        labels=dict(data["Config"].get("Labels") or {}),
        life=life,
        started_at=_moment(state.get("StartedAt")),
        ended_at=_moment(state.get("FinishedAt")) if ended else None,
        exit_code=int(state["ExitCode"]) if ended else None,
        oom_killed=bool(state.get("OOMKilled")),
        error=str(state.get("Error") or ""),
        image=str(data["Config"].get("Image") or ""),
    )


def read_summary(data: dict[str, Any]) -> ContainerState:
    """One row of a container list: no times, no exit code."""
    status = str(data.get("State", ""))
    names = data.get("Names") or [""]
    return ContainerState(
        id=data["Id"],
        name=str(names[0]).lstrip("/"),
        labels=dict(data.get("Labels") or {}),
        life=_life(status, False, status == "running"),
    )


def _life(status: str, started: bool, running: bool) -> Life:
    if running or status in ("running", "paused", "restarting", "stopping"):
        return Life.RUNNING
    if status in ("created", "configured", "initialized") and not started:
        return Life.CREATED
    return Life.ENDED


def _moment(text: object) -> datetime | None:
    """An engine's time; None for its zero. Nanoseconds are cut to the microseconds that Python keeps."""
    if not isinstance(text, str) or not text or text.startswith(ZERO_TIME):
        return None
    head, dot, rest = text.partition(".")
    if dot:
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        text = f"{head}.{digits[:6]}{rest[len(digits) :]}"
    return datetime.fromisoformat(text)
