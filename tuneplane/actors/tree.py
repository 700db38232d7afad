"""Snapshots of a supervision tree, for people and for the debugging shell."""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from .mailbox import MailboxStatistics


class Phase(str, Enum):
    """Where a child is in its life."""

    WAITING = "waiting"  # to be started when its back-off is over and those before it are ready
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"  # by itself; its supervisor has not looked yet
    DOWN = "down"  # not to be started again


@frozen
class TreeNode:
    """One child: an actor with its mailboxes or a supervisor with its children."""

    path: str
    kind: str  # the actor's class, or the supervisor's strategy
    phase: Phase
    restarts: int
    last_exit: str  # how the last incarnation ended; empty for the first
    mailboxes: tuple[MailboxStatistics, ...] = ()
    children: tuple[TreeNode, ...] = ()
