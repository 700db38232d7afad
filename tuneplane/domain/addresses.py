"""Numeric addresses: what is one, and which can be given to peers (R-LCH-11, L-H5)."""

from __future__ import annotations

import ipaddress


def is_numeric(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    maybe = address.startswith("127.") or ":" in address  # most are not, and the planner asks for every machine of a Fleet
    return maybe and is_numeric(address) and ipaddress.ip_address(address).is_loopback


def is_routable(address: str) -> bool:
    """Whether another machine could reach it at all: numeric, and neither loopback nor link-local nor of no one host."""
    if not is_numeric(address):
        return False
    value = ipaddress.ip_address(address)
    return not (value.is_loopback or value.is_link_local or value.is_unspecified or value.is_multicast)
