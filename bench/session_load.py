"""A cheap load client: hand-made HTTP/2 frames on TLS, so that the server is what is measured.

``python -m bench.session_load MODE PORT CA COUNT SECONDS``; prints one JSON object a line.

* ``pingpong``: COUNT connections, each with one observation in flight, for SECONDS.
* ``hold``: COUNT sessions with a 10 s heartbeat; every Stop is answered at once; stays until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
import struct
import sys
import time
from datetime import UTC, datetime

from hpack import Encoder

from tuneplane.domain.frames import WIRE_PROTOCOL, CommandAnswer, Heartbeat, Hello, Observation
from tuneplane.domain.ids import FleetId, JournalId, MemberId, NodeId, OperationId
from tuneplane.domain.launch_table import MemberPhase
from tuneplane.wire.gateway_codec import decode_gateway_frame
from tuneplane.wire.node_codec import encode_node_frame

DATA, HEADERS, SETTINGS, PING, WINDOW = 0, 1, 4, 6, 8
HEARTBEAT_SECONDS = 10.0
WINDOW_BYTES = 1 << 30  # ours is never the limit
AT_ONCE = 32  # sessions that are being opened
NOW = datetime(2026, 11, 30, tzinfo=UTC)
ACK, COMMAND = 4, 3  # field numbers of GatewayFrame


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">IBBI", len(body), kind, flags, stream)[1:] + body


def message(data: bytes) -> bytes:
    return frame(DATA, 0, 1, struct.pack(">BI", 0, len(data)) + data)


def request(port: int, name: str) -> bytes:
    headers = [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", "/tuneplane.v1.NodeGateway/Session"),
        (":authority", f"127.0.0.1:{port}"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("authorization", "Bearer tpn_" + name),
    ]
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, (1 << 31) - 1))
    return preface + frame(WINDOW, 0, 0, struct.pack(">I", WINDOW_BYTES)) + frame(HEADERS, 4, 1, Encoder().encode(headers, huffman=False))


def hello(name: str) -> bytes:
    return message(
        encode_node_frame(
            Hello(
                protocol=WIRE_PROTOCOL,
                node=NodeId(name),
                fleet=FleetId("bench"),
                boot_id="boot-1",
                machine_id="machine-1",
                journal_id=JournalId("journal-1"),
                journal_sequence=1,
                node_version="0.1.0",
                address="10.0.0.1",
                sent_at=NOW,
            )
        )
    )


def observation() -> bytes:
    return message(
        encode_node_frame(
            Observation(
                member=MemberId("job-q3vd7ct2mtgqx6ya-1-0"),
                revision=3,
                phase=MemberPhase.RUNNING,
                plan_digest="sha256:" + "0" * 64,
                boot_id="boot-1",
                container_id="c" * 64,
                started_at=NOW,
            )
        )
    )


class Session(asyncio.Protocol):
    """One connection. ``up`` is done at the Welcome."""

    def __init__(self, load: Load, name: str) -> None:
        self.load, self.name = load, name
        self.up: asyncio.Future[None] = load.loop.create_future()
        self.buffer, self.sent_at, self.unacked = b"", 0.0, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(request(self.load.port, self.name) + hello(self.name))

    def connection_lost(self, error: Exception | None) -> None:
        self.load.lost += not self.load.ending
        if not self.up.done():
            self.up.set_exception(ConnectionError(repr(error)))

    def data_received(self, data: bytes) -> None:
        data, at = self.buffer + data, 0
        while len(data) - at >= 9:
            size = int.from_bytes(data[at : at + 3], "big")
            if len(data) - at - 9 < size:
                break
            self.take(data[at + 3], data[at + 4], data[at + 9 : at + 9 + size])
            at += 9 + size
        self.buffer = data[at:]

    def take(self, kind: int, flags: int, body: bytes) -> None:
        if kind == DATA and body:
            self.load.answer(self, body[5:])
            self.unacked += len(body)
            if self.unacked > 1 << 20:
                self.transport.write(frame(WINDOW, 0, 0, struct.pack(">I", self.unacked)))
                self.unacked = 0
        elif kind == SETTINGS and not flags & 1:
            self.transport.write(frame(SETTINGS, 1, 0))
        elif kind == PING and not flags & 1:
            self.transport.write(frame(PING, 1, 0, body))


class Load:
    def __init__(self, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self.loop, self.port = loop, port
        self.lost = 0
        self.ending = False
        self.latencies: list[float] = []
        self.ping = observation()
        self.measuring = False

    def answer(self, session: Session, body: bytes) -> None:
        if not session.up.done():
            session.up.set_result(None)
        elif body[0] >> 3 == ACK:
            self.latencies.append(time.perf_counter() - session.sent_at)
            if self.measuring:
                self.send_ping(session)
        elif body[0] >> 3 == COMMAND:
            command = decode_gateway_frame(body)
            answer = CommandAnswer(operation=OperationId(command.operation), accepted=True)  # type: ignore[union-attr]
            session.transport.write(message(encode_node_frame(answer)))

    def send_ping(self, session: Session) -> None:
        session.sent_at = time.perf_counter()
        session.transport.write(self.ping)

    async def open(self, count: int, context: ssl.SSLContext) -> list[Session]:
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> Session:
            async with slots:
                make = lambda: Session(self, f"node-{number}")  # noqa: E731
                _, session = await self.loop.create_connection(make, "127.0.0.1", self.port, ssl=context)
                await session.up
                return session

        return await asyncio.gather(*(one(number) for number in range(count)))


def say(**told: object) -> None:
    print(json.dumps(told), flush=True)


async def pingpong(load: Load, sessions: list[Session], seconds: float) -> None:
    load.measuring = True
    began = time.perf_counter()
    for session in sessions:
        load.send_ping(session)
    await asyncio.sleep(seconds)
    load.measuring = False
    took = time.perf_counter() - began
    latencies = sorted(load.latencies)
    count = len(latencies)
    say(rate=count / took, p50_ms=latencies[count // 2] * 1e3, p99_ms=latencies[count * 99 // 100] * 1e3, count=count, lost=load.lost)


async def hold(load: Load, sessions: list[Session]) -> None:
    def beat(session: Session, sequence: int) -> None:
        beat_ = Heartbeat(sequence=sequence, inventory_digest="", sent_at=NOW)
        session.transport.write(message(encode_node_frame(beat_)))
        load.loop.call_later(HEARTBEAT_SECONDS, beat, session, sequence + 1)

    for number, session in enumerate(sessions):
        load.loop.call_later(HEARTBEAT_SECONDS * number / len(sessions), beat, session, 1)
    await load.loop.run_in_executor(None, sys.stdin.read)
    say(lost=load.lost)


async def main(mode: str, port: str, ca: str, count: str, seconds: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    load = Load(asyncio.get_running_loop(), int(port))
    began = time.perf_counter()
    sessions = await load.open(int(count), context)
    say(up=len(sessions), seconds=time.perf_counter() - began)
    if mode == "pingpong":
        await pingpong(load, sessions, float(seconds))
    else:
        await hold(load, sessions)
    load.ending = True
    for session in sessions:
        session.transport.abort()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
