"""Accepting connections without letting strangers cost anything: limits before the call, eviction, descriptors.

A connection is a *stranger* until a call arrives on it. Strangers have a deadline and a limit. At the limit the server
stops accepting until a stranger has become a caller or has had ``patience_seconds``; then the oldest of the address with
most strangers goes. So a flood of idle connections pushes out itself, while Nodes that come back all at once, and need
milliseconds each, only queue in the kernel's backlog. A reserve of descriptors is kept for the rest of the process.
"""

from __future__ import annotations

import errno
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable

import trio
from attrs import define, field, frozen

from .loop import asyncio_connection
from .repairs import PeerProtocol

log = logging.getLogger(__name__)

BACKLOG = 128  # more only makes a descriptor shortage longer
MOST_DESCRIPTORS = 65_536  # of a server: 10,000 Nodes several times over
RESERVED_DESCRIPTORS = 64  # database, files and logs of the same process
HANDSHAKE_SECONDS = 10.0
TLS_FAREWELL_SECONDS = 1.0  # stock: 30 s, all of them waiting for a dead peer
RETRY_SECONDS = 0.1  # after a failed accept (no descriptors): let some go first
_RETRYABLE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}


@frozen(kw_only=True)
class ListenLimits:
    """``strangers``: connections without a call; ``stranger_seconds``: how long each may stay one."""

    strangers: int = 256
    stranger_seconds: float = 15.0
    patience_seconds: float = 2.0
    connections: int = 0  # all; 0 = what the descriptor limit allows


def raise_descriptor_limit() -> int:
    """Raise the soft RLIMIT_NOFILE of this process as far as the hard one and MOST_DESCRIPTORS allow. The limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


@define(eq=False)
class Connection:
    """One accepted socket. ``protocol`` is there from the start of the handshake, and usable after it."""

    accepted_at: float
    address: str
    raw: socket.socket
    protocol: PeerProtocol | None = None
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    forgotten: bool = False  # counted out, whichever way it ended

    def drop(self) -> None:
        """Close at once; during the handshake by cancelling it."""
        if self.protocol is not None:
            self.protocol.abort()
        self.scope.cancel()


class Doorkeeper:
    """Owns the accepted connections of one server: strangers in order of arrival, and those with a call.

    Making one raises the process's descriptor limit (:func:`raise_descriptor_limit`).
    """

    def __init__(self, make_protocol: Callable[[], PeerProtocol], context: ssl.SSLContext, limits: ListenLimits) -> None:
        self._make_protocol = make_protocol
        self._context = context
        self._limits = limits
        limit = raise_descriptor_limit()
        most = max(limit - RESERVED_DESCRIPTORS, limit // 2)
        self.most = min(limits.connections or most, most)
        self.most_strangers = max(1, min(limits.strangers, self.most // 2))
        self._strangers: dict[Connection, None] = {}  # ordered by arrival
        self._by_protocol: dict[PeerProtocol, Connection] = {}
        self._count = 0
        self.shed = 0  # connections that were turned away or evicted

    @property
    def protocols(self) -> list[PeerProtocol]:
        """The connections after their handshake."""
        return list(self._by_protocol)

    @property
    def count(self) -> int:
        """All connections, handshakes included."""
        return self._count

    async def accept_from(self, listener: trio.SocketListener) -> None:
        """Accept until cancelled. Each handshake is a task of its own, gone when the connection is ready."""
        async with trio.open_nursery() as handshakes:
            while True:
                await self._wait_stranger_slot()
                try:
                    accepted, address = await listener.socket.accept()
                except OSError as error:
                    if error.errno in _RETRYABLE:  # no descriptors, whoever has taken them
                        self._evict(patience_seconds=0.0)
                        await trio.sleep(RETRY_SECONDS)
                    continue  # else the peer was gone before we looked
                raw = socket.socket(fileno=accepted.detach())
                if self._count >= self.most and not self._evict(patience_seconds=0.0):
                    self.shed += 1
                    raw.close()
                    continue
                handshakes.start_soon(self._receive, Connection(trio.current_time(), str(address[0]), raw))

    async def _wait_stranger_slot(self) -> None:
        while len(self._strangers) >= self.most_strangers:
            if not self._evict(self._limits.patience_seconds):
                await trio.sleep(RETRY_SECONDS)

    async def _receive(self, connection: Connection) -> None:
        self._count += 1
        self._strangers[connection] = None
        ready = False
        try:
            with connection.scope:
                ready = await self._handshake(connection)
        finally:
            if not ready:
                self._forget(connection)  # asyncio never tells a protocol whose handshake failed

    async def _handshake(self, connection: Connection) -> bool:
        def make() -> PeerProtocol:
            protocol = connection.protocol = self._make_protocol()
            protocol.on_closed = self._note_closed
            protocol.on_call = self._promote
            self._by_protocol[protocol] = connection
            return protocol

        try:
            await asyncio_connection(
                make, connection.raw, self._context, server_hostname=None, handshake=HANDSHAKE_SECONDS, farewell=TLS_FAREWELL_SECONDS
            )
        except OSError as error:  # ssl.SSLError and the handshake's time-out are OSErrors too
            log.debug("a connection ended in its handshake: %s", error)
            return False
        return True

    def _promote(self, protocol: PeerProtocol) -> None:
        """A call has arrived: no stranger any more. The call's own deadlines take over."""
        connection = self._by_protocol.get(protocol)
        if connection is not None:
            self._strangers.pop(connection, None)

    def expire(self) -> None:
        """Drop strangers that have had their time. Called about once a second."""
        oldest_allowed = trio.current_time() - self._limits.stranger_seconds
        for connection in [c for c in self._strangers if c.accepted_at < oldest_allowed]:
            self._drop_stranger(connection)

    def _evict(self, patience_seconds: float) -> bool:
        """Drop the oldest stranger of the address with most of them, if it has had its time. Whether one went."""
        if not self._strangers:
            return False
        crowd = Counter(connection.address for connection in self._strangers)
        crowded = max(crowd, key=crowd.__getitem__)
        oldest = next(connection for connection in self._strangers if connection.address == crowded)
        if oldest.accepted_at + patience_seconds > trio.current_time():
            return False
        self._drop_stranger(oldest)
        return True

    def _drop_stranger(self, connection: Connection) -> None:
        self.shed += 1
        self._strangers.pop(connection, None)
        connection.drop()

    def _note_closed(self, protocol: PeerProtocol) -> None:
        connection = self._by_protocol.get(protocol)
        if connection is not None:
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        if connection.protocol is not None:
            self._by_protocol.pop(connection.protocol, None)
        if not connection.forgotten:
            connection.forgotten = True
            self._count -= 1
