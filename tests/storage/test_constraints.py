"""Each invariant that protocol.md gives to the database, tried to be violated in plain SQL behind the storage's back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.contract.storage_world import USER, World, a_member
from tuneplane.bridge.loop import open_bridge
from tuneplane.bridge.postgres import Connection, ConstraintViolated, Pool
from tuneplane.domain.ids import JobId, NodeId, attempt_id
from tuneplane.domain.launch_table import AttemptEvent, MemberPhase
from tuneplane.storage import doubt, launches, open_storage


@asynccontextmanager
async def running(dsn: str) -> AsyncIterator[tuple[World, Pool]]:
    """One job running on n1 with card GPU-a and port 20000; n2 is free."""
    async with open_bridge(), open_storage(dsn) as storage:
        world = World(storage)
        await world.node("n1", cards=("GPU-a", "GPU-b"))
        await world.node("n2", cards=("GPU-c",))
        await world.launched(cards=("GPU-a",), ports=(20000,))
        await world.submit("job-b")
        await world.storage.audit(USER, "test", "x", "", False, world.now)
        yield world, storage._db.pool


MEMBER_B = (
    "INSERT INTO attempt (id, job_id, number, created_at, entered_at) VALUES ('job-b-1', 'job-b', 1, now(), now());"
    "INSERT INTO member (id, attempt_id, node_id, rank, plan, plan_digest) VALUES ('job-b-1-0', 'job-b-1', '{node}', 0, '', '');"
)
ON_N1 = MEMBER_B.format(node="n1")
ON_N2 = MEMBER_B.format(node="n2")
HOLD = "INSERT INTO resource_hold (member_id, node_id, cpu_millis, memory_bytes, staging_bytes) VALUES "
COMMAND = "INSERT INTO command (operation, member_id, node_id, kind, claim_epoch, trace, created_at) "
JOB = "INSERT INTO job (id, name, project, owner, fleet_id, spec, image, trace, priority, idempotency_key, created_at) "

VIOLATIONS = {
    # cards
    "one card, two holders": (ON_N1 + "INSERT INTO gpu_hold VALUES ('GPU-a', 'job-b-1-0', 'n1')", "gpu_hold_pkey"),
    "a card held on a Node that is not its": (ON_N2 + "INSERT INTO gpu_hold VALUES ('GPU-b', 'job-b-1-0', 'n2')", "gpu_hold_granted"),
    "a card held by a member of another Node": (ON_N2 + "INSERT INTO gpu_hold VALUES ('GPU-b', 'job-b-1-0', 'n1')", "gpu_hold_member"),
    "a card held by nobody": ("INSERT INTO gpu_hold VALUES ('GPU-b', 'nobody', 'n1')", "gpu_hold_member"),
    "a card that is not granted": (
        ON_N1 + "UPDATE gpu_grant SET granted = false WHERE gpu_uuid = 'GPU-b'; INSERT INTO gpu_hold VALUES ('GPU-b', 'job-b-1-0', 'n1')",
        "gpu_hold_granted",
    ),
    "a hold handed over": ("UPDATE gpu_hold SET gpu_uuid = 'GPU-b'", "hold_fixed"),
    "a grant of a held card withdrawn": ("DELETE FROM gpu_grant WHERE gpu_uuid = 'GPU-a'", "gpu_hold_grant"),
    "an index bound to two cards": ("INSERT INTO gpu_grant VALUES ('n1', 0, 'GPU-x', true)", "gpu_grant_index"),
    "a card bound to two indexes": ("INSERT INTO gpu_grant VALUES ('n1', 5, 'GPU-a', true)", "gpu_grant_card"),
    "an index that is another card's now, without the word of an operator": (
        "UPDATE gpu_grant SET idx = 7 WHERE gpu_uuid = 'GPU-b'",
        "gpu_grant_index_fixed",
    ),
    "a cordoned card held": (
        ON_N1 + "INSERT INTO card_cordon VALUES ('n1', 'GPU-b', 'operator', 'noise', now());"
        " INSERT INTO gpu_hold VALUES ('GPU-b', 'job-b-1-0', 'n1')",
        "gpu_hold_granted",
    ),
    "a cordon of a card that is not the Node's": (
        "INSERT INTO card_cordon VALUES ('n1', 'GPU-x', 'operator', 'noise', now())",
        "card_cordon_grant",
    ),
    "a cordon of nobody's": ("INSERT INTO card_cordon VALUES ('n1', 'GPU-b', 'me', 'noise', now())", "card_cordon_owner_check"),
    "an index rebound": ("UPDATE gpu_grant SET gpu_uuid = 'GPU-x' WHERE gpu_uuid = 'GPU-b'", "gpu_grant_uuid_fixed"),
    # ports
    "one port, two holders": (ON_N1 + "INSERT INTO port_hold VALUES ('n1', 20000, 'job-b-1-0')", "port_hold_pkey"),
    "a port held by a member of another Node": (ON_N2 + "INSERT INTO port_hold VALUES ('n1', 20001, 'job-b-1-0')", "port_hold_member"),
    # CPU, memory, staging
    "more CPU than is left": (ON_N1 + HOLD + "('job-b-1-0', 'n1', 15001, 0, 0)", "node_capacity_budget"),
    "more memory than is left": (ON_N1 + HOLD + "('job-b-1-0', 'n1', 0, 64000000000, 0)", "node_capacity_budget"),
    "staging that was not granted": (ON_N1 + HOLD + "('job-b-1-0', 'n1', 0, 0, 1)", "node_capacity_budget"),
    "budgets that were not declared": (
        ON_N1 + "UPDATE node_capacity SET cpu_millis_budget = NULL WHERE node_id = 'n1';" + HOLD + "('job-b-1-0', 'n1', 1, 0, 0)",
        "node_capacity_budget",
    ),
    "a negative hold": (ON_N1 + HOLD + "('job-b-1-0', 'n1', -5, 0, 0)", "resource_hold_cpu_millis_check"),
    "a hold that grows": ("UPDATE resource_hold SET cpu_millis = 2", "hold_fixed"),
    "two holds of one member": (HOLD + "('job-a-1-0', 'n1', 1, 0, 0)", "resource_hold_pkey"),
    # holds of a member that has not ended
    "a card released without evidence": ("DELETE FROM gpu_hold", "hold_released_by_evidence"),
    "a port released without evidence": ("DELETE FROM port_hold", "hold_released_by_evidence"),
    "an amount released without evidence": ("DELETE FROM resource_hold", "hold_released_by_evidence"),
    # launches
    "two live attempts of one job": (
        "INSERT INTO attempt (id, job_id, number, created_at, entered_at) VALUES ('x', 'job-a', 2, now(), now())",
        "attempt_one_live",
    ),
    "an attempt of a job that was asked to stop": (
        "UPDATE job SET stop_asked_at = now() WHERE id = 'job-b';" + ON_N1,
        "attempt_after_stop",
    ),
    "an attempt out of turn": (
        "INSERT INTO attempt (id, job_id, number, created_at, entered_at) VALUES ('x', 'job-b', 2, now(), now())",
        "attempt_follows",
    ),
    "an end without evidence": ("UPDATE attempt SET state = 'ended', ended_at = now()", "attempt_ended_by_evidence"),
    "a retry beside a live attempt": ("UPDATE job SET state = 'queued' WHERE id = 'job-a'", "job_queued_after_evidence"),
    "a claim epoch that falls": ("UPDATE attempt SET claim_epoch = 0", "attempt_forward"),
    "a commit taken back": ("UPDATE attempt SET state = 'preparing'", "attempt_forward"),
    "a plan that changes": ("UPDATE member SET plan = 'x'", "member_plan_fixed"),
    "a plan's digest that changes": ("UPDATE member SET plan_digest = 'x'", "member_plan_fixed"),
    "a member that moves": ("UPDATE member SET node_id = 'n2'", "member_plan_fixed"),
    "a job that changes its Fleet": ("UPDATE job SET fleet_id = 'other' WHERE id = 'job-a'", "job_fixed"),
    "a job's spec that changes": ("UPDATE job SET spec = '{}'", "job_fixed"),
    "a withdrawn command that is sent": (
        "UPDATE command SET withdrawn_at = now() WHERE kind = 'commit'; UPDATE command SET sent_epoch = 9 WHERE kind = 'commit'",
        "command_withdrawn",
    ),
    "one operation twice": (
        COMMAND + "VALUES ('job-a-1-0:prepare', 'job-a-1-0', 'n1', 'prepare', 1, '', now())",
        "command_pkey",
    ),
    "a command to another Node": (
        COMMAND + "VALUES ('job-a-1-0:stop', 'job-a-1-0', 'n2', 'stop', 1, '', now())",
        "command_member",
    ),
    # Fleets, Nodes, sessions
    "a Fleet's kind that changes": ("UPDATE fleet SET kind = 'slurm'", "fleet_kind_fixed"),
    "a Fleet's delivery that changes": ("UPDATE fleet SET delivery = 'shared-mount'", "fleet_kind_fixed"),
    "a Fleet deleted under its Nodes": ("DELETE FROM fleet", "node_fleet"),
    "a session epoch that falls": ("UPDATE session SET epoch = epoch - 1 WHERE node_id = 'n1'", None),
    "a Join Token used without a Node": ("UPDATE join_token SET used_by = NULL", "join_token_used"),
    "a submission's key twice": (
        JOB + "SELECT i, 'n', 'p', 'o', 'lab', '{}', '', '', 0, 'k', now() FROM unnest(ARRAY['x', 'y']) i",
        "job_submission",
    ),
    # the audit log
    "an audit line that changes": ("UPDATE audit SET detail = 'nothing to see'", "audit_append_only"),
    "an audit line that goes": ("DELETE FROM audit", "audit_append_only"),
    "an audit log that goes": ("TRUNCATE audit", "audit_append_only"),
}


@pytest.mark.parametrize("what", VIOLATIONS)
async def test_violation_is_refused_by_the_database(database: str, what: str) -> None:
    """R-FLT-02, R-FLT-06, R-FLT-09, R-SES-02, R-LCH-01, R-LCH-06, P-05 and "What the database enforces"."""
    sql, constraint = VIOLATIONS[what]
    async with running(database) as (_, pool):
        with pytest.raises(ConstraintViolated) as caught:
            await pool.execute(sql)
        assert constraint is None or caught.value.constraint == constraint


@pytest.mark.parametrize(
    ("sql", "constraint"),
    [
        ("UPDATE job SET state = 'running', ended_at = NULL", "job_final"),
        ("UPDATE job SET state = 'queued', ended_at = NULL", "job_final"),
        ("UPDATE job SET stop_asked_at = NULL", "job_stop_for_ever"),
        ("UPDATE member SET phase = 'running'", "member_ended"),
    ],
)
async def test_what_ended_stays_ended(database: str, sql: str, constraint: str) -> None:
    """R-LCH-12: a stop is accepted once and for ever; no terminal state is left again."""
    async with open_bridge(), open_storage(database) as storage:
        world = World(storage)
        await world.node()
        claim = await world.launched()
        await storage.request_stop("job-a", USER, world.now)
        await world.see("job-a-1-0", MemberPhase.TERMINATED, exit_code=0)
        await world.step(claim, AttemptEvent.ALL_ENDED)
        with pytest.raises(ConstraintViolated) as caught:
            await storage._db.pool.execute(sql)
        assert caught.value.constraint == constraint


@pytest.mark.parametrize(
    ("sql", "constraint"),
    [
        ("UPDATE job SET state = 'queued', ended_at = NULL", None),
        ("UPDATE job SET state = 'running', ended_at = NULL", "job_final"),
        ("UPDATE job SET stop_asked_at = now(); UPDATE job SET state = 'queued', ended_at = NULL", "job_queued_after_stop"),
    ],
)
async def test_only_a_failed_job_that_nobody_stopped_is_queued_again(database: str, sql: str, constraint: str | None) -> None:
    """R-LCH-12: the one way out of a final state."""
    async with open_bridge(), open_storage(database) as storage:
        world = World(storage)
        await world.node()
        claim = await world.launched()
        await world.see("job-a-1-0", MemberPhase.TERMINATED, exit_code=1)
        await world.step(claim, AttemptEvent.ALL_ENDED)
        if constraint is None:
            await storage._db.pool.execute(sql)
            return
        with pytest.raises(ConstraintViolated) as caught:
            await storage._db.pool.execute(sql)
        assert caught.value.constraint == constraint


STOP_THAT_NO_LOCK_HELD_OFF = """
    CREATE FUNCTION stop_first() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN UPDATE job SET stop_asked_at = now() WHERE id = NEW.job_id; RETURN NEW; END $$;
    CREATE TRIGGER a_stop_first BEFORE INSERT ON attempt FOR EACH ROW EXECUTE FUNCTION stop_first();
