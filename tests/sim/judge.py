"""The invariants, checked after every commit of the database and every start of a container."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import trio
from attrs import define, field

from tuneplane.domain.frames import CommandKind
from tuneplane.domain.ids import AttemptId, MemberId, NodeId, OperationId, operation_id
from tuneplane.domain.jobs import Claim
from tuneplane.domain.launch_table import ENDED_PHASES, AttemptState, JobState, LaunchView, MemberPhase
from tuneplane.domain.member_table import ENDED, NodePhase
from tuneplane.domain.node_member import LABEL_FENCE, LABEL_MEMBER, NodeMember
from tuneplane.domain.node_ports import ContainerSpec
from tuneplane.domain.timings import Timings
from tuneplane.domain.verdict import DECLARED_LOST

from .fate import Fate
from .machine import Container, SimMachine
from .processes import CPU_MILLIS, MEMORY_BYTES, NodeDaemon
from .twin import Book, Change, Database
from .twin.rows import AttemptRow, MemberRow

HOLD_TOLERANCE_SECONDS = 30.0  # a poll, and the tries of a full disk


@define(eq=False)
class Judge:
    """Knows the truth: the machines. Compares it with what the control plane and the journals believe."""

    fate: Fate
    database: Database
    timings: Timings
    machines: dict[NodeId, SimMachine] = field(factory=dict)
    daemons: dict[NodeId, NodeDaemon] = field(factory=dict)
    starts: dict[MemberId, int] = field(factory=dict)
    orphaned: set[MemberId] = field(factory=set)  # their Node's journal was lost: nobody is left to confirm the clean-up
    declared: set[MemberId] = field(factory=set)  # lost, by an operator's word: it may run all the same
    created: set[tuple[str, MemberId]] = field(factory=set)  # (journal, member): a create has left its daemon
    committed_attempts: set[AttemptId] = field(factory=set)
    sent: set[MemberId] = field(factory=set)  # a request to start it has left its daemon
    ended: dict[tuple[str, MemberId], NodePhase] = field(factory=dict)  # (journal, member) -> how it ended there

    highest_epochs: dict[NodeId, int] = field(factory=dict)  # of any session that the Node's journal knew
    seen_epochs: dict[NodeId, int] = field(factory=dict)  # when the database went back: the highest that each Node had seen

    @property
    def book(self) -> Book:
        return self.database.book

    def went_back(self) -> None:
        """The database is restored: from now on only P-07 is judged, for the rows do not know any more what is true."""
        for node in self.daemons:
            self._look_at(node)
        self.seen_epochs = dict(self.highest_epochs)

    # ------------------------------------------------ the daemons

    def start_begun(self, machine: SimMachine, container: str) -> None:
        """P-01, P-03: what was true when the start was decided is still true when it is begun."""
        found, core = machine.find(container), self.daemons[machine.node].core
        record = core.journal.member(found.member) if found is not None and core is not None else None
        if record is None:
            return
        phase, here = record.phase, record.hold_boot_id == f"boot-{machine.node}-{machine.boot}"
        self.fate.judge(phase is NodePhase.STARTING, "P-01: {} is to be started though its journal says {}", record.member, phase.value)
        self.fate.judge(here, "P-03: {} is to be started on another boot than that of its reservation", record.member)

    def start_sent(self, machine: SimMachine, container: str) -> None:
        """P-03: a start is sent once, whatever is answered."""
        found = machine.find(container)
        if found is not None and not self.seen_epochs:  # a database that went back gives the numbers of attempts away again
            self.fate.judge(found.member not in self.sent, "P-03: a start of {} was sent a second time", found.member)
            self.sent.add(found.member)

    def create_sent(self, machine: SimMachine, spec: ContainerSpec) -> None:
        """R-LCH-02: a create, too, is sent once under a record; after that the driver looks."""
        core = self.daemons[machine.node].core
        if not spec.labels.get(LABEL_FENCE) and core is not None:
            key = (core.journal.journal_id, MemberId(spec.labels[LABEL_MEMBER]))
            self.fate.judge(key not in self.created, "R-LCH-02: a create of {} was sent a second time", key[1])
            self.created.add(key)

    def passing(self, process: str, name: str, moment: str) -> None:
        """A fault point is passed; of a journal, it is looked at first."""
        if moment == "before" and name.startswith("node.journal."):
            self._look_at(NodeId(process))

    def look_around(self) -> None:
        """Now and then, where nothing need happen for something to be wrong."""
        for node, daemon in self.daemons.items():
            if daemon.life.alive:
                self._look_at(node)

    def _look_at(self, node: NodeId) -> None:
        core = self.daemons[node].core
        if core is None:
            return
        self.highest_epochs[node] = max(core.journal.session_epoch, self.highest_epochs.get(node, 0))
        for record in core.journal.members():
            key = (core.journal.journal_id, record.member)
            if record.phase in ENDED:
                self.ended[key] = record.phase
            elif key in self.ended:
                said = self.ended[key].value
                self.fate.judge(
                    False, "P-06: the journal of {} said {} of {} and now says {}", node, said, record.member, record.phase.value
                )
            if record.phase is NodePhase.PREPARED:
                self._check_hold(node, record)

    def _check_hold(self, node: NodeId, record: NodeMember) -> None:
        """P-08: a reservation ends by itself, whoever is silent."""
        daemon, machine = self.daemons[node], self.machines[node]
        now = trio.current_time()
        due = max(machine.booted_at + record.hold_deadline, daemon.core_since) + HOLD_TOLERANCE_SECONDS
        self.fate.judge(now < due or not daemon.life.alive, "P-08: {} holds {} after its reservation ran out", node, record.member)

    def deciding(self, view: LaunchView, target: AttemptState, now: datetime) -> None:
        """P-08: no commit is decided close to the end of a reservation, as far as the decider can know."""
        if target is AttemptState.COMMITTED:
            until = min((member.hold_expires_at for member in view.members if member.hold_expires_at is not None), default=None)
            safe = until is None or now + timedelta(seconds=self.timings.commit_margin) < until
            self.fate.judge(safe, "P-08: a commit of {} is decided at the end of its reservation", view.attempt)

    # ------------------------------------------------ the machines

    def started(self, machine: SimMachine, container: Container) -> None:
        """A container has just been started."""
        member = container.member
        if self.seen_epochs:
            return
        self.starts[member] = self.starts.get(member, 0) + 1
        self.fate.judge(self.starts[member] == 1, "R-LCH-02: {} was started {} times", member, self.starts[member])
        self.fate.judge(not container.is_fence, "P-01: the fence of {} was started", member)
        row = self.book.members.get(member)
        self.fate.judge(row is not None and row.node == machine.node, "{} was started on {}, where it is not placed", member, machine.node)
        assert row is not None
        live = row.phase not in ENDED_PHASES or member in self.declared
        self.fate.judge(live, "R-LCH-12: {} was started though the control plane knows it as {}", member, row.phase)
        decided = operation_id(member, "commit") in self.book.commands
        self.fate.judge(member in self.sent, "{} was started and nobody asked for it", member)
        self.fate.judge(decided, "P-10: {} was started though no commit was decided", member)
        core = self.daemons[machine.node].core
        record = core.journal.member(member) if core is not None else None
        ended = record is not None and record.phase in ENDED
        self.fate.judge(not ended, "P-01: {} was started after its journal said {}", member, record.phase if record else "")
        self._check_former(row)
        self._check_share(machine)

    def _check_former(self, row: MemberRow) -> None:
        """A retry starts when all members of the attempt before it have ended, in the runtimes."""
        number = self.book.attempts[row.attempt].number
        for other in self.book.members:
            if other.job == row.job and self.book.attempts[other.attempt].number < number:
                running = other.id not in self.declared and any(one.running for one in self._containers(other.id))
                self.fate.judge(not running, "R-LCH-15: {} starts while {} still runs", row.id, other.id)

    def _check_share(self, machine: SimMachine) -> None:
        """R-LCH-06: what really runs at once fits the machine."""
        ours = [one for one in machine.of_ours() if one.running and one.member not in self.declared]
        running = [one.member for one in ours]
        holders = [uuid for one in ours for uuid in one.spec.gpu_uuids]
        self.fate.judge(len(holders) == len(set(holders)), "a card of {} runs two members: {}", machine.node, holders)
        ports = [port for one in ours for port in self._ports(one.member)]
        self.fate.judge(len(ports) == len(set(ports)), "R-PLC-05: {} run on the same port of {}: {}", running, machine.node, ports)
        cpu = sum(one.spec.cpu_millis for one in ours)
        memory = sum(one.spec.memory_bytes for one in ours)
        fits = cpu <= CPU_MILLIS and memory <= MEMORY_BYTES
        self.fate.judge(fits, "{} runs {} over its budget: {} CPU, {} bytes", machine.node, running, cpu, memory)

    def _ports(self, member: MemberId) -> list[int]:
        row = self.book.members.get(member)
        return list(json.loads(row.plan)["ports"]) if row is not None else []

    # ------------------------------------------------ the database

    def committed(self, name: str, changes: list[Change]) -> None:
        """A unit of work has just become durable."""
        if any(change.table in ("holds", "gpu_holds", "port_holds") for change in changes):
            self._check_holds()
        self._written(name, changes)
        if self.seen_epochs:
            return
        for change in changes:
            if change.table == "members" and isinstance(change.after, MemberRow):
                before = change.before.phase if isinstance(change.before, MemberRow) else None
                self._member_moved(before, change.after)
            elif change.table == "jobs" and change.after is not None:
                self._job_moved(change.after)
            elif isinstance(row := change.after, AttemptRow) and row.state is AttemptState.ENDED:
                left = [one.id for one in self.book.members if one.attempt == row.id and one.phase not in ENDED_PHASES]
                self.fate.judge(not left, "P-11: {} ended without evidence of {}", row.id, left)
            elif isinstance(row, AttemptRow) and isinstance(change.before, AttemptRow) and row.state is not change.before.state:
                stopped = self.book.jobs[row.job].stop_asked_at is not None and row.state is not AttemptState.STOPPING
                self.fate.judge(not stopped, "R-LCH-12: {} is {} though its stop was accepted", row.id, row.state.value)
            elif change.table == "holds" and change.after is None:
                self._released(MemberId(str(change.key)))
            elif change.table == "commands" and change.before is None:
                self._commanded(change.after)

    def _written(self, name: str, changes: list[Change]) -> None:
        """P-05, P-06: who writes still had the right to."""
        asked = self.database.asked
        if name == "advance" and changes and not self.seen_epochs and isinstance(claim := asked[0], Claim):
            row = self.book.attempts[claim.attempt]
            if asked[2] is AttemptState.COMMITTED:
                self.fate.judge(row.id not in self.committed_attempts, "P-05: the commit of {} was decided twice", row.id)
                self.committed_attempts.add(row.id)
            live = (claim.worker, claim.epoch) == (row.claim_worker, row.claim_epoch)
            self.fate.judge(live, "P-05: {} moved {}, which {} has claimed since", claim.worker, claim.attempt, row.claim_worker)
        if name in ("observe", "answer_command") and changes:
            node, epoch = (NodeId(str(asked[0])), asked[1]) if name == "observe" else (NodeId(str(asked[1])), asked[2])
            session = self.book.sessions[node]
            live = session.epoch == epoch and session.closed_at is None
            if name == "answer_command":
                told = self.book.commands[OperationId(str(asked[0]))]
                settled = told.kind is CommandKind.STOP and self.book.members[told.member].phase in ENDED_PHASES
                held = int(str(epoch)) <= self.seen_epochs.get(node, 0) and not settled
                self.fate.judge(not held, "P-07: {} obeyed session {}, though it had seen {}", node, epoch, self.seen_epochs.get(node))
            self.fate.judge(live, "P-06: a report of {} was written under session {}, which is over", node, epoch)

    def _containers(self, member: MemberId) -> list[Container]:
        return [one for machine in self.machines.values() for one in machine.of_member(member)]

    def _member_moved(self, before: MemberPhase | None, row: MemberRow) -> None:
        if row.phase is not before:
            self.fate.history.add("database", "{} {} -> {} {}", row.id, before and before.value, row.phase.value, row.reason_code)
        if row.phase not in ENDED_PHASES or before is row.phase:
            return
        if row.reason_code == DECLARED_LOST:
            self.declared.add(row.id)
            return
        started = [one for one in self._containers(row.id) if one.starts]
        self.fate.judge(not any(one.running for one in started), "R-LCH-03: {} is {} while it runs", row.id, row.phase.value)
        if row.phase is MemberPhase.ABORTED and row.id not in self.orphaned:  # a new journal cannot know what the lost one did
            self.fate.judge(not started, "{} is aborted, yet it was started", row.id)
        if row.exit_code == 0 and not row.reason_code and not row.oom_killed:
            proven = any(one.succeeded for one in started)
            self.fate.judge(proven, "P-04: {} counts as succeeded, and it was not: {}", row.id, [one.ending for one in started])

    def _job_moved(self, job: object) -> None:
        state, name = getattr(job, "state", None), getattr(job, "id", "")
        if state is JobState.SUCCEEDED:
            last = max((one for one in self.book.attempts if one.job == name), key=lambda one: one.number, default=None)
            rows = [row for row in self.book.members if last is not None and row.attempt == last.id]
            proven = all(any(one.succeeded for one in self._containers(row.id)) for row in rows)
            self.fate.judge(bool(rows) and proven, "P-04: {} succeeded without evidence", name)

    def _check_holds(self) -> None:
        """R-LCH-06, R-PLC-05: a card, a port, CPU and memory have one holder, and no hold is without its row."""
        cards: dict[str, MemberId] = {}
        ports: dict[tuple[NodeId, int], MemberId] = {}
        cpu: dict[NodeId, int] = {}
        for hold in self.book.holds:
            cpu[hold.node] = cpu.get(hold.node, 0) + hold.cpu_millis
            for uuid in hold.gpu_uuids:
                other = cards.setdefault(uuid, hold.member)
                self.fate.judge(other == hold.member, "card {} is held by {} and {}", uuid, other, hold.member)
            for port in hold.ports:
                other = ports.setdefault((hold.node, port), hold.member)
                self.fate.judge(other == hold.member, "port {} of {} is held by {} and {}", port, hold.node, other, hold.member)
        for node, used in cpu.items():
            self.fate.judge(used <= CPU_MILLIS, "{} has {} CPU held", node, used)

    def _released(self, member: MemberId) -> None:
        row = self.book.members[member]
        self.fate.judge(row.phase in ENDED_PHASES, "R-LCH-03: what {} holds was released while it is {}", member, row.phase.value)
        running = row.reason_code != DECLARED_LOST and any(one.running for one in self._containers(member))
        self.fate.judge(not running, "R-LCH-03: what {} holds was released while it runs", member)

    def _commanded(self, row: object) -> None:
        kind, member = getattr(row, "kind", None), getattr(row, "member", MemberId(""))
        self.fate.history.add("database", "command {}", getattr(row, "operation", ""))
        if kind is CommandKind.COMMIT:
            stopped = self.book.jobs[self.book.members[member].job].stop_asked_at is not None
            phase = self.book.members[member].phase
            self.fate.judge(phase is MemberPhase.PREPARED, "P-10: a commit of {} was decided while it was {}", member, phase.value)
            self.fate.judge(not stopped, "R-LCH-12: a commit of {} was decided after its stop was accepted", member)

    def journal_lost(self, node: NodeId) -> None:
        """Its journal is another one, or what it was some time ago: nobody knows any more what was done."""
        here = {row.id for row in self.book.members if row.node == node}
        self.orphaned |= here
        self.ended = {key: phase for key, phase in self.ended.items() if key[1] not in here}
        self.created = {key for key in self.created if key[1] not in here}

    def _may_lie(self, container: Container) -> bool:
        """Its journal is gone; or it was created, never started, long after its member was over and its fence forgotten:
        production forgets after a week, and no engine is that late."""
        forgotten = operation_id(container.member, "forget") in self.book.commands
        return container.member in self.orphaned or (forgotten and not container.starts)

    # ------------------------------------------------ at the end

    def left_over(self) -> list[str]:
        """What keeps the world from rest, in words; empty when it has converged."""
        left = [f"{job.id} is {job.state.value}" for job in self.book.jobs if job.ended_at is None]
        left += [f"{hold.member} holds resources of {hold.node}" for hold in self.book.holds]
        left += [
            f"{row.id} ({row.phase.value}) is not cleaned" for row in self.book.members if not row.cleaned and row.id not in self.orphaned
        ]
        left += [f"command {row.operation} is open" for row in self.book.commands if row.open]
        for machine in self.machines.values():
            rest = [one for one in machine.of_ours() if not one.is_fence]
            left += [f"{one.spec.name} is still on {machine.node}" for one in rest if one.running or not self._may_lie(one)]
        left += [f"{node.id} has used {node.cpu_used} CPU" for node in self.book.nodes if node.cpu_used or node.memory_used]
        return left
