"""500 sessions on one gateway process with 10 s heartbeats: memory, CPU, and the round trip of a stop among them.

Without PostgreSQL: what a session costs in the gateway itself, one actor each. Stops go to a session at random, 25 a
second, and are answered at once; the load client shares the machine, so the tail is its too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from .figures import Figure
from .processes import make_certificate, start

SESSIONS = 500
WARM_SESSIONS = 8  # opened and closed before: what the first session alone costs is not per session
HOLD_SECONDS = 20.0  # two heartbeats of every session
SETTLE_SECONDS = 1.0
MEMORY_BUDGET_KIB = 130.0
SET_UP_BUDGET_MS = 3.0


def figures() -> Iterator[Figure]:
    with make_certificate() as certificate, start("bench.session_server", "actor", certificate.certificate, certificate.key) as server:
        port = server.read()["port"]
        with start("bench.session_load", "pingpong", port, certificate.certificate, WARM_SESSIONS, 0.5) as warm:
            warm.read()
            warm.read()
        time.sleep(SETTLE_SECONDS)
        memory, cpu = server.resident_kib(), server.cpu_seconds()
        with start("bench.session_load", "hold", port, certificate.certificate, SESSIONS, 0) as load:
            up = load.read()
            opened = server.cpu_seconds()
            server.say("stops")  # those during the set-up do not count
            server.read()
            began = server.cpu_seconds()
            time.sleep(HOLD_SECONDS)
            held, memory_held = server.cpu_seconds(), server.resident_kib()
            server.say("stops")
            latencies = sorted(server.read()["latencies"])
    set_up_ms = (opened - cpu) / SESSIONS * 1e3
    yield Figure(
        name="gateway.memory",
        value=(memory_held - memory) / SESSIONS,
        unit="KiB a session",
        budget=MEMORY_BUDGET_KIB,
        lower_is_better=True,
        detail={"base_mib": memory // 1024},
    )
    yield Figure(
        name="gateway.set_up",
        value=set_up_ms,
        unit="ms CPU a session",
        budget=SET_UP_BUDGET_MS,
        lower_is_better=True,
        detail={"per_second": round(SESSIONS / up["seconds"])},
    )
    yield Figure(name="gateway.cpu", value=100 * (held - began) / HOLD_SECONDS, unit="% of a core", lower_is_better=True)
    yield Figure(name="gateway.stop_p50", value=latencies[len(latencies) // 2] * 1e3, unit="ms", lower_is_better=True)
    yield Figure(
        name="gateway.stop_p99",
        value=latencies[len(latencies) * 99 // 100] * 1e3,
        unit="ms",
        lower_is_better=True,
        detail={"stops": len(latencies)},
    )
