"""Enrolment of machines, and Nodes."""

from __future__ import annotations

from attrs import frozen

from tuneplane.control.api import (
    CardAcceptance,
    CardPatch,
    EpochAcceptance,
    JoinAnswer,
    LossDeclaration,
    NodeAnswer,
    NodePatch,
    SightAnswer,
    StrangerStop,
)
from tuneplane.domain.ids import FleetId, MemberId, NodeId
from tuneplane.domain.jobs import JoinRequest

from .inputs import PageQuery
from .routing import Answer, Call, Router, Who
from .site import Site

router = Router("nodes")


@frozen(kw_only=True)
class NodePage:
    """One page of Nodes."""

    items: tuple[NodeAnswer, ...]
    next_cursor: str | None


@frozen(kw_only=True)
class DeleteQuery:
    """``?force=true`` removes a machine that is already gone."""

    force: bool = False


@router.route(
    "POST", "/api/fleets/{fleet}/nodes", who=Who.ALL, body=JoinRequest, answers={201: JoinAnswer}, problems=(403, 409), acts=("node.join",)
)
async def join_node(site: Site, call: Call) -> Answer:
    """Enrol a machine with a Join Token; the credential is shown this once."""
    return Answer(status=201, value=await site.api.nodes.join(FleetId(call.path["fleet"]), call.body))


@router.route("GET", "/api/fleets/{fleet}/nodes", who=Who.USER, query=PageQuery, answers={200: NodePage})
async def list_fleet_nodes(site: Site, call: Call) -> Answer:
    """The Nodes of a Fleet."""
    items, cursor = await site.api.nodes.list_page(call.user, FleetId(call.path["fleet"]), call.query.page())
    return Answer(value=NodePage(items=tuple(items), next_cursor=cursor))


@router.route("GET", "/api/nodes", who=Who.USER, query=PageQuery, answers={200: NodePage})
async def list_nodes(site: Site, call: Call) -> Answer:
    """The Nodes of all Fleets that the caller may see."""
    items, cursor = await site.api.nodes.list_page(call.user, None, call.query.page())
    return Answer(value=NodePage(items=tuple(items), next_cursor=cursor))


@router.route("GET", "/api/sight", who=Who.ADMIN, answers={200: SightAnswer})
async def read_sight(site: Site, call: Call) -> Answer:
    """What the control plane sees of all Nodes, and whether it judges their silence: blindness, the mass-failure brake."""
    return Answer(value=await site.api.sights.get(call.user))


@router.route("GET", "/api/nodes/{node}", who=Who.USER, answers={200: NodeAnswer})
async def read_node(site: Site, call: Call) -> Answer:
    """One Node: connection, scheduling and inventory as three things, and its readiness with every reason."""
    return Answer(value=await site.api.nodes.get(call.user, NodeId(call.path["node"])))


@router.route(
    "PATCH",
    "/api/nodes/{node}",
    who=Who.ADMIN,
    body=NodePatch,
    answers={200: NodeAnswer},
    acts=(
        "node.active",
        "node.draining",
        "node.cordoned",
    ),
)
async def update_node(site: Site, call: Call) -> Answer:
    """Set a Node active, draining or cordoned; running work goes on."""
    return Answer(value=await site.api.nodes.set_state(call.user, NodeId(call.path["node"]), call.body))


@router.route(
    "POST",
    "/api/nodes/{node}/members/{member}/declare-lost",
    who=Who.ADMIN,
    body=LossDeclaration,
    answers={204: None},
    problems=(409,),
    acts=("member.declare-lost",),
)
async def declare_member_lost(site: Site, call: Call) -> Answer:
    """End a member of a silent Node by an operator's word; what it holds is released, and it may still run."""
    await site.api.nodes.declare_lost(call.user, NodeId(call.path["node"]), MemberId(call.path["member"]), call.body)
    return Answer(status=204)


@router.route(
    "POST",
    "/api/nodes/{node}/accept-epoch",
    who=Who.ADMIN,
    body=EpochAcceptance,
    answers={200: NodeAnswer},
    problems=(409,),
    acts=("node.accept-epoch",),
)
async def accept_epoch(site: Site, call: Call) -> Answer:
    """Let a Node obey again that holds its commands because this control plane's database was restored from a backup."""
    return Answer(value=await site.api.nodes.accept_epoch(call.user, NodeId(call.path["node"]), call.body))


@router.route(
    "PATCH",
    "/api/nodes/{node}/cards/{card}",
    who=Who.ADMIN,
    body=CardPatch,
    answers={200: NodeAnswer},
    acts=("card.cordon", "card.uncordon"),
)
async def update_card(site: Site, call: Call) -> Answer:
    """Keep new work off one card, or let it come again; what runs on it goes on."""
    return Answer(value=await site.api.cards.cordon(call.user, NodeId(call.path["node"]), call.path["card"], call.body))


@router.route(
    "POST",
    "/api/nodes/{node}/accept-cards",
    who=Who.ADMIN,
    body=CardAcceptance,
    answers={200: NodeAnswer},
    problems=(409,),
    acts=("node.accept-cards",),
)
async def accept_cards(site: Site, call: Call) -> Answer:
    """Say that the indexes of a Node's GPU budget mean the cards that it shows at them now."""
    return Answer(value=await site.api.cards.accept(call.user, NodeId(call.path["node"]), call.body))


@router.route(
    "POST",
    "/api/nodes/{node}/stop-stranger",
    who=Who.ADMIN,
    body=StrangerStop,
    answers={202: NodeAnswer},
    problems=(409,),
    acts=("node.stop-stranger",),
)
async def stop_stranger(site: Site, call: Call) -> Answer:
    """Stop a container of Tuneplane's that neither the Node's journal nor this console knows."""
    return Answer(status=202, value=await site.api.nodes.stop_stranger(call.user, NodeId(call.path["node"]), call.body))


@router.route("DELETE", "/api/nodes/{node}", who=Who.ADMIN, query=DeleteQuery, answers={204: None}, problems=(409,), acts=("node.delete",))
async def delete_node(site: Site, call: Call) -> Answer:
    """Remove a Node: drained and empty, or by force one that is gone."""
    await site.api.nodes.delete(call.user, NodeId(call.path["node"]), force=call.query.force)
    return Answer(status=204)
