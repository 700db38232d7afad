"""Frames between control-plane processes, as protobuf and as domain values. Authenticated peers, checked all the same."""

from __future__ import annotations

from attrs import frozen
from google.protobuf.message import DecodeError

from ..domain.frames import LOG_CHUNK_BYTES, LOG_CREDIT_BYTES, LogPiece, LogQuery
from ..domain.ids import MemberId, NodeId
from . import fields as f
from .fields import FrameError
from .gateway_codec import MAX_READ_BYTES, MAX_TAIL_LINES
from .pb import relay_pb2 as pb


@frozen
class RelayCredit:
    """``size`` more bytes may be sent to this reader."""

    size: int


def decode_request(data: bytes) -> LogQuery | RelayCredit:
    """One message of a reader. Raises FrameError."""
    try:
        message = pb.RelayRequest.FromString(data)
    except DecodeError as error:
        raise FrameError("request", "is not a protobuf message of this kind") from error
    name = message.WhichOneof("body")
    if name == "query":
        return _decode_query(message.query)
    if name == "credit":
        return RelayCredit(f.count(message.credit.size, "credit.size", LOG_CREDIT_BYTES, 1))
    raise FrameError("request", "has no body that this version knows")


def _decode_query(m: pb.LogQuery) -> LogQuery:
    return LogQuery(
        node=NodeId(f.checked_id(m.node, "query.node")),
        member=MemberId(f.checked_id(m.member, "query.member")),
        offset=f.count(m.offset, "query.offset") if m.HasField("offset") else None,
        tail_lines=f.count(m.tail_lines, "query.tail_lines", MAX_TAIL_LINES) if m.HasField("tail_lines") else None,
        max_bytes=f.count(m.max_bytes, "query.max_bytes", MAX_READ_BYTES),
        follow=m.follow,
    )


def encode_request(value: LogQuery | RelayCredit) -> bytes:
    """The bytes of one message of a reader."""
    if isinstance(value, RelayCredit):
        return pb.RelayRequest(credit=pb.RelayCredit(size=value.size)).SerializeToString()
    query = pb.LogQuery(
        node=value.node,
        member=value.member,
        offset=value.offset,
        tail_lines=value.tail_lines,
        max_bytes=value.max_bytes,
        follow=value.follow,
    )
    return pb.RelayRequest(query=query).SerializeToString()


def decode_piece(data: bytes) -> LogPiece:
    """One message of a gateway's relay. Raises FrameError."""
    try:
        m = pb.LogPiece.FromString(data)
    except DecodeError as error:
        raise FrameError("piece", "is not a protobuf message of this kind") from error
    return LogPiece(
        offset=f.count(m.offset, "piece.offset"),
        data=f.blob(m.data, "piece.data", LOG_CHUNK_BYTES),
        gap=f.count(m.gap, "piece.gap"),
        end=m.end,
        error=f.text(m.error, "piece.error"),
    )


def encode_piece(piece: LogPiece) -> bytes:
    """The bytes of one piece; its data must fit into one chunk."""
    return pb.LogPiece(offset=piece.offset, data=piece.data, gap=piece.gap, end=piece.end, error=f.to_text(piece.error)).SerializeToString()
