"""What may change of an account, console sessions, projects, who sees what, and reading the audit log."""

from __future__ import annotations

from datetime import timedelta

import pytest
import trio
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.storage_world import USER, OpenWorld, World, a_fleet, a_spec
from tuneplane.domain.accounts import MOST_SESSIONS, AccountChange, AuditFilter, ConsoleSession, Project
from tuneplane.domain.errors import InvalidInput, NotFound, Refused
from tuneplane.domain.fleets import Visibility
from tuneplane.domain.ids import FleetId, JobId, NodeId, ProjectId, SessionId, TokenId, TraceId, UserName
from tuneplane.domain.jobs import ApiToken, Page, User
from tuneplane.domain.jobspec import Metadata
from tuneplane.domain.visibility import JobAccess, may_change_job, may_see, may_see_job

ROOT, EVE = UserName("root"), UserName("eve")
LAB, ART = ProjectId("lab"), ProjectId("art")


async def admins(world: World, *names: UserName) -> None:
    for name in names:
        await world.storage.create_user(name, "admin", None, world.now)


async def sign_in(world: World, name: str = "s", *, user: UserName = USER, password: str = "hash", hours: float = 1) -> User | None:
    session = ConsoleSession(id=SessionId(name), username=user, created_at=world.now, expires_at=world.now + timedelta(hours=hours))
    return await world.storage.open_console_session(session, password)


# ---------------------------------------------------------------- accounts


async def test_account_changes_what_is_given_and_keeps_the_rest(open_world: OpenWorld) -> None:
    """R-ADM-01."""
    async with open_world() as world:
        await admins(world, ROOT)
        user = await world.storage.create_user(USER, "user", "hash", world.now)
        assert await world.storage.update_user(USER, AccountChange(), ROOT, world.now) == user
        changed = await world.storage.update_user(USER, AccountChange(role="admin", password_hash="other"), ROOT, world.now)
        assert changed == evolve(user, role="admin")
        assert await world.storage.password_hash(USER) == "other"
        disabled = await world.storage.update_user(USER, AccountChange(disabled=True), ROOT, world.now)
        assert disabled == await world.storage.get_user(USER) == evolve(changed, disabled=True)
        assert sorted(user.username for user in await world.storage.get_users([USER, ROOT, EVE])) == [USER, ROOT]
        with pytest.raises(NotFound):
            await world.storage.update_user(EVE, AccountChange(disabled=True), ROOT, world.now)


@pytest.mark.parametrize("change", [AccountChange(disabled=True), AccountChange(role="user")])
async def test_last_enabled_administrator_stays_one(open_world: OpenWorld, change: AccountChange) -> None:
    """R-ADM-01: also when two end each other at the same moment."""
    async with open_world() as world:
        await admins(world, ROOT, USER, EVE)
        await world.storage.update_user(EVE, AccountChange(disabled=True), ROOT, world.now)
        refused: list[str] = []

        async def end(name: UserName, by: UserName) -> None:
            try:
                await world.storage.update_user(name, change, by, world.now)
            except Refused as error:
                refused.append(error.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end, ROOT, USER)
            nursery.start_soon(end, USER, ROOT)
        assert refused == ["last-admin"]
        users, _ = await world.storage.list_users(Page())
        assert sum(user.role == "admin" and not user.disabled for user in users) == 1


