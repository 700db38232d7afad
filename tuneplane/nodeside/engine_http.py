"""One HTTP exchange with a container runtime over its Unix socket: bounded, and failing in one of three typed ways."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import trio
from attrs import define, field

from tuneplane.domain.node_ports import EngineDown, EngineRefused, EngineUnclear, Refusal

MAX_CALLS = 64  # short calls at once: an engine serialises most of its work anyway
MAX_STREAMS = 1024  # a wait and a log stream a member, and more members than any machine runs
CHUNK_BYTES = 64 * 1024


@define(eq=False)
class EngineHttp:
    """A client of one socket. Requests that were never sent raise EngineDown, unanswered ones EngineUnclear."""

    socket: Path
    call_seconds: float
    prefix: str = ""  # "/v1.41" once negotiated
    _calls: httpx.AsyncClient = field(init=False)
    _streams: httpx.AsyncClient = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._calls = _client(self.socket, MAX_CALLS)
        self._streams = _client(self.socket, MAX_STREAMS)

    async def aclose(self) -> None:
        await self._calls.aclose()
        await self._streams.aclose()

    async def call(
        self, doing: str, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None, bare: bool = False
    ) -> httpx.Response:
        """A short call; the answer of whatever status, read whole. Bounded by ``call_seconds``. ``bare``: without prefix."""
        try:
            with trio.fail_after(self.call_seconds):
                return await self._calls.request(method, path if bare else self.prefix + path, params=params, json=body)
        except (httpx.ConnectError, httpx.PoolTimeout) as error:
            raise EngineDown(f"{doing}: the container runtime at {self.socket} does not answer: {error}") from error
        except trio.TooSlowError as error:
            raise EngineUnclear(f"{doing}: no answer from {self.socket} in {self.call_seconds:g} s") from error
        except httpx.TransportError as error:
            raise EngineUnclear(f"{doing}: the connection to {self.socket} broke: {error!r}") from error

    @asynccontextmanager
    async def stream(
        self, doing: str, method: str, path: str, params: Mapping[str, Any], *, begins_late: bool = False
    ) -> AsyncIterator[Body]:
        """A long answer. Its beginning is bounded by ``call_seconds``, reading on is bounded by the caller.

        ``begins_late``: its beginning too (Podman answers a wait with nothing until the container has ended).

        Leaving closes the connection.
        """
        request = self._streams.build_request(method, self.prefix + path, params=params)
        try:
            with trio.fail_after(math.inf if begins_late else self.call_seconds):
                response = await self._streams.send(request, stream=True)
        except (httpx.ConnectError, httpx.PoolTimeout) as error:
            raise EngineDown(f"{doing}: the container runtime at {self.socket} does not answer: {error}") from error
        except trio.TooSlowError as error:
            raise EngineUnclear(f"{doing}: no answer from {self.socket} in {self.call_seconds:g} s") from error
        except httpx.TransportError as error:
            raise EngineUnclear(f"{doing}: the connection to {self.socket} broke: {error!r}") from error
        body = Body(doing, response)
        try:
            yield body
        finally:
            with trio.move_on_after(1, shield=True):  # closing a local socket; never let it hold a cancelled caller
                await body.aclose()


@define(eq=False)
class Body:
    """The pieces of a long answer as they arrive: an async iterator. EngineUnclear when it breaks off."""

    doing: str
    response: httpx.Response
    _pieces: AsyncIterator[bytes] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._pieces = self.response.aiter_raw()

    def __aiter__(self) -> Body:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._pieces)
        except httpx.TransportError as error:
            raise EngineUnclear(f"{self.doing}: the stream broke: {error!r}") from error

    async def read_all(self) -> bytes:
        """The rest of a short answer, such as an error's."""
        return b"".join([piece async for piece in self])[:CHUNK_BYTES]

    async def aclose(self) -> None:
        """Close the connection, then let httpx's nested generators run into that: they warn when they are just dropped."""
        await self.response.aclose()
        with suppress(StopAsyncIteration, httpx.HTTPError, httpx.StreamError, trio.ClosedResourceError):
            await anext(self._pieces)


def _client(socket: Path, connections: int) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=8)
    transport = httpx.AsyncHTTPTransport(uds=str(socket), limits=limits)
    return httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=None)  # noqa: S113 - every use is in a scope


def refused(doing: str, status: int, body: bytes) -> EngineRefused:
    """The engine's no as an error; both dialects of its body (``message``; ``cause`` and ``message``)."""
    text = body.decode(errors="replace")
    try:
        data = json.loads(text)
        detail = str(data.get("message") or data.get("cause") or data) if isinstance(data, dict) else text
    except ValueError:
        detail = text[:500]
    return EngineRefused(doing, refusal_kind(status, detail), detail.strip(), status)


def refusal_kind(status: int, detail: str) -> Refusal:
    """Docker says it by status, Podman by words in a 500."""
    text = detail.lower()
    if "already in use" in text:
        return Refusal.NAME_TAKEN
    if "image not known" in text or "no such image" in text:
        return Refusal.NO_IMAGE
    if any(words in text for words in ("no such container", "no container with", "container not known", "layer not known")):
        return Refusal.NO_CONTAINER
    if "can only kill running" in text or "is not running" in text or "no such process" in text:
        return Refusal.NOT_RUNNING
    return Refusal.NO_CONTAINER if status == 404 else Refusal.OTHER


@define
class Demux:
    """Takes the 8-byte frame headers out of a log stream; holds at most one header, never a payload."""

    _head: bytearray = field(factory=bytearray)
    _left: int = 0

    def feed(self, data: bytes) -> bytes:
        """The payload bytes in ``data``, both streams in their order. EngineUnclear for anything but frames: Podman writes
        an error that it meets late as JSON behind the 200 that it has already sent."""
        out: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                out.append(piece)
                self._left -= len(piece)
                at += len(piece)
                continue
            need = 8 - len(self._head)
            self._head += data[at : at + need]
            at += need
            if len(self._head) == 8:
                if self._head[0] > 2 or any(self._head[1:4]):
                    raise EngineUnclear(f"the log stream broke: {bytes(self._head + data[at : at + 200])!r}")
                self._left = struct.unpack(">I", self._head[4:])[0]
                self._head.clear()
        return b"".join(out)
