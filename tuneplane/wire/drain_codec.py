"""The two frames of a drain from the machine itself, as protobuf and as domain values."""

from __future__ import annotations

from ..domain.frames import DrainState, DrainWish
from ..domain.ids import MemberId
from ..domain.nodes import MOST_LEFT, Left, NodeState
from . import fields as f
from .fields import FrameError
from .pb import session_pb2 as pb
from .phases import PHASE_OF, PHASES

_STATES = {state.value: state for state in NodeState}


def decode_wish(m: pb.DrainWish) -> DrainWish:
    return DrainWish(revision=f.count(m.revision, "drain.revision"), wanted=m.wanted, reason=f.text(m.reason, "drain.reason"))


def encode_wish(v: DrainWish) -> pb.DrainWish:
    return pb.DrainWish(revision=v.revision, wanted=v.wanted, reason=f.to_text(v.reason))


def decode_state(m: pb.DrainState) -> DrainState:
    if m.state not in _STATES:
        raise FrameError("drain.state", "is no state that this version knows")
    if len(m.left) > MOST_LEFT:
        raise FrameError("drain.left", f"must have at most {MOST_LEFT} items")
    return DrainState(
        revision=f.count(m.revision, "drain.revision"),
        state=_STATES[m.state],
        drained=m.drained,
        left=tuple(_decode_left(one) for one in m.left),
    )


def encode_state(v: DrainState) -> pb.DrainState:
    left = [pb.LeftMember(member=one.member, phase=PHASES[one.phase]) for one in v.left[:MOST_LEFT]]
    return pb.DrainState(revision=v.revision, state=v.state.value, drained=v.drained, left=left)


def _decode_left(m: pb.LeftMember) -> Left:
    if m.phase not in PHASE_OF:
        raise FrameError("drain.left.phase", f"{m.phase} is no phase that this version knows")
    return Left(member=MemberId(f.checked_id(m.member, "drain.left.member")), phase=PHASE_OF[m.phase])
