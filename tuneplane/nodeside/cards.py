"""The machine's GPUs through NVML, when there is a driver, and what the kernel says of them."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pynvml
import trio
from attrs import evolve

from tuneplane.domain import codec
from tuneplane.domain.card_health import XID, CardHealth, KernelLine, bus_address
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.inventory import FARTHEST, MOST_CARDS, CardLink, Gpu, MigInstance
from tuneplane.domain.node_ports import Cards

T = TypeVar("T")
Driver = Any  # the pynvml module, or a recorded one

DRIVER_SECONDS = 15.0  # a driver in trouble can hang for ever; the thread is then left behind
KERNEL_LOG = Path("/dev/kmsg")
MOST_RECORDS = 100_000  # of the kernel's ring, which holds some thousands
MOST_MESSAGES = 256  # of GPU errors, the newest: a card that fails writes the same few again and again
RECORD_BYTES = 8192  # the kernel gives no record longer than this
MOST_FILE_BYTES = 1 << 20  # of recorded cards


async def read_cards() -> Cards:
    """:func:`read_machine`, bounded."""
    with trio.move_on_after(DRIVER_SECONDS):
        return await trio.to_thread.run_sync(read_machine, abandon_on_cancel=True)
    return Cards(problem=f"the GPU driver does not answer within {DRIVER_SECONDS:g} s")


def recorded_cards(path: Path) -> Callable[[], Awaitable[Cards]]:
    """A reader of cards that a file describes: tests and demonstrations on machines without any. Never for production."""

    async def read() -> Cards:
        return await trio.to_thread.run_sync(_read_recorded, path)

    return read


def _read_recorded(path: Path) -> Cards:
    try:
        with path.open("rb") as file:
            return codec.decode(Cards, json.loads(file.read(MOST_FILE_BYTES)), str(path))
    except (OSError, ValueError, InvalidInput) as error:
        return Cards(problem=f"the GPU driver does not answer: {error}")


def read_machine(driver: Driver = pynvml, kernel_log: Path = KERNEL_LOG) -> Cards:
    """Driver and kernel log. A machine without a driver is not asked what its kernel says of one."""
    cards = read_nvml(driver)
    if not cards.gpus and not cards.problem:
        return cards
    return evolve(cards, messages=read_kernel_log(kernel_log))


def read_nvml(driver: Driver = pynvml) -> Cards:
    """All cards, by the driver's index; none without a driver. A driver that fails is a problem, not zero cards (L-D4).

    A card that is lost to the driver is left out: it is missing, and the others are there.
    """
    try:
        driver.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return Cards()
    except pynvml.NVMLError as error:
        return Cards(problem=f"the GPU driver does not answer: {error}")
    try:
        handles = {index: handle for index in range(driver.nvmlDeviceGetCount()) if (handle := _handle(driver, index)) is not None}
        found = [(handle, _read_card(driver, index, handle)) for index, handle in handles.items()]
        return Cards(
            gpus=_linked(driver, found),
            driver_version=_text(driver.nvmlSystemGetDriverVersion()),
            health=tuple(_read_health(driver, handle, gpu.uuid) for handle, gpu in found),
        )
    except pynvml.NVMLError as error:
        return Cards(problem=f"the GPU driver does not answer: {error}")
    finally:
        driver.nvmlShutdown()


def _handle(driver: Driver, index: int) -> Any | None:
    try:
        handle = driver.nvmlDeviceGetHandleByIndex(index)
        driver.nvmlDeviceGetUUID(handle)
    except (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_NotFound):
        return None
    return handle


def _read_card(driver: Driver, index: int, handle: Any) -> Gpu:
    mig = _offered(lambda: driver.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE) or False
    bus = _offered(lambda: bus_address(_text(driver.nvmlDeviceGetPciInfo(handle).busId)))
    return Gpu(
        index=index,
        uuid=_text(driver.nvmlDeviceGetUUID(handle)),
        name=_text(driver.nvmlDeviceGetName(handle)),
        memory_bytes=int(driver.nvmlDeviceGetMemoryInfo(handle).total),
        bus=bus or "",
        mig=mig,
        instances=_read_instances(driver, handle) if mig else (),
    )


def _read_instances(driver: Driver, handle: Any) -> tuple[MigInstance, ...]:
    """Under the ids that the driver reports, of whatever form (L-D6)."""
    count = _offered(lambda: int(driver.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0
    parts = [_offered(lambda at=at: driver.nvmlDeviceGetMigDeviceHandleByIndex(handle, at)) for at in range(min(count, MOST_CARDS))]  # type: ignore[misc]
    return tuple(
        MigInstance(
            uuid=_text(driver.nvmlDeviceGetUUID(part)),
            name=_text(driver.nvmlDeviceGetName(part)),
            memory_bytes=int(driver.nvmlDeviceGetMemoryInfo(part).total),
        )
        for part in parts
        if part is not None
    )


def _read_health(driver: Driver, handle: Any, uuid: str) -> CardHealth:
    """None where the card has no such reading."""
    errors = _offered(
        lambda: int(driver.nvmlDeviceGetTotalEccErrors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC))
    )
    rows = _offered(lambda: driver.nvmlDeviceGetRemappedRows(handle))
    pending, failed = (bool(rows[2]), bool(rows[3])) if rows is not None else (None, None)
    return CardHealth(uuid=uuid, ecc_errors=errors, remap_pending=pending, remap_failed=failed)


def _linked(driver: Driver, found: list[tuple[Any, Gpu]]) -> tuple[Gpu, ...]:
    """The cards with their links to one another; of more cards than a machine has, and of one alone, none (L-D14)."""
    if not 2 <= len(found) <= MOST_CARDS:
        return tuple(gpu for _, gpu in found)
    ends = {gpu.uuid: _nvlink_ends(driver, handle) for handle, gpu in found}
    return tuple(
        evolve(gpu, links=tuple(_link(driver, (handle, gpu), other, ends) for other in found if other[1].uuid != gpu.uuid))
        for handle, gpu in found
    )


def _link(driver: Driver, one: tuple[Any, Gpu], other: tuple[Any, Gpu], ends: dict[str, list[str]]) -> CardLink:
    distance = _offered(lambda: int(driver.nvmlDeviceGetTopologyCommonAncestor(one[0], other[0])))
    direct = ends[one[1].uuid].count(other[1].bus) if other[1].bus else 0
    switched = min(ends[one[1].uuid].count(SWITCH), ends[other[1].uuid].count(SWITCH))
    return CardLink(peer=other[1].uuid, nvlinks=direct or switched, distance=FARTHEST if distance is None else min(distance, FARTHEST))


SWITCH = "switch"


def _nvlink_ends(driver: Driver, handle: Any) -> list[str]:
    """Where each of its NVLinks leads: the PCI address of a card, or a switch, to which all cards of the board are joined."""
    ends = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if _offered(lambda link=link: driver.nvmlDeviceGetNvLinkState(handle, link)) != pynvml.NVML_FEATURE_ENABLED:  # type: ignore[misc]
            continue
        kind = _offered(lambda link=link: driver.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))  # type: ignore[misc]
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            ends.append(SWITCH)
            continue
        far = _offered(lambda link=link: driver.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))  # type: ignore[misc]
        if far is not None:
            ends.append(bus_address(_text(far.busId)))
    return ends


def _offered(ask: Callable[[], T]) -> T | None:
    """None for what this card or this driver does not offer; any other error is the driver's."""
    try:
        return ask()
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NotFound, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_InvalidArgument):
        return None


