"""The JobSpec ``tuneplane/v1`` (product interface): its shape, defaults and rules."""

from __future__ import annotations

import re
from enum import Enum

from attrs import Factory, frozen

from .errors import InvalidInput
from .fleets import check_slug

API_VERSION = "tuneplane/v1"
MAX_COMMAND_WORDS = 256  # a command line, not a program: longer belongs into a script of the image
MAX_WORD_BYTES = 128 * 1024  # the kernel's own limit for one argument (MAX_ARG_STRLEN)
MAX_ENV = 512
MAX_GANG = 8  # R-LCH-08
MAX_GRACE_SECONDS = 3600.0
MAX_RUNTIME_SECONDS = 366 * 86400.0
SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGKILL"})
ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*\Z")
IMAGE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}\Z")
RAY_MEMORY_LEAST = 10**9  # measured: a head of Ray 2.60 with one driver takes 500 MB before the first task runs
EXACT_RAY = re.compile(r"^[0-9]{1,6}(\.[0-9]{1,6}){2}\Z")


class WorkKind(str, Enum):
    TRAINING_JOB = "TrainingJob"
    LIFECYCLE_JOB = "LifecycleJob"


class Orchestrator(str, Enum):
    PROCESS_GROUP = "process-group"
    RAY = "ray"


@frozen(kw_only=True)
class Metadata:
    name: str
    project: str = "default"
    labels: dict[str, str] = Factory(dict)


@frozen(kw_only=True)
class RuntimeRef:
    """An image by tag or digest (pinned at admission), or the id of a registered runtime."""

    image: str | None = None
    ray_version: str = ""
    id: str | None = None


@frozen(kw_only=True)
class Pool:
    """``nodes`` machines alike; amounts are per machine."""

    name: str = "main"
    nodes: int = 1
    gpus_per_node: int = 0
    cpus: float | None = None
    memory_gb: float | None = None
    series: str | None = None


@frozen(kw_only=True)
class Network:
    transport: str = "tcp"
    isolation: str = "fleet"
    interface: str | None = None


@frozen(kw_only=True)
class Resources:
    pools: tuple[Pool, ...] = (Pool(),)
    network: Network | None = None


@frozen(kw_only=True)
class InitFrom:
    artifact: str


@frozen(kw_only=True)
class VolumeMount:
    name: str
    target: str


@frozen(kw_only=True)
class StopPolicy:
    signal: str = "SIGTERM"
    grace_seconds: float = 30.0


@frozen(kw_only=True)
class JobBody:
    command: tuple[str, ...]
    runtime: RuntimeRef
    fleet: str | None = None
    env: dict[str, str] = Factory(dict)
    workdir: str | None = None
    resources: Resources = Resources()
    orchestrator: Orchestrator = Orchestrator.PROCESS_GROUP
    init_from: InitFrom | None = None
    capsule: str | None = None
    volumes: tuple[VolumeMount, ...] = ()
    priority: int = 0
    max_runtime_seconds: float | None = None
    stop: StopPolicy = StopPolicy()
    retries: int = 0


@frozen(kw_only=True)
class JobSpec:
    apiVersion: str
    kind: WorkKind
    metadata: Metadata
    spec: JobBody

    @property
    def pool(self) -> Pool:
        """The one pool of a Node Fleet job."""
        return self.spec.resources.pools[0]


DEFAULT_CPUS = 1.0  # for a CPU-only job that names no limit; GPU jobs must name theirs (R-LCH-07)
DEFAULT_MEMORY_GB = 1.0
GB = 10**9


def cpu_millis(pool: Pool) -> int:
    return round((pool.cpus if pool.cpus is not None else DEFAULT_CPUS) * 1000)


def memory_bytes(pool: Pool) -> int:
    return round((pool.memory_gb if pool.memory_gb is not None else DEFAULT_MEMORY_GB) * GB)


def check_job_spec(spec: JobSpec) -> None:
    """Raise InvalidInput for the first rule that ``spec`` breaks, whatever Fleet it would go to."""
    if spec.apiVersion != API_VERSION:
        raise InvalidInput("apiVersion", f"must be {API_VERSION}")
    check_slug(spec.metadata.name, "metadata.name")
    check_slug(spec.metadata.project, "metadata.project")
    _check_command(spec.spec)
    _check_env(spec.spec.env)
    _check_runtime(spec.spec)
    for number, pool in enumerate(spec.spec.resources.pools):
        _check_pool(pool, f"spec.resources.pools[{number}]")
        if spec.spec.orchestrator is Orchestrator.RAY and memory_bytes(pool) < RAY_MEMORY_LEAST:
            raise InvalidInput(
                f"spec.resources.pools[{number}].memory_gb", "must be at least 1 for Ray, whose own processes take half of it"
            )
    if not spec.spec.resources.pools:
        raise InvalidInput("spec.resources.pools", "at least one pool is needed")
    _check_network(spec.spec.resources.network)
    _check_limits(spec.spec)


def _check_command(body: JobBody) -> None:
    if not body.command or not body.command[0]:
        raise InvalidInput("spec.command", "must name a program")
    if len(body.command) > MAX_COMMAND_WORDS:
        raise InvalidInput("spec.command", f"at most {MAX_COMMAND_WORDS} words")
    for number, word in enumerate(body.command):
        _check_text(word, f"spec.command[{number}]")
    if body.workdir is not None:
        _check_text(body.workdir, "spec.workdir")
        if not body.workdir.startswith("/"):
            raise InvalidInput("spec.workdir", "must be an absolute path")


