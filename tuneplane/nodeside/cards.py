"""The machine's GPUs through NVML, when there is a driver."""

from __future__ import annotations

import pynvml
import trio

from tuneplane.domain.inventory import Gpu
from tuneplane.domain.node_ports import Cards

DRIVER_SECONDS = 15.0  # a driver in trouble can hang for ever; the thread is then left behind


async def read_cards() -> Cards:
    """:func:`read_nvml`, bounded."""
    with trio.move_on_after(DRIVER_SECONDS):
        return await trio.to_thread.run_sync(read_nvml, abandon_on_cancel=True)
    return Cards(problem=f"the GPU driver does not answer within {DRIVER_SECONDS:g} s")


def read_nvml() -> Cards:
    """All cards, by the driver's index; none without a driver. A driver that fails is a problem, not zero cards (L-D4)."""
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return Cards()
    except pynvml.NVMLError as error:
        return Cards(problem=f"the GPU driver does not answer: {error}")
    try:
        gpus = tuple(_read_card(index) for index in range(pynvml.nvmlDeviceGetCount()))
        return Cards(gpus=gpus, driver_version=_text(pynvml.nvmlSystemGetDriverVersion()))
    except pynvml.NVMLError as error:
        return Cards(problem=f"the GPU driver does not answer: {error}")
    finally:
        pynvml.nvmlShutdown()


def _read_card(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Gpu(
        index=index,
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
    )


def _text(value: str | bytes) -> str:
    """Older bindings answer bytes."""
    return value.decode() if isinstance(value, bytes) else value
