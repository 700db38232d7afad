"""What the field taught about sessions (L-B), with real processes between which a relay fails as networks and balancers do.

The Node's daemon is real, its runtime an Engine API without containers (tests/support/engine_stub.py), but where the lesson is
about containers. Every duration is production's times FACTOR; two busy cores get ROOM_SECONDS on top.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.engine_stub import EngineStub, open_engine_stub
from tests.support.evidence import JOB_PREFIX, Witness
from tests.support.process import wait_for
from tests.support.relay import Relay, open_relay
from tests.support.system import WholeSystem, open_system_of_processes
from tests.support.zygote import open_zygote
from tuneplane.app.client import ClientError
from tuneplane.domain.timings import PRODUCTION

pytestmark = [pytest.mark.e2e]

FACTOR = 0.2
TIMINGS = PRODUCTION.scaled(FACTOR)  # heartbeat 1.4 s, idle 4 s, leases 3 s
ROOM_SECONDS = 3.0  # for what takes milliseconds on an idle machine
CONTROL_PLANE = ("api", "gateway", "gateway2", "worker")


@pytest.fixture(scope="module")
def lab() -> Iterator[WholeSystem]:
    """Two gateways behind the relay of one Node, whose containers are simulated."""
    with open_zygote() as zygote, open_system_of_processes(factor=str(FACTOR), spawn=zygote.spawn, node=False, gateways=2) as system:
        with open_engine_stub(system.directory, "engine") as stub:
            _enrol(system, "node", stub)
            yield system


@pytest.fixture
def node(lab: WholeSystem) -> Iterator[WholeSystem]:
    """The system with its Node connected; whatever a test broke is whole again afterwards."""
    lab.wait_ready()
    yield lab
    lab.relays["node"].heal()
    if not lab.postgres.runs:
        lab.postgres.start()
    for process in lab.processes.values():
        process.thaw()
        if process.child is None:
            process.start()


def _enrol(system: WholeSystem, name: str, stub: EngineStub, **settings: str) -> None:
    system.enrol(name, TUNEPLANE_NODE_RUNTIME="docker", TUNEPLANE_NODE_RUNTIME_SOCKET=str(stub.socket), **settings)
    system.start(name)
    _wait_session(system, name)


def _connection(system: WholeSystem, name: str = "node") -> dict[str, Any]:
    return dict(system.client.get(f"/api/nodes/{system.id_of(name)}")["connection"])


def _wait_session(system: WholeSystem, name: str = "node", *, after: int = 0, seconds: float = 60.0) -> float:
    """Wait for a live session newer than epoch ``after``; how long it took."""
    began = time.monotonic()

    def look() -> tuple[bool | None, object]:
        try:
            seen = _connection(system, name)
        except ClientError as error:
            return None, error
        return (True if seen["state"] == "connected" and seen["epoch"] > after else None), seen

    wait_for(f"a new session of {name}", look, seconds)
    return time.monotonic() - began


def _in_use(relay: Relay) -> int:
    """The backend that has the Node's connection."""
    live = relay.live()
    assert sum(live) == 1, live
    return live.index(1)


def _sql(system: WholeSystem, text: str) -> list[list[str]]:
    return [row.split("|") for row in system.postgres.sql(text, urlsplit(system.dsn).path.lstrip("/")).splitlines()]


@contextmanager
def _running_jobs(system: WholeSystem, count: int = 4) -> Iterator[list[str]]:
    """Jobs that run through the block, and go on as if nothing had been: no stop, no restart, no second attempt."""
    jobs = [system.submit(["sim", "600", "0"]) for _ in range(count)]
    for job in jobs:
        system.wait_job(job, "running")
    yield jobs
    _assert_untouched(system, jobs)
    for job in jobs:
        system.client.post(f"/api/jobs/{job}/stop")
    for job in jobs:
        system.wait_job(job, "stopped")
    assert all(_starts(system, job) == 1 for job in jobs)


def _starts(system: WholeSystem, job: str) -> int:
    """By the runtime's own record."""
    lines = (system.directory / "engine.record").read_text().splitlines()
    return sum(line.startswith(f"start {JOB_PREFIX}{job}-") for line in lines)


