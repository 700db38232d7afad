"""P-09: every write, committed but raised, is unknown to its caller; repeating it (or re-reading) brings the same end.

And before its COMMIT nothing of it is durable: the same write then happens as if for the first time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from tests.contract.storage_world import FLEET, GATEWAY, USER, WORKER, OpenWorld, World, a_fleet, an_inventory, audit_lines
from tuneplane.domain.accounts import AccountChange, ConsoleSession, Project
from tuneplane.domain.card_grants import change_id, sight_of
from tuneplane.domain.clocks import Offset
from tuneplane.domain.errors import Refused, StorageUnavailable, TuneplaneError
from tuneplane.domain.faultpoint import FAULT_POINTS, AnswerLost, install_fault_hook
from tuneplane.domain.fleets import FleetState
from tuneplane.domain.hardware import Series
from tuneplane.domain.ids import FleetId, GatewayId, JobId, MemberId, NodeId, ProjectId, SeriesId, SessionId, TokenId, UserName
from tuneplane.domain.inventory import CardBinding, EpochHold, Stranger
from tuneplane.domain.jobs import ApiToken, EncryptedIdentity, JoinToken
from tuneplane.domain.launch_table import AttemptEvent, AttemptState, MemberPhase
from tuneplane.domain.node_member import PROGRESS_TICKS
from tuneplane.domain.nodes import NodeState

N1 = NodeId("n1")
MEMBER = MemberId("job-a-1-0")
ROOT = UserName("root")  # who acts
H100 = Series(series=SeriesId("h100"), card_names=("NVIDIA H100",))
Act = Callable[[World], Awaitable[object]]


class Killed(Exception):
    """Stands for the end of the process before the step."""


@contextmanager
def fault(point: str, moment: str) -> Iterator[list[str]]:
    """Once, at ``point``: before it the process ends, after it the answer is lost. Yields what was passed."""
    passed: list[str] = []

    def hook(name: str, now: str) -> None:
        if (name, now) == (point, moment) and not passed:
            passed.append(name)
            raise Killed if moment == "before" else AnswerLost(name)

    install_fault_hook(hook)
    try:
        yield passed
    finally:
        install_fault_hook(None)


# ---------------------------------------------------------------- what each write needs, and how it is repeated


async def connected(world: World) -> None:
    await world.node(cards=("GPU-a",))


async def enrolled(world: World) -> None:
    await world.fleet()
    await world.token()


async def submitted(world: World) -> None:
    await connected(world)
    await world.submit()


async def placed(world: World) -> None:
    await connected(world)
    await world.submit()
    await world.place(cards=("GPU-a",))


async def preparing(world: World) -> None:
    await connected(world)
    world.claimed = await world.launched(until=AttemptState.PREPARING, cards=("GPU-a",))


async def sent(world: World) -> None:
    await placed(world)
    await world.step(await world.claim(), AttemptEvent.CLAIMED)


async def ended(world: World) -> None:
    await connected(world)
    claim = await world.launched()
    await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=0, cleaned=True)
    await world.step(claim, AttemptEvent.ALL_ENDED)


async def failed(world: World) -> None:
    await connected(world)
    claim = await world.launched()
    await world.see(MEMBER, MemberPhase.TERMINATED, exit_code=1, cleaned=True)
    await world.step(claim, AttemptEvent.ALL_ENDED)


async def silent(world: World) -> None:
    await connected(world)
    await world.launched(cards=("GPU-a",))
    await world.storage.close_session(N1, 1, "cut", world.now)


async def held(world: World) -> None:
    await connected(world)
    hold = EpochHold(id="hold-1", known_epoch=9, told_epoch=1, since=world.now)
    await world.storage.record_inventory(N1, 1, an_inventory(hold=hold), "d", world.now)


async def strange(world: World) -> None:
    await connected(world)
    stranger = Stranger(container="c1", name="tuneplane-job-a", member=MEMBER, gpu_uuids=(), cpu_millis=1, memory_bytes=1)
    await world.storage.record_inventory(N1, 1, an_inventory(strangers=(stranger,)), "d", world.now)


SWAP = change_id(sight_of(an_inventory(("GPU-b", "GPU-a"))))


async def swapped(world: World) -> None:
    """Two cards have changed places (L-D1)."""
    opened = await world.node(cards=("GPU-a", "GPU-b"))
    bound = (CardBinding(index=0, uuid="GPU-a"), CardBinding(index=1, uuid="GPU-b"))
    await world.storage.record_inventory(N1, opened.epoch, an_inventory(("GPU-b", "GPU-a"), card_bindings=bound), "d", world.now)


async def reconnected(world: World) -> None:
    """The Node has reported its member running, and opened session 2."""
    await connected(world)
    await world.launched(until=AttemptState.COMMITTED)
    await world.see(MEMBER, MemberPhase.RUNNING, revision=5 * PROGRESS_TICKS, container_id="c")
    await world.connect(sequence=9)


async def fleet_alone(world: World) -> None:
    await world.fleet()


async def series(world: World) -> None:
    await world.fleet()
    await world.storage.add_series(H100, world.now)


def a_session(world: World) -> ConsoleSession:
    return ConsoleSession(id=SessionId("s"), username=USER, created_at=world.now, expires_at=world.now + timedelta(hours=1))


async def user(world: World) -> None:
    await world.storage.create_user(USER, "user", None, world.now)


async def two_admins(world: World) -> None:
    for name in (USER, ROOT):
        await world.storage.create_user(name, "admin", None, world.now)


async def project(world: World) -> None:
    await user(world)
    await world.storage.create_project(Project(id=ProjectId("lab"), created_at=world.now), ROOT)


async def signed_up(world: World) -> None:
    await world.storage.create_user(USER, "user", "hash", world.now)


async def signed_in(world: World) -> None:
    await signed_up(world)
    await world.storage.open_console_session(a_session(world), "hash")


async def user_by(world: World) -> None:
    await world.storage.create_user(USER, "user", None, world.now, by=ROOT)


async def api_token(world: World) -> None:
    await user(world)
    await world.storage.create_api_token(ApiToken(id=TokenId("a"), username=USER, name="", created_at=world.now), "hash-a")


async def advance(world: World) -> object:
    claims = await world.storage.claim_attempts(WORKER, 10, world.later(16), world.now + timedelta(seconds=15))
    return [await world.step(claim, AttemptEvent.CLAIMED) for claim in claims]


async def observe(world: World) -> object:
    world._revisions[MEMBER] = 5
    return await world.see(MEMBER, MemberPhase.ABORTED, reason_code="image-unavailable")


async def go_back(world: World) -> object:
    return await world.see(MEMBER, MemberPhase.PREPARED, epoch=2, revision=2 * PROGRESS_TICKS)


async def answer(world: World) -> object:
    return await world.storage.answer_command("job-a-1-0:prepare", N1, 1, False, "no", "because", world.now)


async def mark(world: World) -> object:
    return await world.storage.mark_sent("job-a-1-0:prepare", N1, 1, world.now)


async def renew(world: World) -> object:
    return await world.storage.renew_claims(WORKER, [world.claimed], world.now + timedelta(seconds=15))


def lease(world: World) -> object:
    return world.now + timedelta(seconds=15)


async def update_fleet(world: World) -> object:
    return await world.storage.update_fleet(
        FLEET, capabilities=None, visibility=None, project=None, state=FleetState.DRAINING, config={"a": "b"}, by=ROOT, now=world.now
    )


async def drained(world: World) -> None:
    await connected(world)
    await world.storage.set_node_state(N1, NodeState.DRAINING, "", world.now)


IDENTITY = EncryptedIdentity(name="gateway", certificate_pem="pem", key_ciphertext=b"x", version=1, key_id="k")

WRITES: dict[str, tuple[Act, Act]] = {
    "create_user": (fleet_alone, user_by),
    "update_user": (two_admins, lambda w: w.storage.update_user(USER, AccountChange(role="user", disabled=True), ROOT, w.now)),
    "create_project": (user, lambda w: w.storage.create_project(Project(id=ProjectId("lab"), created_at=w.now), ROOT)),
    "set_member": (project, lambda w: w.storage.set_member(ProjectId("lab"), USER, True, ROOT, w.now)),
    "open_console_session": (signed_up, lambda w: w.storage.open_console_session(a_session(w), "hash")),
    "close_console_session": (signed_in, lambda w: w.storage.close_console_session(SessionId("s"), w.now)),
    "create_api_token": (
        user,
        lambda w: w.storage.create_api_token(ApiToken(id=TokenId("a"), username=USER, name="ci", created_at=w.now), "h", by=ROOT),
    ),
    "user_by_token": (api_token, lambda w: w.storage.user_by_token("hash-a", w.now)),
    "revoke_api_token": (api_token, lambda w: w.storage.revoke_api_token(USER, TokenId("a"), w.now, by=ROOT)),
    "audit": (fleet_alone, lambda w: w.storage.audit(USER, "x", "y", "", False, w.now)),
    "create_fleet": (user, lambda w: w.storage.create_fleet(a_fleet(at=w.now), by=ROOT)),
    "update_fleet": (fleet_alone, update_fleet),
    "delete_fleet": (fleet_alone, lambda w: w.storage.delete_fleet(FLEET, by=ROOT, now=w.now)),
    "add_series": (fleet_alone, lambda w: w.storage.add_series(H100, w.now, by=ROOT)),
    "remove_series": (series, lambda w: w.storage.remove_series(H100.series, by=ROOT, now=w.now)),
    "mint_join_token": (fleet_alone, lambda w: w.storage.mint_join_token(_join_token(w), "hash-m")),
    "revoke_join_token": (enrolled, lambda w: w.storage.revoke_join_token(FLEET, TokenId("t"), w.now, by=ROOT)),
    "join": (enrolled, lambda w: w.join(try_=_next_try(w))),
    "set_node_state": (connected, lambda w: w.storage.set_node_state(N1, NodeState.DRAINING, "disk", w.now, by=ROOT)),
    "delete_node": (drained, lambda w: w.storage.delete_node(N1, False, USER, w.now)),
    "submit": (fleet_alone, lambda w: w.submit(key="k")),
    "request_stop": (preparing, lambda w: w.storage.request_stop(JobId("job-a"), USER, w.now)),
    "retry": (failed, lambda w: w.storage.retry(JobId("job-a"), USER, w.now, after=1)),
    "declare_lost": (silent, lambda w: w.storage.declare_lost(N1, MEMBER, USER, "burnt", w.now)),
    "accept_epoch": (held, lambda w: w.storage.accept_epoch(N1, "hold-1", USER, w.now)),
    "stop_stranger": (strange, lambda w: w.storage.stop_stranger(N1, "c1", MEMBER, USER, w.now)),
    "set_card_cordon": (swapped, lambda w: w.storage.set_card_cordon(N1, "GPU-a", "hot", USER, w.now)),
    "accept_cards": (swapped, lambda w: w.storage.accept_cards(N1, SWAP, USER, w.now)),
    "publish_identity": (fleet_alone, lambda w: w.storage.publish_identity(IDENTITY)),
    "register_gateway": (fleet_alone, lambda w: w.storage.register_gateway(GatewayId("g"), "h", 1, w.now, lease(w))),
    "renew_gateway": (connected, lambda w: w.storage.renew_gateway(GATEWAY, lease(w))),
    "close_gateway": (connected, lambda w: w.storage.close_gateway(GATEWAY, w.now)),
    "open_session": (connected, lambda w: w.connect()),
    "close_session": (connected, lambda w: w.storage.close_session(N1, 1, "bye", w.now)),
    "record_inventory": (connected, lambda w: w.storage.record_inventory(N1, 1, an_inventory(("GPU-a", "GPU-b")), "d", w.now)),
    "inventory_stale": (connected, lambda w: w.storage.inventory_stale(N1, 1, w.now)),
    "set_machine_drain": (connected, lambda w: w.storage.set_machine_drain(N1, 1, True, "disk", w.now)),
    "note_clock": (connected, lambda w: w.storage.note_clock(N1, 1, Offset(seconds=7.0, error_seconds=0.1), w.now)),
    "observe": (preparing, observe),
    "reconcile": (reconnected, lambda w: w.storage.reconcile(N1, 2, (), w.now)),
    "doubt_journal": (reconnected, go_back),
    "mark_sent": (sent, mark),
    "answer_command": (sent, answer),
    "place": (submitted, lambda w: w.place(cards=("GPU-a",))),
    "note_waiting": (submitted, lambda w: w.storage.note_waiting([JobId("job-a")], "no-nodes", [], w.now)),
    "claim_attempts": (placed, lambda w: w.storage.claim_attempts(WORKER, 10, w.now, lease(w))),
    "renew_claims": (preparing, renew),
    "advance": (placed, advance),
    "look_around": (connected, lambda w: w.storage.look_around(True, w.now)),
    "forget_ended": (ended, lambda w: w.storage.forget_ended(w.now + timedelta(days=1), 10, w.now)),
}
# A repeat that finds its own first time says so in these ways; the caller reads what it wanted to be true
SAID_ON_REPEAT = {
    "create_user": "exists",
    "create_fleet": "exists",
    "create_project": "exists",
    "delete_fleet": "not-found",
    "remove_series": "not-found",
    "delete_node": "not-found",
    "advance": "illegal-transition",
    "declare_lost": "member-ended",
}


def _join_token(world: World) -> JoinToken:
    return JoinToken(id=TokenId("m"), fleet=FleetId(FLEET), created_by=UserName("a"), created_at=world.now, expires_at=world.now)


def _next_try(world: World) -> int:
    """P-14: every repeat of a join has a higher ordinal."""
    world.tries += 1
    return world.tries


async def snapshot(world: World) -> object:
    """What there is, as far as the outcome of a write can be told from it."""
    job = await world.storage.get_job(JobId("job-a"))
    nodes = await world.storage.placement_nodes(FLEET, world.now)
    commands = await world.storage.outgoing_commands(GATEWAY, 100)
    held = [(node.id, node.state, node.members, node.free_gpu_uuids, node.cordons) for node in nodes]
    phases = [(one.phase, one.reason_code) for attempt in job.attempts for one in attempt.members] if job else []
    kinds = [event.kind for event in await world.storage.timeline(JobId("job-a"), 100)]
    return (
        job and job.state,
        phases,
        held,
        sorted(one.command.operation for one in commands),
        [k for k in kinds if k != "attempt.claimed"],
    )


async def said(act: Act, world: World) -> str:
    """The code of the refusal, or nothing."""
    try:
        await act(world)
    except TuneplaneError as error:
        return error.code
    return ""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", WRITES)
async def test_write_whose_process_or_answer_is_lost_is_repeated_to_the_same_end(open_world: OpenWorld, name: str, moment: str) -> None:
    """P-09."""
    given, act = WRITES[name]
    async with open_world() as world:
        await given(world)
        with fault(f"storage.{name}", moment) as passed:
            with pytest.raises(Killed if moment == "before" else StorageUnavailable):
                await act(world)
            assert passed
        allowed = {"", SAID_ON_REPEAT.get(name, "")}
        assert await said(act, world) in (allowed if moment == "after" else {""})
        twice = await snapshot(world)
        assert await said(act, world) in allowed
        assert await snapshot(world) == twice


AUDITED = {
    "create_user": (ROOT, "user.create", USER, "user", False),
    "update_user": (ROOT, "user.update", USER, "role user, disabled", False),
    "create_project": (ROOT, "project.create", "lab", "", False),
    "set_member": (ROOT, "project.add-member", "lab", USER, False),
    "open_console_session": (USER, "session.open", "s", "", False),
    "close_console_session": (USER, "session.close", "s", "", False),
    "create_api_token": (ROOT, "token.create", "a", f"ci of {USER}", False),
    "revoke_api_token": (ROOT, "token.revoke", "a", "", False),
    "create_fleet": (ROOT, "fleet.create", FLEET, "node", False),
    "update_fleet": (ROOT, "fleet.update", FLEET, "state draining, config", False),
    "delete_fleet": (ROOT, "fleet.delete", FLEET, "", False),
    "add_series": (ROOT, "hardware.add", "h100", "NVIDIA H100", False),
    "remove_series": (ROOT, "hardware.remove", "h100", "", False),
    "mint_join_token": (UserName("a"), "join-token.create", "m", FLEET, False),
    "revoke_join_token": (ROOT, "join-token.revoke", "t", FLEET, False),
    "join": (USER, "node.join", N1, f"{FLEET} at host", False),
    "set_node_state": (ROOT, "node.draining", N1, "disk", False),
    "submit": (USER, "job.submit", "job-a", f"train to Fleet {FLEET}", False),
    "request_stop": (USER, "job.stop", "job-a", "", False),
    "retry": (USER, "job.retry", "job-a", "attempt 2", False),
    "declare_lost": (USER, "member.declare-lost", MEMBER, "on Node n1: burnt", True),
    "delete_node": (USER, "node.delete", N1, "", False),
    "accept_epoch": (USER, "node.accept-epoch", N1, "hold-1", False),
    "stop_stranger": (USER, "node.stop-stranger", N1, f"{MEMBER} c1", False),
    "set_card_cordon": (USER, "card.cordon", "GPU-a", "on Node n1: hot", False),
    "accept_cards": (USER, "node.accept-cards", N1, f"{SWAP}: index 0: GPU-a -> GPU-b, index 1: GPU-b -> GPU-a", False),
}


@pytest.mark.parametrize("name", AUDITED)
async def test_act_and_its_audit_line_happen_both_or_neither(open_world: OpenWorld, name: str) -> None:
    """R-ADM-02, P-09, P-11: who repeats it after a lost answer is refused, or changes nothing; the line must be there by then."""
    given, act = WRITES[name]
    async with open_world() as world:
        await given(world)
        before = await audit_lines(world.storage)
        with fault(f"storage.{name}", "before"), pytest.raises(Killed):
            await act(world)
        assert await audit_lines(world.storage) == before
        with fault(f"storage.{name}", "after"), pytest.raises(StorageUnavailable):
            await act(world)
        assert await audit_lines(world.storage) == [*before, AUDITED[name]]
        refused = await said(act, world)
        repeated = [] if refused or name in ONE_ACT else [AUDITED[name]]  # a refused repeat is no act
        assert await audit_lines(world.storage) == [*before, AUDITED[name], *repeated]


# A repeat of these is known by its id or key, and is the same act: the others are asked for again, and say so
ONE_ACT = frozenset({"open_console_session", "close_console_session", "create_api_token", "mint_join_token", "submit", "accept_cards"})


async def test_audit_line_of_a_forced_removal_names_what_was_left_behind(open_world: OpenWorld) -> None:
    """R-ADM-02, R-LIV-05."""
    async with open_world() as world:
        await silent(world)
        await world.storage.delete_node(N1, True, USER, world.now)
        assert (await audit_lines(world.storage))[-1] == (USER, "node.delete", N1, f"left behind: {MEMBER} (running)", True)


def test_every_fault_point_of_the_port_is_tried() -> None:
    """House, Proof: a fault point that no test reaches fails the build."""
    elsewhere = {"storage.migrate", "storage.embedded_create", "storage.embedded_start"}
    assert {f"storage.{name}" for name in WRITES} == {name for name in FAULT_POINTS if name.startswith("storage.")} - elsewhere


async def test_refused_unit_passes_no_fault_point(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.fleet()
        with fault("storage.create_fleet", "after") as passed, pytest.raises(Refused):
            await world.fleet()
        assert not passed
