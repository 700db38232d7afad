"""One end of a session in a process of its own, so that a test can kill, stop or starve it.

``python -m tests.support.session_peer node PORT CA NODE`` holds a session and streams a log when asked (MODE log);
``… gateway CERTIFICATE KEY [DESCRIPTORS]`` serves one. Both print one JSON object per event and line.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
from pathlib import Path

import trio

from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.frames import LogChunk
from tuneplane.wire.link import GatewayLink, NodeLink, SessionEnded, run_node_session, serve_gateway
from tuneplane.wire.tls import client_context, server_context

from .sessions import FAST, ScriptedDoor, hello


def say(event: str, **told: object) -> None:
    print(json.dumps({"event": event, **told}), flush=True)


def read(path: str) -> str:
    return Path(path).read_text()


def forced_loop() -> bool | None:
    """Which loop the test wants here: the environment says ``batched``, ``stock`` or nothing."""
    return {"batched": True, "stock": False}.get(os.environ.get("TEST_LOOP", ""))


async def node(port: str, ca: str, name: str, mode: str = "quiet") -> None:
    async def body(link: NodeLink) -> None:
        say("up", epoch=link.welcome.session_epoch)
        if mode == "log":
            await stream_log(link)
        while True:
            await link.receive()

    async def stream_log(link: NodeLink) -> None:
        offset = 0
        while True:
            await link.send(LogChunk(request=1, offset=offset, data=bytes(65536)))
            offset += 65536

    tls = client_context(trust_pem=read(ca))
    try:
        async with open_bridge(batched=forced_loop()):
            await run_node_session(
                target=f"127.0.0.1:{port}", tls=tls, credential=f"good-{name}", hello=hello(name), timings=FAST, body=body
            )
    except SessionEnded as ended:
        say("ended", code=ended.code, detail=ended.detail)


async def gateway(certificate: str, key: str, descriptors: str = "") -> None:
    if descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), int(descriptors)))
    door = ScriptedDoor(timings=FAST)

    class Door:
        authenticate = door.authenticate
        welcome = door.welcome

        async def session(self, link: GatewayLink) -> None:
            name = link.identity.node
            say("session", node=name)
            await door.session(link)
            ended = door.sessions[name].ended
            say("session-ended", node=name, code=ended.code if ended else "")

    tls = server_context(Path(certificate), Path(key))
    async with open_bridge(batched=forced_loop()) as bridge, trio.open_nursery() as nursery:

        async def serve(*, task_status: trio.TaskStatus[int]) -> None:
            await serve_gateway(host="127.0.0.1", port=0, tls=tls, door=Door(), timings=FAST, task_status=task_status)

        port = await nursery.start(serve)
        say("listening", port=port)
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            if line.strip() == "status":
                rss = next(part for part in read("/proc/self/status").splitlines() if part.startswith("VmRSS")).split()[1]
                say("status", rss_kib=int(rss), stray=bridge.stray, descriptors=len(os.listdir("/proc/self/fd")))
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    trio.run({"node": node, "gateway": gateway}[sys.argv[1]], *sys.argv[2:])