def _assert_untouched(system: WholeSystem, jobs: list[str]) -> None:
    names = ", ".join(f"'{job}'" for job in jobs)
    assert _sql(system, f"SELECT DISTINCT state FROM job WHERE id IN ({names})") == [["running"]]
    attempts = f"attempt a JOIN member m ON m.attempt_id = a.id WHERE a.job_id IN ({names})"
    assert _sql(system, f"SELECT a.number, m.phase, count(*) FROM {attempts} GROUP BY 1, 2") == [["1", "running", str(len(jobs))]]
    assert not _sql(system, f"SELECT operation FROM command WHERE kind = 'stop' AND member_id IN (SELECT m.id FROM {attempts})")


# ---------------------------------------------------------------- half-open, swallowed, killed


def test_frozen_proxy_costs_one_idle_time_and_a_new_connection(lab: WholeSystem) -> None:
    """L-B1, R-SES-01, R-SES-03: SIGSTOP of the TCP proxy that has the connection; the new session is on another one within 30 s."""
    port = int(lab.processes["gateway"].env["TUNEPLANE_GATEWAY_LISTEN"].rsplit(":", 1)[1])
    with open_engine_stub(lab.directory, "proxied") as stub, open_relay(port) as one, open_relay(port) as two:
        with open_relay(one.port, two.port) as balancer:
            _enrol(lab, "proxied", stub, TUNEPLANE_NODE_GATEWAY=balancer.address)
            used = _in_use(balancer)
            epoch = _connection(lab, "proxied")["epoch"]
            (one, two)[used].freeze()
            took = _wait_session(lab, "proxied", after=epoch)
            assert took < 30 * FACTOR + ROOM_SECONDS
            assert balancer.accepted()[1 - used] == 1, "a new connection, by the other proxy"
            lab.stop("proxied")
            del lab.processes["proxied"]


def test_balancer_that_keeps_a_dead_gateway_is_got_over(node: WholeSystem) -> None:
    """L-B2, R-SES-06: nothing comes through to one of two gateways, for the old connection and for new ones."""
    relay = node.relays["node"]
    used = _in_use(relay)
    epoch = _connection(node)["epoch"]
    relay.blackhole(used)
    took = _wait_session(node, after=epoch)
    assert took < 45 * FACTOR + ROOM_SECONDS
    assert _in_use(relay) == 1 - used


def test_killed_gateway_is_replaced_by_the_next_at_once(node: WholeSystem) -> None:
    """L-B7, R-SES-06: no idle time is waited for; the first redial is within half a second, and finds the other gateway."""
    used = _in_use(node.relays["node"])
    epoch = _connection(node)["epoch"]
    node.kill(("gateway", "gateway2")[used])
    took = _wait_session(node, after=epoch)
    assert took < TIMINGS.reconnect_first + ROOM_SECONDS
    assert took < TIMINGS.session_idle
    assert _in_use(node.relays["node"]) == 1 - used


# ---------------------------------------------------------------- a control plane that is away


def test_control_plane_that_was_away_judges_nobody_when_it_returns(node: WholeSystem) -> None:
    """L-B8: all replicas down for longer than every lease and an inventory's freshness; back, no attempt fails, no Node is gone."""
    with _running_jobs(node):
        for name in CONTROL_PLANE:
            node.kill(name)
        time.sleep(60 * FACTOR)  # the time is the test
        node.start(*CONTROL_PLANE)
        _wait_session(node)
        time.sleep(TIMINGS.claim_lease + TIMINGS.session_idle)  # in which somebody might judge
    assert node.nodes()[0]["scheduling"]["state"] == "active"


def test_blocked_database_stops_and_restarts_nothing(node: WholeSystem) -> None:
    """L-B9, P-16, P-17: every query hangs for longer than sessions, leases and inventories may be silent."""
    with _running_jobs(node):
        epoch = _connection(node)["epoch"]
        _block_database(node, 50 * FACTOR)
        _wait_session(node)
        assert _connection(node)["epoch"] == epoch, "the session itself lived on"
        time.sleep(TIMINGS.claim_lease)  # in which somebody might judge


