"""What a Node's report of one member is worth, given what the database knows of it. Pure; both storages ask here.

A report is a state, not an event, so most of the questions are *which of two states is the newer one*:

- within one session a Node's reports of a member come in order; a lower revision is a repeat or a reordered copy;
- a journal never forgets what it has reported (it is on the disk first). So a lower **journalled** revision of the same
  journal in a *newer* session means that the journal went back (P-02, P-12); so does the same revision with another
  phase: it was counted up again from an older copy. Progress between two journalled revisions is not on the disk: after
  a restart of the daemon it begins again, and proves nothing;
- another journal counts from the start: its revisions cannot be compared, and everything it says is newer;
- a member that was forgotten on our word may be learnt again by a late Stop: the new tombstone counts from the start.
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from .frames import Observation
from .launch_table import ENDED_PHASES, MEMBER_TABLE, MemberPhase
from .node_member import PROGRESS_TICKS

LOST = "lost"
LOST_DETAIL = "the journal that knew it is gone: it may have run, and it runs no more"
CONTRADICTION = "illegal-observation"


class Ruling(str, Enum):
    KNOWN = "known"  # a repeat, or older than what is stored: acknowledged, nothing changes
    APPLY = "apply"  # the newest state
    UNSETTLED = "unsettled"  # of an unknown member that has not ended: only the end of it settles anything (P-02)
    LOST = "lost"  # "never ran" or "succeeded", said by a journal that cannot know it (P-04)
    CONTRADICTED = "contradicted"  # no history leads there: the member is unknown from now on, and is stopped
    REVERTED = "reverted"  # the Node's journal went back: all its members are unknown
    SETTLED = "settled"  # how it ended is settled; the clean-up may be confirmed (R-LCH-14)
    VIOLATION = "violation"  # recorded as ended, and reported alive: it gets a Stop (R-LCH-05)


@frozen(kw_only=True)
class Known:
    """What is stored of a member, and in which session (epoch) of which journal that was reported; 0 and "": never."""

    phase: MemberPhase
    revision: int = 0
    journal: str = ""
    epoch: int = 0
    commit_sent: bool = False
    forgetting: bool = False  # a Forget was decided


def weigh(known: Known, seen: Observation, journal: str, epoch: int) -> Ruling:
    """Judge ``seen``, reported by ``journal`` in session ``epoch``."""
    if known.journal in ("", journal) and not known.forgetting:
        if known.epoch and epoch > known.epoch and _went_back(known, seen):
            return Ruling.REVERTED
        if seen.revision <= known.revision:
            return Ruling.KNOWN
    ended = seen.phase in ENDED_PHASES
    if known.phase in ENDED_PHASES:
        return Ruling.SETTLED if ended else Ruling.VIOLATION if _alive(seen) else Ruling.KNOWN
    if known.phase is MemberPhase.UNKNOWN:
        if not ended:
            return Ruling.UNSETTLED
        never_ran = seen.phase is MemberPhase.ABORTED and known.commit_sent
        by_itself = seen.exit_code == 0 and not seen.reason_code and not seen.oom_killed  # it need not know that we stopped it
        return Ruling.LOST if never_ran or by_itself else Ruling.APPLY
    return Ruling.APPLY if seen.phase in MEMBER_TABLE[known.phase] else Ruling.CONTRADICTED


def _went_back(known: Known, seen: Observation) -> bool:
    """An end and a doubt are ours to state (by a verdict, an operator's word): what was reported then is not stored."""
    before, now = known.revision // PROGRESS_TICKS, seen.revision // PROGRESS_TICKS
    as_reported = known.phase not in ENDED_PHASES and known.phase is not MemberPhase.UNKNOWN
    return now < before or (now == before and as_reported and seen.phase is not known.phase)


def _alive(seen: Observation) -> bool:
    """Not so a Stop that a new journal is about to settle for a member that it never knew: it has found no container."""
    return seen.phase is not MemberPhase.STOPPING or bool(seen.container_id)


def why_contradicted(known: Known, seen: Observation) -> str:
    """For the timeline and the member's reason."""
    return f"it was {known.phase.value} and its Node now reports it {seen.phase.value}: no history leads there"


def why_violation(seen: Observation) -> str:
    """For the timeline and the Node's page: bounded, and without the Node's own words."""
    return f"{seen.member} had ended, and its Node reports it {seen.phase.value}"


def why_reverted(known: Known, seen: Observation) -> str:
    """For the cordon."""
    before, now = known.revision // PROGRESS_TICKS, seen.revision // PROGRESS_TICKS
    return (
        f"the Node's journal went back: it reported revision {before} of {seen.member} ({known.phase.value}),"
        f" and now has {now} ({seen.phase.value})"
    )
