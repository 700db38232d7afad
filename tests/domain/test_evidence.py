"""What a report is worth: P-02, P-12, R-LCH-05, over every pair of what was known and what is seen."""

from __future__ import annotations

from itertools import product

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tuneplane.domain.evidence import Known, Ruling, weigh
from tuneplane.domain.frames import Observation
from tuneplane.domain.ids import MemberId
from tuneplane.domain.launch_table import ENDED_PHASES, MEMBER_TABLE, MemberPhase
from tuneplane.domain.node_member import PROGRESS_TICKS

P, R = MemberPhase, Ruling
J = "journal-1"
T = PROGRESS_TICKS


def a_report(phase: MemberPhase = P.RUNNING, revision: int = 5 * T, **more: object) -> Observation:
    made = Observation(member=MemberId("m"), revision=revision, phase=phase, plan_digest="d", boot_id="b", container_id="c")
    return evolve(made, **more)


KNOWN = Known(phase=P.RUNNING, revision=5 * T, journal=J, epoch=3)
REPORTED = [phase for phase in P if phase not in (P.PENDING, P.UNKNOWN)]
knowns = st.builds(
    Known,
    phase=st.sampled_from(P),
    revision=st.integers(0, 9 * T),
    journal=st.sampled_from(["", J, "journal-2"]),
    epoch=st.integers(0, 5),
    commit_sent=st.booleans(),
    forgetting=st.booleans(),
)
reports = st.builds(a_report, st.sampled_from(REPORTED), st.integers(T, 9 * T), container_id=st.sampled_from(["", "c"]))


@pytest.mark.parametrize(
    ("revision", "epoch", "ruling"),
    [
        (5 * T, 4, R.KNOWN),  # an acknowledgement was lost: the same again
        (5 * T, 3, R.KNOWN),
        (4 * T, 3, R.KNOWN),  # a reordered copy within one session
        (5 * T + 1, 3, R.APPLY),
        (6 * T, 4, R.APPLY),
        (4 * T, 4, R.REVERTED),
        (4 * T + T - 1, 4, R.REVERTED),  # however far its progress is
    ],
)
def test_lower_revision_proves_a_reverted_journal_only_in_a_newer_session(revision: int, epoch: int, ruling: Ruling) -> None:
    """P-02, P-12."""
    assert weigh(KNOWN, a_report(revision=revision), J, epoch) is ruling


def test_same_revision_that_tells_another_story_proves_a_reverted_journal() -> None:
    """P-02, P-12: counted up again from an older copy. What we ended ourselves tells no story of the journal's."""
    ended = a_report(P.TERMINATED)
    assert weigh(KNOWN, ended, J, 4) is R.REVERTED
    assert weigh(KNOWN, ended, J, 3) is R.KNOWN
    assert weigh(KNOWN, a_report(P.RUNNING, 5 * T + 7), J, 4) is R.APPLY
    declared_lost = evolve(KNOWN, phase=P.TERMINATED)
    assert weigh(declared_lost, a_report(P.RUNNING), J, 4) is R.KNOWN


def test_progress_that_begins_again_after_a_restart_proves_nothing() -> None:
    """P-12: progress between two journalled revisions is not on the disk."""
    known = evolve(KNOWN, phase=P.PREPARING, revision=5 * T + 77)
    assert weigh(known, a_report(P.PREPARING, 5 * T), J, 4) is R.KNOWN


def test_another_journal_counts_from_the_start() -> None:
    """P-02: its low revisions are no revert, and are newer than all that was known."""
    assert weigh(evolve(KNOWN, phase=P.TERMINATED), a_report(P.ABORTED, T), "journal-2", 4) is R.SETTLED
    assert weigh(evolve(KNOWN, phase=P.UNKNOWN, revision=0), a_report(P.TERMINATED, T), "journal-2", 4) is R.APPLY


def test_tombstone_of_a_stop_that_overtook_its_forget_is_no_revert() -> None:
    known = evolve(KNOWN, phase=P.TERMINATED, forgetting=True)
    assert weigh(known, a_report(P.ABORTED, T), J, 4) is R.SETTLED


