"""One long-lived real system, and the means to strike any of its processes at a named point and to see it heal."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from attrs import define, field, frozen

from tests.support.evidence import Witness, assert_ran_at_most_once
from tests.support.system import FINAL, FLEET, START_SECONDS, Process, WholeSystem, open_system_of_processes, wait_for
from tests.support.zygote import open_zygote
from tuneplane.app.client import ApiRefused, ClientError
from tuneplane.domain.node_member import PROGRESS_TICKS

T = TypeVar("T")

SERVICES = ("api", "gateway", "worker", "node")
HEAL_SECONDS = 30.0  # the slowest way round is a lease and a reconnect: two seconds; two busy cores may take far longer
END_SECONDS = 30.0


@frozen
class Strike:
    """One case: the fault of one point in the one process that owns it."""

    point: str
    moment: str
    process: str
    nth: int = 1
    lost: bool = False  # whether the launch must end as ``lost``: the point lies between an intent and its only effect

    @property
    def line(self) -> str:
        return f"{self.point}:{self.moment}:{self.nth}"

    def __str__(self) -> str:
        return f"{self.point}-{self.moment}" + (f"-{self.nth}" if self.nth > 1 else "")


@define(eq=False)
class Rig:
    """The system under test. ``down`` names processes that are left dead on purpose for a while."""

    system: WholeSystem
    down: set[str] = field(factory=set)
    broken: bool = False  # a case left it beyond healing
    _numbers: int = 0

    # ---------------------------------------------------------------- faults

    def plan(self, process: str) -> Path:
        """The plan file of a process; all daemons of Nodes share one."""
        return self.system.directory / "plans" / process

    def environment(self, process: str) -> dict[str, str]:
        return {"TUNEPLANE_FAULT_TESTING": "1", "TUNEPLANE_FAULT_PLAN": str(self.plan(process))}

    def arm(self, process: str, *lines: str) -> None:
        """Arm a running process, or one about to start."""
        plan = self.plan(process)
        plan.with_name(plan.name + ".struck").unlink(missing_ok=True)
        partial = plan.with_name(plan.name + ".new")
        partial.write_text("".join(f"{line}\n" for line in lines))
        os.replace(partial, plan)

    def strike(self, strike: Strike) -> None:
        self.arm(strike.process, strike.line)

    def struck(self, process: str) -> list[str]:
        path = self.plan(process).with_name(process + ".struck")
        return path.read_text().splitlines() if path.exists() else []

    def wait_struck(self, strike: Strike) -> None:
        """Wait until the point was reached (and, for a kill, the process is dead or was revived)."""

        def look() -> tuple[bool | None, object]:
            seen = self.struck(strike.process)
            return (True if strike.line in seen else None), seen

        self.wait(f"{strike.line} to strike {strike.process}", look)

    # ---------------------------------------------------------------- processes

    def revive(self) -> None:
        """As an init system: start again what a fault has ended. Any other end is a failure of ours."""
        for name, process in self.system.processes.items():
            if process.child is None or name in self.down or process.child.poll() is None:
                continue
            status = process.child.returncode
            process.child = None
            struck = self.struck(self._plan_of(process))
            assert struck, f"{name} ended by itself with status {status}: {process.tail()}"
            process.start()

    def run_until_done(self, process: Process, *, done_already: str = "") -> None:
        """Run a command, as a person would: again when the fault has ended it; ``done_already`` is how a repeat may say that
        the first try had done it. Others are revived meanwhile."""
        self.down.add(process.name)
        for left in (1, 0):
            status = self._run(process)
            if status == 0 or (done_already and not left and done_already in process.tail()):
                break
            may_repeat = left and self.struck(self._plan_of(process))
            assert may_repeat, f"{process.name}: status {status}: {process.tail()}"
        del self.system.processes[process.name]
        self.down.discard(process.name)

    def _run(self, process: Process) -> int:
        process.start()
        child = process.child
        assert child is not None
        status = self.wait(f"{process.name} to be done", lambda: (None if child.poll() is None else [child.poll()], process.tail()))[0]
        process.child = None
        assert status is not None
        return status

    def bring_up(self, *names: str) -> None:
        """Start, through whatever faults strike meanwhile, until all say that they are up."""
        for name in names:
            self.down.discard(name)
            self.system.processes[name].start()
        for name in names:
            process = self.system.processes[name]
            self.wait(f"{name} to be up", lambda process=process: (process.says_up() or None, process.tail()), START_SECONDS)  # type: ignore[misc]

    def take_down(self, *names: str) -> None:
        """SIGTERM; a fault on the way may kill it instead."""
        for name in names:
            child = self.system.processes[name].child
            assert child is not None
            self.down.add(name)
            child.send_signal(signal.SIGTERM)
            child.wait(END_SECONDS)
            self.system.processes[name].child = None

    def kill(self, *names: str) -> None:
        for name in names:
            self.down.add(name)
            if self.system.processes[name].child is not None:
                self.system.kill(name)

    def wait(self, what: str, look: Callable[[], tuple[T | None, object]], seconds: float = HEAL_SECONDS) -> T:
        """As wait_for, reviving meanwhile."""

        def looked() -> tuple[T | None, object]:
            self.revive()
            return look()

        try:
            return wait_for(what, looked, seconds)
        except AssertionError as error:
            raise AssertionError("\n\n".join([str(error), *self.last_words()])) from None

    def last_words(self) -> list[str]:
        """The ends of all logs, for whoever must find out what happened."""
        return [f"--- {name}\n{process.tail()}" for name, process in self.system.processes.items()]

    def _plan_of(self, process: Process) -> str:
        return Path(process.env["TUNEPLANE_FAULT_PLAN"]).name

    # ---------------------------------------------------------------- the API

    def ask(self, call: Callable[[], T]) -> T:
        """The answer of the API, asked again until it gives one; a refusal is an answer and comes out."""

        def look() -> tuple[list[T] | None, object]:
            try:
                return [call()], None
            except ClientError as error:
                return None, error

        return self.wait("the API to answer", look)[0]

    def ask_gone(self, call: Callable[[], object]) -> None:
        """As ask, for a step whose repeat may find its own work done: ``exists``, or nothing there any more."""
        try:
            self.ask(call)
        except ApiRefused as refused:
            if refused.status not in (404, 409):
                raise

    def submit(self, script: str, **body: Any) -> str:
        key = secrets.token_hex(8)
        spec = self.system.spec(["sh", "-c", script], **body)
        return str(self.ask(lambda: self.system.client.post("/api/jobs", spec, idempotency_key=key))["id"])

    def stop(self, job: str) -> None:
        self.ask(lambda: self.system.client.post(f"/api/jobs/{job}/stop"))

    def job(self, job: str) -> dict[str, Any]:
        return self.ask(lambda: self.system.job(job))

    def wait_state(self, job: str, *states: str, seconds: float = HEAL_SECONDS) -> dict[str, Any]:
        def look() -> tuple[dict[str, Any] | None, object]:
            seen = self.job(job)
            assert seen["state"] in states or seen["state"] not in FINAL, seen
            return (seen if seen["state"] in states else None), seen

        return self.wait(f"{job} to be {' or '.join(states)}", look, seconds)

    def wait_ready(self) -> None:
        def look() -> tuple[bool | None, object]:
            nodes = self.ask(self.system.nodes)
            return (True if nodes and all(node["ready"]["value"] for node in nodes) else None), [node["ready"] for node in nodes]

        self.wait("the Node to be ready", look)

    def wait_hold(self) -> tuple[str, str]:
        """Until a Node holds our commands; the ids of the Node and of its hold (P-07)."""

        def look() -> tuple[tuple[str, str] | None, object]:
            nodes = self.ask(self.system.nodes)
            held = [(node["id"], node["inventory"]["hold"]["id"]) for node in nodes if (node["inventory"] or {}).get("hold")]
            return (held[0] if held else None), nodes

        return self.wait("a Node to hold our commands", look)

    def wait_strangers(self, *containers: str) -> None:
        """Until the Node's inventory tells of exactly these (P-07), and the Node has no record of any when there are none."""

        def look() -> tuple[bool | None, object]:
            nodes = self.ask(self.system.nodes)
            seen = [one["container"] for node in nodes for one in (node["inventory"] or {}).get("strangers", [])]
            left = [] if containers else self.sql_journal("SELECT member FROM member WHERE member LIKE 'job-of-old%'")
            return (True if tuple(seen) == containers and not left else None), (seen, left)

        self.wait(f"the strangers to be {containers}", look)

    # ---------------------------------------------------------------- what must hold at the end

    def converge(self, job: str, witness: Witness, state: str, *, exit_code: int | None, reason: str = "") -> int:
        """The job ends as it must, cleaned, its holds released; how often a container was started for it: never or once."""
        ended = self.wait_state(job, *FINAL)
        assert len(ended["attempts"]) == 1, ended
        [member] = ended["attempts"][0]["members"]
        assert (ended["state"], member["exit_code"], member["reason_code"]) == (state, exit_code, reason), ended
        self.wait_cleaned(job)
        assert not self.holds(job)
        return assert_ran_at_most_once(self.system, job, witness)

    def wait_cleaned(self, job: str) -> None:
        """Clean-up is confirmed, and the runtime has nothing of it but a fence that was never started."""

        def look() -> tuple[bool | None, object]:
            members = [member for attempt in self.job(job)["attempts"] for member in attempt["members"]]
            left = [one for one in self.system.containers(job) if one["State"] != "created"]
            return (True if all(member["cleaned"] for member in members) and not left else None), (members, left)

        self.wait(f"{job} to be cleaned", look)

    def holds(self, job: str) -> list[str]:
        tables = ("resource_hold", "gpu_hold", "port_hold")
        sql = " UNION ALL ".join(f"SELECT member_id FROM {table} WHERE member_id LIKE '{job}-%'" for table in tables)
        return self.sql(sql).splitlines()

    def sql(self, text: str) -> str:
        return self.system.postgres.sql(text, self._database)

    @property
    def _database(self) -> str:
        return urlsplit(self.system.dsn).path.lstrip("/")

    def reports_wait(self, job: str) -> AbstractContextManager[None]:
        """In the block what Nodes report of ``job`` is not stored; what is sent to them is sent."""
        return self.system.postgres.held(f"SELECT FROM member WHERE id LIKE '{job}-%' FOR SHARE", self._database)

    def journal_phase(self, member: str) -> str | None:
        """The phase of ``member`` in the Node's journal; None when it has no record of it."""
        path = self.node_state_dir / "journal.sqlite3"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as journal:
            row = journal.execute("SELECT phase FROM member WHERE member = ?", (member,)).fetchone()
        return str(row[0]) if row else None

    def wait_acknowledged(self, job: str) -> None:
        """Until the database has what the journal has of the job's one member."""
        [member] = self.job(job)["attempts"][0]["members"]

        def look() -> tuple[bool | None, object]:
            stored = int(self.sql(f"SELECT revision FROM member WHERE id = '{member['id']}'"))
            [journalled] = self.sql_journal(f"SELECT revision FROM member WHERE member = '{member['id']}'")
            return (True if stored >= journalled[0] * PROGRESS_TICKS else None), (stored, journalled)

        self.wait(f"the report of {job} to be stored", look)

    def sql_journal(self, text: str) -> list[tuple[Any, ...]]:
        """Look into the Node's journal, or change it while the Node is down."""
        with closing(sqlite3.connect(self.node_state_dir / "journal.sqlite3", isolation_level=None)) as journal:
            return journal.execute(text).fetchall()

    @property
    def node_state_dir(self) -> Path:
        return Path(self.system.processes["node"].env["TUNEPLANE_NODE_STATE_DIR"])

    # ---------------------------------------------------------------- more processes

    def add(self, name: str, command: list[str], env: Mapping[str, str], plan: str) -> Process:
        """A process that a case needs, armed by ``plan``."""
        self.plan(plan).parent.mkdir(exist_ok=True)
        return self.system.add(name, command, {**env, **self.environment(plan)})

    def fresh_name(self, what: str) -> str:
        self._numbers += 1
        return f"{what}{self._numbers}"

    def heal(self) -> None:
        """Before the next case, whatever the last one left: nothing armed, all services up, one Node ready."""
        for plan in (*SERVICES, "join", "first", "up", "drain"):
            self.arm(plan)
        self.system.podman.resume()
        for name in set(self.system.processes) - set(SERVICES):
            if self.system.processes[name].child is not None:
                self.system.kill(name)
            del self.system.processes[name]
        for name in SERVICES:
            process = self.system.processes[name]
            if process.child is not None and process.child.poll() is not None:
                process.child = None
            if process.child is None:
                self.bring_up(name)
        self.down.clear()
        ours = json.loads((self.node_state_dir / "identity.json").read_text())["node"]
        for node in self.ask(self.system.nodes):
            if node["id"] != ours:
                self.ask_gone(lambda node=node: self.system.client.delete(f"/api/nodes/{node['id']}?force=true"))  # type: ignore[misc]
        self.wait_ready()


@contextmanager
def open_rig() -> Iterator[Rig]:
    """Everything up by fork, every process ready to be armed, Fleet ``lab`` with one ready Node."""
    with open_zygote() as zygote, open_system_of_processes(spawn=zygote.spawn) as system:
        rig = Rig(system)
        (system.directory / "plans").mkdir()
        for name in SERVICES:
            system.stop(name)
            system.processes[name].env.update(rig.environment(name))
        rig.bring_up(*SERVICES)
        rig.wait_ready()
        assert FLEET in {fleet["id"] for fleet in system.client.list_all("/api/fleets")}
        yield rig
