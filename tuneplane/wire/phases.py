"""Phases of a member, and their numbers on the wire."""

from __future__ import annotations

from ..domain.launch_table import MemberPhase
from .pb import session_pb2 as pb

PHASES = {
    MemberPhase.PENDING: pb.MEMBER_PHASE_PENDING,
    MemberPhase.PREPARING: pb.MEMBER_PHASE_PREPARING,
    MemberPhase.PREPARED: pb.MEMBER_PHASE_PREPARED,
    MemberPhase.STARTING: pb.MEMBER_PHASE_STARTING,
    MemberPhase.RUNNING: pb.MEMBER_PHASE_RUNNING,
    MemberPhase.STOPPING: pb.MEMBER_PHASE_STOPPING,
    MemberPhase.TERMINATED: pb.MEMBER_PHASE_TERMINATED,
    MemberPhase.ABORTED: pb.MEMBER_PHASE_ABORTED,
    MemberPhase.UNKNOWN: pb.MEMBER_PHASE_UNKNOWN,
}
PHASE_OF = {number: phase for phase, number in PHASES.items()}
