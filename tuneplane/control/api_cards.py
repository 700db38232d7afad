"""What operators do about the cards of Nodes (L-D1, L-D13)."""

from __future__ import annotations

from attrs import frozen

from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.ids import NodeId
from tuneplane.domain.jobs import User

from .api_base import Base, require_admin
from .api_nodes import MOST_REASON, NodeAnswer, Nodes


@frozen(kw_only=True)
class CardPatch:
    """Body of ``PATCH /api/nodes/{id}/cards/{card}``: whether an operator keeps new work off the card, and why."""

    cordoned: bool
    reason: str = ""


@frozen(kw_only=True)
class CardAcceptance:
    """Body of ``POST /api/nodes/{id}/accept-cards``: the id of the change, as the Node's cordon shows it."""

    change: str


@frozen(kw_only=True)
class Cards(Base):
    """One card put aside or back, and a change of cards accepted. Each writes its audit line in its own unit."""

    nodes: Nodes

    async def cordon(self, caller: User, node: NodeId, card: str, patch: CardPatch) -> NodeAnswer:
        """Keep new work off one card, or let it come again; what runs on it goes on (L-D13)."""
        require_admin(caller)
        if len(patch.reason) > MOST_REASON:
            raise InvalidInput("reason", f"at most {MOST_REASON} characters")
        await self.nodes.get(caller, node)
        reason = (patch.reason.strip() or "set by an operator") if patch.cordoned else None
        await self.storage.set_card_cordon(node, card, reason, caller.username, self.clock())
        self.tell(caller.username, "card.cordon" if patch.cordoned else "card.uncordon", card, f"on Node {node}: {reason or 'lifted'}")
        return await self.nodes.get(caller, node)

    async def accept(self, caller: User, node: NodeId, order: CardAcceptance) -> NodeAnswer:
        """Bind the indexes of the Node's GPU budget to the cards that it shows at them now (L-D1)."""
        require_admin(caller)
        await self.nodes.get(caller, node)
        await self.storage.accept_cards(node, order.change, caller.username, self.clock())
        self.tell(caller.username, "node.accept-cards", node, order.change)
        return await self.nodes.get(caller, node)
