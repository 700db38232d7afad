"""500 sessions on one gateway process with 10 s heartbeats: memory, CPU, and the round trip of a stop among them.

First without PostgreSQL: what a session costs in link and actor. Stops go to a session at random, 25 a second, and are
answered at once; the load client shares the machine, so the tail is its too. Then the control plane's own gateway on a
real PostgreSQL: credential, epoch and session row of every Node; the CPU is the gateway process's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define

from .figures import Figure
from .processes import Certificate, Child, make_certificate, start

SESSIONS = 500
WARM_SESSIONS = 8  # opened and closed before: what the first session alone costs is not per session
HOLD_SECONDS = 20.0  # two heartbeats of every session
SETTLE_SECONDS = 1.0
MEMORY_BUDGET_KIB = 130.0
SET_UP_BUDGET_MS = 3.0
POSTGRESQL_SET_UP_BUDGET_MS = 6.0


def figures() -> Iterator[Figure]:
    with make_certificate() as certificate:
        yield from _without_postgresql(certificate)
        yield from _with_postgresql(certificate)


def _without_postgresql(certificate: Certificate) -> Iterator[Figure]:
    with start("bench.session_server", "actor", certificate.certificate, certificate.key) as server:
        port = server.read()["port"]
        with start("bench.session_load", "pingpong", port, certificate.certificate, WARM_SESSIONS, 0.5) as warm:
            warm.read()
            warm.read()
        time.sleep(SETTLE_SECONDS)
        with _held(server, port, certificate) as held:
            server.say("stops")  # those during the set-up do not count
            server.read()
            time.sleep(HOLD_SECONDS)
            yield from held.figures("gateway", MEMORY_BUDGET_KIB, SET_UP_BUDGET_MS)
            server.say("stops")
            latencies = sorted(server.read()["latencies"])
    for name, share in (("stop_p50", 0.5), ("stop_p99", 0.99)):
        value = latencies[int(len(latencies) * share)] * 1e3
        yield Figure(name=f"gateway.{name}", value=value, unit="ms", lower_is_better=True, detail={"stops": len(latencies)})


def _with_postgresql(certificate: Certificate) -> Iterator[Figure]:
    with start("bench.gateway_server", certificate.certificate, certificate.key, SESSIONS) as server:
        port = server.read()["port"]
        time.sleep(SETTLE_SECONDS)
        with _held(server, port, certificate) as held:
            time.sleep(HOLD_SECONDS)
            yield from held.figures("gateway.postgresql", MEMORY_BUDGET_KIB, POSTGRESQL_SET_UP_BUDGET_MS)


@define
class _Held:
    """The sessions are open; what they cost is the difference to before."""

    server: Child
    memory_before: int
    set_up_cpu: float
    set_up_seconds: float
    cpu_at_open: float
    opened_at: float

    def figures(self, name: str, memory_budget: float, set_up_budget: float) -> Iterator[Figure]:
        memory = (self.server.resident_kib() - self.memory_before) / SESSIONS
        share = 100 * (self.server.cpu_seconds() - self.cpu_at_open) / (time.monotonic() - self.opened_at)
        rate = {"per_second": round(SESSIONS / self.set_up_seconds)}
        set_up = self.set_up_cpu / SESSIONS * 1e3
        yield Figure(name=f"{name}.memory", value=memory, unit="KiB a session", budget=memory_budget, lower_is_better=True)
        yield Figure(name=f"{name}.set_up", value=set_up, unit="ms CPU a session", budget=set_up_budget, lower_is_better=True, detail=rate)
        yield Figure(name=f"{name}.cpu", value=share, unit="% of a core", lower_is_better=True)


@contextmanager
def _held(server: Child, port: int, certificate: Certificate) -> Iterator[_Held]:
    memory, cpu = server.resident_kib(), server.cpu_seconds()
    with start("bench.session_load", "hold", port, certificate.certificate, SESSIONS, 0) as load:
        seconds = load.read()["seconds"]
        opened = server.cpu_seconds()
        yield _Held(server, memory, opened - cpu, seconds, opened, time.monotonic())
