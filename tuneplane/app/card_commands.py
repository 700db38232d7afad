"""``tuneplane cordon-card | uncordon-card | accept-cards``: what administrators do about the cards of Nodes."""

from __future__ import annotations

from typing import Any

import click

from . import tables
from .client import ApiClient, path_of
from .client_commands import failing_politely, json_option, open_client, show


@click.command("cordon-card")
@click.argument("node")
@click.argument("card")
@click.option("--reason", default="", help="Why; shown wherever the card is, and kept in the audit log.")
@json_option
@failing_politely
def cordon_card(node: str, card: str, reason: str, as_json: bool) -> None:
    """Keep new work off one CARD of NODE (its UUID, or its index in the Node's budget). What runs on it goes on."""
    with open_client() as client:
        changed = _set(client, node, card, {"cordoned": True, "reason": reason})
    show(as_json, changed, lambda out: out.print(tables.cards_table([changed])))


@click.command("uncordon-card")
@click.argument("node")
@click.argument("card")
@json_option
@failing_politely
def uncordon_card(node: str, card: str, as_json: bool) -> None:
    """Let new work come to CARD of NODE again. A cordon of the health table stays until the machine reads the card as good."""
    with open_client() as client:
        changed = _set(client, node, card, {"cordoned": False})
    show(as_json, changed, lambda out: out.print(tables.cards_table([changed])))


@click.command("accept-cards")
@click.argument("node")
@click.option("--change", required=True, help="The id of the change, as the Node's cordon shows it.")
@json_option
@failing_politely
def accept_cards(node: str, change: str, as_json: bool) -> None:
    """Say that the GPU indexes of NODE mean the cards that are at them now: cards were moved or replaced, and that is right.

    What runs keeps its cards: work is bound by UUID. The Node's session begins anew.
    """
    with open_client() as client:
        changed = client.post(path_of("nodes", node, "accept-cards"), {"change": change})
    show(as_json, changed, lambda out: out.print(tables.cards_table([changed])))


def _set(client: ApiClient, node: str, card: str, body: dict[str, Any]) -> Any:
    """``card`` by UUID, or by index for people."""
    if card.isascii() and card.isdigit():
        cards = client.get(path_of("nodes", node))["cards"]
        card = next((one["uuid"] for one in cards if one["index"] == int(card)), card)
    return client.patch(path_of("nodes", node, "cards", card), body)


CARD_COMMANDS: tuple[click.Command, ...] = (cordon_card, uncordon_card, accept_cards)
