"""Supervisors start children in order, watch them, restart them by the rules of ``restart`` and stop them in reverse.

A supervisor has no mailbox and runs no code of its users: it cannot be asked and never asks. What it reacts to (a
child's exit, a stop, the end of a back-off) are coalesced flags. Its task runs ``live``; every child is one task of
its nursery.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import trio

from .cell import Cell
from .errors import ActorGone, NameTaken, PoolFull, StartFailed
from .exits import Crashed, ExitReason, GaveUp, Killed, Stopped, describe
from .flag import Flag
from .pool import Pool
from .ref import Ref
from .restart import Restart, Strategy, Window, wants_restart
from .slot import Slot
from .spec import AnySpec, ChildSpec, SupervisorSpec
from .trace import Kind
from .tree import Phase, TreeNode

if TYPE_CHECKING:
    from .system import System

log = logging.getLogger(__name__)
OVERDUE_MARGIN_SECONDS = 1.0  # what a loaded machine may add to a ladder before somebody is called overdue


class Supervisor:
    """One incarnation. ``live`` is called once; ``request_stop`` at any time."""

    def __init__(self, system: System, spec: SupervisorSpec, path: str) -> None:
        self.system = system
        self.spec = spec
        self.path = path
        self.exit_reason: ExitReason | None = None
        self.exited = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._slots: dict[str, Slot] = {}  # at most spec.capacity
        self._waiting: dict[int, Slot] = {}  # those to be started, by index
        self._exits: deque[Slot] = deque()  # ended by themselves: each slot at most once
        self._flag = Flag()  # something changed: look at all of it
        self._window = Window(spec.budget)
        self._announced = False
        self._stopping = False
        self._indices = 0
        for child in spec.children:
            self._postpone(self._add(child), -math.inf)

    @property
    def _is_pool(self) -> bool:
        return self.spec.strategy is Strategy.POOL

    @property
    def _in_order(self) -> bool:
        """Whether a child waits for those before it: always when siblings restart together, else only at first."""
        return self.spec.strategy in (Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE) or not self._announced

    @property
    def stop_limit(self) -> float:
        """Children stop one after the other, those of a pool together."""
        limits = [slot.child.stop_limit + OVERDUE_MARGIN_SECONDS for slot in self._slots.values() if slot.child is not None]
        return max(limits, default=0.0) if self._is_pool else sum(limits)

    # --- life ---

    async def live(self, ready: Callable[[], None]) -> ExitReason:
        """Run until stopped or out of budget; ``ready`` is called when every child has been ready once.

        Cancelled from outside (the process is torn down): the children are cancelled with it and clean up.
        """
        reason: ExitReason = Killed()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    outcome = await self._supervise(ready)
                finally:
                    self._close()
                await self._stop(self._slots.values())
                reason = outcome
        finally:
            self._nursery = None
            self.exit_reason = reason
            self.system.note(Kind.STOPPED, self.path, describe(reason))
            self.exited.set()
        return reason

    async def _supervise(self, ready: Callable[[], None]) -> ExitReason:
        while not self._stopping:
            await self._start_due()
            self._announce(ready)
            with trio.move_on_at(self._next_due()):
                await self._flag.wait()
            while self._exits and not self._stopping:
                gave_up = await self._settle(self._exits.popleft())
                if gave_up is not None:
                    return gave_up
        return Stopped()

    def _announce(self, ready: Callable[[], None]) -> None:
        if self._announced or self._stopping or self._waiting or self._exits:
            return
        self._announced = True
        if self._is_pool:
            self.system.register_pool(self.path, Pool(self))
        self.system.note(Kind.STARTED, self.path, "")
        ready()

    def _close(self) -> None:
        self._stopping = True
        self.system.deregister_pool(self.path)

    def request_stop(self) -> None:
        """Stop the children in reverse, then end. A child that is starting is stopped at once. Idempotent."""
        self._stopping = True
        self._flag.raise_flag()
        for slot in self._slots.values():
            if slot.phase is Phase.STARTING and slot.child is not None:
                slot.child.request_stop()

    async def wait_exit(self) -> ExitReason:
        await self.exited.wait()
        assert self.exit_reason is not None
        return self.exit_reason

    # --- starting ---

    def _add(self, spec: AnySpec) -> Slot:
        self._indices += 1
        slot = Slot(spec, f"{self.path}/{spec.name}", self._indices)
        self._slots[spec.name] = slot
        return slot

    def _postpone(self, slot: Slot, due: float) -> None:
        slot.phase, slot.due = Phase.WAITING, due
        self._waiting[slot.index] = slot

    def _next_due(self) -> float:
        """When the next waiting child may start; in order, that is the first one's time."""
        if not self._waiting:
            return math.inf
        return self._waiting[min(self._waiting)].due if self._in_order else min(slot.due for slot in self._waiting.values())

    async def _start_due(self) -> None:
        """Start who is due. In order: one after the other, each to readiness, none past one that failed or must wait."""
        assert self._nursery is not None
        for index in sorted(self._waiting):
            slot = self._waiting[index]
            if self._stopping or (slot.due > self.system.now() and self._in_order):
                return
            if slot.due > self.system.now():
                continue
            del self._waiting[index]
            self._begin(slot)
            if not self._in_order:
                self._nursery.start_soon(self._run, slot, name=slot.path)
                continue
            await self._nursery.start(self._run, slot, name=slot.path)
            if not slot.ready:
                return

    def _begin(self, slot: Slot) -> None:
        if slot.starts:
            self.system.note(Kind.RESTARTED, slot.path, f"restart {slot.starts}")
        slot.begin()

    async def _run(self, slot: Slot, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The task of one incarnation. ``started`` when it is ready, or when it ended before that."""
        untold = [task_status]

        def ready() -> None:
            if slot.phase is Phase.STARTING:
                slot.phase, slot.adopted = Phase.RUNNING, True
                self._flag.raise_flag()
            untold.pop().started()

        try:
            await self._live(slot, ready)
        finally:
            self._ended(slot)
            if untold:
                task_status.started()

    async def _live(self, slot: Slot, ready: Callable[[], None]) -> None:
        if slot.phase is not Phase.STARTING:  # stopped before it came to life
            slot.reason = Stopped()
            return
        try:
            slot.child = self._make(slot)
        except Exception as error:  # the factory's; a child keeps its own errors
            slot.reason = Crashed(ExceptionGroup(f"making {slot.path}", [error]))
            return
        await slot.child.live(ready)

    def _make(self, slot: Slot) -> Cell | Supervisor:
        kind = Cell if isinstance(slot.spec, ChildSpec) else Supervisor
        return kind(self.system, slot.spec, slot.path)  # type: ignore[arg-type]

    # --- exits ---

    def _ended(self, slot: Slot) -> None:
        """Log a failure, once; leave a child that ended by itself to ``_settle``."""
        if slot.child is not None:
            slot.reason = slot.child.exit_reason
        if isinstance(slot.reason, Crashed):
            log.error("%s %s", slot.path, describe(slot.reason), exc_info=slot.reason.errors)
        elif isinstance(slot.reason, GaveUp):
            log.error("%s %s", slot.path, describe(slot.reason))
        if slot.phase is Phase.STOPPING or not slot.adopted:
            self._retire(slot)
        else:
            slot.phase = Phase.EXITED
            self._exits.append(slot)
            self._flag.raise_flag()
        slot.exited.set()

    async def _settle(self, slot: Slot) -> GaveUp | None:
        """Decide about a child that ended by itself: leave it, restart its group after a back-off, or give up."""
        if slot.phase is not Phase.EXITED:
            return None  # a sibling's exit has settled it
        assert slot.reason is not None
        if not wants_restart(slot.spec.restart, slot.reason):
            self._retire(slot)
            return None
        restart = self._window.charge(self.system.now())
        if restart is None:
            return GaveUp(slot.path, self.spec.budget.restarts, self.spec.budget.seconds, slot.reason)
        group = self._group(slot)
        await self._stop(sibling for sibling in group if sibling is not slot)
        due = self.system.now() + self.spec.backoff.delay(restart, self.system.random.random())
        for member in group:
            if member.spec.restart is Restart.TEMPORARY:
                self._retire(member)
            else:
                self._postpone(member, due)
        return None

    def _group(self, slot: Slot) -> list[Slot]:
        """Who restarts with ``slot``, itself included, in the order of starting."""
        slots = list(self._slots.values())
        if self.spec.strategy is Strategy.ONE_FOR_ALL:
            return slots
        if self.spec.strategy is Strategy.REST_FOR_ONE:
            return slots[slots.index(slot) :]
        return [slot]

    def _retire(self, slot: Slot) -> None:
        """It stays down. In a pool its name is free again; elsewhere it stays in sight."""
        slot.phase = Phase.DOWN
        if self._is_pool and self._slots.get(slot.spec.name) is slot:
            del self._slots[slot.spec.name]

    # --- stopping ---

    async def _stop(self, slots: Iterable[Slot]) -> None:
        """Stop them in reverse, each before the next; those of a pool together."""
        begun = self.system.now()
        stopping = list(slots)[::-1]
        if self._is_pool:
            for slot in stopping:
                self._ask_stop(slot)
        for slot in stopping:
            self._ask_stop(slot)
            if slot.phase is Phase.STOPPING:
                await self._wait_stopped(slot, begun if self._is_pool else self.system.now())

    def _ask_stop(self, slot: Slot) -> None:
        self._waiting.pop(slot.index, None)
        if slot.phase in (Phase.STARTING, Phase.RUNNING):
            slot.phase = Phase.STOPPING
            if slot.child is not None:
                slot.child.request_stop()
        elif slot.phase is not Phase.STOPPING:
            slot.phase = Phase.DOWN

    async def _wait_stopped(self, slot: Slot, asked_at: float) -> None:
        """Wait for the end of its ladder; name it when it takes longer, and wait on: nothing is left to cancel."""
        limit = OVERDUE_MARGIN_SECONDS + (0.0 if slot.child is None else slot.child.stop_limit)
        with trio.move_on_at(asked_at + limit):
            await slot.exited.wait()
            return
        self.system.report_overdue(slot.path, f"not stopped {limit:g} s after it was asked")
        await slot.exited.wait()

    # --- dynamic children (see pool.py) ---

    async def start_child(self, spec: ChildSpec) -> Ref:
        if self._stopping or self._nursery is None:
            raise ActorGone(self.path, self.exit_reason)
        if spec.name in self._slots:
            raise NameTaken(f"{self.path}/{spec.name}")
        if len(self._slots) >= self.spec.capacity:
            raise PoolFull(self.path, self.spec.capacity)
        slot = self._add(spec)
        slot.adopted = False
        slot.begin()
        await self._nursery.start(self._run, slot, name=slot.path)  # whoever ends before being ready is retired (_ended)
        if not isinstance(slot.child, Cell) or not slot.adopted:
            raise StartFailed(slot.path, slot.reason or Stopped())
        return slot.child.ref

    # --- looking ---

    def snapshot(self) -> TreeNode:
        return TreeNode(
            path=self.path,
            kind=self.spec.strategy.value,
            phase=Phase.STOPPING if self._stopping else Phase.RUNNING if self._announced else Phase.STARTING,
            restarts=0,
            last_exit="",
            children=tuple(slot.snapshot() for slot in self._slots.values()),
        )
