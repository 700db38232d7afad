"""What comes back is not what went: holds that ran out, a journal that is gone, a database from yesterday (P-02, P-07, P-08)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.evidence import Witness, assert_ran_at_most_once

from .rig import Rig, Strike, open_rig

pytestmark = [pytest.mark.e2e]

MISSED_EPOCHS = 3
CONTROL_PLANE = ("worker", "gateway", "api")
SHORT_HOLD_SECONDS = 2.5  # above the margin before which no commit is decided any more: 1 s at this test's scale


@pytest.fixture(scope="module")
def whole_rig() -> Iterator[Rig]:
    """One of their own: these cases replace the journal and the database under the system."""
    with open_rig() as opened:
        yield opened


@contextmanager
def _short_holds(rig: Rig) -> Iterator[None]:
    """Reservations that run out soon, as after a long outage."""
    rig.sql(
        "CREATE FUNCTION short_hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" NEW.hold_seconds := least(NEW.hold_seconds, {SHORT_HOLD_SECONDS}); RETURN NEW; END $$;"
        " CREATE TRIGGER short_hold BEFORE INSERT ON command FOR EACH ROW EXECUTE FUNCTION short_hold()"
    )
    try:
        yield
    finally:
        rig.sql("DROP TRIGGER short_hold ON command; DROP FUNCTION short_hold()")


def _wait_member(rig: Rig, job: str, phase: str) -> dict[str, Any]:
    def look() -> tuple[dict[str, Any] | None, object]:
        [member] = rig.job(job)["attempts"][0]["members"]
        return (member if member["phase"] == phase else None), member

    return rig.wait(f"the member of {job} to be {phase}", look)


def test_hold_that_nobody_commits_runs_out_on_the_node_and_frees_everything(rig: Rig) -> None:
    """P-08: a journalled tombstone, reported while no worker lives; the next worker concludes from it."""
    witness = Witness.open(rig.system)
    dies = Strike("storage.advance", "before", "worker", nth=2)  # at the commit
    with _short_holds(rig):
        rig.down.add("worker")
        rig.strike(dies)
        job = rig.submit(witness.script(0, waits=False))
        rig.wait_struck(dies)
        rig.kill("worker")
        member = _wait_member(rig, job, "aborted")
        assert member["reason_code"] == "hold-expired"
        assert not rig.holds(job)
    rig.bring_up("worker")
    assert rig.converge(job, witness, "failed", exit_code=None, reason="hold-expired") == 0


def test_commit_that_comes_after_its_hold_ran_out_is_refused(rig: Rig) -> None:
    """P-08, P-10: decided, lost on the way, sent again too late: it meets the tombstone, and nothing starts."""
    witness = Witness.open(rig.system)
    dies = Strike("control.send-command", "before", "gateway", nth=2)  # the Commit is marked as sent and never leaves
    with _short_holds(rig):
        rig.down.add("gateway")
        rig.strike(dies)
        job = rig.submit(witness.script(0, waits=False))
        rig.wait_struck(dies)
        rig.kill("gateway")
        [member] = rig.job(job)["attempts"][0]["members"]
        rig.wait("the Node's hold to run out", lambda: (True if rig.journal_phase(member["id"]) == "aborted" else None, None))
    rig.bring_up("gateway")
    assert rig.converge(job, witness, "failed", exit_code=None, reason="hold-expired") == 0


def test_member_whose_journal_is_gone_is_stopped_and_the_node_cordoned(rig: Rig) -> None:
    """P-02: absence from a report proves nothing; the Stop's tombstone does. New work waits for an operator."""
    witness = Witness.open(rig.system)
    job = rig.submit(witness.script(0))
    rig.wait_state(job, "running")
    witness.wait_started()
    rig.take_down("node")
    for path in rig.node_state_dir.glob("journal.sqlite3*"):
        path.unlink()
    rig.bring_up("node")
    failed = rig.wait_state(job, "failed")
    assert failed["reason_code"] == "member-unknown"
    assert witness.signals() == ["term"]
    rig.wait_cleaned(job)
    assert assert_ran_at_most_once(rig.system, job, witness) == 1
    [node] = rig.ask(rig.system.nodes)
    assert [cordon["owner"] for cordon in node["scheduling"]["cordons"]] == ["journal"]
    rig.ask(lambda: rig.system.client.patch(f"/api/nodes/{node['id']}", {"state": "active"}))
    again = Witness.open(rig.system)
    assert rig.converge(rig.submit(again.script(0, waits=False)), again, "succeeded", exit_code=0) == 1


def test_database_from_before_the_job_never_stops_what_it_does_not_know(rig: Rig) -> None:
    """P-07: the Node holds the commands of a control plane that went back, says so, and the container lives on."""
    database = urlsplit(rig.system.dsn).path.lstrip("/")
    rig.take_down(*CONTROL_PLANE)
    rig.system.postgres.sql(f"CREATE DATABASE yesterday TEMPLATE {database} STRATEGY file_copy")
    rig.bring_up(*reversed(CONTROL_PLANE))
    rig.wait_ready()
    witness = Witness.open(rig.system)
    job = rig.submit(witness.script(0))
    rig.wait_state(job, "running")
    for _ in range(MISSED_EPOCHS):  # that the restored database has not seen
        _reconnect(rig)
    rig.wait_ready()
    rig.take_down(*CONTROL_PLANE)
    rig.system.postgres.sql(f"DROP DATABASE {database} WITH (FORCE)")
    rig.system.postgres.sql(f"ALTER DATABASE yesterday RENAME TO {database}")
    rig.bring_up(*reversed(CONTROL_PLANE))
    try:
        problems = _wait_problem(rig, "went back in time")
        assert problems
        [container] = rig.system.containers(job)
        assert container["State"] == "running"
        assert not witness.signals()
    finally:
        witness.release()
    rig.wait(f"the container of {job} to end", lambda: (None if rig.system.containers(job) else True, rig.system.containers(job)))
    assert assert_ran_at_most_once(rig.system, job, witness) == 1
    for _ in range(MISSED_EPOCHS + 1):  # an epoch that is new again lifts nothing: only an operator does
        _reconnect(rig)
    node, hold = rig.wait_hold()
    rig.ask(lambda: rig.system.client.post(f"/api/nodes/{node}/accept-epoch", {"hold": hold}))
    rig.wait_ready()
    assert rig.sql("SELECT detail FROM audit WHERE action = 'node.accept-epoch'") == hold
    again = Witness.open(rig.system)
    job = rig.submit(again.script(0, waits=False))
    assert rig.converge(job, again, "succeeded", exit_code=0) == 1


def _reconnect(rig: Rig) -> None:
    """Restart the gateway, and wait until the Node has a session of the next epoch."""
    [before] = [node["connection"]["epoch"] for node in rig.ask(rig.system.nodes)]
    rig.take_down("gateway")
    rig.bring_up("gateway")

    def look() -> tuple[bool | None, object]:
        [seen] = [node["connection"] for node in rig.ask(rig.system.nodes)]
        return (True if seen["epoch"] > before and seen["state"] == "connected" else None), seen

    rig.wait("the Node to be back", look)


def _wait_problem(rig: Rig, words: str) -> list[str]:
    def look() -> tuple[list[str] | None, object]:
        problems = [text for node in rig.ask(rig.system.nodes) for text in (node["inventory"] or {}).get("problems", [])]
        return ([text for text in problems if words in text] or None), problems

    return rig.wait(f"a Node to say {words!r}", look)
