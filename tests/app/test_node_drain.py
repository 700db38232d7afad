"""``tuneplane-node drain`` without a daemon: the wish is remembered, said, and told by its exit status (L-E15, L-F5, L-F11)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tuneplane.app.node_cli import main
from tuneplane.app.node_drain import STILL_DRAINING, TAKEN_BACK
from tuneplane.domain import codec
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.ids import FleetId, MemberId, NodeId
from tuneplane.domain.launch_table import MemberPhase
from tuneplane.domain.nodes import Left, NodeState
from tuneplane.nodeside.drain import HEARD_FILE, MOST_REASON, Heard, Wish, ask_drain, load_wish
from tuneplane.nodeside.identity import Identity, save_identity
from tuneplane.nodeside.journal import FILE_NAME

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING = Left(member=MemberId("job-a-1-0"), phase=MemberPhase.RUNNING)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An enrolled machine, on which no daemon runs."""
    monkeypatch.setenv("TUNEPLANE_NODE_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    made = Identity(
        node=NodeId("node-1"),
        fleet=FleetId("lab"),
        server="https://console.example",
        address="host",
        credential="tpn_secret",
        credential_expires_at=NOW + timedelta(days=30),
        gateway_target="gateway.example:8443",
    )
    save_identity(tmp_path, made)
    return tmp_path


def drain(*options: str) -> Result:
    return CliRunner().invoke(main, ["drain", *options])


def answer(place: Path, *, revision: int, drained: bool, left: tuple[Left, ...] = ()) -> None:
    """What a daemon keeps of the control plane's answer."""
    heard = Heard(revision=revision, state=NodeState.DRAINING, drained=drained, left=left, heard_at=NOW)
    (place / HEARD_FILE).write_text(json.dumps(codec.encode(heard)))


def test_drain_is_remembered_and_said_while_nobody_can_be_told(place: Path) -> None:
    done = drain("--reason", "new disks")
    assert done.exit_code == 0
    assert "remembered" in done.output
    assert "the daemon does not run" in done.output
    wish = load_wish(place)
    assert wish is not None
    assert (wish.revision, wish.wanted, wish.reason) == (1, True, "new disks")


def test_drain_wait_without_an_answer_ends_with_a_status_of_its_own(place: Path) -> None:
    """L-E15: remembered, but not done."""
    done = drain("--wait", "--timeout", "0.2", "--json")
    assert done.exit_code == STILL_DRAINING
    said = json.loads(done.stdout)
    assert (said["wanted"], said["heard"], said["drained"], said["left"]) == (True, False, False, [])


def test_drain_wait_tells_who_is_left_and_ends_when_the_control_plane_confirms(place: Path) -> None:
    """L-F1: the machine's own opinion is not enough."""
    drain()
    answer(place, revision=1, drained=False, left=(RUNNING,))
    waiting = drain("--wait", "--timeout", "0.2")
    assert waiting.exit_code == STILL_DRAINING
    assert "1 left: job-a-1-0 running" in waiting.output
    answer(place, revision=1, drained=True)
    done = drain("--wait")
    assert (done.exit_code, done.stdout) == (0, "drained: nothing is left\n")


def test_an_answer_to_an_earlier_wish_counts_for_nothing(place: Path) -> None:
    """L-F11: drain, cancel, drain; what was confirmed then is not confirmed now."""
    drain()
    answer(place, revision=1, drained=True)
    drain("--cancel")
    again = drain("--wait", "--timeout", "0.2", "--json")
    assert again.exit_code == STILL_DRAINING
    wish = load_wish(place)
    assert wish is not None
    assert (wish.revision, wish.wanted) == (3, True)


def test_a_repeat_of_the_wish_changes_nothing(tmp_path: Path) -> None:
    first = ask_drain(tmp_path, wanted=True, reason="", now=NOW)
    assert ask_drain(tmp_path, wanted=True, reason="", now=NOW + timedelta(hours=1)) == first
    assert ask_drain(tmp_path, wanted=False, reason="", now=NOW) == Wish(revision=2, wanted=False, asked_at=NOW)


def test_refusals_name_what_is_wrong(place: Path) -> None:
    assert (drain("--timeout", "5").exit_code, drain("--reason", "x" * (MOST_REASON + 1)).exit_code) == (2, 2)
    assert load_wish(place) is None
    (place / "drain.json").write_text('{"version": 9}')
    with pytest.raises(InvalidInput, match="a version that this Node does not know"):
        load_wish(place)


def test_drain_on_a_machine_that_is_not_enrolled_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEPLANE_NODE_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert drain().exit_code == 2


def test_journal_that_is_not_readable_is_one_sentence_and_the_wish_is_kept(place: Path) -> None:
    (place / FILE_NAME).write_bytes(b"no database at all" * 100)
    refused = drain("--reason", "a broken disk")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert f"{FILE_NAME}: is not readable" in refused.stderr
    assert load_wish(place) is not None
    assert (CliRunner().invoke(main, ["status"]).exit_code, drain("--cancel").exit_code) == (2, 2)
    (place / FILE_NAME).write_bytes(b"")  # a daemon that has just made it
    assert drain().exit_code == 0


def test_wish_that_is_not_readable_is_refused(place: Path) -> None:
    (place / "drain.json").write_text("[" * 100_000)
    assert "is not readable" in drain().stderr


def test_drain_does_not_wait_for_a_time_that_never_comes(place: Path) -> None:
    assert drain("--wait", "--timeout", "nan").exit_code == 2
    assert load_wish(place) is None


def test_waiting_ends_when_the_opposite_is_asked_for_meanwhile(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L-F11: nobody will ever answer the wish that it waits for."""

    def somebody_else(seconds: float) -> None:
        ask_drain(place, wanted=False, reason="", now=NOW)

    monkeypatch.setattr("tuneplane.app.node_drain.time.sleep", somebody_else)
    done = drain("--wait", "--timeout", "2", "--json")
    assert (done.exit_code, json.loads(done.stdout)["taken_back"]) == (TAKEN_BACK, True)


def test_waiting_goes_on_with_a_later_wish_for_the_same(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def somebody_else(seconds: float) -> None:
        answer(place, revision=ask_drain(place, wanted=True, reason="new disks too", now=NOW).revision, drained=True)

    monkeypatch.setattr("tuneplane.app.node_drain.time.sleep", somebody_else)
    assert drain("--wait", "--timeout", "2").exit_code == 0
