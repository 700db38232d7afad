"""The address under which peers and the serving proxy reach this machine (R-ENR-13). Never a control endpoint."""

from __future__ import annotations

import ipaddress
import socket

import trio
from attrs import frozen

from tuneplane.domain.addresses import is_numeric, is_routable
from tuneplane.domain.node_ports import EngineDown, Network, NetworkHidden


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


@frozen
class Reach:
    """What the operator or the join said of how this machine is reached, and the host by which it reaches its gateway."""

    address: str
    gateway_host: str


def reach_of(address: str, target: str) -> Reach:
    """``target`` is HOST:PORT of a gateway, [HOST]:PORT for IPv6, or "" when there is none yet."""
    return Reach(address, target.rpartition(":")[0].strip("[]"))


async def route_address(reach: Reach, network: Network) -> str:
    """The one numeric address by which peers reach this machine, or "" when that cannot be told.

    An address is taken as it was said. A name may stand for every address of the machine, that of docker0 among them
    (L-H5): then the one that the machine itself uses towards its gateway is the right one.
    """
    if is_numeric(reach.address):
        return reach.address
    route = await _route(reach.gateway_host, network)
    named = [one for one in await network.resolve(reach.address) if is_routable(one)] if reach.address else []
    return route if route in named or not named else named[0]


async def _route(gateway_host: str, network: Network) -> str:
    for gateway in [gateway_host] if is_numeric(gateway_host) else await network.resolve(gateway_host) if gateway_host else ():
        try:
            source = await network.source_towards(gateway)
        except (EngineDown, NetworkHidden):
            return ""
        if source and is_routable(source):
            return source
    return ""
