"""One driver per member: it holds the member's effect lock, by being the only task that acts for it (P-01).

Level-triggered: what it does next follows from the journal record. Commands are journalled by others at once, without
waiting for it; a poke then makes it look. An action is only begun while the record has the revision that the action was
derived from, so a stop journalled meanwhile is met before the next effect.
"""

from __future__ import annotations

import logging
import sqlite3

import trio
from attrs import define, field

from tuneplane.domain.ids import MemberId
from tuneplane.domain.member_table import ENDED, RESUME, MemberAction, NodePhase
from tuneplane.domain.node_member import NodeMember
from tuneplane.domain.node_ports import EngineDown, EngineRefused, EngineUnclear

from .capture import Capture
from .core import NodeCore
from .effects import EFFECTS, Outcome, do_clean, end_leftover

log = logging.getLogger(__name__)

RETRY_FIRST_SECONDS = 0.1
RETRY_MOST_SECONDS = 5.0  # an engine that comes back is noticed within this
CAPTURE_SECONDS = 60.0  # for the rest of an ended container's log; then it is removed all the same
CUT = b"\n[tuneplane: the rest of the output is missing: the container runtime did not give it in time]\n"
# Waiting and looking change nothing and give way to a command at once. CREATE, START, REMOVE and FENCE would become
# unclear if cancelled; each is bounded by the engine client instead.
YIELDING = frozenset({MemberAction.PREPARE, MemberAction.AWAIT, MemberAction.WAIT, MemberAction.LOOK})
TROUBLE = (EngineDown, EngineUnclear, EngineRefused, OSError, sqlite3.Error)


