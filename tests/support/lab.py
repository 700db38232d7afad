"""Machines as far as a network goes: two network namespaces joined by a wire, of which a container engine can be told.

Nothing of them is visible outside, so any number of test runs may have the same addresses at once.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import frozen

ADDRESSES = ("10.77.0.1", "10.77.0.2")


@frozen
class Host:
    """A network namespace by its name below /run/netns, and the address by which the other one reaches it."""

    netns: str
    address: str


@contextmanager
def open_pair() -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other and nothing else: no default route, no name server (L-H6)."""
    one, two = (Host(f"tp{os.getpid()}h{number}", address) for number, address in enumerate(ADDRESSES))
    try:
        for host in (one, two):
            _ip("netns", "add", host.netns)
            _ip("-n", host.netns, "link", "set", "lo", "up")
        _ip("link", "add", "ib0", "netns", one.netns, "type", "veth", "peer", "name", "ib0", "netns", two.netns)
        for host in (one, two):
            _ip("-n", host.netns, "link", "add", "docker0", "type", "bridge")
            _ip("-n", host.netns, "addr", "add", "172.17.0.1/16", "dev", "docker0")  # the same on both, as it is (L-H5)
            _ip("-n", host.netns, "link", "set", "docker0", "up")
            _ip("-n", host.netns, "addr", "add", f"{host.address}/24", "dev", "ib0")
            _ip("-n", host.netns, "link", "set", "ib0", "up")
        yield one, two
    finally:
        for host in (one, two):
            subprocess.run(["ip", "netns", "del", host.netns], check=False, capture_output=True)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
