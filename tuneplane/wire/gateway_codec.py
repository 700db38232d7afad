"""Frames of a gateway, as protobuf and as domain values. A Node trusts its gateway no further than its certificate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from ..domain.frames import (
    LOG_CREDIT_BYTES,
    Command,
    CommandKind,
    DrainState,
    GatewayFrame,
    Goodbye,
    HeartbeatReply,
    LogCancel,
    LogCredit,
    LogRead,
    ObservationAck,
    Welcome,
)
from ..domain.ids import GatewayId, MemberId, OperationId, TraceId
from ..domain.plan import MAX_PLAN_BYTES
from . import fields as f
from .drain_codec import decode_state, encode_state
from .fields import FrameError
from .pb import session_pb2 as pb

KINDS = {
    CommandKind.PREPARE: pb.COMMAND_KIND_PREPARE,
    CommandKind.COMMIT: pb.COMMAND_KIND_COMMIT,
    CommandKind.STOP: pb.COMMAND_KIND_STOP,
    CommandKind.FORGET: pb.COMMAND_KIND_FORGET,
}
_KIND_OF = {number: kind for kind, number in KINDS.items()}
MAX_PROTOCOL = 2**16
SHORTEST_SECONDS = 1e-3  # a heartbeat interval of zero would spin
MAX_SIGNAL_LENGTH = 16
MAX_TAIL_LINES = 1_000_000
MAX_READ_BYTES = 1 << 40


def decode_gateway_frame(data: bytes) -> GatewayFrame:
    """One message of a gateway. Raises FrameError."""
    try:
        message = pb.GatewayFrame.FromString(data)
    except DecodeError as error:
        raise FrameError("frame", "is not a protobuf message of this kind") from error
    name = message.WhichOneof("body")
    if name is None:
        raise FrameError("frame", "has no body that this version knows")
    return _DECODERS[name](getattr(message, name))


def encode_gateway_frame(frame: GatewayFrame) -> bytes:
    """The bytes of one frame of a gateway."""
    name, encode = _ENCODERS[type(frame)]
    return pb.GatewayFrame(**{name: encode(frame)}).SerializeToString()


def _decode_welcome(m: pb.Welcome) -> Welcome:
    return Welcome(
        protocol=f.count(m.protocol, "welcome.protocol", MAX_PROTOCOL),
        session_epoch=f.count(m.session_epoch, "welcome.session_epoch"),
        gateway=GatewayId(f.checked_id(m.gateway, "welcome.gateway")),
        heartbeat_seconds=f.seconds(m.heartbeat_seconds, "welcome.heartbeat_seconds", SHORTEST_SECONDS),
        idle_seconds=f.seconds(m.idle_seconds, "welcome.idle_seconds", SHORTEST_SECONDS),
        sent_at=f.moment(m.sent_at, "welcome.sent_at"),
        accepted_hold=f.optional_id(m.accepted_hold, "welcome.accepted_hold"),
        accepted_cards=f.optional_id(m.accepted_cards, "welcome.accepted_cards"),
    )


def _encode_welcome(v: Welcome) -> pb.Welcome:
    return pb.Welcome(
        protocol=v.protocol,
        session_epoch=v.session_epoch,
        gateway=v.gateway,
        heartbeat_seconds=v.heartbeat_seconds,
        idle_seconds=v.idle_seconds,
        sent_at=f.micros(v.sent_at),
        accepted_hold=v.accepted_hold,
        accepted_cards=v.accepted_cards,
    )


def _decode_heartbeat(m: pb.HeartbeatReply) -> HeartbeatReply:
    received_at = f.optional_moment(m.received_at, "heartbeat.received_at")
    return HeartbeatReply(sequence=f.count(m.sequence, "heartbeat.sequence"), received_at=received_at)


def _encode_heartbeat(v: HeartbeatReply) -> pb.HeartbeatReply:
    return pb.HeartbeatReply(sequence=v.sequence, received_at=f.micros(v.received_at))


def _decode_command(m: pb.Command) -> Command:
    if m.kind not in _KIND_OF:
        raise FrameError("command.kind", f"{m.kind} is no command that this version knows")
    return Command(
        operation=OperationId(f.checked_id(m.operation, "command.operation")),
        kind=_KIND_OF[m.kind],
        member=MemberId(f.checked_id(m.member, "command.member")),
        session_epoch=f.count(m.session_epoch, "command.session_epoch"),
        claim_epoch=f.count(m.claim_epoch, "command.claim_epoch"),
        plan=f.blob(m.plan, "command.plan", MAX_PLAN_BYTES),
        plan_digest=f.digest(m.plan_digest, "command.plan_digest"),
        hold_seconds=f.seconds(m.hold_seconds, "command.hold_seconds"),
        stop_signal=f.word(m.stop_signal, "command.stop_signal", MAX_SIGNAL_LENGTH),
        stop_grace_seconds=f.seconds(m.stop_grace_seconds, "command.stop_grace_seconds"),
        reason=f.text(m.reason, "command.reason"),
        trace=TraceId(f.optional_id(m.trace, "command.trace")),
        cause=f.word(m.cause, "command.cause", f.MAX_ID_LENGTH),
        ended=m.ended,
        stranger=m.stranger,
        container=f.optional_id(m.container, "command.container"),
    )


def _encode_command(v: Command) -> pb.Command:
    return pb.Command(
        operation=v.operation,
        kind=KINDS[v.kind],
        member=v.member,
        session_epoch=v.session_epoch,
        claim_epoch=v.claim_epoch,
        plan=v.plan,
        plan_digest=v.plan_digest,
        hold_seconds=v.hold_seconds,
        stop_signal=v.stop_signal,
        stop_grace_seconds=v.stop_grace_seconds,
        reason=f.to_text(v.reason),
        trace=v.trace,
        cause=v.cause,
        ended=v.ended,
        stranger=v.stranger,
        container=v.container,
    )


def _decode_ack(m: pb.ObservationAck) -> ObservationAck:
    return ObservationAck(member=MemberId(f.checked_id(m.member, "ack.member")), revision=f.count(m.revision, "ack.revision"))


def _encode_ack(v: ObservationAck) -> pb.ObservationAck:
    return pb.ObservationAck(member=v.member, revision=v.revision)


def _decode_log_read(m: pb.LogRead) -> LogRead:
    return LogRead(
        request=f.count(m.request, "log_read.request"),
        member=MemberId(f.checked_id(m.member, "log_read.member")),
        offset=f.count(m.offset, "log_read.offset") if m.HasField("offset") else None,
        tail_lines=f.count(m.tail_lines, "log_read.tail_lines", MAX_TAIL_LINES) if m.HasField("tail_lines") else None,
        max_bytes=f.count(m.max_bytes, "log_read.max_bytes", MAX_READ_BYTES),
        follow=m.follow,
    )


def _encode_log_read(v: LogRead) -> pb.LogRead:
    return pb.LogRead(request=v.request, member=v.member, offset=v.offset, tail_lines=v.tail_lines, max_bytes=v.max_bytes, follow=v.follow)


def _decode_log_cancel(m: pb.LogCancel) -> LogCancel:
    return LogCancel(request=f.count(m.request, "log_cancel.request"))


def _encode_log_cancel(v: LogCancel) -> pb.LogCancel:
    return pb.LogCancel(request=v.request)


def _decode_log_credit(m: pb.LogCredit) -> LogCredit:
    return LogCredit(size=f.count(m.size, "log_credit.size", LOG_CREDIT_BYTES, 1))


def _encode_log_credit(v: LogCredit) -> pb.LogCredit:
    return pb.LogCredit(size=v.size)


def _decode_goodbye(m: pb.Goodbye) -> Goodbye:
    return Goodbye(
        code=f.code(m.code, "goodbye.code"),
        detail=f.text(m.detail, "goodbye.detail"),
        retry_after_seconds=f.seconds(m.retry_after_seconds, "goodbye.retry_after_seconds"),
    )


def _encode_goodbye(v: Goodbye) -> pb.Goodbye:
    return pb.Goodbye(code=v.code, detail=f.to_text(v.detail), retry_after_seconds=v.retry_after_seconds)


_DECODERS: dict[str, Callable[[Any], GatewayFrame]] = {
    "welcome": _decode_welcome,
    "heartbeat": _decode_heartbeat,
    "command": _decode_command,
    "ack": _decode_ack,
    "log_read": _decode_log_read,
    "log_cancel": _decode_log_cancel,
    "log_credit": _decode_log_credit,
    "goodbye": _decode_goodbye,
    "drain": decode_state,
}
_ENCODERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    Welcome: ("welcome", _encode_welcome),
    HeartbeatReply: ("heartbeat", _encode_heartbeat),
    Command: ("command", _encode_command),
    ObservationAck: ("ack", _encode_ack),
    LogRead: ("log_read", _encode_log_read),
    LogCancel: ("log_cancel", _encode_log_cancel),
    LogCredit: ("log_credit", _encode_log_credit),
    Goodbye: ("goodbye", _encode_goodbye),
    DrainState: ("drain", encode_state),
}
