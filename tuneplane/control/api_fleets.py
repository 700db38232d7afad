"""Fleets and their Join Tokens (R-FLT-01 to R-FLT-10, R-ENR-01)."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta

from attrs import Factory, field, frozen

from tuneplane.domain.errors import InvalidInput, NotFound, Refused
from tuneplane.domain.fleet_config import check_config, config_warnings
from tuneplane.domain.fleets import (
    DEFAULT_DELIVERY,
    Capability,
    Delivery,
    Fleet,
    FleetKind,
    FleetState,
    Visibility,
    check_slug,
)
from tuneplane.domain.ids import FleetId, ProjectId, TokenId
from tuneplane.domain.jobs import JoinToken, Page, User
from tuneplane.domain.secrets import SECRET_ENTROPY_BYTES, SecretKind, secret_hash, spell_secret
from tuneplane.domain.visibility import may_see

from .api_base import Base, log, require_admin

JOIN_TOKEN_LIFE = timedelta(hours=24)  # R-ENR-01
MOST_FLEETS = 500  # a placement looks at every visible Fleet; one page of the list holds them all


@frozen(kw_only=True)
class FleetDraft:
    """Body of ``POST /api/fleets``."""

    id: str
    kind: FleetKind
    delivery: Delivery | None = None
    capabilities: tuple[Capability, ...]
    visibility: Visibility = Visibility.PUBLIC
    project: str | None = None
    state: FleetState = FleetState.ACTIVE
    config: dict[str, str] = Factory(dict)


@frozen(kw_only=True)
class FleetPatch:
    """Body of ``PATCH /api/fleets/{id}``: what is absent stays. ``kind`` and ``delivery`` may only repeat what is (R-FLT-02)."""

    kind: FleetKind | None = None
    delivery: Delivery | None = None
    capabilities: tuple[Capability, ...] | None = None
    visibility: Visibility | None = None
    project: str | None = None
    state: FleetState | None = None
    config: dict[str, str] | None = None


@frozen(kw_only=True)
class FleetAnswer:
    """A Fleet as the API shows it. ``warnings``: ``config`` keys that no setting reads (R-FLT-03)."""

    id: FleetId
    kind: FleetKind
    delivery: Delivery
    capabilities: tuple[Capability, ...]
    visibility: Visibility
    project: str | None
    state: FleetState
    config: dict[str, str]
    created_at: datetime
    warnings: tuple[str, ...]


@frozen(kw_only=True)
class NewJoinToken:
    """A minted Join Token, shown this once; ``command`` is the one line to paste on the machine (R-ENR-01)."""

    id: TokenId
    token: str = field(repr=False)
    expires_at: datetime
    command: str = field(repr=False)


@frozen(kw_only=True)
class JoinTokenAnswer:
    """A Join Token without its secret. ``state``: unused, used, revoked or expired."""

    id: TokenId
    state: str
    created_by: str
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None
    used_by: str | None


@frozen(kw_only=True)
class Fleets(Base):
    """Fleets as callers may see and change them."""

    public_url: str

    async def create(self, caller: User, draft: FleetDraft) -> FleetAnswer:
        """A new Fleet. InvalidInput names the field; Refused: ``exists``, ``too-many-fleets``."""
        require_admin(caller)
        check_slug(draft.id, "id")
        check_config(draft.config)
        fleet = Fleet(
            id=FleetId(draft.id),
            kind=draft.kind,
            delivery=draft.delivery or DEFAULT_DELIVERY[draft.kind],
            capabilities=_capabilities(draft.capabilities),
            visibility=draft.visibility,
            project=_project(draft.visibility, draft.project),
            state=draft.state,
            config=draft.config,
            created_at=self.clock(),
        )
        await self._check_project(fleet.project)
        if len(await self.visible(caller)) >= MOST_FLEETS:  # one more would be looked at by no placement
            raise Refused("too-many-fleets", f"there are at most {MOST_FLEETS} Fleets: delete one first")
        await self.storage.create_fleet(fleet, by=caller.username)
        self.tell(caller.username, "fleet.create", fleet.id, draft.kind.value)
        return _logged(fleet)

    async def _check_project(self, project: str | None) -> None:
        """There is one of this name: a Fleet of another would be seen by nobody. Projects are never deleted."""
        if project is not None and await self.storage.get_project(ProjectId(project)) is None:
            raise InvalidInput("project", f"there is no project named {project!r}")

    async def get(self, caller: User, fleet: FleetId) -> Fleet:
        """The Fleet, or the same NotFound for one that does not exist and one that the caller may not see (R-FLT-08)."""
        found = await self.storage.get_fleet(fleet)
        if found is None or not may_see(caller, found):
            raise NotFound("Fleet", fleet)
        return found

    async def list_page(self, caller: User, page: Page) -> tuple[list[FleetAnswer], str | None]:
        fleets, cursor = await self.storage.list_fleets(page, seen_by=caller)
        return [answer_fleet(fleet) for fleet in fleets], cursor

    async def visible(self, caller: User) -> list[Fleet]:
        """All Fleets that a placement may look at, at most MOST_FLEETS."""
        fleets, _ = await self.storage.list_fleets(Page(limit=MOST_FLEETS), seen_by=caller)
        return fleets

    async def update(self, caller: User, fleet: FleetId, patch: FleetPatch) -> FleetAnswer:
        """Change what the patch gives. ``kind`` and ``delivery`` never change (R-FLT-02)."""
        require_admin(caller)
        before = await self.get(caller, fleet)
        for name in ("kind", "delivery"):
            wanted = getattr(patch, name)
            if wanted is not None and wanted is not getattr(before, name):
                raise InvalidInput(name, f"never changes after creation; it is {getattr(before, name).value!r}")
        check_config(patch.config or {})
        visibility = patch.visibility or before.visibility
        await self._check_project(patch.project)
        changed = await self.storage.update_fleet(
            fleet,
            capabilities=None if patch.capabilities is None else _capabilities(patch.capabilities),
            visibility=patch.visibility,
            project=_project(visibility, patch.project or (before.project if visibility is Visibility.PROJECT else None)),
            state=patch.state,
            config=patch.config,
            by=caller.username,
            now=self.clock(),
        )
        self.tell(caller.username, "fleet.update", fleet)
        return _logged(changed)

    async def delete(self, caller: User, fleet: FleetId) -> None:
        """Only an empty Fleet goes (R-FLT-06): Refused(code="fleet-in-use") names what is left."""
        require_admin(caller)
        await self.get(caller, fleet)
        await self.storage.delete_fleet(fleet, by=caller.username, now=self.clock())
        self.tell(caller.username, "fleet.delete", fleet)

    async def mint_join_token(self, caller: User, fleet: FleetId) -> NewJoinToken:
        """A single-use token for one machine, 24 hours long. Only ``node`` Fleets enrol machines (R-ENR-08)."""
        require_admin(caller)
        found = await self.get(caller, fleet)
        if found.kind is not FleetKind.NODE:
            raise Refused("not-a-node-fleet", f"Fleet {fleet} is of kind {found.kind.value!r}: only 'node' Fleets enrol machines")
        now = self.clock()
        secret = spell_secret(SecretKind.JOIN_TOKEN, self.entropy(SECRET_ENTROPY_BYTES))
        token = JoinToken(
            id=TokenId(self.new_id("jt")), fleet=fleet, created_by=caller.username, created_at=now, expires_at=now + JOIN_TOKEN_LIFE
        )
        await self.storage.mint_join_token(token, secret_hash(secret))
        self.tell(caller.username, "join-token.create", token.id, fleet)
        return NewJoinToken(id=token.id, token=secret, expires_at=token.expires_at, command=self._command(fleet, secret))

    async def list_join_tokens(self, caller: User, fleet: FleetId) -> list[JoinTokenAnswer]:
        require_admin(caller)
        await self.get(caller, fleet)
        now = self.clock()
        return [_answer_token(token, now) for token in await self.storage.list_join_tokens(fleet)]

    async def revoke_join_token(self, caller: User, fleet: FleetId, token: TokenId) -> None:
        require_admin(caller)
        await self.get(caller, fleet)
        if not await self.storage.revoke_join_token(fleet, token, self.clock(), by=caller.username):
            raise NotFound("Join Token", token)
        self.tell(caller.username, "join-token.revoke", token, fleet)

    def _command(self, fleet: FleetId, secret: str) -> str:
        script = shlex.quote(f"{self.public_url}/install.sh")
        return f"curl -fsSL {script} | TUNEPLANE_FLEET={fleet} TUNEPLANE_JOIN_TOKEN={secret} sh"


def answer_fleet(fleet: Fleet) -> FleetAnswer:
    """The API's shape."""
    return FleetAnswer(
        id=fleet.id,
        kind=fleet.kind,
        delivery=fleet.delivery,
        capabilities=fleet.capabilities,
        visibility=fleet.visibility,
        project=fleet.project if fleet.visibility is Visibility.PROJECT else None,
        state=fleet.state,
        config=fleet.config,
        created_at=fleet.created_at,
        warnings=config_warnings(fleet.config, fleet.kind),
    )


