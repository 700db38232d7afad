"""What the serving and the calling side of gRPC share: the settings of a method, names of peers, how connections end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import trio
from attrs import frozen

from .call import LaneLimit
from .loop import from_trio
from .repairs import KEEPALIVE_SECONDS, PeerProtocol

FAREWELL_SECONDS = 2.0  # for trailers and GOAWAY to leave the buffers of an ending server or client


@frozen(kw_only=True)
class CallSettings:
    """What both ends must know of a method, and the pace of its second net."""

    path: str  # /package.Service/Method
    lanes: tuple[LaneLimit, ...]  # outgoing, most urgent first
    keepalive_seconds: float = KEEPALIVE_SECONDS


def peer_name(peer: Any) -> str:
    address = peer.addr()
    return f"{address[0]}:{address[1]}" if address else "unknown"


async def wait_closed(protocols: Sequence[PeerProtocol]) -> None:
    """Let closing connections finish; abort what has not after FAREWELL_SECONDS, and wait for that."""

    async def all_closed() -> None:
        await asyncio.gather(*(protocol.closed.wait() for protocol in protocols))

    with trio.CancelScope(shield=True):
        with trio.move_on_after(FAREWELL_SECONDS):
            await from_trio(all_closed)
            return
        for protocol in protocols:
            protocol.abort()
        with trio.move_on_after(FAREWELL_SECONDS):
            await from_trio(all_closed)
