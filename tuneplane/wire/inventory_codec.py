"""A Node's inventory, as protobuf and as a domain value."""

from __future__ import annotations

from ..domain.frames import InventoryReport
from ..domain.inventory import MOST_STRANGERS, Budgets, EpochHold, Interface, Inventory, Stranger
from . import fields as f
from .card_codec import decode_bindings, decode_faults, decode_gpu, encode_bindings, encode_faults, encode_gpu
from .pb import session_pb2 as pb

MAX_PATH_BYTES = 4096  # PATH_MAX
MAX_CPUS = 2**16
MAX_PORT = 65535
MAX_EPOCH = 2**48  # a session a microsecond for nine years: no accepted hold can drive the counter to its end


def _decode_budgets(m: pb.Budgets) -> Budgets:
    f.few(len(m.gpus.indexes), "budgets.gpus")
    f.few(len(m.gpu_uuids), "budgets.gpu_uuids")
    first = f.count(m.port_first, "budgets.port_first", MAX_PORT, 1)
    return Budgets(
        cpu_millis=f.count(m.cpu_millis, "budgets.cpu_millis") if m.HasField("cpu_millis") else None,
        memory_bytes=f.count(m.memory_bytes, "budgets.memory_bytes") if m.HasField("memory_bytes") else None,
        gpu_indexes=tuple(f.count(i, "budgets.gpus", f.MAX_ITEMS) for i in m.gpus.indexes) if m.HasField("gpus") else None,
        gpu_uuids=tuple(f.checked_id(uuid, "budgets.gpu_uuids") for uuid in m.gpu_uuids),
        port_first=first,
        port_last=f.count(m.port_last, "budgets.port_last", MAX_PORT, first),
        staging_bytes=f.count(m.staging_bytes, "budgets.staging_bytes"),
    )


def _decode_interface(m: pb.Interface) -> Interface:
    f.few(len(m.addresses), "interface.addresses")
    return Interface(
        name=f.interface_name(m.name, "interface.name"),
        addresses=tuple(f.address(one, "interface.addresses") for one in m.addresses),
    )


def _decode_hold(m: pb.EpochHold) -> EpochHold:
    return EpochHold(
        id=f.checked_id(m.id, "hold.id"),
        known_epoch=f.count(m.known_epoch, "hold.known_epoch", MAX_EPOCH),
        told_epoch=f.count(m.told_epoch, "hold.told_epoch", MAX_EPOCH),
        since=f.moment(m.since, "hold.since"),
    )


def _encode_hold(v: EpochHold) -> pb.EpochHold:
    return pb.EpochHold(id=v.id, known_epoch=v.known_epoch, told_epoch=v.told_epoch, since=f.micros(v.since))


def _decode_stranger(m: pb.Stranger) -> Stranger:
    f.few(len(m.cards.uuids), "stranger.cards")
    return Stranger(
        container=f.optional_id(m.container, "stranger.container"),
        name=f.text(m.name, "stranger.name", 256),
        member=f.text(m.member, "stranger.member", 256),
        image=f.text(m.image, "stranger.image", 512),
        since=f.optional_moment(m.since, "stranger.since"),
        gpu_uuids=tuple(f.checked_id(uuid, "stranger.cards") for uuid in m.cards.uuids) if m.HasField("cards") else None,
        cpu_millis=f.count(m.cpu_millis, "stranger.cpu_millis") if m.HasField("cpu_millis") else None,
        memory_bytes=f.count(m.memory_bytes, "stranger.memory_bytes") if m.HasField("memory_bytes") else None,
    )


def _encode_stranger(v: Stranger) -> pb.Stranger:
    return pb.Stranger(
        container=v.container,
        name=f.to_text(v.name, 256),
        member=f.to_text(v.member, 256),
        image=f.to_text(v.image, 512),
        since=f.micros(v.since),
        cards=None if v.gpu_uuids is None else pb.StrangerCards(uuids=v.gpu_uuids),
        cpu_millis=v.cpu_millis,
        memory_bytes=v.memory_bytes,
    )


def decode_inventory(m: pb.InventoryReport) -> InventoryReport:
    i = m.inventory
    f.few(len(i.gpus), "inventory.gpus")
    f.few(len(i.problems), "inventory.problems")
    f.few(len(i.interfaces), "inventory.interfaces")
    f.few(len(i.strangers), "inventory.strangers")
    inventory = Inventory(
        hostname=f.text(i.hostname, "inventory.hostname", 255),
        node_version=f.word(i.node_version, "inventory.node_version"),
        cpu_count=f.count(i.cpu_count, "inventory.cpu_count", MAX_CPUS),
        memory_bytes=f.count(i.memory_bytes, "inventory.memory_bytes"),
        gpus=tuple(decode_gpu(gpu) for gpu in i.gpus),
        driver_version=f.text(i.driver_version, "inventory.driver_version", 256),
        runtime=f.text(i.runtime, "inventory.runtime", 256),
        gpu_runtime=i.gpu_runtime,
        storage_root=f.text(i.storage_root, "inventory.storage_root", MAX_PATH_BYTES),
        storage_root_seen=i.storage_root_seen,
        budgets=_decode_budgets(i.budgets),
        problems=tuple(f.text(problem, "inventory.problems") for problem in i.problems),
        hold=_decode_hold(i.hold) if i.HasField("hold") else None,
        strangers=tuple(_decode_stranger(one) for one in i.strangers),
        interfaces=tuple(_decode_interface(one) for one in i.interfaces),
        route_address=f.optional_address(i.route_address, "inventory.route_address"),
        cards_known=not i.cards_unknown,
        card_bindings=decode_bindings(list(i.card_bindings)),
        card_faults=decode_faults(i.card_faults) if i.HasField("card_faults") else None,
    )
    return InventoryReport(inventory=inventory, digest=f.digest(m.digest, "inventory.digest"))


def _encode_budgets(v: Budgets) -> pb.Budgets:
    return pb.Budgets(
        cpu_millis=v.cpu_millis,
        memory_bytes=v.memory_bytes,
        gpus=None if v.gpu_indexes is None else pb.GpuIndexes(indexes=v.gpu_indexes),
        gpu_uuids=v.gpu_uuids,
        port_first=v.port_first,
        port_last=v.port_last,
        staging_bytes=v.staging_bytes,
    )


def encode_inventory(v: InventoryReport) -> pb.InventoryReport:
    i = v.inventory
    inventory = pb.Inventory(
        hostname=f.to_text(i.hostname, 255),
        node_version=i.node_version,
        cpu_count=i.cpu_count,
        memory_bytes=i.memory_bytes,
        gpus=[encode_gpu(gpu) for gpu in i.gpus],
        driver_version=f.to_text(i.driver_version, 256),
        runtime=f.to_text(i.runtime, 256),
        gpu_runtime=i.gpu_runtime,
        storage_root=f.to_text(i.storage_root, MAX_PATH_BYTES),
        storage_root_seen=i.storage_root_seen,
        budgets=_encode_budgets(i.budgets),
        problems=[f.to_text(problem) for problem in i.problems[: f.MAX_ITEMS]],
        hold=None if i.hold is None else _encode_hold(i.hold),
        strangers=[_encode_stranger(one) for one in i.strangers[:MOST_STRANGERS]],
        interfaces=[pb.Interface(name=one.name, addresses=one.addresses) for one in i.interfaces],
        route_address=i.route_address,
        cards_unknown=not i.cards_known,
        card_bindings=encode_bindings(i.card_bindings),
        card_faults=None if i.card_faults is None else encode_faults(i.card_faults),
    )
    return pb.InventoryReport(inventory=inventory, digest=v.digest)
