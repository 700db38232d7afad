"""What the Node daemon asks of its machine and of its container runtime: ports and their values.

``nodeside.engine`` implements :class:`Engine` for Docker and Podman; the simulator's runtime will too. Errors fall into
three kinds, and the difference is the whole protocol: *nothing was sent* (EngineDown: try again), *refused*
(EngineRefused: it did not happen) and *unclear* (EngineUnclear: look, never repeat).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import Enum
from typing import Protocol, TypeVar

from attrs import Factory, frozen

from .card_health import CardHealth, KernelLine
from .errors import TuneplaneError
from .inventory import Gpu, Interface

T = TypeVar("T")


class EngineDown(TuneplaneError):
    """The runtime's socket did not take the request: nothing was sent, so nothing happened."""

    code = "engine-down"


class EngineUnclear(TuneplaneError):
    """The request was sent and no answer came (time-out, lost connection): the engine may have done it, or may yet."""

    code = "engine-unclear"


class LogRotated(EngineUnclear):
    """The log that was being read was replaced or emptied: output may have been lost, and what is there now is new."""


class Refusal(str, Enum):
    NAME_TAKEN = "name-taken"
    NO_IMAGE = "no-image"
    NO_CONTAINER = "no-container"
    NOT_RUNNING = "not-running"
    OTHER = "other"


class EngineRefused(TuneplaneError):
    """The engine answered no, in its own words: it did not do it."""

    code = "engine-refused"

    def __init__(self, doing: str, kind: Refusal, detail: str, status: int = 0) -> None:
        super().__init__(f"{doing}: {detail}")
        self.kind = kind
        self.detail = detail
        self.status = status


class PullFailed(TuneplaneError):
    """The image cannot be had. ``lasting``: asking again cannot help (no such image, access denied)."""

    code = "image-unavailable"

    def __init__(self, image: str, detail: str, *, lasting: bool) -> None:
        super().__init__(f"image {image}: {detail}")
        self.detail = detail
        self.lasting = lasting


@frozen(kw_only=True)
class EngineInfo:
    """What answers at the runtime's socket."""

    kind: str  # "docker" or "podman"
    version: str
    gpu_runtime: bool
    cards: frozenset[str] | None = None  # that it can give to containers, by name; None: it cannot tell


@frozen(kw_only=True)
class Mount:
    source: str
    target: str
    read_only: bool = False


@frozen(kw_only=True)
class ContainerSpec:
    """All of a container. Never restarted by the runtime, no new privileges, no swap beyond ``memory_bytes``."""

    name: str
    image: str
    command: tuple[str, ...]
    labels: dict[str, str]
    env: dict[str, str] = Factory(dict)
    workdir: str | None = None
    mounts: tuple[Mount, ...] = ()
    cpu_millis: int = 0  # 0: no limit
    memory_bytes: int = 0
    pids_limit: int = 0
    gpu_uuids: tuple[str, ...] = ()
    stop_signal: str = "SIGTERM"


class Life(str, Enum):
    CREATED = "created"  # never started
    RUNNING = "running"
    ENDED = "ended"


@frozen(kw_only=True)
class ContainerState:
    """One container as inspected. Times are the engine's."""

    id: str
    name: str
    labels: dict[str, str]
    life: Life
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    oom_killed: bool = False
    error: str = ""
    image: str = ""


@frozen(kw_only=True)
class PullProgress:
    done_bytes: int
    total_bytes: int  # 0: unknown
    detail: str = ""


class Engine(Protocol):
    """A container runtime. Every method is bounded in time by itself and may raise EngineDown or EngineUnclear.

    Cancelling a method leaves its outcome unclear. ``container`` is an id or a name.
    """

    async def info(self) -> EngineInfo: ...

    async def instance(self) -> str:
        """Changes when the process that supervises the containers was started again (P-04)."""

    async def has_image(self, image: str) -> bool: ...

    async def pull(self, image: str, progress: Callable[[PullProgress], None]) -> None:
        """By digest. Raises PullFailed."""

    async def any_image(self) -> str | None:
        """The id of some local image, for a fence whose own image is gone."""

    async def create(self, spec: ContainerSpec) -> str:
        """The new container's id. EngineRefused: NAME_TAKEN, NO_IMAGE, OTHER."""

    async def start(self, container: str) -> None:
        """Also returns when it already runs. EngineRefused when it cannot start."""

    async def inspect(self, container: str) -> ContainerState | None:
        """None: no such container. One that ended may have no exit code to show: that proves nothing (P-04)."""

    async def wait_ended(self, container: str, *, soon: bool = False) -> None:
        """Return when it is not running (or is gone), or after a bounded time: inspect then. ``soon``: notice it fast."""

    async def signal(self, container: str, signal: str) -> None:
        """EngineRefused NOT_RUNNING or NO_CONTAINER."""

    async def remove(self, container: str) -> None:
        """By force; returns when it is gone, also when it was gone already."""

    async def list_labelled(self, label: str, value: str) -> list[ContainerState]:
        """All containers with that label, ended ones too (times and exit codes may be missing)."""

    def open_logs(self, container: str, *, follow: bool) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Its output from the first byte, both streams as they came, in pieces of any size.

        ``follow`` goes on until the container ends, but may break off before the last byte (Podman does). Without it
        the stream holds all there is.

        EngineRefused NO_CONTAINER; EngineUnclear when the stream breaks off, LogRotated when it was replaced under us.
        """


class Machine(Protocol):
    """Facts and clocks of the machine."""

    def boot_id(self) -> str: ...

    def machine_id(self) -> str: ...

    def boot_seconds(self) -> float:
        """Seconds since boot, suspended time included (P-08)."""

    def now(self) -> datetime:
        """UTC."""


class NetworkHidden(TuneplaneError):
    """The network that workloads get cannot be looked at."""

    code = "network-hidden"


class Network(Protocol):
    """The network that workloads get, which is the container runtime's: with host networking that is theirs (R-LCH-11).

    Every method is bounded in time by itself. Those that look inside raise EngineDown when no runtime answers, and
    NetworkHidden when its network cannot be looked at.
    """

    async def interfaces(self) -> tuple[Interface, ...]:
        """All of them, also those without an address that peers could use."""

    async def source_towards(self, address: str) -> str:
        """Our numeric address on the route to the numeric ``address``; "" without a route."""

    async def taken(self, ports: tuple[int, ...]) -> tuple[int, ...]:
        """Those of ``ports`` on which something listens already."""

    async def resolve(self, name: str) -> tuple[str, ...]:
        """The numeric addresses of a host name, in an order that does not change; () when it has none."""


@frozen(kw_only=True)
class Cards:
    """What the GPU driver says. ``problem`` is set when a driver is there and does not answer (L-D4: not zero cards)."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    problem: str = ""
    health: tuple[CardHealth, ...] = ()  # of the cards that the driver named
    messages: tuple[KernelLine, ...] = ()  # of the GPU driver, in the kernel's log of this boot


class Runner(Protocol):
    """Runs blocking code of one owner, one call at a time, in order: a thread in production, inline in a simulation."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Not interrupted by cancellation: the outcome is always known."""
