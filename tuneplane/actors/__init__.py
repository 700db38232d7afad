"""The actor kernel: supervised actors on Trio. Knows nothing of Fleets; standard library, attrs and Trio only.

Read in this order: ``actor`` (what you write), ``ref`` (how you reach it), ``mailbox``, ``cell`` (one life of an
actor), ``supervisor`` and ``restart`` (how it starts again), ``root`` (how it all begins). ``docs/actors.md`` explains.

Long-lived tasks, per ``open_system``: the root supervisor's (owner: the nursery of ``open_system``, shielded), one per
supervisor and per actor (owner: its supervisor), and inside an actor one for ``run``, one per worker of each mailbox,
one for signals if it handles any, and its effects and timers.
Queues: every mailbox holds at most its ``capacity`` letters; the trace ring the last TRACE_SIZE events. Stop, kill,
child exits, timers and named signals are coalesced flags and take no room.
"""

from .actor import Actor, Context, TaskHandle, Timer
from .errors import (
    ActorError,
    ActorGone,
    AskCycle,
    AskExpired,
    AskFailed,
    CleanUpOverdue,
    MailboxFull,
    NameTaken,
    NoHandler,
    PoolFull,
    StartFailed,
    StartOverdue,
    SystemFailed,
)
from .exits import Crashed, ExitReason, Finished, GaveUp, Killed, Stopped, describe, is_failure
from .handlers import handles, on_signal
from .mailbox import MailboxSpec, MailboxStatistics
from .pool import Pool
from .ref import Ref
from .restart import Backoff, Budget, Restart, Strategy
from .root import open_system
from .spec import ChildSpec, SupervisorSpec
from .system import System
from .trace import TRACE_SIZE, Kind, TraceEvent, TraceRing, current_trace, trace_scope
from .tree import Phase, TreeNode

__all__ = [
    "TRACE_SIZE",
    "Actor",
    "ActorError",
    "ActorGone",
    "AskCycle",
    "AskExpired",
    "AskFailed",
    "Backoff",
    "Budget",
    "ChildSpec",
    "CleanUpOverdue",
    "Context",
    "Crashed",
    "ExitReason",
    "Finished",
    "GaveUp",
    "Killed",
    "Kind",
    "MailboxFull",
    "MailboxSpec",
    "MailboxStatistics",
    "NameTaken",
    "NoHandler",
    "Phase",
    "Pool",
    "PoolFull",
    "Ref",
    "Restart",
    "StartFailed",
    "StartOverdue",
    "Stopped",
    "Strategy",
    "SupervisorSpec",
    "System",
    "SystemFailed",
    "TaskHandle",
    "Timer",
    "TraceEvent",
    "TraceRing",
    "TreeNode",
    "current_trace",
    "describe",
    "handles",
    "is_failure",
    "on_signal",
    "open_system",
    "trace_scope",
]
