"""Node sessions at a gateway: who comes in, what is believed, what is sent, and what a lost database changes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import attrs
import pytest
import trio

from tests.control.failing_storage import BrokenStorage, CutStorage, LosingStorage, SlowlyLosingStorage, cut
from tests.control.plane import ADA, TIMINGS, Gateway, Plane, now, open_plane
from tests.control.scripted_node import ScriptedNode, inventory
from tuneplane.domain.frames import CommandKind, Observation, ReconcileDone
from tuneplane.domain.ids import MemberId
from tuneplane.domain.inventory import EpochHold
from tuneplane.domain.launch_table import JobState, MemberPhase
from tuneplane.domain.nodes import Node
from tuneplane.wire.link import NodeLink

pytestmark = [pytest.mark.postgres, pytest.mark.seconds(60)]

K, P, J = CommandKind, MemberPhase, JobState


# ---------------------------------------------------------------- who comes in


async def test_session_opens_with_an_epoch_and_a_measured_clock_offset(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        connection = (await _node(plane, node)).connection
        assert (connection.state, connection.epoch, connection.gateway) == ("connected", 1, gateway.id)
        assert connection.clock_offset_seconds is not None
        assert abs(connection.clock_offset_seconds) < 5


async def test_session_with_an_unknown_credential_is_refused(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        node = await plane.enrol(gateway.target)
        node.credential = "tpn_wrong"
        ended = await node.session()
        assert ended is not None
        assert ended.code == "credential-unknown"


async def test_session_without_the_database_is_refused_with_a_wait(database: str, tmp_path: Path) -> None:
    """P-17."""
    async with open_plane(database, tmp_path) as plane:
        storage = CutStorage(plane.storage)
        async with plane.gateway(storage=storage) as gateway:  # type: ignore[arg-type]
            node = await plane.enrol(gateway.target)
            async with cut(storage):
                ended = await node.session()
        assert ended is not None
        assert ended.code == "storage-unavailable"
        assert ended.retry_after_seconds > 0


async def test_session_of_another_boot_is_refused_while_the_first_lives(database: str, tmp_path: Path) -> None:
    """P-15: two machines with one identity are not served in turns."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        clone = _twin(node)
        clone.machine = "machine-2"
        ended = await clone.session()
        assert ended is not None
        assert (ended.code, ended.retry_after_seconds) == ("identity-in-use", TIMINGS.gateway_lease)
        assert node.link is not None


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same-gateway", "another-gateway"])
async def test_session_is_fenced_by_a_newer_one(database: str, tmp_path: Path, elsewhere: bool) -> None:
    """R-SES-02: the newer session lives, the older is closed wherever it runs, and its frames change nothing."""
    async with open_plane(database, tmp_path) as plane, plane.gateway("gateway-1") as first, plane.gateway("gateway-2") as second:
        older = await plane.enrol(first.target)
        plane.nursery.start_soon(older.session)
        await older.wait_for(lambda node: node.link, "the first session")
        newer = _twin(older, second.target if elsewhere else first.target)
        plane.nursery.start_soon(newer.session)
        await older.wait_for(lambda node: node.ends, "the end of the older session")
        assert older.ends[0].code in ("fenced", "session-closed")
        await newer.wait_for(lambda node: node.link, "the newer session")
        connection = (await _node(plane, newer)).connection
        assert (connection.state, connection.epoch) == ("connected", 2)
        assert newer.ends == []


