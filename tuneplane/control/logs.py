"""Reading a member's log from any process: find the gateway that holds the Node's session, and ask its relay (P-23)."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import frozen

from tuneplane.domain.errors import Refused
from tuneplane.domain.frames import LogPiece, LogQuery
from tuneplane.domain.ids import NodeId
from tuneplane.domain.nodes import Node
from tuneplane.domain.ports import Storage
from tuneplane.wire.relay import read_relay

from .patience import Clock


@frozen(kw_only=True)
class RelayLogReader:
    """Implements ``api_logs.LogReader`` for any process of the control plane."""

    storage: Storage
    tls: ssl.SSLContext  # the internal mutual-TLS identity, dialling side
    clock: Clock

    @asynccontextmanager
    async def open_log(self, query: LogQuery) -> AsyncIterator[AsyncIterator[LogPiece]]:
        """The pieces of a read, in order; the last has ``end``. Deadlines are the caller's; leaving the block ends the read.

        Refused: "node-unreachable" says which Node has no session and since when, "node-removed" that none will be again. A
        read that breaks off later ends with a piece that has an ``error``. StorageUnavailable.
        """
        address = await self.storage.gateway_of(query.node, self.clock())
        if address is None:
            raise _absence(query.node, await self.storage.get_node(query.node, self.clock()))
        async with read_relay(host=address.host, port=address.port, tls=self.tls, query=query) as pieces:
            yield pieces


def _absence(name: NodeId, node: Node | None) -> Refused:
    if node is None:
        return Refused("node-removed", f"Node {name} has been removed; the logs that it had not archived went with it")
    if node.connection.since is None:
        return Refused("node-unreachable", f"Node {name} has never been connected")
    since = node.connection.since.isoformat(timespec="seconds").replace("+00:00", "Z")
    return Refused("node-unreachable", f"Node {name} is not connected (since {since}); its logs can be read when it is back")
