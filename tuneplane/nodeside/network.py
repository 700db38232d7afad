"""The network that workloads get: that of the container runtime, behind the :class:`~tuneplane.domain.node_ports.Network` port.

Containers run with host networking, and *host* is the network namespace of the runtime, which need not be this daemon's.
It is found by the process that answers at the runtime's socket, and looked at from inside: by a thread of its own that
enters the namespace and ends. Telling whether it is another namespace at all needs no privilege; entering one does.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio
from attrs import define, field

from tuneplane.domain.inventory import Interface
from tuneplane.domain.node_ports import NetworkHidden

from .engine_peer import engine_pid
from .netlink import read_interfaces
from .runner import ThreadRunner

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
DISCARD_PORT = 9  # any port will do: nothing is sent
RESOLVE_SECONDS = 5.0  # a resolver's first time-out; the next look asks again


@define(eq=False)
class LinuxNetwork:
    """For the runtime that answers at ``socket``. Each call looks anew: the runtime may have been started elsewhere."""

    socket: Path
    _run: ThreadRunner = field(factory=ThreadRunner, init=False)

    async def interfaces(self) -> tuple[Interface, ...]:
        return await self._look(read_interfaces)

    async def source_towards(self, address: str) -> str:
        return await self._look(lambda: _source_towards(address))

    async def taken(self, ports: tuple[int, ...]) -> tuple[int, ...]:
        if not ports:
            return ()
        return await self._look(lambda: tuple(port for port in ports if _is_taken(port)))

    async def resolve(self, name: str) -> tuple[str, ...]:
        """By this daemon's own resolver: names are the machine's, whatever namespace the runtime is in."""
        with trio.move_on_after(RESOLVE_SECONDS):
            try:
                found = await trio.socket.getaddrinfo(name, DISCARD_PORT, type=socket.SOCK_DGRAM)
            except OSError:
                return ()
            return tuple(sorted({str(entry[4][0]).partition("%")[0] for entry in found}))
        return ()

    async def _look(self, work: Callable[[], T]) -> T:
        return await self._run(lambda: run_in_namespace(engine_pid(self.socket), work))


def run_in_namespace(pid: int, work: Callable[[], T]) -> T:
    """``work``, which must be short, in the network namespace of process ``pid``. Raises NetworkHidden and what it raises."""
    return _run_inside(pid, work) if _is_elsewhere(pid) else work()


def _is_elsewhere(pid: int) -> bool:
    try:
        return pid > 0 and _namespace_of(str(pid)) != _namespace_of("self")
    except OSError:  # the process is hidden from us, or has just ended: then ours is the best guess
        return False


def _namespace_of(pid: str) -> int:
    """Each network namespace has its own files below /proc/PID/net, so their numbers tell namespaces apart. (The link
    /proc/PID/ns/net would say it outright, but only to whom may trace that process.)"""
    return Path(f"/proc/{pid}/net/dev").stat().st_ino


def _run_inside(pid: int, work: Callable[[], T]) -> T:
    """On a thread that ends, so that no other work ever runs in the wrong namespace."""
    results: list[T] = []
    errors: list[Exception] = []

    def enter() -> None:
        try:
            _enter(pid)
            results.append(work())
        except Exception as error:  # handed to the caller below
            errors.append(error)

    thread = threading.Thread(target=enter, name=f"netns-of-{pid}")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter(pid: int) -> None:
    try:
        handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(handle, CLONE_NEWNET) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            os.close(handle)
    except OSError as error:
        raise NetworkHidden(
            f"the container runtime (process {pid}) is in another network namespace, which this daemon may not enter: {error}"
        ) from error


def _source_towards(address: str) -> str:
    """Which of our addresses the kernel would use towards ``address``; "" without a route. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, DISCARD_PORT))
        except OSError:
            return ""
        return str(probe.getsockname()[0]).partition("%")[0]


def _is_taken(port: int) -> bool:
    """Whether somebody listens on ``port``, on any address. Connections that are only waiting to be forgotten do not count."""
    for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104  bound for an instant, never listening
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((anywhere, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            if family == socket.AF_INET:
                raise
    return False
