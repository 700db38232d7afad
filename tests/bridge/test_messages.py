"""Cutting messages out of DATA, however it is cut up on the way."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplane.bridge.messages import MessageBuffer, frame_message


class Taker:
    """Receives; refuses further messages after ``room``."""

    def __init__(self, room: int = 10**9) -> None:
        self.room = room
        self.messages: list[bytes] = []
        self.ends: list[tuple[str, str]] = []

    def message(self, data: bytes) -> bool:
        self.messages.append(data)
        self.room -= 1
        return self.room > 0

    def end_of_stream(self) -> None:
        self.ends.append(("", ""))

    def broken(self, code: str, detail: str) -> None:
        self.ends.append((code, detail))


def make(room: int = 10**9, limit: int = 1000) -> tuple[MessageBuffer, Taker, list[int]]:
    acknowledged: list[int] = []
    taker = Taker(room)
    buffer = MessageBuffer(acknowledged.append, limit)
    buffer.attach(taker)
    return buffer, taker, acknowledged


@given(st.lists(st.binary(max_size=200), max_size=12), st.data())
def test_buffer_any_cut_gives_the_same_messages_and_acknowledges_all(messages: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(map(frame_message, messages))
    buffer, taker, acknowledged = make()
    while raw:
        size = data.draw(st.integers(1, len(raw)))
        buffer.add(raw[:size], size)
        raw = raw[size:]
    buffer.eof()
    assert taker.messages == messages
    assert taker.ends == [("", "")]
    assert sum(acknowledged) == sum(len(message) + 5 for message in messages)


def test_buffer_oversized_message_is_refused_after_its_prefix() -> None:
    buffer, taker, acknowledged = make(limit=100)
    buffer.add(struct.pack(">BI", 0, 2**32 - 1), 5)
    assert taker.ends[0][0] == "message-too-large"
    buffer.add(bytes(50_000), 50_000)
    assert acknowledged == [], "what comes after closes the peer's window"
    assert len(taker.ends) == 1


def test_buffer_message_of_exactly_the_limit_passes() -> None:
    buffer, taker, _ = make(limit=100)
    buffer.add(frame_message(bytes(100)), 105)
    assert taker.messages == [bytes(100)]


def test_buffer_compressed_message_is_refused() -> None:
    buffer, taker, _ = make()
    buffer.add(b"\x01" + bytes(4), 5)
    assert taker.ends[0][0] == "compressed"


def test_buffer_end_inside_a_message_is_truncated() -> None:
    buffer, taker, _ = make()
    buffer.add(frame_message(b"abc")[:-1], 7)
    buffer.eof()
    assert taker.ends[0][0] == "truncated"


def test_buffer_held_receiver_gets_nothing_and_the_window_closes_until_it_resumes() -> None:
    buffer, taker, acknowledged = make(room=1)
    raw = frame_message(b"a") + frame_message(b"b")
    buffer.add(raw, len(raw))
    buffer.add(frame_message(b"c"), 6)
    buffer.eof()
    assert buffer.held
    assert (taker.messages, taker.ends, acknowledged) == ([b"a"], [], [])
    taker.room = 10
    buffer.resume()
    assert (taker.messages, taker.ends, sum(acknowledged)) == ([b"a", b"b", b"c"], [("", "")], 18)


@pytest.mark.parametrize("ended", [True, False])
def test_buffer_messages_before_a_receiver_is_attached_wait_for_it(ended: bool) -> None:
    acknowledged: list[int] = []
    buffer = MessageBuffer(acknowledged.append)
    buffer.add(frame_message(b"early"), 10)
    if ended:
        buffer.eof()
    taker = Taker()
    buffer.attach(taker)
    assert taker.messages == [b"early"]
    assert taker.ends == ([("", "")] if ended else [])


def test_buffer_interrupted_before_a_receiver_is_attached_tells_it_then() -> None:
    buffer = MessageBuffer(lambda size: None)
    buffer.interrupt("connection-lost", "gone")
    taker = Taker()
    buffer.attach(taker)
    assert taker.ends == [("connection-lost", "gone")]


def test_buffer_reports_one_end_only() -> None:
    buffer, taker, _ = make()
    buffer.eof()
    buffer.interrupt("connection-lost", "gone")
    assert taker.ends == [("", "")]
