"""The system: what all actors of one tree share. Registry, trace ring, clock, and the list of who is overdue."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

import trio

from .errors import ActorGone
from .exits import ExitReason
from .trace import Kind, TraceRing, current_trace

if TYPE_CHECKING:
    from .pool import Pool
    from .ref import Ref
    from .supervisor import Supervisor
    from .tree import TreeNode

log = logging.getLogger(__name__)
OVERDUE_KEPT = 100  # reports: more than one shutdown produces, and still a page to read


class System:
    """Made by ``open_system``; lives as long as its block."""

    def __init__(self, name: str, *, seed: int | None, trace_size: int) -> None:
        self.name = name
        self.trace = TraceRing(trace_size)
        self.random = random.Random(seed)  # noqa: S311 - jitter and trace prefixes, no secrets
        self.now: Callable[[], float] = trio.lowlevel.current_clock().current_time
        self.letter_ids = count(1)
        self.trace_prefix = f"{self.random.getrandbits(64):016x}-"
        self.overdue: list[str] = []  # paths, in the order they were reported; at most OVERDUE_KEPT
        self.root: Supervisor | None = None
        self._refs: dict[str, Ref] = {}
        self._pools: dict[str, Pool] = {}

    def ref(self, path: str) -> Ref | None:
        """The living, ready actor at ``path`` (``root/worker/launches/job-1``)."""
        return self._refs.get(path)

    def find(self, path: str) -> Ref:
        """Like ``ref``, or ActorGone."""
        ref = self._refs.get(path)
        if ref is None:
            raise ActorGone(path, None)
        return ref

    def pool(self, path: str) -> Pool:
        """The running pool at ``path``. ActorGone."""
        pool = self._pools.get(path)
        if pool is None:
            raise ActorGone(path, None)
        return pool

    def refs(self) -> dict[str, Ref]:
        """A copy of the registry."""
        return dict(self._refs)

    def tree(self) -> TreeNode:
        """A snapshot of the supervision tree with the statistics of every mailbox."""
        assert self.root is not None
        return self.root.snapshot()

    def stop(self) -> None:
        """Ask the root to stop its children in reverse order. Idempotent."""
        if self.root is not None:
            self.root.request_stop()

    async def wait(self) -> ExitReason:
        """Wait until the whole tree has stopped or given up."""
        assert self.root is not None
        return await self.root.wait_exit()

    # --- for the kernel ---

    def register(self, ref: Ref) -> None:
        assert ref.path not in self._refs, f"two actors at {ref.path}"
        self._refs[ref.path] = ref
        self.note(Kind.STARTED, ref.path, "")

    def deregister(self, ref: Ref) -> None:
        if self._refs.get(ref.path) is ref:
            del self._refs[ref.path]

    def register_pool(self, path: str, pool: Pool) -> None:
        self._pools[path] = pool

    def deregister_pool(self, path: str) -> None:
        self._pools.pop(path, None)

    def note(self, kind: Kind, path: str, what: str) -> None:
        """Record an event in the life of an actor, under the trace of whoever caused it."""
        self.trace.record(kind, self.now(), (path, 0, 0, current_trace() or "", what))

    def report_overdue(self, path: str, what: str) -> None:
        """Name who does not stop in time: to the log, the trace and ``overdue``."""
        log.warning("%s is overdue: %s", path, what)
        self.note(Kind.OVERDUE, path, what)
        if len(self.overdue) < OVERDUE_KEPT:
            self.overdue.append(path)
