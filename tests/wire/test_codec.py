"""The codec: every frame survives the way out and back; whatever else arrives is a FrameError, never anything worse."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sessions import hello, now, observation, stop_command
from tuneplane.domain.frames import LOG_CHUNK_BYTES, CommandAnswer, GatewayFrame, InventoryReport, LogChunk, LogPiece, LogQuery, NodeFrame
from tuneplane.domain.ids import OperationId
from tuneplane.domain.inventory import Stranger
from tuneplane.wire import fields
from tuneplane.wire.fields import FrameError
from tuneplane.wire.gateway_codec import decode_gateway_frame, encode_gateway_frame
from tuneplane.wire.node_codec import decode_node_frame, encode_node_frame
from tuneplane.wire.pb import session_pb2 as pb
from tuneplane.wire.relay_codec import RelayCredit, decode_piece, decode_request, encode_piece, encode_request

from . import strategies


@given(strategies.node_frames)
def test_node_frame_round_trip_is_the_same_value(frame: NodeFrame) -> None:
    assert decode_node_frame(encode_node_frame(frame)) == frame


@given(strategies.gateway_frames)
def test_gateway_frame_round_trip_is_the_same_value(frame: GatewayFrame) -> None:
    assert decode_gateway_frame(encode_gateway_frame(frame)) == frame


@given(strategies.queries | st.builds(RelayCredit, st.integers(1, 256 * 1024)))
def test_relay_request_round_trip_is_the_same_value(value: LogQuery | RelayCredit) -> None:
    assert decode_request(encode_request(value)) == value


@given(strategies.pieces)
def test_relay_piece_round_trip_is_the_same_value(piece: LogPiece) -> None:
    assert decode_piece(encode_piece(piece)) == piece


@pytest.mark.parametrize("decode", [decode_node_frame, decode_gateway_frame, decode_request, decode_piece])
@given(data=st.binary(max_size=300))
def test_decoder_of_any_bytes_answers_or_raises_frame_error(decode: Callable[[bytes], object], data: bytes) -> None:
    """R-SES-04: a hostile peer gets a reason, nothing else."""
    with contextlib.suppress(FrameError):
        decode(data)


@settings(max_examples=300)
@given(st.data())
def test_decoder_of_a_damaged_frame_answers_or_raises_frame_error(data: st.DataObject) -> None:
    """Bytes that were valid once are nearer to the decoder's edges than random ones."""
    raw = bytearray(encode_node_frame(data.draw(strategies.node_frames)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        decode_node_frame(bytes(raw))


HELLO = {
    "protocol": 1,
    "node": "n",
    "fleet": "f",
    "boot_id": "b",
    "machine_id": "m",
    "journal_id": "j",
    "sent_at": fields.micros(now()),
}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"hello": {**HELLO, "node": ""}}, "hello.node"),
        ({"hello": {**HELLO, "node": "x" * 161}}, "hello.node"),
        ({"hello": {**HELLO, "fleet": "a b"}}, "hello.fleet"),
        ({"hello": {**HELLO, "sent_at": 0}}, "hello.sent_at"),
        ({"hello": {**HELLO, "sent_at": 2**62}}, "hello.sent_at"),
        ({"hello": {**HELLO, "journal_sequence": 2**63}}, "hello.journal_sequence"),
        ({"hello": {**HELLO, "node_version": "1\n2"}}, "hello.node_version"),
        ({"hello": {**HELLO, "address": "a" * 256}}, "hello.address"),
        ({"heartbeat": {"sequence": 1, "inventory_digest": "md5:1", "sent_at": HELLO["sent_at"]}}, "heartbeat.inventory_digest"),
        ({"observation": {"member": "m", "phase": 0}}, "observation.phase"),
        ({"observation": {"member": "m", "phase": 99}}, "observation.phase"),
        ({"observation": {"member": "m", "phase": 5, "reason_code": "No Code"}}, "observation.reason_code"),
        ({"observation": {"member": "m", "phase": 5, "reason_detail": b"x" * 4097}}, "observation.reason_detail"),
        ({"observation": {"member": "m", "phase": 5, "hold_seconds_left": float("nan")}}, "observation.hold_seconds_left"),
        ({"observation": {"member": "m", "phase": 5, "hold_seconds_left": -1.0}}, "observation.hold_seconds_left"),
        ({"observation": {"member": "m", "phase": 5, "hold_seconds_left": float("inf")}}, "observation.hold_seconds_left"),
        ({"log": {"request": 1, "data": bytes(LOG_CHUNK_BYTES + 1)}}, "log.data"),
        ({"inventory": {"inventory": {"problems": [b"x"] * 257}}}, "inventory.problems"),
        ({"inventory": {"inventory": {"gpus": [{}] * 257}}}, "inventory.gpus"),
        ({"inventory": {"inventory": {"budgets": {"port_first": 2, "port_last": 1}}}}, "budgets.port_last"),
        ({"inventory": {"inventory": {"budgets": {"port_first": 70000}}}}, "budgets.port_first"),
    ],
)
def test_node_frame_beyond_a_bound_names_the_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(FrameError) as raised:
        decode_node_frame(pb.NodeFrame(**body).SerializeToString())
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"welcome": {"gateway": "g", "heartbeat_seconds": 0.0}}, "welcome.heartbeat_seconds"),
        ({"command": {"operation": "o", "kind": 0, "member": "m"}}, "command.kind"),
        ({"command": {"operation": "o", "kind": 77, "member": "m"}}, "command.kind"),
        ({"command": {"operation": "o", "kind": 1, "member": "m", "plan": bytes(900 * 1024 + 1)}}, "command.plan"),
        ({"command": {"operation": "o", "kind": 3, "member": "m", "stop_grace_seconds": float("inf")}}, "command.stop_grace_seconds"),
        ({"log_credit": {"size": 0}}, "log_credit.size"),
        ({"log_credit": {"size": 2**31}}, "log_credit.size"),
        ({"goodbye": {"code": "x", "retry_after_seconds": -1.0}}, "goodbye.retry_after_seconds"),
        ({}, "frame"),
    ],
)
def test_gateway_frame_beyond_a_bound_names_the_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(FrameError) as raised:
        decode_gateway_frame(pb.GatewayFrame(**body).SerializeToString())
    assert raised.value.field == field


