"""The users of the chaos test: they submit, stop and read at random, repeat what got no answer, and keep a diary.

The diary is the workload's own word. Every container appends to one file below the storage root: a line at its start, one
at a SIGTERM and one at its own end, each with the member's identity and the machine's boot-relative clock.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from tests.support.system import WholeSystem
from tuneplane.app.client import ApiClient, ApiRefused, ClientError

MOST_JOBS_LIVE = 16  # a little more than three Nodes hold at once, so that some wait
PAUSE_SECONDS = 0.2  # mean, between two acts of a user
LONGEST_SECONDS = 4.0  # of a job that ends by itself
EXIT_CODES = (0, 0, 0, 3, 7)
FINAL = frozenset({"succeeded", "failed", "stopped"})


def boot_clock() -> float:
    """Seconds since boot, as /proc/uptime tells it inside every container."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@frozen
class Line:
    """One line of the diary. ``at`` is boot-relative seconds (of a hundredth)."""

    what: str
    member: str
    at: float
    detail: str
    ports: str


@define(eq=False)
class Diary:
    path: Path

    def script(self, plan: Plan) -> str:
        """Note the start with a nonce; then live as ``plan`` says."""
        note = f'note() {{ read up rest < /proc/uptime; echo "$1 $TUNEPLANE_MEMBER $up $2 $TUNEPLANE_MAIN_PROCESS_PORT." >> {self.path}; }}'
        heed = ":" if plan.deaf else "exit 143"
        begin = f"{note}; trap 'note term 143; {heed}' TERM; note start $(cat /proc/sys/kernel/random/uuid); echo up $TUNEPLANE_MEMBER"
        code = plan.exit_code if not plan.fails_rank else f"$(( $TUNEPLANE_MACHINE_RANK == 0 ? {plan.exit_code} : 0 ))"
        live = f"n=0; while [ $n -lt {round(plan.seconds * 20)} ]; do sleep 0.05; n=$((n+1)); done; "
        return f"{begin}; {live}code={code}; note end $code; exit $code"

    def lines(self) -> list[Line]:
        """A line that a killed machine cut short would be a failure of the test's own: appends this small are whole."""
        if not self.path.exists():
            return []
        found = []
        for text in self.path.read_text().splitlines():
            what, member, at, detail, ports = text.split(" ")
            found.append(Line(what, member, float(at), detail, ports.rstrip(".")))
        return found


@frozen
class Plan:
    """How one job lives."""

    seconds: float
    exit_code: int
    machines: int
    deaf: bool  # ignores SIGTERM
    retries: int
    cpus: float
    fails_rank: bool  # of a gang: only rank 0 ends with ``exit_code``


@define(eq=False)
class Submission:
    """One job as its user knows it."""

    key: str
    plan: Plan
    spec: dict[str, Any]
    job: str | None = None  # once an answer came
    stop_accepted_at: float | None = None  # wall clock, when the first accepting answer came


@define(eq=False)
class Users:
    """Acts in a thread of its own until told to stop. ``complaints`` are answers that break a promise."""

    system: WholeSystem
    diary: Diary
    chance: random.Random
    client: ApiClient
    gangs: bool
    retries: bool
    submissions: list[Submission] = field(factory=list)
    complaints: list[str] = field(factory=list)
    _leaving: threading.Event = field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._act_until_told, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._leaving.set()
        assert self._thread is not None
        self._thread.join(90.0)
        assert not self._thread.is_alive(), "a user still waits for an answer"

    def _act_until_told(self) -> None:
        while not self._leaving.wait(self.chance.expovariate(1 / PAUSE_SECONDS)):
            try:
                self._act()
            except ClientError:
                continue  # no answer: a user tries something else
            except Exception as error:  # anything else is a finding; the thread must not end in silence
                self.complaints.append(f"{type(error).__name__}: {error}")

    def _act(self) -> None:
        dice = self.chance.random()
        unanswered = [each for each in self.submissions if each.job is None]
        if unanswered and dice < 0.5:
            self.post(self.chance.choice(unanswered))
        elif dice < 0.55:
            self._submit_new()
        elif dice < 0.75:
            self._stop_one()
        elif dice < 0.85:
            self._repeat_one()
        else:
            self._read_one()

    def _submit_new(self) -> None:
        live = [job for job in self.client.get("/api/jobs?limit=100")["items"] if job["state"] not in FINAL]
        if len(live) >= MOST_JOBS_LIVE:
            return
        plan = self._plan()
        submission = Submission(f"chaos-{len(self.submissions)}", plan, self._spec(plan))
        self.submissions.append(submission)
        self.post(submission)

    def _plan(self) -> Plan:
        chance = self.chance
        machines = chance.choice([2, 2, 3]) if self.gangs and chance.random() < 0.35 else 1
        return Plan(
            seconds=chance.uniform(0.0, LONGEST_SECONDS) if chance.random() < 0.8 else 1e6,
            exit_code=chance.choice(EXIT_CODES),
            machines=machines,
            deaf=chance.random() < 0.15,
            retries=1 if self.retries and chance.random() < 0.15 else 0,
            cpus=chance.choice([0.3, 0.9, 1.8]),
            fails_rank=machines > 1 and chance.random() < 0.5,
        )

    def _spec(self, plan: Plan) -> dict[str, Any]:
        pool = {"name": "main", "nodes": plan.machines, "cpus": plan.cpus, "memory_gb": 0.064}
        command = ["sh", "-c", self.diary.script(plan)]
        body: dict[str, Any] = {"resources": {"pools": [pool]}, "stop": {"signal": "SIGTERM", "grace_seconds": 1.0}}
        return self.system.spec(command, **body, retries=plan.retries)

    def post(self, submission: Submission) -> None:
        """Submit, or repeat a submission: one key is one job for ever."""
        job = str(self.client.post("/api/jobs", submission.spec, idempotency_key=submission.key)["id"])
        if submission.job not in (None, job):
            self.complaints.append(f"{submission.key} is {submission.job}, and then {job}")
        submission.job = job

    def _known(self) -> list[Submission]:
        return [each for each in self.submissions if each.job is not None]

    def _stop_one(self) -> None:
        if known := self._known():
            self.stop_job(self.chance.choice(known[-10:]))

    def stop_job(self, submission: Submission) -> None:
        answer = self.client.post(f"/api/jobs/{submission.job}/stop")
        if answer["state"] == "stopping" and submission.stop_accepted_at is None:
            submission.stop_accepted_at = time.time()

    def _repeat_one(self) -> None:
        if known := self._known():
            self.post(self.chance.choice(known))

    def _read_one(self) -> None:
        if known := self._known():
            submission = self.chance.choice(known[-10:])
            try:
                self.client.read_log(str(submission.job), offset=0)
            except ApiRefused:
                return  # nothing to read yet

    def settle(self) -> None:
        """After the storm: get an answer for everything, and stop what would run for ever."""
        for submission in self.submissions:
            self.post(submission)
            if submission.plan.seconds > LONGEST_SECONDS:
                self.stop_job(submission)
