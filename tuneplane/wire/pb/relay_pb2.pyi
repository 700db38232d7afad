from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RelayRequest(_message.Message):
    __slots__ = ("query", "credit")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    query: LogQuery
    credit: RelayCredit
    def __init__(self, query: _Optional[_Union[LogQuery, _Mapping[str, object]]] = ..., credit: _Optional[_Union[RelayCredit, _Mapping[str, object]]] = ...) -> None: ...

class LogQuery(_message.Message):
    __slots__ = ("node", "member", "offset", "tail_lines", "max_bytes", "follow")
    NODE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    node: str
    member: str
    offset: int
    tail_lines: int
    max_bytes: int
    follow: bool
    def __init__(self, node: _Optional[str] = ..., member: _Optional[str] = ..., offset: _Optional[int] = ..., tail_lines: _Optional[int] = ..., max_bytes: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class RelayCredit(_message.Message):
    __slots__ = ("size",)
    SIZE_FIELD_NUMBER: _ClassVar[int]
    size: int
    def __init__(self, size: _Optional[int] = ...) -> None: ...

class LogPiece(_message.Message):
    __slots__ = ("offset", "data", "gap", "end", "error")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    gap: int
    end: bool
    error: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ..., gap: _Optional[int] = ..., end: _Optional[bool] = ..., error: _Optional[bytes] = ...) -> None: ...
