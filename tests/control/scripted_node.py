"""A Node that speaks the real NodeLink and does what the test says: no container, but an honest journal.

By default it behaves: it answers every command, reports each phase with a rising revision, and repeats on reconnect all
that it knows. ``deaf_to`` names kinds of commands that it receives and leaves alone, until ``hear`` lets them through.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import trio
from attrs import define, evolve, field

from tuneplane.domain import codec
from tuneplane.domain.frames import (
    LOG_CHUNK_BYTES,
    Command,
    CommandAnswer,
    CommandKind,
    DrainState,
    Hello,
    InventoryReport,
    LogCancel,
    LogChunk,
    LogRead,
    Observation,
    ObservationAck,
    ReconcileDone,
)
from tuneplane.domain.ids import FleetId, JournalId, MemberId, NodeId
from tuneplane.domain.inventory import Budgets, Inventory
from tuneplane.domain.launch_table import ENDED_PHASES, MemberPhase
from tuneplane.domain.node_member import PROGRESS_TICKS
from tuneplane.domain.timings import Timings
from tuneplane.wire.link import LinkClosed, NodeLink, SessionEnded, run_node_session

P = MemberPhase


def inventory(**changes: object) -> Inventory:
    """A machine with budgets, without cards."""
    values: dict = {
        "hostname": "machine",
        "node_version": "0.1.0",
        "cpu_count": 8,
        "memory_bytes": 32 << 30,
        "runtime": "podman 4.3.1",
        "storage_root": "/srv/tuneplane",
        "storage_root_seen": True,
        "budgets": Budgets(cpu_millis=8000, memory_bytes=32 << 30, gpu_indexes=()),
    }
    return Inventory(**{**values, **changes})


@define(eq=False)
class ScriptedNode:
    """One machine. ``run`` keeps it connected; ``connected`` runs a block with one session."""

    node: NodeId
    fleet: FleetId
    credential: str
    target: str
    tls: ssl.SSLContext
    timings: Timings
    journal: str = "journal-1"
    machine: str = "machine-1"
    inventory: Inventory = field(factory=inventory)
    deaf_to: set[CommandKind] = field(factory=set)
    log: bytes = b"hello\n"
    started: list[MemberId] = field(factory=list, init=False)  # every container start, for ever
    commands: list[Command] = field(factory=list, init=False)
    acks: list[ObservationAck] = field(factory=list, init=False)
    drains: list[DrainState] = field(factory=list, init=False)  # not looked at yet
    cancels: list[LogCancel] = field(factory=list, init=False)
    reads: list[LogRead] = field(factory=list, init=False)
    members: dict[MemberId, Observation] = field(factory=dict, init=False)
    ends: list[SessionEnded] = field(factory=list, init=False)
    link: NodeLink | None = field(default=None, init=False)
    _news: trio.Event = field(factory=trio.Event, init=False)
    _digests: dict[MemberId, str] = field(factory=dict, init=False)

    # ------------------------------------------------------------ sessions

    async def run(self) -> None:
        """Dial again and again, as a daemon does, without its back-off."""
        while True:
            await self.session()
            await trio.sleep(self.timings.heartbeat / 10)

    async def session(self, body: Callable[[NodeLink], Awaitable[None]] | None = None) -> SessionEnded | None:
        """One session to its end; the reason is kept in ``ends``."""
        try:
            await run_node_session(
                target=self.target,
                tls=self.tls,
                credential=self.credential,
                hello=self._hello(),
                timings=self.timings,
                body=body or self._body,
            )
        except SessionEnded as ended:
            self.ends.append(ended)
            return ended
        finally:
            self.link = None
            self._changed()
        return None

    def _hello(self) -> Hello:
        return Hello(
            protocol=1,
            node=self.node,
            fleet=self.fleet,
            boot_id="boot-1",
            machine_id=self.machine,
            journal_id=JournalId(self.journal),
            journal_sequence=len(self.commands),
            node_version="0.1.0",
            address="127.0.0.1",
            sent_at=datetime.now(UTC),
        )

    async def _body(self, link: NodeLink) -> None:
        await self.greet(link)
        while True:
            await self._handle(await link.receive(), link)
            self._changed()

    async def greet(self, link: NodeLink) -> None:
        """Inventory, all members, done: what a Node says first."""
        self.link = link
        digest = codec.digest(codec.canonical(self.inventory))
        link.inventory_digest = digest
        await link.send(InventoryReport(inventory=self.inventory, digest=digest))
        for observation in list(self.members.values()):
            await link.send(observation)
        await link.send(ReconcileDone(members=len(self.members)))
        self._changed()

    async def _handle(self, frame: object, link: NodeLink) -> None:
        if isinstance(frame, Command):
            self.commands.append(frame)
            if frame.kind not in self.deaf_to:
                await self.obey(frame, link)
        elif isinstance(frame, ObservationAck):
            self.acks.append(frame)
        elif isinstance(frame, LogRead):
            self.reads.append(frame)
            await self._send_log(frame, link)
        elif isinstance(frame, LogCancel):
            self.cancels.append(frame)
        elif isinstance(frame, DrainState):
            self.drains.append(frame)

    # ------------------------------------------------------------ the member's life

    async def obey(self, command: Command, link: NodeLink) -> None:
        """Journal, answer, act once."""
        known = self.members.get(command.member)
        refused = self._refusal(command, known)
        await link.send(CommandAnswer(operation=command.operation, accepted=not refused, code=refused, detail=refused))
        if refused:
            return
        await getattr(self, f"_{command.kind.value}")(command, known)

    def _refusal(self, command: Command, known: Observation | None) -> str:
        if command.kind in (CommandKind.PREPARE, CommandKind.COMMIT) and known is not None and known.phase in ENDED_PHASES:
            return "tombstone"
        return "unknown-member" if command.kind is CommandKind.COMMIT and known is None else ""

    async def _prepare(self, command: Command, known: Observation | None) -> None:
        if known is None:
            self._digests[command.member] = command.plan_digest
            await self.report(command.member, P.PREPARED, hold_seconds_left=command.hold_seconds)

    async def _commit(self, command: Command, known: Observation | None) -> None:
        if known is not None and known.phase is P.PREPARED:
            self.started.append(command.member)
            await self.report(command.member, P.RUNNING, container_id="c" * 64, started_at=datetime.now(UTC))

    async def _stop(self, command: Command, known: Observation | None) -> None:
        if known is not None and known.phase in ENDED_PHASES:
            await self._say(known)
        elif known is not None and known.phase in (P.RUNNING, P.STARTING, P.STOPPING):
            await self.finish(command.member, 143, reason_code="stopped")
        else:
            await self.report(command.member, P.ABORTED, reason_code="stopped", cleaned=True)

    async def _forget(self, command: Command, known: Observation | None) -> None:
        self.members.pop(command.member, None)

    async def finish(self, member: MemberId, exit_code: int, **facts: object) -> None:
        await self.report(member, P.TERMINATED, exit_code=exit_code, ended_at=datetime.now(UTC), cleaned=True, **facts)

    async def report(self, member: MemberId, phase: MemberPhase, **facts: object) -> Observation:
        """Journal the next state of ``member``, and send it when connected."""
        former = self.members.get(member)
        base = former or Observation(member=member, revision=0, phase=phase, plan_digest=self._digests.get(member, ""), boot_id="boot-1")
        observation = evolve(base, revision=base.revision + PROGRESS_TICKS, phase=phase, **facts)  # type: ignore[arg-type]
        self.members[member] = observation
        await self._say(observation)
        return observation

    async def _say(self, observation: Observation) -> None:
        self._changed()
        if self.link is not None:
            try:
                await self.link.send(observation)
            except LinkClosed:
                return

    async def _send_log(self, read: LogRead, link: NodeLink) -> None:
        start = read.offset or 0
        data = self.log[start:][: read.max_bytes]
        cuts = list(range(0, len(data), LOG_CHUNK_BYTES)) or [0]
        for cut in cuts:
            end = cut == cuts[-1] and not read.follow
            await link.send(LogChunk(request=read.request, offset=start + cut, data=data[cut : cut + LOG_CHUNK_BYTES], end=end))

    # ------------------------------------------------------------ waiting

    def _changed(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def wait_for(self, condition: Callable[[ScriptedNode], object], what: str, seconds: float = 10.0) -> None:
        """Level-triggered: return when ``condition`` holds; say what was last seen when it never does."""
        with trio.move_on_after(seconds):
            while not condition(self):
                await self._news.wait()
            return
        kinds = [command.operation for command in self.commands]
        raise AssertionError(f"waited {seconds:g} s for {what}: commands {kinds}, members {self.members}, ends {self.ends}")

    async def wait_command(self, kind: CommandKind, count: int = 1) -> Command:
        await self.wait_for(lambda node: node.count(kind) >= count, f"{count} {kind.value} command(s)")
        return [command for command in self.commands if command.kind is kind][count - 1]

    async def wait_drain(self) -> DrainState:
        """The next answer to a wish to be drained."""
        await self.wait_for(lambda node: node.drains, "an answer to a DrainWish")
        return self.drains.pop(0)

    def count(self, kind: CommandKind) -> int:
        return sum(command.kind is kind for command in self.commands)
