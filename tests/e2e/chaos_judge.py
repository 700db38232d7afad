"""What must hold after the storm, by three witnesses: the database, the container runtimes, and the workload's own diary."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from attrs import define, field

from tests.support.evidence import FENCE, JOB_PREFIX, runtime_events
from tests.support.system import FINAL, WholeSystem, wait_for
from tuneplane.app.client import ClientError

from .chaos_user import Line, Submission, Users, boot_clock

CALM_SECONDS = 240.0  # the longest holds are 225 s at this factor; calm comes within 20 s, on a very busy machine later
SLACK_SECONDS = 0.05  # /proc/uptime tells hundredths, and two clocks are compared


@define(eq=False)
class Judge:
    """Collects every violation instead of stopping at the first."""

    system: WholeSystem
    users: Users
    violations: list[str] = field(factory=list)
    lines: dict[str, list[Line]] = field(factory=lambda: defaultdict(list))  # by member
    jobs: list[dict[str, Any]] = field(factory=list)

    def judge(self) -> None:
        """Wait for convergence, then look at everything."""
        self.violations += self.users.complaints
        self._await_calm()
        for line in self.users.diary.lines():
            self.lines[line.member].append(line)
        self.jobs = [self.system.job(str(each.job)) for each in self.users.submissions]
        self._judge_database()
        self._judge_starts()
        self._judge_runtimes()
        self._judge_ports()
        for submission, job in zip(self.users.submissions, self.jobs, strict=True):
            self._judge_job(submission, job)

    def check(self, holds: object, text: str) -> None:
        if not holds:
            self.violations.append(text)

    def sql(self, text: str) -> list[list[str]]:
        told = self.system.postgres.sql(text, urlsplit(self.system.dsn).path.lstrip("/"))
        return [row.split("|") for row in told.splitlines()]

    # ------------------------------------------------ convergence

    def _await_calm(self) -> None:
        """Every job at its end, cleaned, its holds released, and every Node ready, without anybody's help."""

        def look() -> tuple[bool | None, object]:
            try:
                nodes = [node["ready"] for node in self.system.nodes() if not node["ready"]["value"]]
            except ClientError as error:
                return None, error
            open_jobs = self.sql("SELECT id, state FROM job WHERE ended_at IS NULL")
            unclean = self.sql("SELECT id, phase, cleaned FROM member WHERE NOT cleaned")
            holds = [self.sql(f"SELECT member_id FROM {table}") for table in ("resource_hold", "gpu_hold", "port_hold")]
            return (True if not nodes and not open_jobs and not unclean and not any(holds) else None), (nodes, open_jobs, unclean, holds)

        wait_for("every job to end, and every hold", look, CALM_SECONDS)

    # ------------------------------------------------ the witnesses

    def _judge_database(self) -> None:
        used = self.sql("SELECT node_id FROM node_capacity WHERE cpu_millis_used <> 0 OR memory_bytes_used <> 0 OR staging_bytes_used <> 0")
        self.check(not used, f"capacity in use with nothing held: {used}")
        late = self.sql(
            "SELECT c.operation FROM command c JOIN member m ON m.id = c.member_id JOIN attempt a ON a.id = m.attempt_id"
            " JOIN job j ON j.id = a.job_id WHERE c.kind IN ('prepare', 'commit') AND c.created_at > j.stop_asked_at"
        )
        self.check(not late, f"commands decided after the stop was accepted: {late}")
        attempts = self.sql("SELECT a.id FROM attempt a JOIN job j ON j.id = a.job_id WHERE a.created_at > j.stop_asked_at")
        self.check(not attempts, f"attempts made after the stop was accepted: {attempts}")
        keys = [each.key for each in self.users.submissions]
        jobs = {str(each.job) for each in self.users.submissions}
        stored = {row[0] for row in self.sql("SELECT id FROM job WHERE idempotency_key LIKE 'chaos-%'")}
        self.check(stored == jobs, f"{len(keys)} submissions, jobs {len(jobs)}, in the database {len(stored)}")

    def _judge_starts(self) -> None:
        """At most one container ever ran under a member identity, and none under an unknown one."""
        known = {row[0]: row[1:] for row in self.sql("SELECT id, phase, coalesce(exit_code::text, '') FROM member")}
        for member, lines in self.lines.items():
            starts = [line for line in lines if line.what == "start"]
            speechless = [line.what for line in lines] == ["term"]  # its stop came between its trap and its first word
            self.check(len(starts) == 1 or speechless, f"{member} was started {len(starts)} times: {lines}")
            self.check(member in known, f"{member} ran, and the database does not know it")
            self.check(known.get(member, [""])[0] != "aborted", f"{member} ran, and is told to have never been started: {lines}")
        whole = (
            "SELECT m.id FROM member m JOIN attempt a ON a.id = m.attempt_id JOIN job j ON j.id = a.job_id"
            " WHERE a.running_at IS NOT NULL AND j.idempotency_key LIKE 'chaos-%'"
        )
        for (member,) in self.sql(whole):
            self.check(self.lines.get(member), f"the attempt of {member} is told to have run as a whole, and this member never did")
        self._judge_stops()

    def _judge_stops(self) -> None:
        """No start is begun after a stop was taken. One that was under way then, in an engine that hangs, may still happen:
        its container exists already (and is ended: it is nowhere left over)."""
        taken = self.sql("SELECT member_id, extract(epoch FROM answered_at) FROM command WHERE kind = 'stop' AND answered_at IS NOT NULL")
        created = self._creations()
        offset = time.time() - boot_clock()
        for member, answered in taken:
            for line in self.lines.get(member, []):
                late = line.at + offset - float(answered)
                begun = created.get(JOB_PREFIX + member, float("inf")) <= float(answered)
                self.check(
                    line.what != "start" or late <= SLACK_SECONDS or begun,
                    f"{member} started {late:.2f} s after its Node had taken the stop",
                )

    def _creations(self) -> dict[str, float]:
        """By name of the workload's container: when its engine made it, in seconds since 1970."""
        return {
            event["Name"]: datetime.fromisoformat(event["Time"]).timestamp()
            for podman in self.system.podmans.values()
            for event in runtime_events(podman)
            if event["Type"] == "container" and event["Status"] == "create" and not (event.get("Attributes") or {}).get(FENCE)
        }

    def _judge_runtimes(self) -> None:
        """The engines' own records: one start a name, on one Node only, and nothing of ours left but fences never started."""
        where: dict[str, set[str]] = defaultdict(set)
        for node, podman in self.system.podmans.items():
            starts: dict[str, list[str]] = defaultdict(list)
            fences = set()
            for event in runtime_events(podman):
                if event["Type"] != "container" or not event["Name"].startswith(JOB_PREFIX):
                    continue
                if event["Status"] == "start":
                    starts[event["Name"]].append(event["ID"])
                    where[event["Name"]].add(node)
                if (event.get("Attributes") or {}).get(FENCE):
                    fences.add(event["ID"])
            for name, ids in starts.items():
                self.check(len(ids) == 1, f"{node}: {name} was started {len(ids)} times: {ids}")
                self.check(not fences & set(ids), f"{node}: the fence {name} was started")
            left = [one for one in podman.containers() if one["State"] != "created"]
            self.check(not left, f"{node}: containers left: {[(one['Names'], one['State']) for one in left]}")
        self.check(all(len(nodes) == 1 for nodes in where.values()), f"containers on two Nodes: {where}")

    def _judge_ports(self) -> None:
        """Two members that lived at the same time never had the same port of one machine (R-PLC-05)."""
        lives: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
        for member, lines in self.lines.items():
            attempt = member.rsplit("-", 1)[0]
            port = lines[0].ports
            if port and member.endswith("-0"):
                lives[port].append((lines[0].at, max(line.at for line in lines), attempt))
        for port, intervals in lives.items():
            ordered = sorted(intervals)
            for former, later in pairwise(ordered):
                self.check(later[0] > former[1], f"port {port} was given to {former} and {later} at once")

    # ------------------------------------------------ one job

    def _judge_job(self, submission: Submission, job: dict[str, Any]) -> None:
        told = f"{job['id']} ({submission.plan}) {job['state']} {job['reason_code']}"
        self.check(job["state"] in FINAL, f"{told}: not at its end")
        members = [member for attempt in job["attempts"] for member in attempt["members"]]
        for member in members:
            self._judge_member(told, member)
        if job["state"] == "succeeded":
            last = job["attempts"][-1]["members"]
            self.check(len(last) == submission.plan.machines, f"{told}: {len(last)} members")
            for member in last:
                self.check(
                    "0" in self._ends(member["id"]),
                    f"{told}: success of {member['id']} without its own end: {self.lines.get(member['id'])}",
                )
        if job["state"] == "stopped":
            self.check(job.get("stop_asked_at") or submission.stop_accepted_at is not None, f"{told}: nobody asked for a stop")
        self.check(len(job["attempts"]) <= 1 + submission.plan.retries, f"{told}: {len(job['attempts'])} attempts")
        for attempt in job["attempts"]:
            self._judge_gang(told, attempt)

    def _judge_member(self, told: str, member: dict[str, Any]) -> None:
        """What the database says of an end is what the container itself said."""
        code, lines = member["exit_code"], self.lines.get(member["id"], [])
        if code is None:
            return
        self.check(lines, f"{told}: {member['id']} has exit code {code} and never ran")
        if code in (137, 143):
            return
        self.check(str(code) in self._ends(member["id"]), f"{told}: {member['id']} exit code {code}, its own word {lines}")

    def _judge_gang(self, told: str, attempt: dict[str, Any]) -> None:
        """Whole, or stopped: when one member began, either all did, or none ended well as if the gang had been whole."""
        members = attempt["members"]
        began = [member for member in members if self.lines.get(member["id"])]
        if began and len(began) < len(members):
            short = [member["id"] for member in members if member not in began]
            self.check(attempt["state"] == "ended", f"{told}: a part of the gang ran, without {short}: {json.dumps(attempt)[:500]}")

    def _ends(self, member: str) -> list[str]:
        return [line.detail for line in self.lines.get(member, []) if line.what == "end"]