def _text(value: str | bytes) -> str:
    """Older bindings answer bytes."""
    return value.decode() if isinstance(value, bytes) else value


# ---------------------------------------------------------------- the kernel's log


def read_kernel_log(path: Path = KERNEL_LOG) -> tuple[KernelLine, ...]:
    """The messages of the GPU driver in the kernel's log of this boot, oldest first; () when it may not be read.

    One record a read, as ``/dev/kmsg`` gives them: ``priority,sequence,time,flags;text``. A recorded file has one a line.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        found = _messages(b"".join(_records(descriptor)))
    finally:
        os.close(descriptor)
    return tuple(found[-MOST_MESSAGES:])


def _records(descriptor: int) -> list[bytes]:
    records: list[bytes] = []
    while len(records) < MOST_RECORDS:
        try:
            record = os.read(descriptor, RECORD_BYTES)
        except BrokenPipeError:  # overwritten under us: the next read gives what is left
            continue
        except OSError:  # the end, for now
            break
        if not record:
            break
        records.append(record)
    return records


def _messages(log: bytes) -> list[KernelLine]:
    found = []
    for line in log.split(b"\n"):
        head, _, text = line.decode("utf-8", "replace").partition(";")
        fields = head.split(",")
        if len(fields) >= 3 and fields[1].isdigit() and XID.search(text):
            found.append(KernelLine(sequence=int(fields[1]), text=text))
    return found
