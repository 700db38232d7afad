"""A TCP proxy with a bandwidth limit in one direction: the slow line between a Node and its gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

STEP_BYTES = 8192
BUFFER_BYTES = 16 * 1024  # of the sockets on the proxy's side: what waits should wait at the sender


@asynccontextmanager
async def open_shaper(port: int, bytes_per_second: float) -> AsyncIterator[int]:
    """Relays one connection at a time to 127.0.0.1:``port``; what the client sends is slowed down. Gives its own port."""

    async def pump(source: trio.SocketStream, sink: trio.SocketStream, rate: float | None) -> None:
        due = trio.current_time()
        try:
            while data := await source.receive_some(STEP_BYTES):
                if rate is not None:
                    due = max(due, trio.current_time()) + len(data) / rate
                    await trio.sleep_until(due)
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def relay(client: trio.SocketStream) -> None:
        client.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, BUFFER_BYTES)
        server = await trio.open_tcp_stream("127.0.0.1", port)
        async with client, server, trio.open_nursery() as both:
            both.start_soon(pump, server, client, None)
            await pump(client, server, bytes_per_second)
            both.cancel_scope.cancel()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listeners[0].socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, BUFFER_BYTES)
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, relay, listeners)
        try:
            yield listeners[0].socket.getsockname()[1]
        finally:
            nursery.cancel_scope.cancel()
