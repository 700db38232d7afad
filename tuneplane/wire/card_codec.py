"""The cards of an inventory, as protobuf and as domain values."""

from __future__ import annotations

from ..domain.inventory import FARTHEST, MOST_CARDS, CardBinding, CardFault, CardLink, Gpu, MigInstance
from . import fields as f
from .pb import session_pb2 as pb

MAX_LINKS = 256  # NVLinks between two cards: a card has 18
MAX_NAME_BYTES = 256
MAX_FAULTS = 2 * MOST_CARDS  # an error and a row that waits, of every card


def _few(count: int, field: str, most: int = MOST_CARDS) -> None:
    if count > most:
        raise f.FrameError(field, f"must have at most {most} items")


def decode_gpu(m: pb.Gpu) -> Gpu:
    _few(len(m.instances), "gpu.instances")
    _few(len(m.links), "gpu.links")
    return Gpu(
        index=f.count(m.index, "gpu.index", f.MAX_ITEMS),
        uuid=f.checked_id(m.uuid, "gpu.uuid"),
        name=f.text(m.name, "gpu.name", MAX_NAME_BYTES),
        memory_bytes=f.count(m.memory_bytes, "gpu.memory_bytes"),
        bus=f.optional_id(m.bus, "gpu.bus"),
        mig=m.mig,
        instances=tuple(_decode_instance(one) for one in m.instances),
        links=tuple(_decode_link(one) for one in m.links),
    )


def _decode_instance(m: pb.MigInstance) -> MigInstance:
    return MigInstance(
        uuid=f.checked_id(m.uuid, "gpu.instances"),
        name=f.text(m.name, "gpu.instances.name", MAX_NAME_BYTES),
        memory_bytes=f.count(m.memory_bytes, "gpu.instances.memory_bytes"),
    )


def _decode_link(m: pb.CardLink) -> CardLink:
    return CardLink(
        peer=f.checked_id(m.peer, "gpu.links.peer"),
        nvlinks=f.count(m.nvlinks, "gpu.links.nvlinks", MAX_LINKS),
        distance=f.count(m.distance, "gpu.links.distance", FARTHEST),
    )


def encode_gpu(v: Gpu) -> pb.Gpu:
    return pb.Gpu(
        index=v.index,
        uuid=v.uuid,
        name=f.to_text(v.name, MAX_NAME_BYTES),
        memory_bytes=v.memory_bytes,
        bus=v.bus,
        mig=v.mig,
        instances=[_encode_instance(one) for one in v.instances[:MOST_CARDS]],
        links=[pb.CardLink(peer=one.peer, nvlinks=one.nvlinks, distance=one.distance) for one in v.links[:MOST_CARDS]],
    )


def _encode_instance(v: MigInstance) -> pb.MigInstance:
    return pb.MigInstance(uuid=v.uuid, name=f.to_text(v.name, MAX_NAME_BYTES), memory_bytes=v.memory_bytes)


def decode_bindings(bindings: list[pb.CardBinding]) -> tuple[CardBinding, ...]:
    _few(len(bindings), "inventory.card_bindings")
    return tuple(
        CardBinding(index=f.count(one.index, "card_bindings.index", f.MAX_ITEMS), uuid=f.checked_id(one.uuid, "card_bindings.uuid"))
        for one in bindings
    )


def encode_bindings(bindings: tuple[CardBinding, ...]) -> list[pb.CardBinding]:
    return [pb.CardBinding(index=one.index, uuid=one.uuid) for one in bindings[:MOST_CARDS]]


def decode_faults(m: pb.CardFaults) -> tuple[CardFault, ...]:
    _few(len(m.faults), "inventory.card_faults", MAX_FAULTS)
    return tuple(
        CardFault(
            card=f.optional_id(one.card, "card_faults.card"),
            code=f.code(one.code, "card_faults.code"),
            detail=f.text(one.detail, "card_faults.detail"),
            whole_node=one.whole_node,
            since=f.moment(one.since, "card_faults.since"),
        )
        for one in m.faults
    )


def encode_faults(faults: tuple[CardFault, ...]) -> pb.CardFaults:
    return pb.CardFaults(
        faults=[
            pb.CardFault(card=one.card, code=one.code, detail=f.to_text(one.detail), whole_node=one.whole_node, since=f.micros(one.since))
            for one in faults[:MAX_FAULTS]
        ]
    )