@define(eq=False)
class MemberDriver:
    """Drives one member from any journalled state to its end. ``drive`` returns when nothing is left to do for now."""

    core: NodeCore
    member: MemberId
    _poked: trio.Event = field(factory=trio.Event)
    _captured: trio.Event | None = None
    _capture: Capture | None = None
    _wait_seconds: float = RETRY_FIRST_SECONDS

    def poke(self) -> None:
        """A command was journalled: look at the record again. Never blocks; interrupts what yields."""
        self._poked.set()

    @property
    def done(self) -> bool:
        """Whether the journal has nothing left for a driver to do."""
        record = self.core.journal.member(self.member)
        over = record is None or self._idle(record, MemberAction.KEEP)
        return over and self.core.leftovers.of(self.member) is None

    async def drive(self) -> None:
        """Until the record is gone, or ended and clean. Cancelled at any point, another driver can take over."""
        async with trio.open_nursery() as captures:
            await self._drive(captures)
            captures.cancel_scope.cancel()

    async def _drive(self, captures: trio.Nursery) -> None:
        record = self.core.journal.member(self.member)
        if record is not None:
            self.core.journal.take_fresh(record)  # a driver that begins knows nothing of what another one has done
        action, basis = MemberAction.KEEP, -1
        while record is not None:
            if record.revision != basis or action is MemberAction.KEEP:
                action, basis = self.core.journal.take_fresh(record) or RESUME[record.phase], record.revision
            if self._idle(record, action):
                if not await self._end_leftover():
                    return
            elif (outcome := await self._attempt(captures, action, record)) is not None:
                action, basis = await self._journal(outcome, action, record)
            if self._poked.is_set():
                self._poked = trio.Event()
            record = self.core.journal.member(self.member)
        self._give_up_leftovers()

    async def _end_leftover(self) -> bool:
        """One try at what an operator wants ended though the member is over; False: there is nothing."""
        stop = self.core.leftovers.of(self.member)
        if stop is None:
            return False
        try:
            await end_leftover(self.core, stop)
        except TROUBLE as error:
            log.warning("stopping container %s of %s: %s; trying again", stop.container[:12], self.member, error)
            await self._pause()
        else:
            self.core.leftovers.settle(stop)
        return True

    def _give_up_leftovers(self) -> None:
        """The member was forgotten: what is left is a stranger like any other."""
        while (stop := self.core.leftovers.of(self.member)) is not None:
            self.core.leftovers.settle(stop)

    def _idle(self, record: NodeMember, action: MemberAction) -> bool:
        return record.phase in ENDED and record.cleaned and record.phase is not NodePhase.FORGOTTEN and action is not MemberAction.FORGET

    async def _attempt(self, captures: trio.Nursery, action: MemberAction, record: NodeMember) -> Outcome | None:
        """The outcome, or None: a command came first, or nothing was found out and it is to be tried again."""
        if action not in YIELDING:
            return await self._try(captures, action, record)
        outcome: list[Outcome | None] = []
        async with trio.open_nursery() as race:
            race.start_soon(self._cancel_when_poked, race.cancel_scope)
            outcome.append(await self._try(captures, action, record))
            race.cancel_scope.cancel()
        return outcome[0] if outcome else None

    async def _cancel_when_poked(self, scope: trio.CancelScope) -> None:
        await self._poked.wait()
        scope.cancel()

    async def _try(self, captures: trio.Nursery, action: MemberAction, record: NodeMember) -> Outcome | None:
        try:
            return await self._perform(captures, action, record)
        except TROUBLE as error:
            log.warning("%s of %s: %s; trying again", action.value, self.member, error)
            await self._pause()
            return None

    async def _perform(self, captures: trio.Nursery, action: MemberAction, record: NodeMember) -> Outcome:
        if action in (MemberAction.WAIT, MemberAction.END):
            self._start_capture(captures, record.container_id)
        if action is MemberAction.CLEAN:
            return await do_clean(self.core, record, lambda container: self._finish_capture(captures, container))
        return await EFFECTS[action](self.core, record)

    async def _journal(self, outcome: Outcome, done: MemberAction, before: NodeMember) -> tuple[MemberAction, int]:
        """Apply the outcome; the next action and the revision it belongs to. An outcome that cannot be journalled is
        looked for again, never acted on from memory."""
        place, looked_at = self.core.place(outcome.engine), before.revision if done is MemberAction.LOOK else None
        try:
            record, action = await self.core.journal.advance(self.member, outcome.event, outcome.facts, place, looked_at=looked_at)
        except (OSError, sqlite3.Error) as error:
            log.error("cannot journal %s of %s: %s; trying again", outcome.event.value, self.member, error)
            self.core.outbox.report(self.member)  # it may have been journalled all the same (P-09)
            await self._pause()
            return MemberAction.KEEP, -1
        if record.revision != before.revision:
            self._wait_seconds = RETRY_FIRST_SECONDS
            self.core.outbox.report(self.member)
        elif action is done:
            await self._pause()  # an unconfirmed kill, an engine whose wait returns early, a name that is taken by nothing
        return action, record.revision

    async def _pause(self) -> None:
        """A little longer each time nothing moved, and no longer than until the next command."""
        with trio.move_on_after(self._wait_seconds):
            await self._poked.wait()
        self._wait_seconds = min(self._wait_seconds * 2, RETRY_MOST_SECONDS)

    # ------------------------------------------------ the log

    def _start_capture(self, captures: trio.Nursery, container: str) -> trio.Event:
        """Begin to copy the container's output, once; the event says that all of it is there."""
        if self._captured is None:
            self._captured = trio.Event()
            captures.start_soon(self._run_capture, container, self._captured)
        return self._captured

    async def _run_capture(self, container: str, done: trio.Event) -> None:
        self._capture = Capture(self.core.engine, container, await self.core.logs.log(self.member))
        await self._capture.run()
        done.set()

    async def _finish_capture(self, captures: trio.Nursery, container: str) -> None:
        done = self._start_capture(captures, container)
        if self._capture is not None:
            self._capture.note_ended()
        with trio.move_on_after(CAPTURE_SECONDS) as scope:
            await done.wait()
        if scope.cancelled_caught:
            log.warning("the log of %s was not complete %g s after its end; it is cut there", self.member, CAPTURE_SECONDS)
            await (await self.core.logs.log(self.member)).append(CUT)
