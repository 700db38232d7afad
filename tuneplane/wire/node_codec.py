"""Frames of a Node, as protobuf and as domain values. Everything a peer can choose is checked (:mod:`.fields`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from ..domain.frames import (
    LOG_CHUNK_BYTES,
    CommandAnswer,
    DrainWish,
    Heartbeat,
    Hello,
    InventoryReport,
    LogChunk,
    NodeFrame,
    Observation,
    Progress,
    ReconcileDone,
)
from ..domain.ids import FleetId, JournalId, MemberId, NodeId, OperationId
from . import fields as f
from .drain_codec import decode_wish, encode_wish
from .fields import FrameError
from .inventory_codec import decode_inventory, encode_inventory
from .pb import session_pb2 as pb
from .phases import PHASE_OF, PHASES

MAX_PROTOCOL = 2**16


def decode_node_frame(data: bytes) -> NodeFrame:
    """One message of a Node. Raises FrameError."""
    try:
        message = pb.NodeFrame.FromString(data)
    except DecodeError as error:
        raise FrameError("frame", "is not a protobuf message of this kind") from error
    name = message.WhichOneof("body")
    if name is None:
        raise FrameError("frame", "has no body that this version knows")
    return _DECODERS[name](getattr(message, name))


def encode_node_frame(frame: NodeFrame) -> bytes:
    """The bytes of one frame of a Node."""
    name, encode = _ENCODERS[type(frame)]
    return pb.NodeFrame(**{name: encode(frame)}).SerializeToString()


# ---------------------------------------------------------------- hello, heartbeat


def _decode_hello(m: pb.Hello) -> Hello:
    return Hello(
        protocol=f.count(m.protocol, "hello.protocol", MAX_PROTOCOL),
        node=NodeId(f.checked_id(m.node, "hello.node")),
        fleet=FleetId(f.checked_id(m.fleet, "hello.fleet")),
        boot_id=f.checked_id(m.boot_id, "hello.boot_id"),
        machine_id=f.checked_id(m.machine_id, "hello.machine_id"),
        journal_id=JournalId(f.checked_id(m.journal_id, "hello.journal_id")),
        journal_sequence=f.count(m.journal_sequence, "hello.journal_sequence"),
        node_version=f.word(m.node_version, "hello.node_version"),
        address=f.word(m.address, "hello.address", 255),
        sent_at=f.moment(m.sent_at, "hello.sent_at"),
    )


def _encode_hello(v: Hello) -> pb.Hello:
    return pb.Hello(
        protocol=v.protocol,
        node=v.node,
        fleet=v.fleet,
        boot_id=v.boot_id,
        machine_id=v.machine_id,
        journal_id=v.journal_id,
        journal_sequence=v.journal_sequence,
        node_version=v.node_version,
        address=v.address,
        sent_at=f.micros(v.sent_at),
    )


def _decode_heartbeat(m: pb.Heartbeat) -> Heartbeat:
    return Heartbeat(
        sequence=f.count(m.sequence, "heartbeat.sequence"),
        inventory_digest=f.digest(m.inventory_digest, "heartbeat.inventory_digest"),
        sent_at=f.moment(m.sent_at, "heartbeat.sent_at"),
        inventory_age_seconds=f.seconds(m.inventory_age_seconds, "heartbeat.inventory_age_seconds"),
        clock_offset_seconds=f.offset(m.clock_offset, "heartbeat.clock_offset") if m.HasField("clock_offset") else None,
        clock_error_seconds=f.seconds(m.clock_error_seconds, "heartbeat.clock_error_seconds"),
    )


def _encode_heartbeat(v: Heartbeat) -> pb.Heartbeat:
    return pb.Heartbeat(
        sequence=v.sequence,
        inventory_digest=v.inventory_digest,
        sent_at=f.micros(v.sent_at),
        inventory_age_seconds=v.inventory_age_seconds,
        clock_offset=None if v.clock_offset_seconds is None else f.to_offset(v.clock_offset_seconds),
        clock_error_seconds=v.clock_error_seconds,
    )


# ---------------------------------------------------------------- answers and observations


def _decode_answer(m: pb.CommandAnswer) -> CommandAnswer:
    return CommandAnswer(
        operation=OperationId(f.checked_id(m.operation, "answer.operation")),
        accepted=m.accepted,
        code=f.code(m.code, "answer.code"),
        detail=f.text(m.detail, "answer.detail"),
    )


def _encode_answer(v: CommandAnswer) -> pb.CommandAnswer:
    return pb.CommandAnswer(operation=v.operation, accepted=v.accepted, code=v.code, detail=f.to_text(v.detail))


def _decode_progress(m: pb.Progress) -> Progress:
    return Progress(
        phase=f.code(m.phase, "progress.phase"),
        done=f.count(m.done, "progress.done"),
        total=f.count(m.total, "progress.total"),
        unit=f.code(m.unit, "progress.unit"),
    )


def _decode_observation(m: pb.Observation) -> Observation:
    if m.phase not in PHASE_OF:
        raise FrameError("observation.phase", f"{m.phase} is no phase that this version knows")
    return Observation(
        member=MemberId(f.checked_id(m.member, "observation.member")),
        revision=f.count(m.revision, "observation.revision"),
        phase=PHASE_OF[m.phase],
        plan_digest=f.digest(m.plan_digest, "observation.plan_digest"),
        boot_id=f.optional_id(m.boot_id, "observation.boot_id"),
        hold_seconds_left=f.seconds(m.hold_seconds_left, "observation.hold_seconds_left") if m.HasField("hold_seconds_left") else None,
        container_id=f.optional_id(m.container_id, "observation.container_id"),
        started_at=f.optional_moment(m.started_at, "observation.started_at"),
        ended_at=f.optional_moment(m.ended_at, "observation.ended_at"),
        exit_code=m.exit_code if m.HasField("exit_code") else None,
        oom_killed=m.oom_killed,
        reason_code=f.code(m.reason_code, "observation.reason_code"),
        reason_detail=f.text(m.reason_detail, "observation.reason_detail"),
        cleaned=m.cleaned,
        progress=_decode_progress(m.progress) if m.HasField("progress") else None,
    )


def _encode_observation(v: Observation) -> pb.Observation:
    p = v.progress
    return pb.Observation(
        member=v.member,
        revision=v.revision,
        phase=PHASES[v.phase],
        plan_digest=v.plan_digest,
        boot_id=v.boot_id,
        hold_seconds_left=None if v.hold_seconds_left is None else max(v.hold_seconds_left, 0.0),
        container_id=v.container_id,
        started_at=f.micros(v.started_at),
        ended_at=f.micros(v.ended_at),
        exit_code=v.exit_code,
        oom_killed=v.oom_killed,
        reason_code=v.reason_code,
        reason_detail=f.to_text(v.reason_detail),
        cleaned=v.cleaned,
        progress=None if p is None else pb.Progress(phase=p.phase, done=p.done, total=p.total, unit=p.unit),
    )


def _decode_reconcile_done(m: pb.ReconcileDone) -> ReconcileDone:
    return ReconcileDone(members=m.members)


def _encode_reconcile_done(v: ReconcileDone) -> pb.ReconcileDone:
    return pb.ReconcileDone(members=v.members)


# ---------------------------------------------------------------- logs


def _decode_log(m: pb.LogChunk) -> LogChunk:
    return LogChunk(
        request=f.count(m.request, "log.request"),
        offset=f.count(m.offset, "log.offset"),
        data=f.blob(m.data, "log.data", LOG_CHUNK_BYTES),
        gap=f.count(m.gap, "log.gap"),
        end=m.end,
        error=f.text(m.error, "log.error"),
    )


def _encode_log(v: LogChunk) -> pb.LogChunk:
    return pb.LogChunk(request=v.request, offset=v.offset, data=v.data, gap=v.gap, end=v.end, error=f.to_text(v.error))


_DECODERS: dict[str, Callable[[Any], NodeFrame]] = {
    "hello": _decode_hello,
    "heartbeat": _decode_heartbeat,
    "inventory": decode_inventory,
    "answer": _decode_answer,
    "observation": _decode_observation,
    "reconcile_done": _decode_reconcile_done,
    "log": _decode_log,
    "drain": decode_wish,
}
_ENCODERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    Hello: ("hello", _encode_hello),
    Heartbeat: ("heartbeat", _encode_heartbeat),
    InventoryReport: ("inventory", encode_inventory),
    CommandAnswer: ("answer", _encode_answer),
    Observation: ("observation", _encode_observation),
    ReconcileDone: ("reconcile_done", _encode_reconcile_done),
    LogChunk: ("log", _encode_log),
    DrainWish: ("drain", encode_wish),
}
