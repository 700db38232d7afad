"""Who answers at the container runtime's socket."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from tuneplane.domain.node_ports import EngineDown

CONNECT_SECONDS = 1.0  # a local connect is at once; one to a stuck dockerd's full backlog must not hold the daemon


def engine_pid(path: Path) -> int:
    """The process that opened the socket (systemd, where it activates the runtime); 0 when it is hidden. EngineDown."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_SECONDS)
        try:
            probe.connect(str(path))
            return int(struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
        except OSError as error:
            raise EngineDown(f"the container runtime at {path} does not answer: {error}") from error
