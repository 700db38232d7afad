"""A thousand people submit at once while API, workers and gateway are killed at random: accepted is durable (L-C18).

Three in twenty want their job to run, the others stop theirs as soon as it is accepted, so that two cores get through it within
a minute; ``TUNEPLANE_SUBMISSIONS_RUN=1000`` lets all of them run.

The control plane, PostgreSQL and the Nodes' daemons are real processes; behind the daemons is an Engine API without
containers (tests/support/engine_stub.py), whose own record tells what was started. The same again with fifty real containers.
"""

from __future__ import annotations

import json
import os
import random
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from attrs import define, field

from tests.support.engine_stub import EngineStub, open_engine_stub
from tests.support.evidence import JOB_PREFIX, Witness, runtime_events
from tests.support.process import wait_for
from tests.support.system import WholeSystem, numbered, open_system_of_processes
from tests.support.zygote import open_zygote
from tuneplane.app.client import tls_context

pytestmark = [
    pytest.mark.e2e,
    # http.client leaves the socket of a TLS handshake that a killed API cut short to the garbage collector
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
]

MANY = 1000
RUN = int(os.environ.get("TUNEPLANE_SUBMISSIONS_RUN") or 150)
REAL = 50
FACTOR = "0.25"  # idle time 5 s, leases 4 s: a thousand people at once keep two cores busy for longer than 0.1 allows
NODES = 3
PAUSE_SECONDS = (0.6, 1.8)  # between two kills: longer than a start takes, so that between them something is done
MOST_KILLS = 12  # then it may finish: two busy cores need the rest of the time for the work
ANSWER_SECONDS = 120.0  # of one try; nothing is gained by asking a busy server twice
LONGEST_RETRY_SECONDS = 4.0
DONE_SECONDS = 240.0  # measured 40 s on two idle cores
EXIT_CODES = (0, 0, 3)
OVERDUE = frozenset({"prepare-deadline", "commit-deadline"})  # what a very busy machine may make of a launch: told, and stopped
MOST_OVERDUE = 0.01
VICTIMS = ("api", "worker", "worker2", "gateway")


@define(eq=False)
class Asked:
    """One person's submission, by its Idempotency-Key."""

    key: str
    spec: dict[str, Any]
    exit_code: int
    stops: bool = False  # as soon as it is accepted
    answers: list[str] = field(factory=list)  # job ids, one an answer
    lost: Counter[str] = field(factory=Counter)  # tries without an answer, by what was seen instead
    refusal: str = ""  # an answer that no submission here may get

    @property
    def repeats(self) -> bool:
        """One of ten submits a second time though it was answered."""
        return self.key.endswith("0")


@define(eq=False)
class Killer:
    """SIGKILL of one of VICTIMS and its start, again and again, in a thread of its own."""

    system: WholeSystem
    chance: random.Random
    kills: Counter[str] = field(factory=Counter)
    failure: BaseException | None = None
    _over: threading.Event = field(factory=threading.Event)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(60.0)
        assert self.failure is None, f"the killer failed: {self.failure!r}"

    def _work(self) -> None:
        try:
            while self.kills.total() < MOST_KILLS and not self._over.wait(self.chance.uniform(*PAUSE_SECONDS)):
                victim = self.chance.choice(VICTIMS)
                self.system.kill(victim)
                self.system.processes[victim].start()
                self.kills[victim] += 1
        except BaseException as error:  # told by the thread that waits
            self.failure = error


def _submit_all(system: WholeSystem, asked: list[Asked]) -> None:
    """All at once, each on a connection of its own until it has an answer, and one of ten a second time."""
    tls = tls_context(system.credentials.ca_pem)
    threads = [threading.Thread(target=_submit, args=(system, tls, mine), daemon=True) for mine in asked]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + DONE_SECONDS
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    refused = [mine.refusal for mine in asked if mine.refusal]
    assert not refused, refused[:3]
    assert not any(thread.is_alive() for thread in threads), f"{sum(not mine.answers for mine in asked)} have no answer"