"""


@pytest.mark.parametrize(
    ("meanwhile", "number", "constraint"),
    [
        ("UPDATE job SET attempt_number = 1 WHERE id = 'job-b'", 2, "attempt_follows"),
        (STOP_THAT_NO_LOCK_HELD_OFF, 1, "attempt_after_stop"),
    ],
)
async def test_placement_that_the_database_refuses_is_no_placement(
    database: str, monkeypatch: pytest.MonkeyPatch, meanwhile: str, number: int, constraint: str
) -> None:
    """R-LCH-01, R-LCH-12: the allocator is told to look again; it does not fail."""
    async with running(database) as (world, pool):
        await pool.execute(meanwhile)
        job, member = JobId("job-b"), a_member(JobId("job-b"), NodeId("n2"), number=number)
        placing = (job, attempt_id(job, number), number, (member,), world.now)
        assert not await world.storage.place(*placing)
        monkeypatch.setattr(launches, "RACES", launches.RACES - {constraint})
        with pytest.raises(ConstraintViolated) as caught:  # the test tries what it names
            await world.storage.place(*placing)
        assert caught.value.constraint == constraint


async def test_grant_of_one_card_on_two_nodes_is_allowed_and_its_hold_is_one(database: str) -> None:
    """protocol.md: a card has one holder even when its machine was enrolled again."""
    async with running(database) as (_, pool):
        await pool.execute("INSERT INTO gpu_grant VALUES ('n2', 1, 'GPU-a', true)")
        with pytest.raises(ConstraintViolated) as caught:
            await pool.execute(ON_N2 + "INSERT INTO gpu_hold VALUES ('GPU-a', 'job-b-1-0', 'n2')")
        assert caught.value.constraint == "gpu_hold_pkey"


async def test_sums_follow_the_holds(database: str) -> None:
    """The triggers keep used amounts equal to the sum of the holds, deletes included."""
    async with running(database) as (_, pool):
        wrong = (
            "SELECT count(*) FROM node_capacity c WHERE (cpu_millis_used, memory_bytes_used, staging_bytes_used) NOT IN"
            " (SELECT coalesce(sum(cpu_millis), 0), coalesce(sum(memory_bytes), 0), coalesce(sum(staging_bytes), 0)"
            " FROM resource_hold h WHERE h.node_id = c.node_id)"
        )
        assert await pool.fetchval(wrong) == 0
        await pool.execute("UPDATE member SET phase = 'terminated'; DELETE FROM resource_hold")
        assert await pool.fetchval(wrong) == 0
        assert await pool.fetchval("SELECT sum(cpu_millis_used) FROM node_capacity") == 0


@pytest.mark.parametrize(
    ("sql", "index"),
    [
        (doubt.MISSING.replace("$1", "'n1'").replace("$2", "'{}'").replace("$3", "2"), "member_unsettled"),
        (doubt.REMEMBERED.replace("$1", "'n1'"), "member_of_node"),
    ],
)
async def test_a_reconnection_reads_the_members_of_its_node_only(database: str, sql: str, index: str) -> None:
    """P-02, "At 10,000 Nodes": what is asked in every session of every Node does not read the members of all."""

    async def explain(connection: Connection) -> str:
        await connection.execute("SET LOCAL enable_seqscan = off")  # the tables of a test are small
        return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {sql}"))

    async with running(database) as (_, pool):
        plan = await pool.run(explain)
        assert "Seq Scan on member" not in plan, plan
        assert index in plan, plan
