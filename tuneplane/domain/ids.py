"""Typed identifiers: the one place that says how an id looks. A bare ``str`` never crosses a signature as an id."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import NewType

FleetId = NewType("FleetId", str)
NodeId = NewType("NodeId", str)
JobId = NewType("JobId", str)
AttemptId = NewType("AttemptId", str)
MemberId = NewType("MemberId", str)
OperationId = NewType("OperationId", str)
GatewayId = NewType("GatewayId", str)
WorkerId = NewType("WorkerId", str)
TokenId = NewType("TokenId", str)
UserName = NewType("UserName", str)
ProjectId = NewType("ProjectId", str)
SessionId = NewType("SessionId", str)
JournalId = NewType("JournalId", str)
TraceId = NewType("TraceId", str)
SeriesId = NewType("SeriesId", str)  # a hardware series such as h100

ID_ENTROPY_BYTES = 10  # 80 bits: no collision in the life of a fleet, still short enough to read aloud
SLUG = re.compile(r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")  # a DNS label: also fits host names and label values


def spell_id(prefix: str, entropy: bytes) -> str:
    """``prefix`` and 80 bits of the caller's randomness as lower-case base32: ``job-q3v…`` (safe in file names)."""
    if len(entropy) < ID_ENTROPY_BYTES:
        raise ValueError(f"an id needs {ID_ENTROPY_BYTES} bytes of entropy, got {len(entropy)}")
    text = base64.b32encode(entropy[:ID_ENTROPY_BYTES]).decode("ascii").lower().rstrip("=")
    return f"{prefix}-{text}"


def attempt_id(job: JobId, number: int) -> AttemptId:
    """Attempt ``number`` (1, 2, …) of ``job``."""
    return AttemptId(f"{job}-{number}")


def member_id(attempt: AttemptId, rank: int) -> MemberId:
    """The member of ``attempt`` with ``rank`` (0, 1, …)."""
    return MemberId(f"{attempt}-{rank}")


def operation_id(member: MemberId, kind: str) -> OperationId:
    """Deterministic, so that every worker that takes an attempt over repeats the same operation (R-LCH-02)."""
    return OperationId(f"{member}:{kind}")


def container_name(member: MemberId) -> str:
    """The deterministic container name: at most one container per member identity, ever (R-LCH-02)."""
    return f"tuneplane-{member}"


def stranger_operation(container: str, member: MemberId, kind: str) -> OperationId:
    """The operation by which an operator stops a stranger (P-07), or the control plane lets its Node forget it."""
    return OperationId(f"stranger-{hashlib.sha256(f'{container} {member}'.encode()).hexdigest()[:24]}:{kind}")
