"""One TLS session through link and actor against plain grpclib on asyncio that decodes the same frames.

An observation goes out, its acknowledgement comes back, and the next one goes out: frames per second and round trip on
one stream, and on 64 streams (of 64 Nodes). Both servers run alone in their process; the load client, hand-made HTTP/2
frames, is the same. ``stock`` is our gateway on the stock trio-asyncio loop, without a budget: what the batched one gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from .figures import Figure, median_ratio
from .processes import Certificate, make_certificate, start

ROUNDS = 5
SECONDS = 2
BUDGETS = {1: 0.6, 64: 0.7}  # streams -> share of plain grpclib's frames per second
KINDS = ("plain", "actor", "link", "stock")


def figures() -> Iterator[Figure]:
    with make_certificate() as certificate:
        for streams, budget in BUDGETS.items():
            rounds = [{kind: _measure(kind, certificate, streams) for kind in KINDS} for _ in range(ROUNDS)]
            yield from _report(streams, budget, rounds)


def _measure(kind: str, certificate: Certificate, streams: int) -> dict[str, Any]:
    module, arguments = ("bench.session_plain", ()) if kind == "plain" else ("bench.session_server", (kind,))
    with start(module, *arguments, certificate.certificate, certificate.key) as server:
        port = server.read()["port"]
        with start("bench.session_load", "pingpong", port, certificate.certificate, streams, SECONDS) as load:
            load.read()
            before = server.cpu_seconds()
            told = load.read()
            told["cpu_us"] = (server.cpu_seconds() - before) / told["count"] * 1e6
    assert told["lost"] == 0, f"{kind} lost connections"
    return told


def _report(streams: int, budget: float, rounds: list[dict[str, dict[str, Any]]]) -> Iterator[Figure]:
    plain = [each["plain"]["rate"] for each in rounds]
    for kind in KINDS:
        told = {name: round(median(each[kind][name] for each in rounds), 3) for name in ("rate", "p50_ms", "p99_ms", "cpu_us")}
        if kind == "plain":
            yield Figure(name=f"session.{streams}.plain", value=told["rate"], unit="round trips/s", detail=told)
            continue
        ratio = median_ratio([each[kind]["rate"] for each in rounds], plain)
        cpu = median_ratio([each[kind]["cpu_us"] for each in rounds], [each["plain"]["cpu_us"] for each in rounds])
        told["cpu_ratio"] = round(cpu, 3)
        yield Figure(
            name=f"session.{streams}.{kind}", value=ratio, unit="of plain", budget=budget if kind == "actor" else None, detail=told
        )
