"""The address under which peers and the serving proxy reach this machine (R-ENR-13). Never a control endpoint."""

from __future__ import annotations

import ipaddress
import socket

import trio


async def find_address(console_host: str) -> str:
    """The full host name if it resolves to something that is not loopback, else the source address towards the console.

    ``hostname -i`` and its like are never used (L-H6). OSError when there is no route to the console.
    """
    name = socket.getfqdn()
    try:
        found = await trio.socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    if any(not ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found):
        return name
    return await _source_address(console_host)


async def _source_address(host: str) -> str:
    """Which of our addresses the kernel would use towards ``host``. Sends nothing."""
    family, _, _, _, target = (await trio.socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM))[0]
    with trio.socket.socket(family, socket.SOCK_DGRAM) as probe:
        await probe.connect(target)
        return str(probe.getsockname()[0])