@pytest.mark.parametrize("output", [b"\xff\xfe not utf-8", b"nul \0 inside", "ünïcode".encode()])
def test_log_bytes_pass_as_they_are(output: bytes) -> None:
    chunk = LogChunk(request=1, offset=0, data=output)
    assert decode_node_frame(encode_node_frame(chunk)) == chunk


def test_text_that_is_not_utf8_is_shown_not_refused() -> None:
    """What a runtime or a user wrote must not cost the session."""
    message = pb.NodeFrame(observation={"member": "m", "phase": 5, "reason_detail": b"bad \xff and \0"})
    frame = decode_node_frame(message.SerializeToString())
    assert frame.reason_detail == "bad \ufffd and \ufffd"  # type: ignore[union-attr]


def test_text_of_a_node_cannot_steer_a_terminal() -> None:
    """L-J1: OSC 52 writes the clipboard, CSI hides lines, CR overwrites them; layout stays."""
    told = "\x1b]52;c;eA==\x07 \x9b2J \x7f\r one\n\ttwo é".encode()
    shown = "\ufffd]52;c;eA==\ufffd \ufffd2J \ufffd\ufffd one\n\ttwo é"
    seen = decode_node_frame(pb.NodeFrame(observation={"member": "m", "phase": 5, "reason_detail": told}).SerializeToString())
    assert seen.reason_detail == shown  # type: ignore[union-attr]
    stranger = Stranger(container="c", name=told.decode(), member="m")
    report = _report(())
    report = evolve(report, inventory=evolve(report.inventory, problems=(told.decode(),), strangers=(stranger,)))
    inventory = decode_node_frame(encode_node_frame(report)).inventory  # type: ignore[union-attr]
    assert (inventory.problems, inventory.strangers[0].name) == ((shown,), shown)


def test_text_too_long_is_cut_by_its_sender() -> None:
    answer = CommandAnswer(operation=OperationId("o"), accepted=False, detail="é" * 5000)
    back = decode_node_frame(encode_node_frame(answer))
    assert back.detail.endswith("…")  # type: ignore[union-attr]
    assert len(back.detail.encode()) <= fields.MAX_TEXT_BYTES + 2  # type: ignore[union-attr]


def test_budgets_not_declared_and_declared_empty_are_told_apart() -> None:
    """R-ENR-09: () is a CPU-only Node, None is not declared yet."""
    bytes_of = {indexes: encode_node_frame(_report(indexes)) for indexes in (None, ())}
    assert bytes_of[None] != bytes_of[()]
    assert decode_node_frame(bytes_of[()]).inventory.budgets.gpu_indexes == ()  # type: ignore[union-attr]


def _report(indexes: tuple[int, ...] | None) -> Any:
    from tuneplane.domain.frames import InventoryReport
    from tuneplane.domain.inventory import Budgets, Inventory

    inventory = Inventory(hostname="h", node_version="0", cpu_count=1, memory_bytes=1, budgets=Budgets(gpu_indexes=indexes))
    return InventoryReport(inventory=inventory, digest="")


