"""Cuts gRPC messages out of HTTP/2 DATA as it arrives, and hands each to its session in the same step.

grpclib's own way is a queue, a future and a task step per message. A :class:`MessageBuffer` stands in for its
``Buffer``: it keeps no task, refuses an oversized message after its five-byte prefix, and is the place where back
pressure begins. While its receiver is full nothing is acknowledged, so that the peer's HTTP/2 window closes.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Protocol

MAX_MESSAGE_BYTES = 1 << 20  # a length prefix may say 4 GiB; stock grpclib would buffer it
_PREFIX = struct.Struct(">BI")  # compressed flag, length


class Receiver(Protocol):
    """Who takes the messages of one stream. All methods are synchronous and must not raise."""

    def message(self, data: bytes) -> bool:
        """Take one message. False: taken, but no more until :meth:`MessageBuffer.resume`."""

    def end_of_stream(self) -> None:
        """The peer has sent its last message."""

    def broken(self, code: str, detail: str) -> None:
        """The peer broke the framing; nothing further will come."""


def frame_message(message: bytes) -> bytes:
    """``message`` behind its gRPC prefix, uncompressed."""
    return _PREFIX.pack(0, len(message)) + message


class MessageBuffer:
    """Takes the place of ``grpclib.protocol.Buffer`` on one stream."""

    def __init__(self, acknowledge: Callable[[int], None], limit: int = MAX_MESSAGE_BYTES) -> None:
        self._acknowledge = acknowledge
        self._receiver: Receiver | None = None
        self._limit = limit
        self._data = bytearray()  # at most one HTTP/2 window and one message: what came while held, or a part of a message
        self._unacked = 0
        self._held = True  # until a receiver is attached
        self._ended: tuple[str, str] | None = None  # how, once nothing further will be delivered; ("", "") is END_STREAM
        self._eof = False
        self.ended = asyncio.Event()  # nothing further will come

    def attach(self, receiver: Receiver) -> None:
        """Deliver to ``receiver`` from now on; what has waited comes at once, and so does an end that was missed."""
        self._receiver = receiver
        if self._ended is not None:
            receiver.broken(*self._ended)
            return
        self.resume()

    def detach(self) -> None:
        """Deliver nothing any more."""
        self._end("closed", "closed on this side")
        self._receiver = None

    def add(self, data: bytes, ack_size: int) -> None:
        """DATA of the stream; ``ack_size`` counts its padding too."""
        self._unacked += ack_size
        if self._ended is not None:
            return  # not acknowledged: the peer's window closes
        self._data += data
        self._cut()

    def eof(self) -> None:
        """END_STREAM."""
        self._eof = True
        self._finish()

    def resume(self) -> None:
        """The receiver has room again."""
        if self._held:
            self._held = False
            self._cut()
            self._finish()

    def unacked_size(self) -> int:
        """What grpclib acknowledges for the connection when the stream is released."""
        size, self._unacked = self._unacked, 0
        return size

    @property
    def held(self) -> bool:
        """Whether the reader waits for its receiver."""
        return self._held

    def interrupt(self, code: str, detail: str) -> None:
        """The connection is gone: what is not delivered yet never will be."""
        self._end(code, detail)

    def _cut(self) -> None:
        data, start = self._data, 0
        while not self._held and len(data) - start >= _PREFIX.size:
            flag, size = _PREFIX.unpack_from(data, start)
            if flag or size > self._limit:
                self._refuse(flag, size)
                return
            end = start + _PREFIX.size + size
            if len(data) < end:
                break
            message = bytes(data[start + _PREFIX.size : end])
            start = end
            assert self._receiver is not None
            self._held = not self._receiver.message(message)
        if start:
            del data[:start]
        if not self._held and self._unacked:
            self._acknowledge(self.unacked_size())

    def _refuse(self, flag: int, size: int) -> None:
        if flag:
            self._end("compressed", "compressed messages are not accepted")
        else:
            self._end("message-too-large", f"a message of {size} bytes exceeds the limit of {self._limit}")

    def _finish(self) -> None:
        if self._eof and not self._held and self._ended is None:
            self._end(*(("truncated", "the stream ended inside a message") if self._data else ("", "")))

    def _end(self, code: str, detail: str) -> None:
        if self._ended is not None:
            return
        self._ended = (code, detail)
        self.ended.set()
        self._data.clear()
        if self._receiver is not None:
            self._receiver.broken(code, detail) if code else self._receiver.end_of_stream()
