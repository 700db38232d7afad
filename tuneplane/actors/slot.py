"""A slot: one place in a supervision tree, and what is in it now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio
from attrs import define, field

from .exits import ExitReason, describe
from .spec import AnySpec
from .tree import Phase, TreeNode


class Child(Protocol):
    """One incarnation of an actor (``Cell``) or of a supervisor."""

    exit_reason: ExitReason | None

    @property
    def stop_limit(self) -> float:
        """Seconds within which a stop should be over."""

    async def live(self, ready: Callable[[], None]) -> ExitReason: ...

    def request_stop(self) -> None: ...

    def snapshot(self) -> TreeNode: ...


@define(eq=False)
class Slot:
    """State of one child. Its supervisor alone changes it."""

    spec: AnySpec
    path: str
    index: int  # the order of starting
    phase: Phase = Phase.WAITING
    due: float = 0.0  # when WAITING: not before this time
    starts: int = 0
    adopted: bool = True  # False while a dynamic child has not been ready yet: nobody restarts it
    child: Child | None = None
    reason: ExitReason | None = None  # how the last incarnation ended
    exited: trio.Event = field(factory=trio.Event)

    def begin(self) -> None:
        """A new incarnation is about to run."""
        self.phase = Phase.STARTING
        self.starts += 1
        self.child = None
        self.exited = trio.Event()

    @property
    def ready(self) -> bool:
        return self.phase is Phase.RUNNING

    def snapshot(self) -> TreeNode:
        """The child's part of the tree, under what the supervisor knows of it."""
        inner = None if self.child is None else self.child.snapshot()
        return TreeNode(
            path=self.path,
            kind="" if inner is None else inner.kind,
            phase=self.phase,
            restarts=max(0, self.starts - 1),
            last_exit="" if self.reason is None else describe(self.reason),
            mailboxes=() if inner is None else inner.mailboxes,
            children=() if inner is None else inner.children,
        )
