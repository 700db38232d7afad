"""How soon a stop is acknowledged: alone, and with 50 slow prepares and 200 followed logs on the same Node.

From the stop request until PostgreSQL holds the Node's own, journalled answer: request and poke, dispatcher, gateway,
session, Node, its journal, and back. Production gateway, worker, session, daemon and journal, real PostgreSQL, TLS; only the
container runtime is in memory. Once over loopback, once through a line of 20 Mbit and 40 ms with more log than it can carry.
A stop on the line may take its idle time's budget: a round trip, the log credit that is ahead of it, and 100 ms.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field, frozen

from tests.support.shaper import open_shaper
from tuneplane.bridge.loop import open_bridge
from tuneplane.bridge.postgres import Pool, open_pool
from tuneplane.control.logs import RelayLogReader
from tuneplane.domain.frames import LOG_CREDIT_BYTES, LogQuery
from tuneplane.domain.ids import JobId, MemberId, TraceId, attempt_id, member_id, operation_id
from tuneplane.domain.jobspec import JobBody, JobSpec, Metadata, Resources, RuntimeRef, WorkKind
from tuneplane.domain.jobspec import Pool as Machines
from tuneplane.domain.ports import Storage
from tuneplane.storage import open_storage
from tuneplane.wire.tls import client_context

from .figures import Figure
from .gateway_server import ADMIN, FLEET, now
from .processes import Certificate, make_certificate, start
from .stop_node import NODE, SLOW

PREPARES = 50
CHATTING = 40  # members whose logs are followed
FOLLOWS = 200  # of them, five each
STOPS = 100  # a case: its 99th percentile is the worst
WARM_STOPS = 10
CHAT_BYTES = 4_000  # of each followed log a second: a job that logs every step
FLOOD_BYTES = 40_000  # 8 MB/s to all followers together: three times what the line carries
RATE = 20e6 / 8
ROUND_TRIP_SECONDS = 0.040
STOP_BUDGET_MS = 1000.0
RATIO_BUDGET = 2.0
LINE_BUDGET_MS = (ROUND_TRIP_SECONDS + LOG_CREDIT_BYTES / RATE + 0.100) * 1e3
IMAGE = "registry.example/train@sha256:" + "0" * 64
REST_SECONDS = 0.02
WAIT_SECONDS = 180.0


@frozen
class Samples:
    """Seconds, one entry a stop."""

    idle: list[float]
    loaded: list[float]
    log_bytes_per_second: float


def figures() -> Iterator[Figure]:
    with make_certificate() as certificate:
        loopback = trio.run(_case, certificate, False)
        yield from _compare("stop.loopback", loopback, STOP_BUDGET_MS)
        ratio = _percentile(loopback.loaded, 99) / _percentile(loopback.idle, 99)
        yield Figure(name="stop.loopback.p99_ratio", value=ratio, unit="of idle", budget=RATIO_BUDGET, lower_is_better=True)
        yield from _compare("stop.line", trio.run(_case, certificate, True), LINE_BUDGET_MS)


def _compare(name: str, samples: Samples, budget: float) -> Iterator[Figure]:
    detail: dict[str, object] = {
        "p50_ms": round(_percentile(samples.loaded, 50), 1),
        "idle_p50_ms": round(_percentile(samples.idle, 50), 1),
        "idle_p99_ms": round(_percentile(samples.idle, 99), 1),
        "stops": len(samples.loaded),
        "log_mb_per_second": round(samples.log_bytes_per_second / 1e6, 2),
    }
    value = _percentile(samples.loaded, 99)
    yield Figure(name=f"{name}.p99", value=value, unit="ms", budget=budget, lower_is_better=True, detail=detail)


def _percentile(samples: list[float], percent: int) -> float:
    return sorted(samples)[min(len(samples) - 1, len(samples) * percent // 100)] * 1e3


async def _case(certificate: Certificate, line: bool) -> Samples:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.chmod(place, 0o755)  # PostgreSQL of a root runs as another user
        plane = stack.enter_context(start("bench.stop_plane", certificate.certificate, certificate.key, place))
        told = await trio.to_thread.run_sync(plane.read)
        async with _line(told["port"], line) as port, _open_bench(told["dsn"], place) as bench:
            node = stack.enter_context(start("bench.stop_node", f"127.0.0.1:{port}", certificate.certificate, place))
            await trio.to_thread.run_sync(node.read)
            try:
                return await bench.measure(FLOOD_BYTES if line else CHAT_BYTES)
            finally:
                node.process.kill()  # before the line goes: its session is not to be counted among ours


@asynccontextmanager
async def _line(port: int, slow: bool) -> AsyncIterator[int]:
    if not slow:
        yield port
        return
    async with open_shaper(port, RATE, delay_seconds=ROUND_TRIP_SECONDS / 2, back_bytes_per_second=RATE) as shaped:
        yield shaped


@asynccontextmanager
async def _open_bench(dsn: str, place: Path) -> AsyncIterator[Bench]:
    internal = place / "internal.crt"
    tls = client_context(trust_pem=internal.read_text(), certificate=internal, key=place / "internal.key")
    async with open_bridge(), open_storage(dsn) as storage, open_pool(dsn, size=1) as pool:
        yield Bench(storage, pool, RelayLogReader(storage=storage, tls=tls, clock=now))


@define(eq=False)
class Bench:
    """The user's side: submits, follows, stops and looks."""

    storage: Storage
    pool: Pool
    reader: RelayLogReader
    read_bytes: int = 0
    following: int = 0
    _jobs: int = field(default=0, init=False)

    async def measure(self, chat_bytes: int) -> Samples:
        targets = [await self._submit(IMAGE, "sleep") for _ in range(WARM_STOPS + 2 * STOPS)]
        await self._wait("a running member", "running", len(targets))
        for job in targets[:WARM_STOPS]:
            await self._stop(job)
        idle = [await self._stop(job) for job in targets[WARM_STOPS : WARM_STOPS + STOPS]]
        async with trio.open_nursery() as nursery:
            await self._load(nursery, chat_bytes)
            began, before = time.perf_counter(), self.read_bytes
            loaded = [await self._stop(job) for job in targets[WARM_STOPS + STOPS :]]
            rate = (self.read_bytes - before) / (time.perf_counter() - began)
            nursery.cancel_scope.cancel()
        return Samples(idle, loaded, rate)

    async def _load(self, nursery: trio.Nursery, chat_bytes: int) -> None:
        """50 prepares that do not end, and 200 logs that are being followed."""
        chatting = [await self._submit(IMAGE, "chat", str(chat_bytes)) for _ in range(CHATTING)]
        await self._wait("a chatting member", "running", STOPS + CHATTING)
        for _ in range(PREPARES):
            await self._submit(SLOW, "sleep")
        await self._wait("a slow prepare", "preparing", PREPARES)
        for number in range(FOLLOWS):
            await nursery.start(self._follow, chatting[number % CHATTING])
        with trio.fail_after(WAIT_SECONDS):
            while self.following < FOLLOWS:  # noqa: ASYNC110 - all of them have read something
                await trio.sleep(0.1)

    async def _submit(self, image: str, *command: str) -> JobId:
        self._jobs += 1
        body = JobBody(
            command=command,
            runtime=RuntimeRef(image=image),
            resources=Resources(pools=(Machines(cpus=0.1, memory_gb=0.1),)),
        )
        spec = JobSpec(apiVersion="tuneplane/v1", kind=WorkKind.TRAINING_JOB, metadata=Metadata(name="bench"), spec=body)
        job = JobId(f"job-{self._jobs}")
        await self.storage.submit(
            job, spec, owner=ADMIN, fleet=FLEET, image=image, trace=TraceId(f"trace-{job}"), idempotency_key=None, now=now()
        )
        return job

    async def _wait(self, what: str, phase: str, count: int) -> None:
        """Until so many members are in ``phase``."""
        found = 0
        with trio.move_on_after(WAIT_SECONDS):
            while (found := await self.pool.fetchval("SELECT count(*) FROM member WHERE phase = $1", phase)) < count:  # noqa: ASYNC110
                await trio.sleep(0.2)
            return
        raise AssertionError(f"waited {WAIT_SECONDS:g} s for {what}: {found} of {count}")

    async def _follow(self, job: JobId, *, task_status: trio.TaskStatus[None]) -> None:
        query = LogQuery(node=NODE, member=_member(job), offset=0, max_bytes=1 << 40, follow=True)
        async with self.reader.open_log(query) as pieces:
            task_status.started()
            fresh = True
            async for piece in pieces:
                assert not piece.error, piece.error
                self.read_bytes += len(piece.data)
                self.following += fresh
                fresh = False

    async def _stop(self, job: JobId) -> float:
        """Seconds until the answer of the Node is in the database."""
        operation = operation_id(_member(job), "stop")
        began = time.perf_counter()
        await self.storage.request_stop(job, ADMIN, now())
        sql = "SELECT accepted FROM command WHERE operation = $1 AND answered_at IS NOT NULL"
        with trio.fail_after(WAIT_SECONDS):
            while (accepted := await self.pool.fetchval(sql, operation)) is None:  # noqa: ASYNC110 - what is measured is the row
                await trio.sleep(0.002)
        took = time.perf_counter() - began
        assert accepted
        await trio.sleep(REST_SECONDS)
        return took


def _member(job: JobId) -> MemberId:
    return member_id(attempt_id(job, 1), 0)
