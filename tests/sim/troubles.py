"""Faults of whole processes, machines, links and clocks, and what operators do meanwhile. Each run draws its own mixture."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import trio
from attrs import define, field

from tuneplane.domain.errors import Refused
from tuneplane.domain.ids import NodeId, UserName
from tuneplane.domain.nodes import NodeState

from .clock import sleep
from .fate import Fate, true_now
from .judge import Judge
from .machine import SimMachine
from .processes import Ground, Process
from .readers import Readers
from .twin import Twin

ADA = UserName("ada")
STEP_SECONDS = 5.0  # a clock of the control plane is that far out before NTP sets it
NODE_STEP_SECONDS = 7200.0  # a Node's may have any time, after a boot without a battery, say


@define(eq=False)
class Troubles:
    """``run`` until the world is calm."""

    ground: Ground
    judge: Judge
    processes: dict[str, Process]
    _images: dict[NodeId, Path] = field(factory=dict)  # of disks, to be restored later

    @property
    def fate(self) -> Fate:
        return self.ground.fate

    async def run(self) -> None:
        acts: tuple[tuple[str, float, Callable[[], None]], ...] = (
            ("crash-worker", 40.0, lambda: self._crash("worker")),
            ("crash-gateway", 40.0, lambda: self._crash("gateway")),
            ("crash-node", 25.0, lambda: self._crash("node")),
            ("leave", 60.0, self._leave),
            ("reboot", 80.0, lambda: self.judge.daemons[self._machine().node].cut_power("reboot")),
            ("engine-restart", 50.0, lambda: self._machine().restart_engine()),
            ("disk-gone", 150.0, self._lose_disk),
            ("disk-image", 40.0, self._revert_disk),
            ("cut", 30.0, self._cut),
            ("clock-step", 20.0, self._step_clock),
            ("database-away", 60.0, self._take_database),
            ("read-logs", 8.0, lambda: self.ground.nursery.start_soon(Readers(self.ground).read)),
            ("declare-lost", 30.0, lambda: self.ground.nursery.start_soon(self._declare_lost)),
            ("forget", 15.0, lambda: self.ground.nursery.start_soon(self._forget)),
            ("database-restored", 50.0, lambda: self.ground.nursery.start_soon(self._restore_database)),
            ("drain", 40.0, lambda: self.ground.nursery.start_soon(self._set_aside, NodeState.DRAINING)),
            ("cordon", 40.0, lambda: self.ground.nursery.start_soon(self._set_aside, NodeState.CORDONED)),
        )
        async with trio.open_nursery() as nursery:
            for name, mean, act in acts:
                if self.fate.odds[name] > 0:
                    nursery.start_soon(self._again_and_again, mean / max(self.fate.odds[name], 0.2), act)

    async def _again_and_again(self, mean: float, act: Callable[[], None]) -> None:
        while not self.fate.calm:
            await sleep(self.fate.soon(mean))
            if not self.fate.calm:
                act()

    def _machine(self) -> SimMachine:
        return self.fate.random.choice(list(self.judge.machines.values()))

    def _process(self) -> Process:
        return self.fate.random.choice(list(self.processes.values()))

    # ------------------------------------------------ processes and machines

    def _crash(self, kind: str) -> None:
        process = self.fate.random.choice([one for name, one in self.processes.items() if name.startswith(kind)])
        process.down_until = trio.current_time() + self.fate.soon(5.0)
        process.crash("SIGKILL")

    def _leave(self) -> None:
        process = self._process()
        if process.life.alive:
            self.fate.history.add(process.name, "is asked to leave")
            process.leave()

    def _lose_disk(self) -> None:
        machine = self._machine()
        self.judge.daemons[machine.node].crash("its disk is replaced")
        self.fate.history.add(machine.node, "journal and logs are gone")
        machine.disk.replace()
        self.judge.journal_lost(machine.node)

    def _revert_disk(self) -> None:
        """The disk's image is taken at one time and restored at another: the journal goes back (P-02)."""
        machine = self._machine()
        image = self._images.pop(machine.node, None)
        if image is None:
            self._images[machine.node] = machine.disk.keep_image()
            self.fate.history.add(machine.node, "an image of its disk is taken")
            return
        self.judge.daemons[machine.node].crash("its disk goes back to an image")
        self.fate.history.add(machine.node, "the disk is what it was when the image was taken")
        machine.disk.restore_image(image)
        self.judge.journal_lost(machine.node)

    def _step_clock(self) -> None:
        process, most = self._process(), STEP_SECONDS
        if process.name in self.judge.daemons and self.fate.random.random() < 0.3:
            most = NODE_STEP_SECONDS
        process.life.skew_seconds = self.fate.random.uniform(-most, most)
        self.fate.history.add(process.name, "its clock is set: {:+.1f} s", process.life.skew_seconds)

    # ------------------------------------------------ the ways between them

    def _cut(self) -> None:
        network = self.ground.network
        pair = frozenset((self._machine().node, self.fate.random.choice(network.gateways)))
        self.fate.history.add("network", "cut between {}", sorted(pair))
        network.cuts.add(pair)
        network.at(trio.current_time() + self.fate.soon(25.0), lambda: network.cuts.discard(pair))

    def _take_database(self) -> None:
        self.ground.outages.away_until = trio.current_time() + self.fate.soon(8.0)
        self.fate.history.add("database", "away until {:.1f}", self.ground.outages.away_until)

    # ------------------------------------------------ operators

    async def _forget(self) -> None:
        """Retention, much earlier than in production: whatever arrives late meets a Node that has forgotten."""
        age = timedelta(seconds=self.fate.soon(5.0))
        count = await Twin(self.ground.database).forget_ended(true_now() - age, 100, true_now())
        self.fate.history.add("operator", "{} members are to be forgotten", count)

    async def _declare_lost(self) -> None:
        """An operator gives up on a machine that is silent; it may come back, with everything that still runs there (P-11)."""
        twin, node = Twin(self.ground.database), self._machine().node
        for row in [row for row in self.ground.database.book.members if row.node == node and row.ended_at is None]:
            try:
                await twin.declare_lost(node, row.id, ADA, "gone", true_now())
            except Refused:
                continue
            self.fate.history.add("operator", "{} is declared lost", row.id)

    async def _restore_database(self) -> None:
        """An operator stops the control plane and puts a backup back: what was committed since has never been (P-07)."""
        backup = self.ground.database.book.backup()
        await sleep(self.fate.soon(20.0))
        self.fate.history.add("operator", "restores the database from a backup")
        for name, process in self.processes.items():
            if name.startswith(("worker", "gateway")):
                process.crash("the database is put back")
        self.judge.went_back()
        self.ground.database.book.restore(backup)

    async def _set_aside(self, state: NodeState) -> None:
        twin, node = Twin(self.ground.database), self._machine().node
        await twin.set_node_state(node, state, "", true_now())
        await sleep(self.fate.soon(20.0))
        await twin.set_node_state(node, NodeState.ACTIVE, "", true_now())

    # ------------------------------------------------ the end of it

    def heal(self) -> None:
        self.fate.calm = True
        self.fate.history.add("world", "everything heals")
        self.ground.network.cuts.clear()
        self.ground.outages.away_until = 0.0
        for machine in self.judge.machines.values():
            machine.engine_back_at = 0.0
        for process in self.processes.values():
            process.life.skew_seconds = 0.0
