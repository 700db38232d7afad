"""How the members of a gang reach each other: one numeric address a machine, or the reason why there is none (L-H5, R-LCH-11)."""

from __future__ import annotations

from attrs import frozen

from .addresses import is_loopback, is_numeric
from .errors import Reason
from .ids import NodeId
from .nodes import Node


def address_of(node: Node, interface: str | None) -> str:
    """The address that peers are given: of the named interface, else the one that the machine is reached by; "" for none."""
    inventory = node.inventory
    if interface is not None:
        there = {one.name: one.addresses for one in inventory.interfaces} if inventory is not None else {}
        return next(iter(there.get(interface, ())), "")
    known = inventory.route_address if inventory is not None else ""
    return known or (node.address if is_numeric(node.address) else "")


@frozen
class Peers:
    """Who has which address, of the machines of a Fleet that are connected. A record of a machine that is gone counts not."""

    interface: str | None
    holders: dict[str, tuple[NodeId, ...]]
    one_machine: bool  # all say that they are reached over loopback: several Nodes on one machine, as in a trial


def look_at_peers(nodes: list[Node], interface: str | None) -> Peers:
    holders: dict[str, tuple[NodeId, ...]] = {}
    for node in nodes:
        if node.connection.state == "connected":
            address = address_of(node, interface)
            holders[address] = (*holders.get(address, ()), node.id)
    return Peers(interface, holders, all(is_loopback(address) for address in holders if address))


def why_unreachable(node: Node, peers: Peers) -> Reason | None:
    """Why ``node`` cannot be a member of a gang; None when its peers can reach it."""
    address = address_of(node, peers.interface)
    of = f" of {peers.interface}" if peers.interface is not None else ""
    if not address:
        what = "tells no numeric address for its peers: set TUNEPLANE_NODE_ADDRESS on it, or update it"
        return Reason("no-address", f"Node {node.id} {what}", node.id)
    if is_loopback(address):
        if peers.one_machine:
            return None
        return Reason("loopback-address", f"Node {node.id} is reached at {address}: other machines cannot", node.id)
    others = [other for other in peers.holders.get(address, ()) if other != node.id]
    if others:
        return Reason("shared-address", f"{address}{of} is the address of Node {node.id} and of {', '.join(others)}", node.id)
    return None


def why_no_interface(node: Node, interface: str) -> Reason | None:
    """R-LCH-11: the exact interface must be there, with an address."""
    there = node.inventory.interfaces if node.inventory is not None else ()
    if any(one.name == interface and one.addresses for one in there):
        return None
    names = ", ".join(one.name for one in there) or "none that it tells"
    return Reason("no-interface", f"Node {node.id} has no interface {interface} with an address; it has {names}", node.id)