async def test_session_of_a_removed_node_is_closed_at_once(database: str, tmp_path: Path) -> None:
    """R-CRD-04."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        await plane.storage.delete_node(node.node, True, ADA, now())
        await node.wait_for(lambda node: node.ends, "the end of the session", seconds=5.0)
        assert node.ends[0].code in ("session-closed", "fenced")


async def test_session_that_never_reports_its_members_is_closed(database: str, tmp_path: Path) -> None:
    timings = attrs.evolve(TIMINGS, engine_call=0.5)
    async with open_plane(database, tmp_path, timings=timings) as plane, plane.gateway() as gateway:
        node = await plane.enrol(gateway.target)
        ended = await node.session(_silent)
        assert ended is not None
        assert ended.code == "reconcile-overdue"


async def test_session_whose_actor_crashes_ends_alone_and_says_so(database: str, tmp_path: Path) -> None:
    """R-SES-04: our own failure is told as ours, costs that session only, and the next one goes on."""
    async with open_plane(database, tmp_path) as plane:
        storage = BrokenStorage(plane.storage, "observe")
        async with plane.gateway(storage=storage) as gateway, plane.worker():  # type: ignore[arg-type]
            node, other = await plane.connect(gateway), await plane.connect(gateway)
            job = await plane.submit()
            await plane.wait_job(job, J.RUNNING)
            assert [ended.code for ended in node.ends + other.ends] == ["internal"]


async def test_presence_that_crashes_costs_no_session(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane:
        storage = BrokenStorage(plane.storage, "renew_gateway")
        async with plane.gateway(storage=storage) as gateway:  # type: ignore[arg-type]
            node = await plane.connect(gateway)

            async def renewed() -> tuple[bool, object]:
                return storage.calls >= 3, await _state(plane, node, "connected")

            await plane.wait_until(renewed, "two renewals after the crash")
            assert (await _state(plane, node, "connected"))[0]
            assert node.ends == []


async def test_session_end_closes_its_row(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        node = await plane.enrol(gateway.target)
        scope = trio.CancelScope()
        plane.nursery.start_soon(_run_in, scope, node)
        await node.wait_for(lambda node: node.link, "the session")
        scope.cancel()
        await plane.wait_until(lambda: _state(plane, node, "disconnected"), "the row to be closed", seconds=TIMINGS.gateway_lease)


async def test_gateway_that_leaves_tells_its_nodes_and_closes_its_rows(database: str, tmp_path: Path) -> None:
    """R-SES-06: the Node goes on at another gateway, and so do its commands."""
    async with open_plane(database, tmp_path) as plane, plane.gateway("gateway-2") as second, plane.worker():
        async with plane.gateway("gateway-1") as first:
            node = await plane.connect(first)
            node.deaf_to = {K.COMMIT}
            job = await plane.submit()
            await node.wait_command(K.COMMIT)
            node.target = second.target
            node.deaf_to = set()
        assert node.ends[0].code == "gateway-leaving"
        await plane.wait_job(job, J.RUNNING)
        assert {c.operation for c in node.commands if c.kind is K.COMMIT} == {f"{job}-1-0:commit"}
        assert len(node.started) == 1
        assert (await _node(plane, node)).connection.gateway == second.id


async def test_presence_closes_a_row_that_no_session_serves(database: str, tmp_path: Path) -> None:
    """A session row left open by a lost answer would make a dead session look alive as long as its gateway lives."""
    async with open_plane(database, tmp_path) as plane:
        storage = CutStorage(plane.storage)
        async with plane.gateway(storage=storage) as gateway:  # type: ignore[arg-type]
            node = await plane.enrol(gateway.target)
            scope = trio.CancelScope()
            plane.nursery.start_soon(_run_in, scope, node)
            await node.wait_for(lambda node: node.link, "the session")
            async with cut(storage):
                scope.cancel()
                await node.wait_for(lambda node: node.link is None, "the end of the session")
                await _wait_sessions(plane, gateway, 0)
            await plane.wait_until(lambda: _state(plane, node, "disconnected"), "the row to be closed")


# ---------------------------------------------------------------- what is believed


async def test_observation_repeated_or_old_is_acknowledged_and_changes_nothing(database: str, tmp_path: Path) -> None:
    """R-LCH-05: revisions order what a Node says."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        job = await plane.submit()
        await plane.wait_job(job, J.RUNNING)
        assert node.link is not None
        running = node.members[MemberId(f"{job}-1-0")]
        prepared = attrs.evolve(running, revision=1, phase=P.PREPARED)
        already = len(node.acks)
        for frame in (running, prepared, running):
            await node.link.send(frame)
            await node.wait_for(lambda node, wanted=already + 1: len(node.acks) >= wanted, "an acknowledgement")  # type: ignore[misc]
            already += 1
        assert (await plane.job(job)).attempts[0].members[0].phase is P.RUNNING