def _logged(fleet: Fleet) -> FleetAnswer:
    """After a change: a warning is logged, and returned with the answer (R-FLT-03)."""
    answer = answer_fleet(fleet)
    for warning in answer.warnings:
        log.warning("fleet config", fleet=fleet.id, detail=warning)
    return answer


def _answer_token(token: JoinToken, now: datetime) -> JoinTokenAnswer:
    state = "used" if token.used_at else "revoked" if token.revoked_at else "expired" if token.expires_at <= now else "unused"
    return JoinTokenAnswer(
        id=token.id,
        state=state,
        created_by=token.created_by,
        created_at=token.created_at,
        expires_at=token.expires_at,
        used_at=token.used_at,
        used_by=token.used_by,
    )


def _capabilities(given: tuple[Capability, ...]) -> tuple[Capability, ...]:
    if not given:
        raise InvalidInput("capabilities", "must name at least one of train, eval, serve, env")
    return tuple(dict.fromkeys(given))


def _project(visibility: Visibility, project: str | None) -> str | None:
    if visibility is Visibility.PROJECT:
        if project is None:
            raise InvalidInput("project", "a Fleet of visibility 'project' names its project")
        check_slug(project, "project")
        return project
    if project is not None:
        raise InvalidInput("project", "only a Fleet of visibility 'project' has one")
    return None
