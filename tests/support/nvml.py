"""A GPU driver as recorded: NVML's calls, answered from what ``nvidia-smi -L`` and ``nvidia-smi topo -m`` said on real machines.

No GPU is needed; what is under test is how our reader understands the answers. The errors are pynvml's own.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pynvml
from attrs import Factory, define

GPU_LINE = re.compile(r"GPU (\d+): (.+) \(UUID: (GPU-[0-9a-f-]+)\)")
MIG_LINE = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)")
GB = 1 << 30
DISTANCES = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}


@define(eq=False)
class Device:
    """A card, or with ``profile`` a MIG instance."""

    index: int
    name: str
    uuid: str
    bus: str = ""
    parts: list[Device] = Factory(list)
    ecc: int | None = 0  # None: not offered
    remap: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    lost: bool = False


@define(eq=False)
class RecordedDriver:
    """In place of the pynvml module. ``down``: what nvmlInit raises."""

    devices: list[Device]
    distances: dict[tuple[int, int], int] = Factory(dict)
    nvlinks: dict[tuple[int, int], int] = Factory(dict)
    switched: int = 0  # NVLinks of each card to the board's switches
    down: Exception | None = None
    open: int = 0

    def nvmlInit(self) -> None:
        if self.down is not None:
            raise self.down
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        device = self.devices[index]
        if device.lost:
            raise pynvml.NVMLError_GpuIsLost
        return device

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54.15"

    def nvmlDeviceGetUUID(self, device: Device) -> str:
        return device.uuid

    def nvmlDeviceGetName(self, device: Device) -> str:
        return device.name

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> Any:
        return SimpleNamespace(total=80 * GB)

    def nvmlDeviceGetPciInfo(self, device: Device) -> Any:
        if not device.bus:
            raise pynvml.NVMLError_NotSupported
        return SimpleNamespace(busId=device.bus)

    def nvmlDeviceGetMigMode(self, device: Device) -> list[int]:
        if not device.name.startswith(("NVIDIA A100", "A100", "NVIDIA H100")):
            raise pynvml.NVMLError_NotSupported
        return [int(bool(device.parts)), int(bool(device.parts))]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Device) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Device, at: int) -> Device:
        if at >= len(device.parts):
            raise pynvml.NVMLError_NotFound
        return device.parts[at]

    def nvmlDeviceGetTotalEccErrors(self, device: Device, kind: int, counter: int) -> int:
        assert (kind, counter) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        if device.ecc is None:
            raise pynvml.NVMLError_NotSupported
        return device.ecc

    def nvmlDeviceGetRemappedRows(self, device: Device) -> tuple[int, int, int, int]:
        if device.remap is None:
            raise pynvml.NVMLError_NotSupported
        return device.remap

    def nvmlDeviceGetTopologyCommonAncestor(self, one: Device, other: Device) -> int:
        pair = (min(one.index, other.index), max(one.index, other.index))
        if pair not in self.distances:
            raise pynvml.NVMLError_NotSupported
        return self.distances[pair]

    def _ends(self, device: Device) -> list[Device | None]:
        ends: list[Device | None] = [None] * self.switched
        for (one, other), count in self.nvlinks.items():
            if device.index in (one, other):
                ends += [self.devices[other if device.index == one else one]] * count
        return ends

    def nvmlDeviceGetNvLinkState(self, device: Device, link: int) -> int:
        if link >= len(self._ends(device)):
            raise pynvml.NVMLError_InvalidArgument
        return int(pynvml.NVML_FEATURE_ENABLED)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, device: Device, link: int) -> int:
        return int(pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH) if self._ends(device)[link] is None else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: Device, link: int) -> Any:
        end = self._ends(device)[link]
        assert end is not None
        return SimpleNamespace(busId=end.bus)


def recorded(listing: str, topology: str = "") -> RecordedDriver:
    """From the output of ``nvidia-smi -L``, and of ``nvidia-smi topo -m`` (its card rows)."""
    driver = RecordedDriver([])
    for line in listing.splitlines():
        gpu, part = GPU_LINE.match(line), MIG_LINE.match(line)
        if gpu:
            index = int(gpu[1])
            driver.devices.append(Device(index, gpu[2], gpu[3], f"00000000:{0x10 + index:02X}:00.0"))
        elif part:
            parent = driver.devices[-1]
            parent.parts.append(Device(int(part[2]), f"{parent.name} MIG {part[1]}", part[3]))
    rows = [line.split() for line in topology.splitlines() if line.startswith("GPU")]
    for one, row in enumerate(rows):
        for other, word in enumerate(row[1 : len(rows) + 1]):
            if one < other and word.startswith("NV"):
                driver.nvlinks[one, other] = int(word[2:])
                driver.distances[one, other] = 40
            elif one < other:
                driver.distances[one, other] = DISTANCES[word]
    return driver
