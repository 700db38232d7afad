"""Log bytes from the gateway that holds a Node's session to the process that a user asked (P-23).

One gRPC call per reader, over mutual TLS: every process of one control plane presents the internal certificate and trusts
only that one, under the name :data:`RELAY_NAME`, whatever address it listens on. The answer flows under a credit of its
own, so that a slow reader holds only its own ring.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio
from attrs import evolve

from ..bridge.call import Call, CallClosed, LaneFull, LaneLimit
from ..bridge.grpc import CallSettings, DialFailed, Server, open_call, serve_calls
from ..domain.errors import Refused
from ..domain.frames import LOG_CHUNK_BYTES, LOG_CREDIT_BYTES, LogPiece, LogQuery
from .fields import FrameError
from .relay_codec import RelayCredit, decode_piece, decode_request, encode_piece, encode_request

RELAY_PATH = "/tuneplane.v1.GatewayRelay/ReadLog"
RELAY_NAME = "relay.tuneplane.internal"  # the subject name in the internal certificate
QUERY_SECONDS = 10.0  # a reader's first frame comes with its call
CONNECT_SECONDS = 10.0  # a gateway whose row is stale does not answer at all
# A reader leaves once it has the last piece. Closing before that, credit of its that is still on its way would reset the
# connection, and the reset throws away the pieces it has not read yet.
LINGER_SECONDS = 5.0
REFILL_BYTES = LOG_CREDIT_BYTES // 4

_SETTINGS = CallSettings(path=RELAY_PATH, lanes=(LaneLimit(messages=64, size=1 << 20),))  # pieces, under credit; or credit itself

Answer = Callable[[LogQuery], AbstractAsyncContextManager[AsyncIterator[LogPiece]]]


# ---------------------------------------------------------------- serving


async def serve_relay(
    *, host: str | None, port: int, tls: ssl.SSLContext, answer: Answer, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer readers until cancelled; ``task_status`` gets the bound port. ``tls`` must demand client certificates.

    ``answer(query)`` is entered once per reader and left as soon as the reader is gone. Raises OSError (port taken).
    """
    if tls.verify_mode is not ssl.CERT_REQUIRED:
        raise ValueError("the relay needs mutual TLS: give server_context a client_ca")

    async def handle(call: Call) -> None:
        await _answer_one(call, answer)

    async with trio.open_nursery() as nursery:

        async def serve(*, task_status: trio.TaskStatus[Server]) -> None:
            await serve_calls(handle, host=host, port=port, tls=tls, settings=_SETTINGS, task_status=task_status)

        server: Server = await nursery.start(serve)
        task_status.started(server.port)


async def _answer_one(call: Call, answer: Answer) -> None:
    requests = _Requests(call)
    with requests.scope:
        call.attach(requests)
        with trio.move_on_after(QUERY_SECONDS):
            query = await requests.query()
            requests.answering = True
        if not requests.answering:
            return
        async with answer(query) as pieces, _closing(pieces):
            async for piece in pieces:
                for part in _parts(piece):
                    await requests.wait_credit(len(part.data))
                    await _send_piece(call, part)
                if piece.end:
                    break
        with trio.move_on_after(LINGER_SECONDS):
            await trio.sleep_forever()  # the reader's leaving cancels this scope


@asynccontextmanager
async def _closing(pieces: AsyncIterator[LogPiece]) -> AsyncIterator[None]:
    """Close a generator that is left before its end: nobody else would before the garbage collector."""
    try:
        yield
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


async def _send_piece(call: Call, piece: LogPiece) -> None:
    while True:
        await call.wait_room(0)
        try:
            call.send_nowait(0, encode_piece(piece))
        except LaneFull:
            continue
        except CallClosed:
            pass  # the scope is being cancelled
        return


def _parts(piece: LogPiece) -> Iterator[LogPiece]:
    """``piece`` in chunks that fit the wire; the mark of the end goes with the last one, a gap with the first."""
    step = LOG_CHUNK_BYTES
    starts = range(0, max(len(piece.data), 1), step)
    for start in starts:
        last = start == starts[-1]
        yield evolve(
            piece,
            offset=piece.offset + start,
            data=piece.data[start : start + step],
            gap=piece.gap if start == 0 else 0,
            end=piece.end and last,
            error=piece.error if last else "",
        )


