"""What all parts of the daemon share: the ports, the journal, the paths, and the outbox of reports."""

from __future__ import annotations

from pathlib import Path

import trio
from attrs import define, evolve, field, frozen

from tuneplane.domain.frames import Command, Progress
from tuneplane.domain.ids import FleetId, MemberId, NodeId
from tuneplane.domain.inventory import MOST_STRANGERS
from tuneplane.domain.node_member import Grants, Place
from tuneplane.domain.node_ports import Engine, Machine, Network, Runner
from tuneplane.domain.timings import Timings

from .journal import Journal
from .logs import LogStore

MAX_ARCHIVES = 4  # at once: more share the same link, and a storage root that hangs leaves no more children behind
MAX_PULLS = 4  # at once: more share the same link and disk, and only make the first one later


@define(eq=False)
class Outbox:
    """The members whose newest state the control plane has not been sent: a set, so it is bounded by the members.

    Level-triggered: a reader takes what is due and reads each record from the journal. ``clear`` forgets what is due.
    """

    _due: dict[MemberId, None] = field(factory=dict)  # a set that keeps its order
    _changed: trio.Event = field(factory=trio.Event)

    def report(self, member: MemberId) -> None:
        """Its newest state is to be sent."""
        self._due[member] = None
        self._wake()

    def take(self) -> MemberId | None:
        """The member that waits longest, no longer due; None when none is."""
        for member in self._due:
            del self._due[member]
            return member
        return None

    def clear(self) -> None:
        self._due.clear()

    async def wait_due(self) -> None:
        while not self._due:
            await self._changed.wait()

    def changed(self) -> trio.Event:
        """Set at the next report."""
        return self._changed

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


@define(eq=False)
class Leftovers:
    """Operators' stops of containers that run though their members ended and were cleaned, until those are gone (P-07).

    The drivers of the members carry them out (P-01). In memory only: such a stop is answered when its container is gone,
    and what is not answered comes again with the next session. At most MOST_STRANGERS, no more are ever shown.
    """

    _wanted: dict[str, tuple[Command, trio.Event]] = field(factory=dict)  # by container

    def want(self, stop: Command) -> trio.Event | None:
        """To be ended. The event: no driver is at it any more. None: too many are under way."""
        if stop.container not in self._wanted and len(self._wanted) >= MOST_STRANGERS:
            return None
        return self._wanted.setdefault(stop.container, (stop, trio.Event()))[1]

    def of(self, member: MemberId) -> Command | None:
        """The first that is still to be done for ``member``."""
        return next((stop for stop, _ in self._wanted.values() if stop.member == member), None)

    def settle(self, stop: Command) -> None:
        """Its container is gone, or nobody is left to end it."""
        found = self._wanted.pop(stop.container, None)
        if found is not None:
            found[1].set()


@frozen
class Advance:
    """Progress of long work, and its place between two journalled revisions."""

    progress: Progress
    tick: int


@define(eq=False)
class NodeCore:
    """Owned by the daemon; its parts guard their own state. ``grants`` is replaced when cards or budgets change."""

    node: NodeId
    fleet: FleetId
    state_dir: Path
    journal: Journal
    engine: Engine
    machine: Machine
    network: Network
    logs: LogStore
    disk: Runner  # small files of the state directory
    timings: Timings
    grants: Grants
    unclaimed: frozenset[MemberId] = frozenset()  # live members that the control plane does not take for its own
    outbox: Outbox = field(factory=Outbox)
    leftovers: Leftovers = field(factory=Leftovers)
    pulls: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(MAX_PULLS))
    archives: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(MAX_ARCHIVES))
    progress: dict[MemberId, Advance] = field(factory=dict)  # of members being prepared or stopped

    def place(self, engine: str = "") -> Place:
        """Here and now."""
        machine = self.machine
        return Place(node=self.node, boot_id=machine.boot_id(), boot_seconds=machine.boot_seconds(), engine=engine, now=machine.now())

    def note_progress(self, member: MemberId, progress: Progress | None) -> None:
        """Remember and report where the preparation or stop of ``member`` stands; None: it is over."""
        if progress is None:
            self.progress.pop(member, None)
            return
        before = self.progress.get(member)
        self.progress[member] = Advance(progress, 1) if before is None else evolve(before, progress=progress, tick=before.tick + 1)
        self.outbox.report(member)

    def member_dir(self, member: MemberId) -> Path:
        """Private to the daemon (0700); ``plan`` below it is what the container sees."""
        return self.state_dir / "members" / member
