"""The session machine: every pair of the table, from both ends, and the counters that both ends keep."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sessions import hello, now, observation, stop_command
from tuneplane.domain.frames import (
    LOG_CREDIT_BYTES,
    Command,
    CommandAnswer,
    Goodbye,
    Heartbeat,
    HeartbeatReply,
    Hello,
    InventoryReport,
    LogCancel,
    LogChunk,
    LogCredit,
    LogRead,
    Observation,
    ObservationAck,
    ReconcileDone,
    Welcome,
)
from tuneplane.domain.ids import GatewayId, MemberId, OperationId
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.session_table import SESSION_TABLE, Role, SessionState, step_session
from tuneplane.wire.machine import LocalProtocolError, RemoteProtocolError, SessionMachine

INVENTORY = Inventory(hostname="h", node_version="0", cpu_count=1, memory_bytes=1)
SAMPLES: dict[type, Any] = {
    Hello: hello(),
    Heartbeat: Heartbeat(sequence=1, inventory_digest="", sent_at=now()),
    InventoryReport: InventoryReport(inventory=INVENTORY, digest=""),
    CommandAnswer: CommandAnswer(operation=OperationId("o"), accepted=True),
    Observation: observation(),
    ReconcileDone: ReconcileDone(members=0),
    LogChunk: LogChunk(request=1, offset=0, data=b"x"),
    Welcome: Welcome(protocol=1, session_epoch=1, gateway=GatewayId("g"), heartbeat_seconds=1, idle_seconds=3, sent_at=now()),
    HeartbeatReply: HeartbeatReply(sequence=0),
    Command: stop_command(),
    ObservationAck: ObservationAck(member=MemberId("m"), revision=1),
    LogRead: LogRead(request=1, member=MemberId("m")),
    LogCancel: LogCancel(request=1),
    LogCredit: LogCredit(size=1),
    Goodbye: Goodbye(code="closed", detail=""),
}
GRID = list(itertools.product(SessionState, Role, SAMPLES))
NODE_FRAMES = {Hello, Heartbeat, InventoryReport, CommandAnswer, Observation, ReconcileDone, LogChunk}
PATH: dict[SessionState, list[tuple[Role, type]]] = {
    SessionState.OPENED: [],
    SessionState.GREETED: [(Role.NODE, Hello)],
    SessionState.LIVE: [(Role.NODE, Hello), (Role.GATEWAY, Welcome)],
    SessionState.ENDED: [(Role.NODE, Hello), (Role.GATEWAY, Goodbye)],
}


def machine_in(state: SessionState, role: Role) -> SessionMachine:
    machine = SessionMachine(role)
    for sender, kind in PATH[state]:
        (machine.sent if sender is role else machine.received)(SAMPLES[kind])
    assert machine.state is state
    if state is SessionState.LIVE:
        machine.log_credit -= 10  # so that a LogCredit is possible
    return machine


def test_table_has_a_row_for_every_state_and_sender() -> None:
    assert set(SESSION_TABLE) == set(itertools.product(SessionState, Role))


@pytest.mark.parametrize(("state", "sender", "kind"), GRID)
def test_machine_frame_is_legal_by_the_same_rule_at_both_ends(state: SessionState, sender: Role, kind: type) -> None:
    """Each frame through both roles: what one end may send the other accepts, and the reverse (h11's test)."""
    expected = step_session(state, sender, kind)
    at_sender, at_receiver = machine_in(state, sender), machine_in(state, sender.peer)
    if expected is None:
        with pytest.raises(LocalProtocolError):
            at_sender.sent(SAMPLES[kind])
        assert at_sender.state is state
        if state is SessionState.ENDED:
            assert at_receiver.received(SAMPLES[kind]) is False  # still in flight when we ended it
        else:
            with pytest.raises(RemoteProtocolError, match="illegal-frame"):
                at_receiver.received(SAMPLES[kind])
        return
    at_sender.sent(SAMPLES[kind])
    assert at_receiver.received(SAMPLES[kind]) is True
    assert at_sender.state is at_receiver.state is expected


@pytest.mark.parametrize("kind", SAMPLES)
def test_table_frame_belongs_to_one_end(kind: type) -> None:
    senders = {sender for (_, sender), row in SESSION_TABLE.items() if kind in row}
    assert senders == {Role.NODE if kind in NODE_FRAMES else Role.GATEWAY}


def test_machine_log_beyond_its_credit_is_an_error_of_its_sender() -> None:
    """P-22: the Node's bound, enforced by the gateway."""
    too_much = LogChunk(request=1, offset=0, data=bytes(LOG_CREDIT_BYTES + 1))
    with pytest.raises(LocalProtocolError, match="credit-overrun"):
        machine_in(SessionState.LIVE, Role.NODE).sent(too_much)
    with pytest.raises(RemoteProtocolError, match="credit-overrun"):
        machine_in(SessionState.LIVE, Role.GATEWAY).received(too_much)


def test_machine_credit_beyond_the_window_is_an_error() -> None:
    machine = machine_in(SessionState.LIVE, Role.NODE)
    machine.received(LogCredit(size=10))
    with pytest.raises(RemoteProtocolError, match="credit-overrun"):
        machine.received(LogCredit(size=1))


@pytest.mark.parametrize("sequence", [0, 1])
def test_machine_heartbeat_that_does_not_rise_is_refused(sequence: int) -> None:
    machine = machine_in(SessionState.LIVE, Role.GATEWAY)
    machine.received(SAMPLES[Heartbeat])
    with pytest.raises(RemoteProtocolError, match="stale-heartbeat"):
        machine.received(Heartbeat(sequence=sequence, inventory_digest="", sent_at=now()))


def test_machine_reply_to_no_heartbeat_is_refused() -> None:
    machine = machine_in(SessionState.LIVE, Role.NODE)
    machine.sent(SAMPLES[Heartbeat])
    assert machine.received(HeartbeatReply(sequence=1))
    for sequence in (0, 2):
        with pytest.raises(RemoteProtocolError, match="stale-heartbeat"):
            machine.received(HeartbeatReply(sequence=sequence))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, LOG_CREDIT_BYTES)), max_size=40))
def test_machine_both_ends_agree_on_the_credit(events: list[tuple[bool, int]]) -> None:
    node, gateway = machine_in(SessionState.LIVE, Role.NODE), machine_in(SessionState.LIVE, Role.GATEWAY)
    for is_log, size in events:
        frame: Any = LogChunk(request=1, offset=0, data=bytes(size)) if is_log else LogCredit(size=size)
        sender, receiver = (node, gateway) if is_log else (gateway, node)
        try:
            sender.sent(frame)
        except LocalProtocolError:
            continue
        receiver.received(frame)
        assert 0 <= node.log_credit == gateway.log_credit <= LOG_CREDIT_BYTES