class _Requests:
    """Receives a reader's query and credit; cancels the answer when the reader goes."""

    def __init__(self, call: Call) -> None:
        self.scope = trio.CancelScope()
        self.answering = False
        self._call = call
        self._query: LogQuery | None = None
        self._credit = LOG_CREDIT_BYTES
        self._news = trio.lowlevel.ParkingLot()

    async def query(self) -> LogQuery:
        await trio.lowlevel.checkpoint()
        while self._query is None:
            await self._news.park()
        return self._query

    async def wait_credit(self, size: int) -> None:
        await trio.lowlevel.checkpoint()
        while self._credit < size:
            await self._news.park()
        self._credit -= size

    def message(self, data: bytes) -> bool:
        try:
            request = decode_request(data)
        except FrameError:
            self.scope.cancel()
            return True
        if isinstance(request, RelayCredit):
            self._credit = min(self._credit + request.size, LOG_CREDIT_BYTES)
        elif self._query is None:
            self._query = request
        self._news.unpark_all()
        return True

    def end_of_stream(self) -> None:
        self.scope.cancel()

    def broken(self, code: str, detail: str) -> None:
        self.scope.cancel()


# ---------------------------------------------------------------- reading


@asynccontextmanager
async def read_relay(*, host: str, port: int, tls: ssl.SSLContext, query: LogQuery) -> AsyncIterator[AsyncIterator[LogPiece]]:
    """The pieces of one read from the gateway at ``host:port``; the last one has ``end``. Leaving the block ends the read.

    Refused(code="gateway-unreachable") when there is no such gateway; a read that breaks off later ends with a piece whose
    ``error`` says why. The caller's scope is the deadline.
    """
    pieces = _Pieces()
    connecting = trio.CancelScope(deadline=trio.current_time() + CONNECT_SECONDS)
    try:
        with connecting:
            async with open_call(host=host, port=port, tls=tls, settings=_SETTINGS, metadata={}, server_name=RELAY_NAME) as call:
                connecting.deadline = float("inf")
                pieces.begin(call, query)
                yield pieces
                call.abort("closed", "the reader is done")
    except DialFailed as failed:
        raise Refused("gateway-unreachable", f"the gateway at {host}:{port} does not answer: {failed.detail}") from failed
    if connecting.cancelled_caught:
        raise Refused("gateway-unreachable", f"the gateway at {host}:{port} does not answer")


class _Pieces:
    """Receives pieces; the credit bounds what waits here."""

    def __init__(self) -> None:
        self._call: Call | None = None
        self._waiting: deque[LogPiece] = deque()  # at most LOG_CREDIT_BYTES of data
        self._news = trio.lowlevel.ParkingLot()
        self._due = 0
        self._next_offset = 0
        self._ended = False

    def begin(self, call: Call, query: LogQuery) -> None:
        self._call = call
        call.attach(self)
        self._say(query)

    def __aiter__(self) -> _Pieces:
        return self

    async def __anext__(self) -> LogPiece:
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            await self._news.park()
        piece = self._waiting.popleft()
        self._due += len(piece.data)
        if self._due >= REFILL_BYTES and not self._ended:
            due, self._due = self._due, 0
            self._say(RelayCredit(due))
        return piece

    def _say(self, value: LogQuery | RelayCredit) -> None:
        assert self._call is not None
        try:
            self._call.send_nowait(0, encode_request(value))
        except CallClosed as closed:
            self.broken(closed.code, closed.detail)

    def message(self, data: bytes) -> bool:
        try:
            piece = decode_piece(data)
        except FrameError as error:
            self.broken("malformed-frame", str(error))
            return True
        if not self._ended:
            self._next_offset = piece.offset + len(piece.data)
            self._put(piece)
        return True

    def end_of_stream(self) -> None:
        self.broken("closed", "the gateway ended the read")

    def broken(self, code: str, detail: str) -> None:
        if not self._ended:
            self._put(LogPiece(offset=self._next_offset, data=b"", end=True, error=f"the read broke off: {detail}"))

    def _put(self, piece: LogPiece) -> None:
        self._waiting.append(piece)
        self._ended = piece.end
        self._news.unpark_all()
