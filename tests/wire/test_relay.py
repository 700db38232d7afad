"""The relay: log bytes between two processes of one control plane, over mutual TLS, under credit (P-22, P-23)."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
from attrs import frozen

from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.errors import Refused
from tuneplane.domain.frames import LOG_CREDIT_BYTES, LogPiece, LogQuery
from tuneplane.domain.ids import MemberId, NodeId
from tuneplane.wire.identity import generate_identity
from tuneplane.wire.relay import RELAY_NAME, read_relay, serve_relay
from tuneplane.wire.tls import client_context, server_context

QUERY = LogQuery(node=NodeId("node-1"), member=MemberId("job-a-1-0"), offset=3, max_bytes=10, follow=True)
Pieces = Callable[[LogQuery], AsyncIterator[LogPiece]]


@frozen
class Identity:
    certificate: Path
    key: Path

    def server(self) -> ssl.SSLContext:
        return server_context(self.certificate, self.key, client_ca=self.certificate)

    def client(self) -> ssl.SSLContext:
        return client_context(trust_pem=self.certificate.read_text(), certificate=self.certificate, key=self.key)


@contextmanager
def make_identity() -> Iterator[Identity]:
    certificate, key = generate_identity([RELAY_NAME])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tls.crt").write_text(certificate)
        (Path(folder) / "tls.key").write_text(key)
        yield Identity(Path(folder) / "tls.crt", Path(folder) / "tls.key")


@asynccontextmanager
async def open_relay(pieces: Pieces, identity: Identity, left: trio.Event | None = None) -> AsyncIterator[int]:
    """A relay that answers with ``pieces(query)``; ``left`` is set when an answer is left."""

    def answer(query: LogQuery) -> AbstractAsyncContextManager[AsyncIterator[LogPiece]]:
        @asynccontextmanager
        async def entered() -> AsyncIterator[AsyncIterator[LogPiece]]:
            try:
                yield pieces(query)
            finally:
                if left is not None:
                    left.set()

        return entered()

    async with open_bridge(), trio.open_nursery() as nursery:

        async def serve(*, task_status: trio.TaskStatus[int]) -> None:
            await serve_relay(host="127.0.0.1", port=0, tls=identity.server(), answer=answer, task_status=task_status)

        yield await nursery.start(serve)
        nursery.cancel_scope.cancel()


def read(port: int, identity: Identity) -> AbstractAsyncContextManager[AsyncIterator[LogPiece]]:
    return read_relay(host="127.0.0.1", port=port, tls=identity.client(), query=QUERY)


async def test_relay_gives_the_pieces_of_the_query_in_order() -> None:
    async def pieces(query: LogQuery) -> AsyncIterator[LogPiece]:
        await trio.lowlevel.checkpoint()
        assert query == QUERY
        yield LogPiece(offset=3, data=b"hello ", gap=2)
        yield LogPiece(offset=9, data=b"\xff\0")
        yield LogPiece(offset=11, data=b"", end=True)

    with make_identity() as identity:
        async with open_relay(pieces, identity) as port, read(port, identity) as answer:
            got = [piece async for piece in answer]
    assert got == [LogPiece(offset=3, data=b"hello ", gap=2), LogPiece(offset=9, data=b"\xff\0"), LogPiece(offset=11, data=b"", end=True)]


async def test_relay_cuts_a_large_piece_and_keeps_its_marks() -> None:
    data = bytes(range(256)) * 1024

    async def pieces(query: LogQuery) -> AsyncIterator[LogPiece]:
        await trio.lowlevel.checkpoint()
        yield LogPiece(offset=0, data=data, gap=5, end=True, error="cut off")

    with make_identity() as identity:
        async with open_relay(pieces, identity) as port, read(port, identity) as answer:
            got = [piece async for piece in answer]
    assert b"".join(piece.data for piece in got) == data
    assert [piece.gap for piece in got] == [5] + [0] * (len(got) - 1)
    assert [piece.end for piece in got] == [False] * (len(got) - 1) + [True]
    assert got[-1].error == "cut off"


async def test_relay_reader_that_does_not_take_holds_only_its_credit() -> None:
    """P-22: a slow follower holds nobody else; its bytes wait at their source."""
    produced = 0

    async def pieces(query: LogQuery) -> AsyncIterator[LogPiece]:
        nonlocal produced
        await trio.lowlevel.checkpoint()
        while True:
            produced += 65536
            yield LogPiece(offset=0, data=bytes(65536))

    with make_identity() as identity:
        async with open_relay(pieces, identity) as port, read(port, identity) as slow, read(port, identity) as quick:
            await slow.__anext__()
            with trio.fail_after(10):
                for _ in range(100):
                    await quick.__anext__()
    assert produced <= (100 * 65536) + 3 * LOG_CREDIT_BYTES


async def test_relay_answer_is_left_when_its_reader_goes() -> None:
    left = trio.Event()

    async def pieces(query: LogQuery) -> AsyncIterator[LogPiece]:
        await trio.lowlevel.checkpoint()
        yield LogPiece(offset=0, data=b"x")
        await trio.sleep_forever()

    with make_identity() as identity:
        async with open_relay(pieces, identity, left) as port:
            async with read(port, identity) as answer:
                await answer.__anext__()
            with trio.fail_after(2):
                await left.wait()


async def test_relay_read_that_breaks_off_ends_with_an_error() -> None:
    async def pieces(query: LogQuery) -> AsyncIterator[LogPiece]:
        await trio.lowlevel.checkpoint()
        yield LogPiece(offset=7, data=b"abc")
        raise OSError("the ring is gone")

    with make_identity() as identity:
        async with open_relay(pieces, identity) as port, read(port, identity) as answer:
            got = [piece async for piece in answer]
    assert got[0] == LogPiece(offset=7, data=b"abc")
    assert got[-1].end
    assert got[-1].offset == 10
    assert "broke off" in got[-1].error


async def test_relay_of_a_gateway_that_leaves_ends_with_an_error() -> None:
    async def pieces(query: LogQuery) -> AsyncIterator[LogPiece]:
        await trio.lowlevel.checkpoint()
        yield LogPiece(offset=0, data=b"abc")
        await trio.sleep_forever()

    with make_identity() as identity:
        async with open_bridge(), trio.open_nursery() as outer:
            port = await outer.start(_relay_until_first_read, pieces, identity)
            async with read(port, identity) as answer:
                got = [piece async for piece in answer]
    assert got[-1].error


async def _relay_until_first_read(pieces: Pieces, identity: Identity, *, task_status: trio.TaskStatus[int]) -> None:
    async def once(query: LogQuery) -> AsyncIterator[LogPiece]:
        async for piece in pieces(query):
            yield piece
            with trio.CancelScope(shield=True):
                await trio.sleep(0.05)  # let it leave
            leave.cancel()

    with trio.CancelScope() as leave:
        async with open_relay(once, identity) as port:
            task_status.started(port)
            await trio.sleep_forever()


async def test_relay_with_nobody_there_is_refused() -> None:
    with make_identity() as identity:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        port = listener.socket.getsockname()[1]
        await listener.aclose()
        async with open_bridge():
            with pytest.raises(Refused, match="does not answer") as refused:
                await _first(port, identity)
    assert refused.value.code == "gateway-unreachable"


async def test_relay_reader_without_the_internal_certificate_gets_nothing() -> None:
    """P-23: mutual TLS. In TLS 1.3 the client learns of the refusal with its first read."""

    async def pieces(query: LogQuery) -> AsyncIterator[LogPiece]:
        await trio.lowlevel.checkpoint()
        raise AssertionError("a stranger got in")
        yield

    with make_identity() as identity, make_identity() as other:
        async with open_relay(pieces, identity) as port:
            for stranger in (
                client_context(trust_pem=identity.certificate.read_text()),
                client_context(trust_pem=identity.certificate.read_text(), certificate=other.certificate, key=other.key),
            ):
                with pytest.raises(Refused, match="does not answer"):
                    await _first(port, identity, stranger)


async def _first(port: int, identity: Identity, tls: ssl.SSLContext | None = None) -> LogPiece:
    async with read_relay(host="127.0.0.1", port=port, tls=tls or identity.client(), query=QUERY) as answer:
        piece = await answer.__anext__()
        if piece.error:
            raise Refused("gateway-unreachable", f"does not answer: {piece.error}")
        return piece


async def test_relay_without_mutual_tls_is_refused() -> None:
    with make_identity() as identity:
        tls = server_context(identity.certificate, identity.key)
        with pytest.raises(ValueError, match="mutual"):
            await serve_relay(host="127.0.0.1", port=0, tls=tls, answer=lambda query: None)  # type: ignore[arg-type,return-value]
