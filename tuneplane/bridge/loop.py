"""The asyncio loop of this process, inside Trio: opened once near the process root, before pools and servers.

:func:`open_bridge` is the only way in. It chooses the batched loop when the installed versions are the pinned ones
(:mod:`.fastloop`), the stock trio-asyncio loop otherwise, and always replaces the loop's exception handler: the stock
one re-raises *any* stray asyncio exception into the loop's nursery, so that one odd frame from an unauthenticated peer
ended the process. Ours counts, logs at a limited rate, and goes on.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

import trio
import trio_asyncio
from attrs import define, field

from . import fastloop

P = ParamSpec("P")
T = TypeVar("T")
AnyProtocol = TypeVar("AnyProtocol", bound=asyncio.BaseProtocol)

log = logging.getLogger(__name__)

LOGGED_PER_MINUTE = 10  # stray loop exceptions; a flood of failing accepts must not fill the disk with its own report


@define(eq=False)
class Bridge:
    """What :func:`open_bridge` yields. ``stray`` counts exceptions that reached the loop instead of an owner."""

    loop: asyncio.AbstractEventLoop
    batched: bool
    stray: int = 0
    _window_began: float = field(default=float("-inf"), init=False)
    _window_count: int = field(default=0, init=False)

    def note_stray(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's exception handler: count always, log at most ``LOGGED_PER_MINUTE``. Never raises."""
        self.stray += 1
        now = trio.current_time()
        if now - self._window_began >= 60.0:
            self._window_began, self._window_count = now, 0
        self._window_count += 1
        if self._window_count > LOGGED_PER_MINUTE:
            return
        error = context.get("exception")
        log.error("asyncio: %s", context.get("message", "unhandled error in the loop"), exc_info=error)
        if self._window_count == LOGGED_PER_MINUTE:
            log.error("asyncio: further loop errors of this minute are counted, not logged")


@asynccontextmanager
async def open_bridge(*, batched: bool | None = None) -> AsyncIterator[Bridge]:
    """Run an asyncio loop below this block; everything inside it, nested tasks included, may use the bridge.

    ``batched`` None chooses by version; tests force one or the other. Leaving cancels what still runs on the loop and
    waits for it, so close servers and pools before. An error of the body comes out as it was raised: trio-asyncio's
    two nurseries wrap it twice, and both wrappings are taken off. Cancelling the surrounding scope cancels the body.
    """
    chosen = fastloop.is_supported() if batched is None else batched
    try:
        async with fastloop.loop_class(chosen), trio_asyncio.open_loop() as loop:
            bridge = Bridge(loop, chosen)
            loop.set_exception_handler(bridge.note_stray)
            yield bridge
    except BaseExceptionGroup as group:
        raise _peel(_peel(group)) from None


def _peel(error: BaseException) -> BaseException:
    """The one exception inside a group of one; anything else unchanged."""
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return error.exceptions[0]
    return error


async def from_trio(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an asyncio-flavoured ``function`` as one asyncio task and wait for it; call from Trio, inside a bridge.

    Cancelling the Trio scope cancels the asyncio task (once) and waits until it has ended.
    """
    result: T = await trio_asyncio.aio_as_trio(function)(*args, **kwargs)
    return result


async def asyncio_connection(
    factory: Callable[[], AnyProtocol],
    raw: socket.socket,
    context: ssl.SSLContext,
    *,
    server_hostname: str | None,
    handshake: float,
    farewell: float,
) -> AnyProtocol:
    """Put TLS and ``factory()``'s protocol on the connected socket ``raw``; client side when ``server_hostname`` is given.

    Call from Trio. ``handshake`` and ``farewell`` bound TLS's two exchanges in seconds. Raises OSError (ssl.SSLError and
    time-outs included); on any failure and on cancellation the socket is closed.
    """
    loop = asyncio.get_running_loop()
    handed_over = False

    def make() -> AnyProtocol:
        nonlocal handed_over
        handed_over = True  # from here on asyncio's transport owns the socket, and closes it whatever happens
        return factory()

    async def connect() -> AnyProtocol:
        if server_hostname is None:
            _, protocol = await loop.connect_accepted_socket(
                make, raw, ssl=context, ssl_handshake_timeout=handshake, ssl_shutdown_timeout=farewell
            )
        else:
            _, protocol = await loop.create_connection(
                make,
                sock=raw,
                ssl=context,
                server_hostname=server_hostname,
                ssl_handshake_timeout=handshake,
                ssl_shutdown_timeout=farewell,
            )
        return protocol

    try:
        return await from_trio(connect)
    finally:
        if not handed_over:
            raw.close()
