"""A TCP proxy with a bandwidth limit and a delay: the slow line between a Node and its gateway."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

STEP_BYTES = 8192
CATCH_UP_SECONDS = 0.02  # what a busy machine made late is made up for: else the line is slower than it says
BUFFER_BYTES = 16 * 1024  # of the sockets on the proxy's side: what waits should wait at the sender


@asynccontextmanager
async def open_shaper(
    port: int, bytes_per_second: float, *, delay_seconds: float = 0.0, back_bytes_per_second: float | None = None
) -> AsyncIterator[int]:
    """Relays connections to 127.0.0.1:``port``; gives its own port.

    What the client sends passes at ``bytes_per_second``, what it gets at ``back_bytes_per_second`` (None: unlimited); both
    arrive ``delay_seconds`` after they have passed.
    """

    async def relay(client: trio.SocketStream) -> None:
        client.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, BUFFER_BYTES)
        server = await trio.open_tcp_stream("127.0.0.1", port)
        async with client, server, trio.open_nursery() as both:
            both.start_soon(_pipe, server, client, back_bytes_per_second, delay_seconds)
            await _pipe(client, server, bytes_per_second, delay_seconds)
            both.cancel_scope.cancel()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listeners[0].socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, BUFFER_BYTES)
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, relay, listeners)
        try:
            yield listeners[0].socket.getsockname()[1]
        finally:
            nursery.cancel_scope.cancel()


async def _pipe(source: trio.SocketStream, sink: trio.SocketStream, rate: float | None, delay: float) -> None:
    """Until ``source`` ends. On the line at once is what fits into the delay, no more."""
    on_the_line = math.ceil((rate or 1e9) * delay / STEP_BYTES) if rate is not None else 4096
    sender, receiver = trio.open_memory_channel[tuple[float, bytes]](on_the_line + 1 if delay else 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_deliver, receiver, sink)
        due = trio.current_time()
        async with sender:
            try:
                while data := await source.receive_some(STEP_BYTES):
                    if rate is not None:
                        due = max(due, trio.current_time() - CATCH_UP_SECONDS) + len(data) / rate
                        await trio.sleep_until(due)
                    await sender.send((trio.current_time() + delay, data))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass


async def _deliver(receiver: trio.MemoryReceiveChannel[tuple[float, bytes]], sink: trio.SocketStream) -> None:
    async with receiver:
        async for at, data in receiver:
            await trio.sleep_until(at)
            try:
                await sink.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