async def test_observation_that_goes_back_makes_its_member_unknown_and_ends_no_session(database: str, tmp_path: Path) -> None:
    """P-02, R-SES-04: it is stopped, whatever it was doing, and its tombstone settles it."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        job = await plane.submit()
        await plane.wait_job(job, J.RUNNING)
        await node.report(MemberId(f"{job}-1-0"), P.PREPARED)
        await node.wait_command(CommandKind.STOP)
        failed = await plane.wait_job(job, J.FAILED)
        assert failed.reason_code == "member-unknown"
        assert any("no history leads there" in event.detail for event in await plane.storage.timeline(job, 100))
        assert node.ends == []


async def test_member_that_a_complete_report_lacks_is_unknown_and_stopped(database: str, tmp_path: Path) -> None:
    """P-02: only the tombstone of its Stop settles it, and it is lost: its Commit was sent."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        job = await plane.submit()
        await plane.wait_job(job, J.RUNNING)
        del node.members[MemberId(f"{job}-1-0")]  # the journal was restored from before it
        assert node.link is not None
        node.link.close("closed", "the test hangs up")
        await node.wait_command(CommandKind.STOP)
        failed = await plane.wait_job(job, J.FAILED)
        [member] = failed.attempts[0].members
        assert (member.phase, member.reason_code) == (P.TERMINATED, "lost")
        assert [cordon.owner for cordon in (await _node(plane, node)).cordons] == ["journal"]


async def test_observation_of_a_member_that_is_none_of_ours_is_reported_and_left_alone(database: str, tmp_path: Path) -> None:
    """P-07: no acknowledgement, no stop."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        assert node.link is not None
        foreign = Observation(member=MemberId("foreign-1-0"), revision=1, phase=P.RUNNING, plan_digest="", boot_id="b")
        await node.link.send(foreign)
        await _settled(plane, gateway, node)
        assert node.acks == []
        assert node.commands == []
        assert node.ends == []


async def test_observation_is_acknowledged_only_when_stored_and_the_session_outlives_the_database(database: str, tmp_path: Path) -> None:
    """P-06, P-17: without PostgreSQL the session stays beyond its idle time, nothing is acknowledged, nothing new is sent."""
    async with open_plane(database, tmp_path) as plane, plane.worker():
        storage = CutStorage(plane.storage)
        async with plane.gateway(storage=storage) as gateway:  # type: ignore[arg-type]
            node = await plane.connect(gateway)
            job = await plane.submit()
            await plane.wait_job(job, J.RUNNING)
            member = MemberId(f"{job}-1-0")
            async with cut(storage):
                acks, commands = len(node.acks), len(node.commands)
                await node.finish(member, 7)
                await plane.submit()
                await trio.sleep(1.5 * TIMINGS.session_idle)  # the time is the test: nothing may end the session in it
                assert (len(node.acks), len(node.commands), node.ends) == (acks, commands, [])
                assert (await plane.job(job)).state is J.RUNNING
            ended = await plane.wait_job(job)
            assert (ended.state, ended.attempts[0].members[0].exit_code) == (J.FAILED, 7)
            await node.wait_for(lambda node: any(ack.member == member for ack in node.acks[acks:]), "the acknowledgement")


# ---------------------------------------------------------------- what is sent


async def test_commands_wait_for_the_report_of_members_and_stops_do_not(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        first = await plane.enrol(gateway.target)
        session = trio.CancelScope()
        plane.nursery.start_soon(_run_in, session, first)
        running = await plane.submit()
        await plane.wait_job(running, J.RUNNING)
        waiting = await plane.submit(priority=0)
        first.deaf_to = {K.PREPARE}
        await plane.wait_phase(waiting, P.PENDING, P.PREPARING)
        session.cancel()
        await first.wait_for(lambda node: node.link is None, "the end of the session")
        await plane.storage.request_stop(running, ADA, now())
        seen: list[CommandKind] = []

        async def slow_to_report(link: NodeLink) -> None:
            command = await link.receive()
            seen.append(command.kind)
            await link.send(ReconcileDone(members=0))
            while True:
                frame = await link.receive()
                seen.append(getattr(frame, "kind", None))

        plane.nursery.start_soon(first.session, slow_to_report)
        await plane.wait_until(lambda: _two(seen), "a stop and then the prepare")
        assert seen[:2] == [K.STOP, K.PREPARE]


async def test_command_whose_mark_lost_its_answer_is_sent_once(database: str, tmp_path: Path) -> None:
    """P-09: the mark was committed and no look would find the command again, so its session repeats it until it knows."""
    async with open_plane(database, tmp_path) as plane, plane.worker():
        losing = LosingStorage(plane.storage, {"mark_sent", "observe", "answer_command", "record_inventory", "open_session"})
        async with plane.gateway(storage=losing) as gateway:  # type: ignore[arg-type]
            node = await plane.connect(gateway)
            job = await plane.submit()
            await plane.wait_job(job, J.RUNNING)
            assert [command.kind for command in node.commands] == [K.PREPARE, K.COMMIT]
            assert "mark_sent" not in losing.left
            assert "observe" not in losing.left


async def test_command_left_unanswered_ends_the_session_and_is_sent_again(database: str, tmp_path: Path) -> None:
    timings = attrs.evolve(TIMINGS, engine_call=0.5)
    async with open_plane(database, tmp_path, timings=timings) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        node.deaf_to = {K.PREPARE}
        job = await plane.submit()
        await node.wait_command(K.PREPARE)
        await node.wait_for(lambda node: node.ends, "the end of the session")
        assert node.ends[0].code == "answer-overdue"
        node.deaf_to = set()
        await plane.wait_job(job, J.RUNNING)
        assert {command.operation for command in node.commands if command.kind is K.PREPARE} == {f"{job}-1-0:prepare"}


async def test_command_to_a_node_that_holds_is_not_waited_for(database: str, tmp_path: Path) -> None:
    """P-07: a Node that holds leaves commands unanswered until an operator's word; its reports and logs go on meanwhile."""
    timings = attrs.evolve(TIMINGS, heartbeat=0.1, engine_call=0.5)
    async with open_plane(database, tmp_path, timings=timings) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.enrol(gateway.target)
        node.inventory = inventory(hold=EpochHold(id="h", known_epoch=9, told_epoch=1, since=now()))
        node.deaf_to = {K.PREPARE}
        plane.nursery.start_soon(node.run)
        await plane.submit()
        await node.wait_command(K.PREPARE)
        await trio.sleep(4 * timings.engine_call)
        assert node.ends == []


