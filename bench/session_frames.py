"""What both servers of the session benchmark say. Imports nothing that knows asyncio or Trio."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from tuneplane.domain.frames import WIRE_PROTOCOL, GatewayFrame, NodeFrame, Observation, ObservationAck, Welcome
from tuneplane.domain.ids import GatewayId
from tuneplane.domain.timings import Timings

NOW = datetime(2026, 11, 30, tzinfo=UTC)
TIMINGS = Timings(heartbeat=10.0, session_idle=30.0)


def welcome(epoch: int) -> Welcome:
    return Welcome(
        protocol=WIRE_PROTOCOL,
        session_epoch=epoch,
        gateway=GatewayId("bench"),
        heartbeat_seconds=TIMINGS.heartbeat,
        idle_seconds=TIMINGS.session_idle,
        sent_at=NOW,
    )


def reply(frame: NodeFrame) -> GatewayFrame | None:
    if isinstance(frame, Observation):
        return ObservationAck(member=frame.member, revision=frame.revision)
    return None


def say(**told: object) -> None:
    print(json.dumps(told), flush=True)
