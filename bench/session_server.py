"""Our gateway in a process of its own, for the session and gateway benchmarks.

``python -m bench.session_server KIND CERTIFICATE KEY``; prints ``{"port": …}`` when it listens, and leaves when its input ends.

* ``link``: our gateway, the frames taken from the link by a plain task.
* ``actor``: our gateway, the frames taken from the link by an actor of the kernel, one per session.
* ``stock``: as ``actor``, on the stock trio-asyncio loop.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from pathlib import Path

import trio
from attrs import define

from tuneplane.actors import Actor, ChildSpec, Context, Pool, Restart, Strategy, SupervisorSpec, System, open_system
from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.frames import Command, CommandAnswer, CommandKind, Hello, Welcome
from tuneplane.domain.ids import FleetId, MemberId, NodeId, OperationId
from tuneplane.domain.jobs import NodeIdentity
from tuneplane.wire.link import GatewayLink, LinkClosed, serve_gateway
from tuneplane.wire.tls import server_context

from .session_frames import NOW, TIMINGS, reply, say, welcome

STOP_EVERY_SECONDS = 0.04  # 25 a second, each to another session


@define
class SessionActor(Actor):
    """Takes frames from its link and answers them."""

    link: GatewayLink
    stops: Stops

    async def run(self, context: Context) -> None:
        await converse(self.link, self.stops)


class Stops:
    """Sends Stop commands to one session after another and measures the time to the answer."""

    def __init__(self) -> None:
        self.links: list[GatewayLink] = []
        self.sent: dict[str, float] = {}
        self.latencies: list[float] = []

    def answered(self, answer: CommandAnswer) -> None:
        began = self.sent.pop(answer.operation, None)
        if began is not None:
            self.latencies.append(time.perf_counter() - began)

    async def run(self) -> None:
        number = 0
        while True:
            await trio.sleep(STOP_EVERY_SECONDS)
            if not self.links:
                continue
            number += 1
            link = self.links[number * 7919 % len(self.links)]
            operation = OperationId(f"job-x-1-0:stop-{number}")
            self.sent[operation] = time.perf_counter()
            command = Command(
                operation=operation, kind=CommandKind.STOP, member=MemberId("job-x-1-0"), session_epoch=link.epoch, claim_epoch=1
            )
            try:
                link.send_nowait(command)
            except LinkClosed:  # its task has not noticed yet
                continue


async def converse(link: GatewayLink, stops: Stops) -> None:
    stops.links.append(link)
    try:
        while True:
            frame = await link.receive()
            if isinstance(frame, CommandAnswer):
                stops.answered(frame)
            answer = reply(frame)
            if answer is not None:
                link.send_nowait(answer)
    except LinkClosed:
        stops.links.remove(link)


class Door:
    def __init__(self, system: System | None, stops: Stops) -> None:
        self.pool: Pool | None = system.pool("root/sessions") if system is not None else None
        self.stops = stops
        self.epoch = 0

    async def authenticate(self, credential: str, peer: str) -> NodeIdentity:
        return NodeIdentity(node=NodeId(credential.removeprefix("tpn_")), fleet=FleetId("bench"), credential_expires_at=NOW)

    async def welcome(self, identity: NodeIdentity, hello: Hello) -> Welcome:
        self.epoch += 1
        return welcome(self.epoch)

    async def session(self, link: GatewayLink) -> None:
        if self.pool is None:
            await converse(link, self.stops)
            return
        make = lambda: SessionActor(link, self.stops)  # noqa: E731
        ref = await self.pool.start_child(ChildSpec(name=f"session-{link.epoch}", factory=make, restart=Restart.TEMPORARY))
        await ref.wait_exit()


async def ours(kind: str, certificate: Path, key: Path) -> None:
    root = SupervisorSpec(name="root", children=(SupervisorSpec(name="sessions", strategy=Strategy.POOL),))
    async with open_bridge(batched=None if kind != "stock" else False), open_system("bench", root) as system:
        await serve(kind, None if kind == "link" else system, certificate, key)


async def serve(kind: str, system: System | None, certificate: Path, key: Path) -> None:
    stops = Stops()
    door = Door(system, stops)
    tls = server_context(certificate, key)

    async def gateway(*, task_status: trio.TaskStatus[int]) -> None:
        await serve_gateway(host="127.0.0.1", port=0, tls=tls, door=door, timings=TIMINGS, task_status=task_status)

    async with trio.open_nursery() as nursery:
        port = await nursery.start(gateway)
        nursery.start_soon(stops.run)
        say(port=port)
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            if line.strip() == "stops":
                say(latencies=stops.latencies)
                stops.latencies.clear()
        nursery.cancel_scope.cancel()


def main(kind: str, certificate: str, key: str) -> None:
    logging.disable(logging.INFO)
    gc.set_threshold(20_000, 20, 20)  # on both sides
    trio.run(ours, kind, Path(certificate), Path(key))


if __name__ == "__main__":
    main(*sys.argv[1:])