async def test_stop_is_not_behind_many_launches(database: str, tmp_path: Path) -> None:
    """R-SES-07: with more launches than the commands' mailbox holds, the stop has its own way."""
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway, plane.worker():
        node = await plane.connect(gateway)
        first = await plane.submit()
        await plane.wait_job(first, J.RUNNING)
        for _ in range(7):
            await plane.submit()
        await plane.storage.request_stop(first, ADA, now())
        assert (await plane.wait_job(first)).state is J.STOPPED
        await node.wait_command(K.PREPARE, 8)


# ---------------------------------------------------------------- inventory


async def test_inventory_is_confirmed_by_heartbeats_without_a_write(database: str, tmp_path: Path) -> None:
    """R-PLC-04, "At 10,000 Nodes": past its freshness the inventory is healthy while heartbeats carry its digest."""
    timings = attrs.evolve(TIMINGS, heartbeat=0.1, inventory_fresh=0.5)
    async with open_plane(database, tmp_path, timings=timings) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        observed_at = (await _node(plane, node)).inventory_observed_at
        await trio.sleep(2 * timings.inventory_fresh)
        found = await _node(plane, node)
        assert (found.inventory_healthy, found.inventory_observed_at) == (True, observed_at)


async def test_inventory_without_confirmation_goes_stale_and_comes_back(database: str, tmp_path: Path) -> None:
    """R-SES-05, R-PLC-04: no new work without a confirmation within ``inventory_fresh``."""
    timings = attrs.evolve(TIMINGS, heartbeat=0.1, inventory_fresh=0.5)
    async with open_plane(database, tmp_path, timings=timings) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        assert node.link is not None
        digest, node.link.inventory_digest = node.link.inventory_digest, "sha256:" + "0" * 64
        await plane.wait_until(lambda: _health(plane, node, False), "the inventory to go stale")
        node.link.inventory_digest = digest
        await plane.wait_until(lambda: _health(plane, node, True), "the inventory to be confirmed again")
        assert node.ends == []


