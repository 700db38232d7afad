"""This machine's identity and clocks, behind the :class:`~tuneplane.domain.node_ports.Machine` port."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from attrs import frozen

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


@frozen
class LinuxMachine:
    """Reads the kernel's boot id and systemd's machine id; the latter is "" where there is none (a bare container)."""

    def boot_id(self) -> str:
        return BOOT_ID.read_text().strip()

    def machine_id(self) -> str:
        for path in MACHINE_IDS:
            try:
                return path.read_text().strip()
            except OSError:
                continue
        return ""

    def boot_seconds(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> datetime:
        return datetime.now(UTC)


@cache
def node_version() -> str:
    """Of the running code: read once, so that an update that lies on the disk before the restart is not claimed too early."""
    return metadata.version("tuneplane")
