"""The reference: plain grpclib on asyncio. It decodes every frame to the same domain value and encodes the same answer.

``python -m bench.session_plain CERTIFICATE KEY``. No part of our bridge is imported: trio-asyncio would change asyncio.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from typing import Any

from grpclib.server import Server

from tuneplane.domain.frames import Hello
from tuneplane.wire.gateway_codec import encode_gateway_frame
from tuneplane.wire.node_codec import decode_node_frame
from tuneplane.wire.pb.session_grpc import NodeGatewayBase
from tuneplane.wire.tls import server_context

from .session_frames import reply, say, welcome


class Bytes:
    """Both sides pay for one protobuf parse, the one inside our codec."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, kind: object) -> bytes:
        return message

    def decode(self, data: bytes, kind: object) -> bytes:
        return data


class Gateway(NodeGatewayBase):
    async def Session(self, stream: Any) -> None:
        async for message in stream:
            frame = decode_node_frame(message)
            answer = welcome(1) if isinstance(frame, Hello) else reply(frame)
            if answer is not None:
                await stream.send_message(encode_gateway_frame(answer))


async def main(certificate: str, key: str) -> None:
    server = Server([Gateway()], codec=Bytes())
    await server.start("127.0.0.1", 0, ssl=server_context(Path(certificate), Path(key)))
    say(port=server._server.sockets[0].getsockname()[1])
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    gc.set_threshold(20_000, 20, 20)
    asyncio.run(main(*sys.argv[1:]))