async def test_tokens_are_revoked_only_when_asked_for_and_do_not_work_while_disabled(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await admins(world, ROOT)
        await world.storage.create_user(USER, "user", "hash", world.now)
        await world.storage.create_api_token(_token(world), "secret")
        for change, works in (
            (AccountChange(password_hash="other"), True),
            (AccountChange(disabled=True), False),
            (AccountChange(disabled=False), True),
            (AccountChange(revoke_tokens=True), False),
            (AccountChange(disabled=False), False),
        ):
            await world.storage.update_user(USER, change, ROOT, world.now)
            assert (await world.storage.user_by_token("secret", world.now) is not None) is works, change


def _token(world: World) -> ApiToken:
    return ApiToken(id=TokenId("t"), username=USER, name="", created_at=world.now)


# ---------------------------------------------------------------- console sessions


@pytest.mark.parametrize(
    ("change", "lives"),
    [
        (AccountChange(disabled=True), False),
        (AccountChange(password_hash="other"), False),
        (AccountChange(role="admin"), True),
        (AccountChange(disabled=False), True),
    ],
)
async def test_session_ends_with_what_it_was_opened_by(open_world: OpenWorld, change: AccountChange, lives: bool) -> None:
    """R-ADM-01: and does not come back when the account does."""
    async with open_world() as world:
        await admins(world, ROOT)
        await world.storage.create_user(USER, "user", "hash", world.now)
        opened = await sign_in(world)
        assert opened is not None
        assert await world.storage.user_by_session(SessionId("s"), world.now) == opened
        await world.storage.update_user(USER, change, ROOT, world.now)
        await world.storage.update_user(USER, AccountChange(disabled=False), ROOT, world.now)
        assert (await world.storage.user_by_session(SessionId("s"), world.now) is not None) is lives


async def test_session_opens_only_for_the_enabled_with_the_present_password(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await admins(world, ROOT)
        await world.storage.create_user(USER, "user", "hash", world.now)
        assert await sign_in(world, password="former") is None
        assert await sign_in(world, user=EVE) is None
        assert await sign_in(world, user=ROOT) is None, "an account without a password"
        await world.storage.update_user(USER, AccountChange(disabled=True), ROOT, world.now)
        assert await sign_in(world) is None


async def test_session_ends_by_itself_by_sign_out_and_when_there_are_too_many(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.storage.create_user(USER, "user", "hash", world.now)
        await sign_in(world, "old", hours=2)
        assert await world.storage.user_by_session(SessionId("old"), world.later(7200)) is None
        await sign_in(world, "mine", hours=100)
        assert await world.storage.close_console_session(SessionId("mine"), world.now)
        assert not await world.storage.close_console_session(SessionId("mine"), world.now)
        assert await world.storage.user_by_session(SessionId("mine"), world.now) is None
        for number in range(MOST_SESSIONS + 1):
            world.later(1)
            await sign_in(world, f"s{number:03}", hours=100)
        live = [n for n in range(MOST_SESSIONS + 1) if await world.storage.user_by_session(SessionId(f"s{n:03}"), world.now)]
        assert live == list(range(1, MOST_SESSIONS + 1))


# ---------------------------------------------------------------- projects and who sees what


async def test_projects_and_members(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.storage.create_user(USER, "user", None, world.now)
        await world.storage.create_user(EVE, "user", None, world.now)
        for project in (LAB, ART):
            await world.storage.create_project(Project(id=project, created_at=world.later(1)), ROOT)
        with pytest.raises(Refused, match="already"):
            await world.storage.create_project(Project(id=LAB, created_at=world.now), ROOT)
        for name in (USER, EVE, EVE):
            await world.storage.set_member(LAB, name, True, ROOT, world.now)
        await world.storage.set_member(ART, EVE, True, ROOT, world.now)
        found, cursor = await world.storage.list_projects(Page(limit=1))
        assert ([one.id for one in found], found[0].members) == ([ART], (EVE,))
        (lab,), _ = await world.storage.list_projects(Page(limit=1, cursor=cursor))
        assert lab == await world.storage.get_project(LAB)
        assert lab.members == (USER, EVE)
        eve = await world.storage.get_user(EVE)
        assert eve is not None
        assert eve.projects == (ART, LAB)
        await world.storage.set_member(LAB, EVE, False, ROOT, world.now)
        assert [user.projects for user in await world.storage.get_users([EVE])] == [(ART,)]
        assert await world.storage.get_project(ProjectId("none")) is None


@pytest.mark.parametrize(
    ("project", "username", "is_member"),
    [(ProjectId("none"), USER, True), (LAB, EVE, True), (ProjectId("none"), USER, False), (LAB, USER, False)],
)
async def test_member_of_what_is_not_there_is_not_found(
    open_world: OpenWorld, project: ProjectId, username: UserName, is_member: bool
) -> None:
    async with open_world() as world:
        await world.storage.create_user(USER, "user", None, world.now)
        await world.storage.create_project(Project(id=LAB, created_at=world.now), ROOT)
        with pytest.raises(NotFound):
            await world.storage.set_member(project, username, is_member, ROOT, world.now)


FLEETS = {"open": None, "of-lab": LAB, "of-art": ART}
JOBS = [(owner, project, fleet) for owner in (USER, EVE) for project in ("default", LAB, ART) for fleet in FLEETS]


async def _populate(world: World) -> None:
    for fleet, project in FLEETS.items():
        made = a_fleet(fleet, at=world.later(1))
        made = evolve(made, visibility=Visibility.PROJECT, project=project) if project is not None else made
        await world.storage.create_fleet(made)
        await world.token(f"t-{fleet}", fleet=fleet)
        await world.join(f"n-{fleet}", token=f"t-{fleet}", key=fleet, fleet=fleet)
    for number, (owner, project, fleet) in enumerate(JOBS):
        world.later(1)
        spec = evolve(a_spec(), metadata=Metadata(name="train", project=project))
        facts = {"image": "i@sha256:1", "trace": TraceId("t"), "idempotency_key": None, "now": world.now}
        await world.storage.submit(JobId(f"job-{number:02}"), spec, owner=owner, fleet=FleetId(fleet), **facts)


async def _listed(world: World, what: str, who: User) -> list[str]:
    """All pages of two, one behind the other."""
    found, cursor = [], None
    lists = {
        "fleets": lambda page: world.storage.list_fleets(page, seen_by=who),
        "nodes": lambda page: world.storage.list_nodes(None, page, world.now, seen_by=who),
        "jobs": lambda page: world.storage.list_jobs(page, seen_by=who),
    }
    while True:
        items, cursor = await lists[what](Page(limit=2, cursor=cursor))
        found += [item.id for item in items]
        if cursor is None:
            return found
        assert len(items) == 2, "a page that is cut short tells of what was left out"


async def test_listings_show_what_may_be_seen_and_nothing_of_the_rest(open_world: OpenWorld) -> None:
    """R-FLT-08: the rules of domain/visibility.py, in pages, for everybody there may be."""
    async with open_world() as world:
        await _populate(world)
        for role in ("user", "admin"):
            for projects in ((), (LAB,), (ART,), (ART, LAB)):
                who = User(username=USER, role=role, created_at=world.now, projects=projects)
                fleets, _ = await world.storage.list_fleets(Page())
                seen = [fleet.id for fleet in fleets if may_see(who, fleet)]
                assert await _listed(world, "fleets", who) == seen
                assert await _listed(world, "nodes", who) == [f"n-{fleet}" for fleet in seen]
                jobs, _ = await world.storage.list_jobs(Page())
                access = {job.id: await world.storage.job_access(job.id) for job in jobs}
                assert await _listed(world, "jobs", who) == [job.id for job in jobs if may_see_job(who, access[job.id])]


async def test_what_decides_who_sees_a_node_and_a_job(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await _populate(world)
        fleet = await world.storage.get_fleet(FleetId("of-lab"))
        assert await world.storage.fleet_of_node(NodeId("n-of-lab")) == fleet
        assert await world.storage.fleet_of_node(NodeId("nowhere")) is None
        access = await world.storage.job_access(JobId("job-04"))
        assert access is not None
        assert (access.owner, access.project, access.fleet) == (USER, LAB, fleet)
        assert await world.storage.job_access(JobId("nowhere")) is None
        await world.storage.delete_node(NodeId("n-of-lab"), True, ROOT, world.now)
        assert await world.storage.fleet_of_node(NodeId("n-of-lab")) is None
        for number, (_, _, name) in enumerate(JOBS):
            if name == "of-lab":
                await world.storage.request_stop(JobId(f"job-{number:02}"), ROOT, world.now)
        await world.storage.delete_fleet(FleetId("of-lab"))
        gone = await world.storage.job_access(JobId("job-04"))
        assert gone is not None
        assert gone.fleet is None
        assert may_see_job(User(username=USER, role="user", created_at=world.now), gone), "a Fleet that is gone hides nothing"


@settings(max_examples=60, deadline=None)
@given(
    role=st.sampled_from(["user", "admin"]),
    projects=st.sets(st.sampled_from([LAB, ART])),
    job=st.sampled_from(JOBS),
    gone=st.booleans(),
)
def test_rules_of_sight(role: str, projects: set[ProjectId], job: tuple[UserName, str, str], gone: bool) -> None:
    """R-FLT-08, R-ADM-01: nobody sees a job on a Fleet that he cannot see; nobody changes one that he cannot see."""
    owner, project, name = job
    fleet = a_fleet(name)
    fleet = evolve(fleet, visibility=Visibility.PROJECT, project=FLEETS[name]) if FLEETS[name] is not None else fleet
    who = User(username=USER, role=role, created_at=fleet.created_at, projects=tuple(sorted(projects)))
    access = JobAccess(owner=owner, project=project, fleet=None if gone else fleet)
    if role == "admin":
        assert may_see_job(who, access)
        assert may_change_job(who, access)
        return
    assert may_see_job(who, access) <= (gone or may_see(who, fleet))
    assert may_see_job(who, access) <= (owner == USER or project in projects)
    assert may_change_job(who, access) == (may_see_job(who, access) and owner == USER)


# ---------------------------------------------------------------- the audit log


async def test_audit_log_is_read_newest_first_in_pages_and_by_what_is_given(open_world: OpenWorld) -> None:
    """R-ADM-02."""
    async with open_world() as world:
        for number in range(5):
            actor = (USER, EVE)[number % 2]
            await world.storage.audit(actor, f"do.{number % 3}", f"it-{number}", "why", number == 4, world.later(1))
        found, cursor = await world.storage.list_audit(Page(limit=2), AuditFilter())
        assert [(line.subject, line.forced) for line in found] == [("it-4", True), ("it-3", False)]
        rest, end = await world.storage.list_audit(Page(limit=3, cursor=cursor), AuditFilter())
        assert ([line.subject for line in rest], end) == (["it-2", "it-1", "it-0"], None)
        for only, numbers in (
            (AuditFilter(actor=EVE), [3, 1]),
            (AuditFilter(action="do.0"), [3, 0]),
            (AuditFilter(subject="it-2"), [2]),
            (AuditFilter(forced=True), [4]),
            (AuditFilter(forced=False, actor=USER), [2, 0]),
            (AuditFilter(since=world.now - timedelta(seconds=1)), [4, 3]),
            (AuditFilter(until=world.now - timedelta(seconds=3)), [0]),
        ):
            lines, _ = await world.storage.list_audit(Page(), only)
            assert [line.subject for line in lines] == [f"it-{number}" for number in numbers], only


@pytest.mark.parametrize("cursor", ["x", "W10=", "WyIyMDI2LTAxLTAxVDAwOjAwOjAwKzAwOjAwIiwgImpvYi0xIl0="])
async def test_audit_cursor_of_another_list_is_refused(open_world: OpenWorld, cursor: str) -> None:
    async with open_world() as world:
        with pytest.raises(InvalidInput):
            await world.storage.list_audit(Page(cursor=cursor), AuditFilter())
