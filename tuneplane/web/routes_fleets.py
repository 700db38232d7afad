"""Fleets and their Join Tokens."""

from __future__ import annotations

from attrs import frozen

from tuneplane.control.api import FleetAnswer, FleetDraft, FleetPatch, JoinTokenAnswer, NewJoinToken, answer_fleet
from tuneplane.domain.ids import FleetId, TokenId

from .inputs import PageQuery
from .routing import Answer, Call, Router, Who
from .site import Site

router = Router("fleets")


@frozen(kw_only=True)
class FleetPage:
    """One page of the Fleets that the caller may see."""

    items: tuple[FleetAnswer, ...]
    next_cursor: str | None


@frozen(kw_only=True)
class JoinTokens:
    """The Join Tokens of a Fleet, without their secrets."""

    items: tuple[JoinTokenAnswer, ...]
    next_cursor: str | None


@router.route("GET", "/api/fleets", who=Who.USER, query=PageQuery, answers={200: FleetPage})
async def list_fleets(site: Site, call: Call) -> Answer:
    """The Fleets that the caller may see."""
    items, cursor = await site.api.fleets.list_page(call.user, call.query.page())
    return Answer(value=FleetPage(items=tuple(items), next_cursor=cursor))


@router.route("POST", "/api/fleets", who=Who.ADMIN, body=FleetDraft, answers={201: FleetAnswer}, problems=(409,), acts=("fleet.create",))
async def create_fleet(site: Site, call: Call) -> Answer:
    """Create a Fleet."""
    fleet = await site.api.fleets.create(call.user, call.body)
    return Answer(status=201, value=fleet, headers={"Location": f"/api/fleets/{fleet.id}"})


@router.route("GET", "/api/fleets/{fleet}", who=Who.USER, answers={200: FleetAnswer})
async def read_fleet(site: Site, call: Call) -> Answer:
    """One Fleet."""
    return Answer(value=answer_fleet(await site.api.fleets.get(call.user, FleetId(call.path["fleet"]))))


@router.route("PATCH", "/api/fleets/{fleet}", who=Who.ADMIN, body=FleetPatch, answers={200: FleetAnswer}, acts=("fleet.update",))
async def update_fleet(site: Site, call: Call) -> Answer:
    """Change a Fleet; its kind and delivery never change."""
    return Answer(value=await site.api.fleets.update(call.user, FleetId(call.path["fleet"]), call.body))


@router.route("DELETE", "/api/fleets/{fleet}", who=Who.ADMIN, answers={204: None}, problems=(409,), acts=("fleet.delete",))
async def delete_fleet(site: Site, call: Call) -> Answer:
    """Delete a Fleet that has no Nodes and no live work."""
    await site.api.fleets.delete(call.user, FleetId(call.path["fleet"]))
    return Answer(status=204)


@router.route("GET", "/api/fleets/{fleet}/join-tokens", who=Who.ADMIN, answers={200: JoinTokens})
async def list_join_tokens(site: Site, call: Call) -> Answer:
    """The Join Tokens of a Fleet and what became of them."""
    tokens = await site.api.fleets.list_join_tokens(call.user, FleetId(call.path["fleet"]))
    return Answer(value=JoinTokens(items=tuple(tokens), next_cursor=None))


@router.route(
    "POST", "/api/fleets/{fleet}/join-tokens", who=Who.ADMIN, answers={201: NewJoinToken}, problems=(409, 422), acts=("join-token.create",)
)
async def mint_join_token(site: Site, call: Call) -> Answer:
    """Mint a Join Token for one machine, valid for 24 hours; it is shown this once."""
    return Answer(status=201, value=await site.api.fleets.mint_join_token(call.user, FleetId(call.path["fleet"])))


@router.route("DELETE", "/api/fleets/{fleet}/join-tokens/{token}", who=Who.ADMIN, answers={204: None}, acts=("join-token.revoke",))
async def revoke_join_token(site: Site, call: Call) -> Answer:
    """Revoke a Join Token that nobody has used."""
    await site.api.fleets.revoke_join_token(call.user, FleetId(call.path["fleet"]), TokenId(call.path["token"]))
    return Answer(status=204)
