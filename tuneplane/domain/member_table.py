"""The launch protocol, Node side: one literal table for one member. Read this page and you know what a Node does.

The journal holds one record a member; its ``phase`` is a key of the table below. Commands of the control plane, the
outcomes of the Node's own effects and what it *finds* in the container runtime are events. Every event is applied in
one journal transaction to the phase that the journal holds *then*, so a stop that was journalled while the driver was
busy is met by the driver's very next step: that is the re-read between create and start (P-01).

    absent --prepare--> preparing --ready--> prepared --commit--> creating --found-ready--> starting --started--> running
       |                    |                    |                    |                        |                     |
      stop                stop, hold-expired, unfit                  stop                     stop                 stop
       |                    +-----> aborted <----+                    |                        +----> stopping <-----+
       +-------------------> withdrawn <------------------------------+                                  |
                                 +--fenced, or removed----> aborted            terminated <--found-ended-+

*creating* means: a create may have been sent, no start was; *starting*: a start may have been sent, once. So:

- P-01  Evidence is only what the member's one driver found. ``found-absent`` proves nothing while a create may still be
        executing: the name is fenced first (an inert container that is never started holds it), then ``fenced`` is proof.
- P-03  After a crash the driver looks. Absent: fence, ``lost``. Created, never started, same boot, hold unexpired and
        no start sent: may start. Created otherwise: removed, ``aborted``, or ``lost`` when a start had been sent (the
        engine may execute it until the container is gone). Started at any time: no row of any phase leads to START again.
- P-04  ``found-ended`` is an exit inspected under the boot and engine instance journalled at the start; any other exit
        is ``found-unproven`` and ends as ``lost``, whatever exit code the runtime shows.
- P-08  ``hold-expired`` is a journalled tombstone (``aborted``); a later Prepare or Commit meets it and is refused.
- P-10  A Commit that comes late meets ``aborted``, ``withdrawn`` or ``stopping`` and is refused.

Nothing leaves ``terminated`` and ``aborted`` but an explicit Forget (P-06).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from .errors import IllegalTransition
from .launch_table import MemberPhase


class NodePhase(str, Enum):
    ABSENT = "absent"  # no record
    PREPARING = "preparing"  # Prepare is journalled; image and directories are being made ready
    PREPARED = "prepared"  # all is ready, nothing exists in the runtime; the hold runs
    CREATING = "creating"  # Commit is journalled; a create may have been sent, no start was
    STARTING = "starting"  # the container's id is journalled; its one start may have been sent
    RUNNING = "running"
    STOPPING = "stopping"  # stop accepted when it may have started: end it and confirm
    WITHDRAWN = "withdrawn"  # stop accepted when no start was sent: make sure that nothing is there
    TERMINATED = "terminated"
    ABORTED = "aborted"
    FORGOTTEN = "forgotten"  # Forget is journalled; logs and fence are being removed, then the record


class MemberEvent(str, Enum):
    PREPARE = "prepare"
    COMMIT = "commit"
    STOP = "stop"
    STOP_UNSEEN = "stop-unseen"  # a Stop before anybody has looked for its container since the daemon started
    FORGET = "forget"
    HOLD_EXPIRED = "hold-expired"
    READY = "ready"  # image present, directories made
    UNFIT = "unfit"  # it can never be prepared here: image, budget, plan or storage root
    STARTED = "started"  # the engine confirmed the start
    SIGNALLED = "signalled"  # the job's own stop signal was sent: its grace begins
    REFUSED = "refused"  # the engine refused create or start for good, and nothing started
    UNCLEAR = "unclear"  # no answer: the engine may have done it, or may do it later
    FOUND_ABSENT = "found-absent"
    FOUND_READY = "found-ready"  # created, never started, same boot, hold unexpired
    FOUND_STALE = "found-stale"  # created, never started, otherwise
    FOUND_RUNNING = "found-running"
    FOUND_ENDED = "found-ended"  # ended, with evidence of our own (P-04)
    FOUND_UNPROVEN = "found-unproven"  # ended, without it
    FOUND_FOREIGN = "found-foreign"  # the name belongs to a container that is not ours: never touched
    FENCED = "fenced"  # the name is held by an inert container: no create can succeed any more
    REMOVED = "removed"  # a created container is gone, confirmed
    CLEANED = "cleaned"  # logs captured, container and directories gone, confirmed
    GONE = "gone"  # nothing is left to forget


class MemberAction(str, Enum):
    """What the driver does next."""

    PREPARE = "prepare"
    AWAIT = "await"  # nothing until a command comes or the hold ends
    CREATE = "create"
    START = "start"
    LOOK = "look"  # inspect the runtime by id or name, and labels
    WAIT = "wait"  # follow the container until it ends
    END = "end"  # its own signal once, the grace that is left, SIGKILL, confirm
    REMOVE = "remove"  # remove a container that may yet start, by id
    FENCE = "fence"
    CLEAN = "clean"
    FORGET = "forget"
    KEEP = "keep"  # go on with what is being done


class Row(NamedTuple):
    phase: NodePhase
    action: MemberAction
    reason: str = ""  # reason code of an end; "" where the event's own facts say it, or where it ended by itself


P, E, A = NodePhase, MemberEvent, MemberAction
UNSEEN = frozenset({P.PREPARING, P.PREPARED})  # of a journal just opened: nothing exists, if it is the newest copy
LOOKS = (E.FOUND_ABSENT, E.FOUND_FOREIGN, E.FOUND_READY, E.FOUND_STALE, E.FOUND_RUNNING, E.FOUND_ENDED, E.FOUND_UNPROVEN, E.FENCED)

NODE_MEMBER_TABLE: dict[tuple[NodePhase, MemberEvent], Row] = {
    (P.ABSENT, E.PREPARE): Row(P.PREPARING, A.PREPARE),
    (P.ABSENT, E.UNFIT): Row(P.ABORTED, A.CLEAN),
    (P.ABSENT, E.STOP): Row(P.WITHDRAWN, A.LOOK, "stopped"),  # P-02: a tombstone for the Prepare that may be in flight
    (P.ABSENT, E.FORGET): Row(P.ABSENT, A.KEEP),
    # ---- nothing exists in the runtime
    (P.PREPARING, E.PREPARE): Row(P.PREPARING, A.KEEP),
    (P.PREPARING, E.READY): Row(P.PREPARED, A.AWAIT),
    (P.PREPARING, E.UNFIT): Row(P.ABORTED, A.CLEAN),
    (P.PREPARING, E.HOLD_EXPIRED): Row(P.ABORTED, A.CLEAN, "hold-expired"),
    (P.PREPARING, E.STOP): Row(P.ABORTED, A.CLEAN, "stopped"),
    (P.PREPARED, E.PREPARE): Row(P.PREPARED, A.KEEP),
    (P.PREPARED, E.COMMIT): Row(P.CREATING, A.CREATE),
    (P.PREPARED, E.HOLD_EXPIRED): Row(P.ABORTED, A.CLEAN, "hold-expired"),
    (P.PREPARED, E.STOP): Row(P.ABORTED, A.CLEAN, "stopped"),
    # ---- a daemon that starts looks first: the journal may be an older copy that lacks what was done later (P-12)
    **{
        (phase, event): row
        for phase, go_on in ((P.PREPARING, A.PREPARE), (P.PREPARED, A.AWAIT))
        for event, row in {
            E.FOUND_ABSENT: Row(phase, go_on),
            E.FOUND_FOREIGN: Row(phase, go_on),
            E.FOUND_READY: Row(P.STARTING, A.REMOVE),  # a start may have been sent
            E.FOUND_STALE: Row(P.STARTING, A.REMOVE),
            E.FOUND_RUNNING: Row(P.RUNNING, A.WAIT),  # adopted, never started again
            E.FOUND_ENDED: Row(P.TERMINATED, A.CLEAN, "lost"),
            E.FOUND_UNPROVEN: Row(P.TERMINATED, A.CLEAN, "lost"),
            E.FENCED: Row(P.TERMINATED, A.CLEAN, "lost"),
            E.STOP_UNSEEN: Row(P.WITHDRAWN, A.LOOK, "stopped"),
        }.items()
    },
    # ---- a create may have been sent, no start was
    (P.CREATING, E.PREPARE): Row(P.CREATING, A.KEEP),
    (P.CREATING, E.COMMIT): Row(P.CREATING, A.KEEP),
    (P.CREATING, E.HOLD_EXPIRED): Row(P.CREATING, A.KEEP),  # the Commit was journalled first
    (P.CREATING, E.UNCLEAR): Row(P.CREATING, A.LOOK),
    (P.CREATING, E.REFUSED): Row(P.ABORTED, A.CLEAN),
    (P.CREATING, E.FOUND_READY): Row(P.STARTING, A.START),
    (P.CREATING, E.FOUND_STALE): Row(P.ABORTED, A.CLEAN, "hold-expired"),
    (P.CREATING, E.FOUND_ABSENT): Row(P.CREATING, A.FENCE),
    (P.CREATING, E.FENCED): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.CREATING, E.FOUND_RUNNING): Row(P.RUNNING, A.WAIT),  # of an older journal: adopted, never started again
    (P.CREATING, E.FOUND_ENDED): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.CREATING, E.FOUND_UNPROVEN): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.CREATING, E.FOUND_FOREIGN): Row(P.ABORTED, A.CLEAN, "name-taken"),
    (P.CREATING, E.STOP): Row(P.WITHDRAWN, A.LOOK, "stopped"),
    (P.WITHDRAWN, E.STOP): Row(P.WITHDRAWN, A.KEEP, "stopped"),
    (P.WITHDRAWN, E.HOLD_EXPIRED): Row(P.WITHDRAWN, A.KEEP, "stopped"),
    (P.WITHDRAWN, E.UNCLEAR): Row(P.WITHDRAWN, A.LOOK, "stopped"),
    (P.WITHDRAWN, E.REFUSED): Row(P.ABORTED, A.CLEAN, "stopped"),
    (P.WITHDRAWN, E.FOUND_READY): Row(P.WITHDRAWN, A.REMOVE, "stopped"),
    (P.WITHDRAWN, E.FOUND_STALE): Row(P.WITHDRAWN, A.REMOVE, "stopped"),
    (P.WITHDRAWN, E.REMOVED): Row(P.ABORTED, A.CLEAN, "stopped"),
    (P.WITHDRAWN, E.FOUND_ABSENT): Row(P.WITHDRAWN, A.FENCE, "stopped"),
    (P.WITHDRAWN, E.FENCED): Row(P.ABORTED, A.CLEAN, "stopped"),
    (P.WITHDRAWN, E.FOUND_FOREIGN): Row(P.ABORTED, A.CLEAN, "stopped"),
    (P.WITHDRAWN, E.FOUND_RUNNING): Row(P.STOPPING, A.END, "stopped"),  # of an older journal
    (P.WITHDRAWN, E.FOUND_ENDED): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.WITHDRAWN, E.FOUND_UNPROVEN): Row(P.TERMINATED, A.CLEAN, "lost"),
    # ---- its one start may have been sent
    (P.STARTING, E.PREPARE): Row(P.STARTING, A.KEEP),
    (P.STARTING, E.COMMIT): Row(P.STARTING, A.KEEP),
    (P.STARTING, E.STARTED): Row(P.RUNNING, A.WAIT),
    (P.STARTING, E.UNCLEAR): Row(P.STARTING, A.LOOK),
    (P.STARTING, E.REFUSED): Row(P.ABORTED, A.CLEAN),
    (P.STARTING, E.FOUND_READY): Row(P.STARTING, A.REMOVE),
    (P.STARTING, E.FOUND_STALE): Row(P.STARTING, A.REMOVE),
    (P.STARTING, E.REMOVED): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.STARTING, E.FOUND_ABSENT): Row(P.STARTING, A.FENCE),
    (P.STARTING, E.FENCED): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.STARTING, E.FOUND_FOREIGN): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.STARTING, E.FOUND_RUNNING): Row(P.RUNNING, A.WAIT),
    (P.STARTING, E.FOUND_ENDED): Row(P.TERMINATED, A.CLEAN),
    (P.STARTING, E.FOUND_UNPROVEN): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.STARTING, E.STOP): Row(P.STOPPING, A.LOOK, "stopped"),
    (P.RUNNING, E.PREPARE): Row(P.RUNNING, A.KEEP),
    (P.RUNNING, E.COMMIT): Row(P.RUNNING, A.KEEP),
    (P.RUNNING, E.UNCLEAR): Row(P.RUNNING, A.LOOK),
    (P.RUNNING, E.FOUND_RUNNING): Row(P.RUNNING, A.WAIT),
    (P.RUNNING, E.FOUND_ENDED): Row(P.TERMINATED, A.CLEAN),
    (P.RUNNING, E.FOUND_UNPROVEN): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.RUNNING, E.FOUND_ABSENT): Row(P.RUNNING, A.FENCE),
    (P.RUNNING, E.FENCED): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.RUNNING, E.FOUND_FOREIGN): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.RUNNING, E.FOUND_READY): Row(P.RUNNING, A.REMOVE),  # a runtime that forgot the start, as after a reboot
    (P.RUNNING, E.FOUND_STALE): Row(P.RUNNING, A.REMOVE),
    (P.RUNNING, E.REMOVED): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.RUNNING, E.STOP): Row(P.STOPPING, A.END, "stopped"),
    (P.STOPPING, E.STOP): Row(P.STOPPING, A.KEEP, "stopped"),
    (P.STOPPING, E.STARTED): Row(P.STOPPING, A.END, "stopped"),
    (P.STOPPING, E.SIGNALLED): Row(P.STOPPING, A.END, "stopped"),
    (P.STOPPING, E.UNCLEAR): Row(P.STOPPING, A.LOOK, "stopped"),
    (P.STOPPING, E.REFUSED): Row(P.ABORTED, A.CLEAN, "stopped"),
    (P.STOPPING, E.FOUND_RUNNING): Row(P.STOPPING, A.END, "stopped"),
    (P.STOPPING, E.FOUND_ENDED): Row(P.TERMINATED, A.CLEAN, "stopped"),
    (P.STOPPING, E.FOUND_UNPROVEN): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.STOPPING, E.FOUND_READY): Row(P.STOPPING, A.REMOVE, "stopped"),
    (P.STOPPING, E.FOUND_STALE): Row(P.STOPPING, A.REMOVE, "stopped"),
    (P.STOPPING, E.REMOVED): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.STOPPING, E.FOUND_ABSENT): Row(P.STOPPING, A.FENCE, "stopped"),
    (P.STOPPING, E.FENCED): Row(P.TERMINATED, A.CLEAN, "lost"),
    (P.STOPPING, E.FOUND_FOREIGN): Row(P.TERMINATED, A.CLEAN, "lost"),
    # ---- ended: a record that only Forget removes
    (P.TERMINATED, E.COMMIT): Row(P.TERMINATED, A.KEEP),
    (P.TERMINATED, E.STOP): Row(P.TERMINATED, A.KEEP),
    (P.TERMINATED, E.CLEANED): Row(P.TERMINATED, A.AWAIT),
    (P.TERMINATED, E.FORGET): Row(P.FORGOTTEN, A.FORGET),
    (P.ABORTED, E.STOP): Row(P.ABORTED, A.KEEP),
    (P.ABORTED, E.READY): Row(P.ABORTED, A.CLEAN),  # the stop was faster than the preparation
    (P.ABORTED, E.UNFIT): Row(P.ABORTED, A.CLEAN),
    (P.ABORTED, E.HOLD_EXPIRED): Row(P.ABORTED, A.CLEAN),
    **{(P.ABORTED, event): Row(P.ABORTED, A.CLEAN) for event in LOOKS},  # likewise
    (P.ABORTED, E.CLEANED): Row(P.ABORTED, A.AWAIT),
    (P.ABORTED, E.FORGET): Row(P.FORGOTTEN, A.FORGET),
    (P.FORGOTTEN, E.FORGET): Row(P.FORGOTTEN, A.KEEP),
    (P.FORGOTTEN, E.READY): Row(P.FORGOTTEN, A.FORGET),
    (P.FORGOTTEN, E.UNFIT): Row(P.FORGOTTEN, A.FORGET),
    (P.FORGOTTEN, E.HOLD_EXPIRED): Row(P.FORGOTTEN, A.FORGET),
    **{(P.FORGOTTEN, event): Row(P.FORGOTTEN, A.FORGET) for event in LOOKS},
    (P.FORGOTTEN, E.CLEANED): Row(P.FORGOTTEN, A.FORGET),
    (P.FORGOTTEN, E.GONE): Row(P.ABSENT, A.KEEP),
}

# Commands that a phase refuses for ever: the code of the answer (P-02, P-08, P-10).
REFUSALS: dict[tuple[NodePhase, MemberEvent], str] = {
    (P.ABSENT, E.COMMIT): "unknown-member",
    (P.PREPARING, E.COMMIT): "not-prepared",
    (P.PREPARING, E.FORGET): "still-live",
    (P.PREPARED, E.FORGET): "still-live",
    (P.CREATING, E.FORGET): "still-live",
    (P.STARTING, E.FORGET): "still-live",
    (P.RUNNING, E.FORGET): "still-live",
    (P.STOPPING, E.FORGET): "still-live",
    (P.WITHDRAWN, E.FORGET): "still-live",
    (P.STOPPING, E.PREPARE): "stopped",
    (P.STOPPING, E.COMMIT): "stopped",
    (P.WITHDRAWN, E.PREPARE): "stopped",
    (P.WITHDRAWN, E.COMMIT): "stopped",
    (P.ABORTED, E.PREPARE): "tombstone",
    (P.ABORTED, E.COMMIT): "tombstone",
    (P.TERMINATED, E.PREPARE): "ended",
    (P.FORGOTTEN, E.PREPARE): "forgotten",
    (P.FORGOTTEN, E.COMMIT): "forgotten",
    (P.FORGOTTEN, E.STOP): "forgotten",
}

# What a driver does with a record it finds in the journal, knowing nothing else: it looks before it acts (P-03).
RESUME: dict[NodePhase, MemberAction] = {
    P.PREPARING: A.LOOK,
    P.PREPARED: A.LOOK,
    P.CREATING: A.LOOK,
    P.STARTING: A.LOOK,
    P.RUNNING: A.LOOK,
    P.STOPPING: A.LOOK,
    P.WITHDRAWN: A.LOOK,
    P.TERMINATED: A.CLEAN,
    P.ABORTED: A.CLEAN,
    P.FORGOTTEN: A.FORGET,
}

ENDED = frozenset({P.TERMINATED, P.ABORTED, P.FORGOTTEN})
HOLDING = frozenset(P) - ENDED - {P.ABSENT}  # these count against the Node's budgets (L-D10)

REPORTED: dict[NodePhase, MemberPhase] = {
    P.PREPARING: MemberPhase.PREPARING,
    P.PREPARED: MemberPhase.PREPARED,
    P.CREATING: MemberPhase.STARTING,
    P.STARTING: MemberPhase.STARTING,
    P.RUNNING: MemberPhase.RUNNING,
    P.STOPPING: MemberPhase.STOPPING,
    P.WITHDRAWN: MemberPhase.STOPPING,
    P.TERMINATED: MemberPhase.TERMINATED,
    P.ABORTED: MemberPhase.ABORTED,
}


def step(phase: NodePhase, event: MemberEvent) -> Row:
    """The row for ``event`` in ``phase``, or IllegalTransition (a command in REFUSALS is to be refused, not stepped)."""
    try:
        return NODE_MEMBER_TABLE[phase, event]
    except KeyError:
        raise IllegalTransition("node member", phase.value, event.value) from None