async def test_stale_mark_whose_answer_was_lost_is_taken_back_by_the_next_confirmation(database: str, tmp_path: Path) -> None:
    """P-09: the mark is in the database and the gateway does not know; a Node that confirms meanwhile must become ready again."""
    timings = attrs.evolve(TIMINGS, heartbeat=0.1, inventory_fresh=0.5)
    async with open_plane(database, tmp_path, timings=timings) as plane:
        slow = SlowlyLosingStorage(plane.storage)
        async with plane.gateway(storage=slow) as gateway:
            node = await plane.connect(gateway)
            assert node.link is not None
            digest, node.link.inventory_digest = node.link.inventory_digest, "sha256:" + "0" * 64
            await slow.marked.wait()
            node.link.inventory_digest = digest
            await trio.sleep(3 * timings.heartbeat)  # confirmations, while the answer is still on its way
            slow.lose.set()
            await plane.wait_until(lambda: _health(plane, node, True), "the inventory to be confirmed again")
            assert node.ends == []


async def test_inventory_that_changes_is_written(database: str, tmp_path: Path) -> None:
    async with open_plane(database, tmp_path) as plane, plane.gateway() as gateway:
        node = await plane.connect(gateway)
        node.inventory = attrs.evolve(node.inventory, problems=("the disk is full",))
        assert node.link is not None
        await node.greet(node.link)
        await plane.wait_until(lambda: _health(plane, node, False), "the problem to be known")
        assert (await _node(plane, node)).inventory.problems == ("the disk is full",)  # type: ignore[union-attr]


# ---------------------------------------------------------------- helpers


def _twin(node: ScriptedNode, target: str = "") -> ScriptedNode:
    return ScriptedNode(
        node=node.node,
        fleet=node.fleet,
        credential=node.credential,
        target=target or node.target,
        tls=node.tls,
        timings=node.timings,
        journal=node.journal,
    )


async def _node(plane: Plane, node: ScriptedNode) -> Node:
    found = await plane.storage.get_node(node.node, now())
    assert found is not None
    return found


async def _state(plane: Plane, node: ScriptedNode, state: str) -> tuple[bool, object]:
    connection = (await _node(plane, node)).connection
    return connection.state == state, connection


async def _health(plane: Plane, node: ScriptedNode, healthy: bool) -> tuple[bool, object]:
    found = await _node(plane, node)
    return found.inventory_healthy is healthy, found


async def _two(seen: list[CommandKind]) -> tuple[bool, object]:
    await trio.lowlevel.checkpoint()
    return len(seen) >= 2, seen


async def _run_in(scope: trio.CancelScope, node: ScriptedNode) -> None:
    with scope:
        await node.run()


async def _silent(link: NodeLink) -> None:
    while True:
        await link.receive()


async def _wait_sessions(plane: Plane, gateway: Gateway, count: int) -> None:
    async def reached() -> tuple[bool, object]:
        await trio.lowlevel.checkpoint()
        running = [path for path in gateway.system.refs() if path.startswith("root/gateway/sessions/")]
        return len(running) == count, running

    await plane.wait_until(reached, f"{count} session actors")


async def _settled(plane: Plane, gateway: Gateway, node: ScriptedNode) -> None:
    """All that the Node said before now has been looked at: a changed inventory sent after it is stored."""
    before = (await _node(plane, node)).inventory_observed_at
    node.inventory = attrs.evolve(node.inventory, hostname="renamed")
    assert node.link is not None
    await node.greet(node.link)

    async def stored() -> tuple[bool, object]:
        found = await _node(plane, node)
        return found.inventory_observed_at != before, found

    await plane.wait_until(stored, "the later inventory")
    assert before is None or now() - before < timedelta(minutes=1)
