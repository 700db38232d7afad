"""Reading server-sent events in tests, over a connection of its own.

Not by httpx: its nested async generators cannot be abandoned in the middle without ResourceWarnings.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11
import httpx
import trio
from attrs import define, field


@define
class Events:
    """``(event, data)`` in order; signs of life only where asked for."""

    stream: trio.SSLStream[trio.SocketStream]
    alive: bool
    protocol: h11.Connection = field(factory=lambda: h11.Connection(h11.CLIENT))
    status: int = 0
    rest: bytes = b""

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> tuple[str, Any]:
        while True:
            fields = dict(line.split(": ", 1) for line in (await self._block()).split("\n"))
            if self.alive or fields["event"] != "alive":
                return fields["event"], json.loads(fields["data"])

    async def open(self, target: str, headers: dict[str, str]) -> None:
        """Send the request and read the answer's head."""
        request = h11.Request(method="GET", target=target, headers=list({"Host": "localhost", **headers}.items()))
        await self.stream.send_all((self.protocol.send(request) or b"") + (self.protocol.send(h11.EndOfMessage()) or b""))
        head = await self._event()
        assert isinstance(head, h11.Response), head
        self.status = head.status_code

    async def _block(self) -> str:
        while b"\n\n" not in self.rest:
            event = await self._event()
            if not isinstance(event, h11.Data):
                raise StopAsyncIteration
            self.rest += event.data
        block, _, self.rest = self.rest.partition(b"\n\n")
        return block.decode()

    async def _event(self) -> Any:
        while (event := self.protocol.next_event()) is h11.NEED_DATA:
            self.protocol.receive_data(await self.stream.receive_some(65536))
        return event


@asynccontextmanager
async def open_events(
    http: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None, *, alive: bool = False
) -> AsyncIterator[Events]:
    """A stream that was accepted, with the client's credential; leaving the block cuts its connection."""
    transport = http._transport
    assert isinstance(transport, httpx.AsyncHTTPTransport)
    trust: ssl.SSLContext = transport._pool._ssl_context  # type: ignore[assignment]
    host, port = http.base_url.host, http.base_url.port
    assert port is not None
    stream = await trio.open_ssl_over_tcp_stream(host, port, ssl_context=trust, https_compatible=True)
    try:
        events = Events(stream, alive)
        credential = {name: http.headers[name] for name in ("Authorization", "Cookie") if name in http.headers}
        await events.open(path, {**credential, **(headers or {})})
        assert events.status == 200
        yield events
    finally:
        await trio.aclose_forcefully(stream)