def _block_database(system: WholeSystem, seconds: float) -> None:
    """Hold every table of the launch; returns when it is over."""
    tables = "gateway, session, node, job, attempt, member, command, resource_hold, timeline"
    system.postgres.sql(
        f"BEGIN; LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({seconds}); COMMIT", urlsplit(system.dsn).path.lstrip("/")
    )


def test_stalled_gateways_stop_and_restart_nothing(node: WholeSystem) -> None:
    """L-B9: the event loops stand still, sessions break, jobs do not notice."""
    with _running_jobs(node):
        for name in ("gateway", "gateway2", "worker"):
            node.processes[name].freeze()
        time.sleep(50 * FACTOR)  # the time is the test
        for name in ("gateway", "gateway2", "worker"):
            node.processes[name].thaw()
        _wait_session(node)
        time.sleep(TIMINGS.claim_lease)


def test_database_failover_changes_no_liveness(node: WholeSystem) -> None:
    """L-B12, P-16: PostgreSQL away for 40 s; the session is the same one, and connected, all the time."""
    with _running_jobs(node, 1):
        before = _connection(node)
        node.postgres.kill()
        time.sleep(40 * FACTOR)  # the time is the test
        node.postgres.start()
        _wait_session(node)
        after = _connection(node)
        assert (after["epoch"], after["since"], after["gateway"]) == (before["epoch"], before["since"], before["gateway"])


# ---------------------------------------------------------------- a busy machine


SPIN = "for n in $(seq 8); do (while :; do :; done) & done"
FILL = "while :; do dd if=/dev/zero of=/dev/shm/full bs=1M count=100 2>/dev/null; done"
STRESS_HEARTBEATS = 5


@contextmanager
def _with_containers(system: WholeSystem, name: str) -> Iterator[Relay]:
    """In place of the Node with simulated containers one on Podman, and the relay that it dials."""
    port = int(system.processes["gateway"].env["TUNEPLANE_GATEWAY_LISTEN"].rsplit(":", 1)[1])
    with open_relay(port) as relay:
        system.enrol(name, TUNEPLANE_NODE_GATEWAY=relay.address, TUNEPLANE_NODE_RUNTIME_SOCKET=str(system.podman.socket))
        system.stop("node")
        system.start(name)
        try:
            _wait_session(system, name)
            yield relay
        finally:
            system.stop(name)
            del system.processes[name]
            system.start("node")


def test_busy_workload_does_not_starve_the_heartbeat(lab: WholeSystem) -> None:
    """L-B11: containers take all cores and their memory to the limit; the longest silence of the Node stays below 15 s."""
    with _with_containers(lab, "busy") as relay:
        pool = {"name": "main", "cpus": 2.0, "memory_gb": 0.256}
        jobs = [lab.sh(f"{SPIN}; {FILL}", resources={"pools": [pool]}) for _ in range(2)]
        for job in jobs:
            lab.wait_job(job, "running")
        relay.longest_silence()
        time.sleep(STRESS_HEARTBEATS * TIMINGS.heartbeat)  # the time is the test
        silence = relay.longest_silence()
        for job in jobs:
            lab.client.post(f"/api/jobs/{job}/stop")
            lab.wait_job(job, "stopped")
        print(f"longest silence {silence:.2f} s, heartbeat {TIMINGS.heartbeat:.2f} s")
        assert silence < 15 * FACTOR + ROOM_SECONDS / 2


def test_kernel_short_of_memory_takes_the_workload_before_the_daemon(lab: WholeSystem) -> None:
    """L-B11: a container tells its own score; the daemon's is lower."""
    witness = Witness.open(lab)
    with _with_containers(lab, "scored"):
        job = lab.sh(f"cat /proc/self/oom_score_adj > {witness.directory}/score")
        lab.wait_job(job, "succeeded")
        child = lab.processes["scored"].child
        assert child is not None
        ours = int(Path(f"/proc/{child.pid}/oom_score_adj").read_text())
    theirs = int((witness.directory / "score").read_text())
    assert theirs >= ours + 300