def _check_text(text: str, at: str) -> None:
    if "\0" in text:
        raise InvalidInput(at, "must not contain a NUL byte")
    if len(text.encode("utf-8", "surrogatepass")) >= MAX_WORD_BYTES:
        raise InvalidInput(at, f"must be shorter than {MAX_WORD_BYTES} bytes")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(at, "must be valid Unicode (a lone surrogate was found)") from None


def _check_env(env: dict[str, str]) -> None:
    if len(env) > MAX_ENV:
        raise InvalidInput("spec.env", f"at most {MAX_ENV} variables")
    for name, value in env.items():
        if not ENV_NAME.match(name):
            raise InvalidInput(f"spec.env.{name[:64]}", "a name is letters, digits and '_', not starting with a digit")
        if name.startswith("TUNEPLANE_"):
            raise InvalidInput(f"spec.env.{name}", "names starting with TUNEPLANE_ are set by Tuneplane itself")
        _check_text(value, f"spec.env.{name}")


def _check_runtime(body: JobBody) -> None:
    runtime = body.runtime
    if (runtime.image is None) == (runtime.id is None):
        raise InvalidInput("spec.runtime", "give either image or id")
    if runtime.image is not None and not IMAGE.match(runtime.image):
        raise InvalidInput("spec.runtime.image", "is not an image reference such as registry.example/train@sha256:…")
    needs_ray = body.orchestrator is Orchestrator.RAY or runtime.ray_version != ""
    if needs_ray and not EXACT_RAY.match(runtime.ray_version):
        raise InvalidInput("spec.runtime.ray_version", "Ray needs an exact version such as 2.9.0 (R-LCH-09)")


def _check_pool(pool: Pool, at: str) -> None:
    check_slug(pool.name, f"{at}.name")
    if pool.nodes < 1:
        raise InvalidInput(f"{at}.nodes", "must be at least 1")
    if not 0 <= pool.gpus_per_node <= 64:
        raise InvalidInput(f"{at}.gpus_per_node", "must be between 0 and 64")
    if pool.gpus_per_node and pool.cpus is None:
        raise InvalidInput(f"{at}.cpus", "a GPU job declares its CPU limit")
    if pool.gpus_per_node and pool.memory_gb is None:
        raise InvalidInput(f"{at}.memory_gb", "a GPU job declares its memory limit")
    if pool.cpus is not None and not 0.01 <= pool.cpus <= 4096:
        raise InvalidInput(f"{at}.cpus", "must be between 0.01 and 4096")
    if pool.memory_gb is not None and not 0.01 <= pool.memory_gb <= 1_000_000:
        raise InvalidInput(f"{at}.memory_gb", "must be between 0.01 and 1000000")
    _check_pool_series(pool, at)


def _check_pool_series(pool: Pool, at: str) -> None:
    if pool.series is None:
        return
    check_slug(pool.series, f"{at}.series")
    if not pool.gpus_per_node:
        raise InvalidInput(f"{at}.series", "pins the cards of a job that asks for some: gpus_per_node must be at least 1")


def _check_network(network: Network | None) -> None:
    if network is None:
        return
    if network.transport != "tcp":
        raise InvalidInput("spec.resources.network.transport", "only tcp: no back end has a certified RDMA profile")
    if network.isolation != "fleet":
        raise InvalidInput("spec.resources.network.isolation", "only fleet: no back end enforces per-job isolation")
    if network.interface is not None and not re.match(r"^[A-Za-z0-9_.@-]{1,15}\Z", network.interface):
        raise InvalidInput("spec.resources.network.interface", "is not an interface name such as bond0")


def _check_limits(body: JobBody) -> None:
    if not -100 <= body.priority <= 100:
        raise InvalidInput("spec.priority", "must be between -100 and 100")
    if not 0 <= body.retries <= 10:
        raise InvalidInput("spec.retries", "must be between 0 and 10")
    if body.stop.signal not in SIGNALS:
        raise InvalidInput("spec.stop.signal", f"must be one of {', '.join(sorted(SIGNALS))}")
    if not 0 <= body.stop.grace_seconds <= MAX_GRACE_SECONDS:
        raise InvalidInput("spec.stop.grace_seconds", f"must be between 0 and {MAX_GRACE_SECONDS:.0f}")
    if body.max_runtime_seconds is not None and not 1 <= body.max_runtime_seconds <= MAX_RUNTIME_SECONDS:
        raise InvalidInput("spec.max_runtime_seconds", f"must be between 1 and {MAX_RUNTIME_SECONDS:.0f}")


def check_supported(body: JobBody) -> None:
    """Refuse by name what this version cannot do, before anything is written."""
    unsupported = {
        "spec.init_from": body.init_from is not None,
        "spec.capsule": body.capsule is not None,
        "spec.volumes": bool(body.volumes),
        "spec.runtime.id": body.runtime.id is not None,
    }
    for at, present in unsupported.items():
        if present:
            raise InvalidInput(at, "is not supported by this version of Tuneplane")


def check_node_fleet_shape(body: JobBody) -> None:
    """A Node Fleet runs one homogeneous pool on at most eight machines (R-LCH-08)."""
    pools = body.resources.pools
    if len(pools) > 1:
        raise InvalidInput("spec.resources.pools", "a Node Fleet takes one pool; several belong on Kubernetes or Slurm")
    if pools[0].nodes > MAX_GANG:
        raise InvalidInput("spec.resources.pools[0].nodes", f"a Node Fleet takes at most {MAX_GANG}; more belong on Kubernetes or Slurm")