def test_unknown_field_of_a_newer_peer_is_ignored() -> None:
    """A rolling upgrade: new fields may come before we know them; unknown bodies and enums are refused."""
    raw = encode_node_frame(observation(3)) + b"\xfa\x7f\x01x"
    assert decode_node_frame(raw) == observation(3)


def test_frames_are_values_of_the_domain() -> None:
    """Protobuf never leaves wire."""
    assert type(decode_node_frame(encode_node_frame(hello()))).__module__ == "tuneplane.domain.frames"
    back = decode_gateway_frame(encode_gateway_frame(evolve(stop_command(), session_epoch=3)))
    assert type(back).__module__ == "tuneplane.domain.frames"


def test_inventory_of_a_node_from_before_interfaces_is_still_read() -> None:
    """Golden: the bytes that a Node of that release sends."""
    report = decode_node_frame((Path(__file__).parents[1] / "golden" / "inventory-frame-1.bin").read_bytes())
    assert isinstance(report, InventoryReport)
    assert (report.inventory.hostname, report.inventory.interfaces, report.inventory.route_address) == ("gpu-a", (), "")
    assert (report.inventory.budgets.port_first, report.inventory.gpus[0].uuid) == (20000, "GPU-0")


def test_inventory_with_a_hold_and_strangers_is_still_read() -> None:
    """Golden, P-07: a card that is unknown is not *no card*."""
    report = decode_node_frame((Path(__file__).parents[1] / "golden" / "inventory-frame-2.bin").read_bytes())
    assert isinstance(report, InventoryReport)
    assert report.inventory.hold is not None
    assert (report.inventory.hold.id, report.inventory.hold.known_epoch) == ("hold-1", 9)
    known, old = report.inventory.strangers
    assert (known.gpu_uuids, known.cpu_millis, known.is_known) == (("GPU-0",), 1000, True)
    assert (old.gpu_uuids, old.cpu_millis, old.is_known) == (None, None, False)


def test_inventory_of_a_node_that_tells_no_faults_is_told_from_one_without_any() -> None:
    """L-D12: what an older Node does not tell clears nothing; L-D4: and its cards were known."""
    old = decode_node_frame((Path(__file__).parents[1] / "golden" / "inventory-frame-2.bin").read_bytes())
    assert isinstance(old, InventoryReport)
    assert (old.inventory.card_faults, old.inventory.cards_known, old.inventory.card_bindings) == (None, True, ())
    report = _report((0,))
    told = evolve(report, inventory=evolve(report.inventory, card_faults=(), cards_known=False))
    assert decode_node_frame(encode_node_frame(told)) == told


@pytest.mark.parametrize(
    ("inventory", "field"),
    [
        ({"gpus": [pb.Gpu(uuid="GPU-0", links=[pb.CardLink(peer="GPU-1")] * 65)]}, "gpu.links"),
        ({"gpus": [pb.Gpu(uuid="GPU-0", links=[pb.CardLink(peer="GPU-1", distance=51)])]}, "gpu.links.distance"),
        ({"gpus": [pb.Gpu(uuid="GPU-0", instances=[pb.MigInstance(uuid="MIG-1")] * 65)]}, "gpu.instances"),
        ({"gpus": [pb.Gpu(uuid="GPU-0", bus="no bus")]}, "gpu.bus"),
        ({"card_bindings": [pb.CardBinding(uuid="GPU-0")] * 65}, "inventory.card_bindings"),
        ({"card_faults": pb.CardFaults(faults=[pb.CardFault(code="xid-48", since=1)] * 129)}, "inventory.card_faults"),
        ({"card_faults": pb.CardFaults(faults=[pb.CardFault(code="Xid 48")])}, "card_faults.code"),
        ({"interfaces": [pb.Interface(name="bond 0")]}, "interface.name"),
        ({"interfaces": [pb.Interface(name="a" * 16)]}, "interface.name"),
        ({"interfaces": [pb.Interface(name="eth0", addresses=["host-a"])]}, "interface.addresses"),
        ({"interfaces": [pb.Interface(name="eth0")] * 257}, "inventory.interfaces"),
        ({"route_address": "host-a"}, "inventory.route_address"),
    ],
)
def test_inventory_with_a_network_or_cards_that_are_none_is_refused(inventory: dict[str, Any], field: str) -> None:
    budgets = pb.Budgets(port_first=1, port_last=2)
    report = pb.InventoryReport(inventory=pb.Inventory(budgets=budgets, **inventory), digest="sha256:" + "0" * 64)
    with pytest.raises(FrameError) as caught:
        decode_node_frame(pb.NodeFrame(inventory=report).SerializeToString())
    assert caught.value.field == field