def test_ended_and_reported_alive_is_a_violation() -> None:
    """R-LCH-05."""
    ended = evolve(KNOWN, phase=P.TERMINATED)
    assert weigh(ended, a_report(P.RUNNING, 6 * T), J, 3) is R.VIOLATION
    assert weigh(ended, a_report(P.STOPPING, 6 * T), J, 3) is R.VIOLATION
    # a new journal is about to settle a Stop for what it never knew
    assert weigh(ended, a_report(P.STOPPING, T, container_id=""), "journal-2", 4) is R.KNOWN


def test_aborted_is_not_believed_from_a_journal_that_cannot_know() -> None:
    """P-01, P-02: its Commit was sent, so it may have run."""
    unknown = evolve(KNOWN, phase=P.UNKNOWN, revision=0)
    assert weigh(evolve(unknown, commit_sent=True), a_report(P.ABORTED), "journal-2", 4) is R.LOST
    assert weigh(unknown, a_report(P.ABORTED), "journal-2", 4) is R.APPLY


@pytest.mark.parametrize(("phase", "seen"), list(product(P, REPORTED)))
def test_newer_report_is_applied_only_by_the_member_table(phase: MemberPhase, seen: MemberPhase) -> None:
    ruling = weigh(evolve(KNOWN, phase=phase), a_report(seen, 6 * T), J, 3)
    if ruling in (R.APPLY, R.SETTLED):
        assert seen in MEMBER_TABLE[phase] or {phase, seen} == ENDED_PHASES
    if ruling is R.CONTRADICTED:
        assert seen not in MEMBER_TABLE[phase]
        assert phase not in ENDED_PHASES


@given(knowns, reports, st.integers(1, 9), st.sampled_from([J, "journal-2"]))
def test_whatever_is_reported_what_has_ended_stays_so_and_unknown_ends_by_an_end(
    known: Known, seen: Observation, epoch: int, journal: str
) -> None:
    ruling = weigh(known, seen, journal, epoch)
    if known.phase in ENDED_PHASES:
        assert ruling in (R.KNOWN, R.REVERTED, R.SETTLED, R.VIOLATION)
    elif known.phase is P.UNKNOWN and seen.phase not in ENDED_PHASES:
        assert ruling in (R.KNOWN, R.REVERTED, R.UNSETTLED)
    if ruling is R.APPLY and seen.phase is P.ABORTED:
        assert known.phase is not P.RUNNING  # P-03: what was seen running never becomes "never ran"
    if ruling is R.REVERTED:
        assert epoch > known.epoch > 0
        before, now = known.revision // T, seen.revision // T
        assert before > now or (before == now and known.phase is not seen.phase)


@given(knowns, reports, st.integers(1, 9))
def test_what_was_stored_is_known_when_it_comes_again(known: Known, seen: Observation, epoch: int) -> None:
    """R-LCH-05: in this session and in the next one, by the same journal."""
    phase = known.phase if known.phase in (*ENDED_PHASES, P.UNKNOWN) else seen.phase
    stored = evolve(known, phase=phase, revision=seen.revision, journal=J, epoch=epoch, forgetting=False)
    assert weigh(stored, seen, J, epoch) is R.KNOWN
    assert weigh(stored, seen, J, epoch + 1) is R.KNOWN


def test_success_told_by_a_journal_in_doubt_is_not_believed() -> None:
    """P-04: the copy that came back may be older than the stop that ended it."""
    known = Known(phase=MemberPhase.UNKNOWN, journal="j1", epoch=2, commit_sent=True)
    ended = Observation(member=MemberId("m"), revision=9, phase=MemberPhase.TERMINATED, plan_digest="", boot_id="b", exit_code=0)
    assert weigh(known, ended, "j1", 2) is Ruling.LOST
    assert weigh(known, evolve(ended, exit_code=7), "j1", 2) is Ruling.APPLY
