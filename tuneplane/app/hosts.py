"""What this machine is called from elsewhere, without asking any name server (a slow one must not hold a start)."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from .settings import Endpoint

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
ELSEWHERE = "192.0.2.1"  # RFC 5737, documentation: connecting a UDP socket to it only picks a route, and sends nothing


def machine_address() -> str:
    """The address that this machine uses towards others; loopback when it has no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE, 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def advertised(listen: Endpoint, wildcard: str) -> Endpoint:
    """How to reach what listens at ``listen``: its own host, or ``wildcard`` when it listens on every address."""
    return Endpoint(wildcard if listen.host in WILDCARDS else listen.host, listen.port)


def console_hosts(public_url: str) -> list[str]:
    """Every name that the console's certificate is for: how people may spell this machine, and the public name."""
    names = [urlsplit(public_url).hostname or "localhost", "localhost", "127.0.0.1", "::1", machine_address(), socket.gethostname()]
    return list(dict.fromkeys(name for name in names if name))