def _submit(system: WholeSystem, tls: ssl.SSLContext, mine: Asked) -> None:
    where = urlsplit(system.console_url)
    connection = HTTPSConnection(str(where.hostname), where.port, timeout=ANSWER_SECONDS, context=tls)
    token = system.credentials.token
    try:
        for _ in range(2 if mine.repeats else 1):
            mine.answers.append(str(_post(connection, token, mine, "/api/jobs", mine.spec)["id"]))
        if mine.stops:
            _post(connection, token, mine, f"/api/jobs/{mine.answers[0]}/stop", {})
    finally:
        connection.close()


def _post(connection: HTTPSConnection, token: str, mine: Asked, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Until there is an answer."""
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": mine.key, "Content-Type": "application/json"}
    while True:
        try:
            connection.request("POST", path, json.dumps(body), headers)
            with connection.getresponse() as answer:
                status, data = answer.status, answer.read()
        except (OSError, HTTPException) as error:
            connection.close()
            status, data = 599, type(error).__name__.encode()
        if status in (200, 201, 202):
            return dict(json.loads(data))
        if status < 500 and status != 429:
            mine.refusal = f"{status}: {data!r}"
            raise AssertionError(mine.refusal)
        mine.lost[data.decode() if status == 599 else str(status)] += 1
        time.sleep(random.uniform(0.0, min(LONGEST_RETRY_SECONDS, 0.1 * 2.0 ** mine.lost.total())))  # as clients do


def _storm(system: WholeSystem, asked: list[Asked], seed: str) -> None:
    """Submit and finish under fire, then wait for the last end."""
    began = time.monotonic()
    killer = Killer(system, random.Random(seed))
    with killer.at_work():
        _submit_all(system, asked)
        accepted = time.monotonic() - began
        wait_for("every job to end", lambda: _all_ended(system, killer), DONE_SECONDS)
    took = time.monotonic() - began
    lost = sum((mine.lost for mine in asked), Counter())
    print(
        f"{len(asked)} accepted in {accepted:.1f} s with {dict(lost)} instead of answers, ended in {took:.1f} s, kills {dict(killer.kills)}"
    )


def _all_ended(system: WholeSystem, killer: Killer) -> tuple[bool | None, object]:
    assert killer.failure is None, f"the killer failed: {killer.failure!r}"
    states = _sql(system, "SELECT state, count(*) FROM job GROUP BY state")
    unclean = _sql(system, "SELECT count(*) FROM member WHERE NOT cleaned")
    return (True if {row[0] for row in states} <= {"succeeded", "failed", "stopped"} and unclean == [["0"]] else None), (states, unclean)


def _sql(system: WholeSystem, text: str) -> list[list[str]]:
    return [row.split("|") for row in system.postgres.sql(text, urlsplit(system.dsn).path.lstrip("/")).splitlines()]


def _judge(system: WholeSystem, asked: list[Asked], starts: Counter[str]) -> None:
    """``starts``: how often the runtime started a container of each job."""
    for mine in asked:
        assert len(set(mine.answers)) == 1, f"{mine.key} was answered with {mine.answers}"
    ids = [mine.answers[0] for mine in asked]
    assert len(set(ids)) == len(asked), "two keys, one job"
    stored = {row[0]: row[1:] for row in _sql(system, "SELECT id, state, idempotency_key, reason_code FROM job")}
    assert set(stored) == set(ids), "what was accepted, and what the database has, differ"
    members = _sql(system, "SELECT a.job_id, m.exit_code, m.phase FROM member m JOIN attempt a ON a.id = m.attempt_id")
    codes = {row[0]: row[1:] for row in members}
    wrong = []
    overdue = 0
    for mine, job in zip(asked, ids, strict=True):
        state, key, reason = stored[job]
        assert key == mine.key
        if state == "failed" and reason in OVERDUE and starts[job] <= 1:
            overdue += 1
        elif not _is_right(mine, state, codes.get(job), starts[job]):
            wrong.append((job, state, reason, codes.get(job), starts[job], mine.exit_code, mine.stops))
    assert not wrong, f"{len(wrong)} of {len(asked)} (job, state, reason, member, starts, planned exit code, stopped): {wrong[:10]}"
    assert overdue <= MOST_OVERDUE * len(asked)
    attempts = _sql(system, "SELECT job_id, count(*) FROM attempt GROUP BY job_id HAVING count(*) <> 1")
    assert not attempts, f"jobs with several attempts: {attempts}"
    ends = _sql(
        system, "SELECT job_id, count(*) FROM timeline WHERE kind IN ('job.succeeded', 'job.failed', 'job.stopped') GROUP BY job_id"
    )
    assert dict(map(tuple, ends)) == dict.fromkeys(ids, "1"), "an end that was told twice, or never"
    for table in ("resource_hold", "gpu_hold", "port_hold"):
        assert not _sql(system, f"SELECT * FROM {table}")


def _is_right(mine: Asked, state: str, member: list[str] | None, starts: int) -> bool:
    """Ended as planned, after one start; or stopped, after one start or none."""
    if mine.stops and state == "stopped":
        return starts == 0 or (starts == 1 and member is not None and member[1] == "terminated")
    return (state, member, starts) == ("succeeded" if mine.exit_code == 0 else "failed", [str(mine.exit_code), "terminated"], 1)


def _job_of(name: str) -> str:
    return name.removeprefix(JOB_PREFIX).rsplit("-", 2)[0]


def test_thousand_submissions_survive_kills_of_api_worker_and_gateway() -> None:
    """L-C18, R-LCH-01, R-LCH-02, R-LCH-14: nothing lost, nothing doubled, every accepted job reaches its end exactly once."""
    with ExitStack() as stack:
        zygote = stack.enter_context(open_zygote())
        system = stack.enter_context(open_system_of_processes(factor=FACTOR, spawn=zygote.spawn, node=False, workers=2))
        stubs = _enrol_stubs(stack, system)
        asked = [_simulated(system, number) for number in range(MANY)]
        _storm(system, asked, "many")
        starts = Counter(_job_of(name) for stub in stubs for name, _ in stub.events("start"))
        _judge(system, asked, starts)


def _enrol_stubs(stack: ExitStack, system: WholeSystem) -> list[EngineStub]:
    stubs = []
    names = numbered("machine", NODES)
    for name in names:
        stub = stack.enter_context(open_engine_stub(system.directory, name))
        settings = {"TUNEPLANE_NODE_RUNTIME": "docker", "TUNEPLANE_NODE_RUNTIME_SOCKET": str(stub.socket)}
        system.enrol(name, **settings, TUNEPLANE_NODE_CPUS="8", TUNEPLANE_NODE_MEMORY_GB="64")
        stubs.append(stub)
    system.start(*names)
    system.wait_ready(count=NODES)
    return stubs


def _simulated(system: WholeSystem, number: int) -> Asked:
    code = EXIT_CODES[number % len(EXIT_CODES)]
    return Asked(f"many-{number}", system.spec(["sim", f"{0.02 * (number % 10)}", str(code)]), code, stops=number * 7 % MANY >= RUN)


def test_fifty_real_containers_survive_the_same() -> None:
    """L-C18: the runtime's own events and the containers' own files are the witnesses."""
    with open_zygote() as zygote, open_system_of_processes(factor=FACTOR, spawn=zygote.spawn, workers=2) as system:
        witnesses = [Witness.open(system) for _ in range(REAL)]
        codes = [EXIT_CODES[number % len(EXIT_CODES)] for number in range(REAL)]
        scripts = [witness.script(code, waits=False) for witness, code in zip(witnesses, codes, strict=True)]
        asked = [
            Asked(f"real-{number}", system.spec(["sh", "-c", script]), code)
            for number, (script, code) in enumerate(zip(scripts, codes, strict=True))
        ]
        _storm(system, asked, "real")
        started = [event["Name"] for event in runtime_events(system.podman) if event["Status"] == "start"]
        _judge(system, asked, Counter(_job_of(name) for name in started))
        for witness in witnesses:
            assert len(witness.starts()) == 1, witness.starts()
