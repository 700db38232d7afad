"""The interfaces of the calling thread's network namespace, asked of the kernel (route netlink).

Never ``hostname -i`` or /etc/hosts: under host networking these say what somebody once wrote, not what is there (L-H6).
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator

from tuneplane.domain.addresses import is_routable
from tuneplane.domain.inventory import Interface

RTM_NEWADDR, RTM_GETADDR = 20, 22
NLMSG_ERROR, NLMSG_DONE = 2, 3
REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
IFA_ADDRESS, IFA_LOCAL = 1, 2
HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface index
ATTRIBUTE = struct.Struct("=HH")  # length, type
RECEIVE_BYTES = 64 * 1024  # more than the kernel puts into one datagram of a dump (32 KiB)
ANSWER_SECONDS = 2.0  # the kernel answers at once
MAX_DATAGRAMS = 1024  # of one dump: some 500,000 addresses
# IPv6 addresses that are not (yet, or for long) good to give to others: temporary, duplicate, deprecated, tentative.
PASSING_V6 = 0x01 | 0x08 | 0x20 | 0x40


def read_interfaces() -> tuple[Interface, ...]:
    """Every interface by name, with its addresses that peers could use: IPv4 first, each as the kernel orders them.

    Loopback and link-local addresses are left out. OSError when the kernel does not answer.
    """
    found: dict[int, list[ipaddress.IPv4Address | ipaddress.IPv6Address]] = {index: [] for index, _ in socket.if_nameindex()}
    for index, address in _addresses():
        if index in found and is_routable(str(address)):
            found[index].append(address)
    names = dict(socket.if_nameindex())
    return tuple(
        Interface(name=names[index], addresses=tuple(str(one) for one in sorted(found[index], key=lambda one: one.version)))
        for index in sorted(found, key=lambda index: names.get(index, ""))
        if index in names
    )


def _addresses() -> Iterator[tuple[int, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:  # type: ignore[attr-defined, unused-ignore]
        kernel.settimeout(ANSWER_SECONDS)
        kernel.bind((0, 0))
        body = ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        kernel.send(HEADER.pack(HEADER.size + len(body), RTM_GETADDR, REQUEST_DUMP, 1, 0) + body)
        for _ in range(MAX_DATAGRAMS):
            data = kernel.recv(RECEIVE_BYTES)
            while len(data) >= HEADER.size:
                length, kind, _, _, _ = HEADER.unpack_from(data)
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR or length < HEADER.size:
                    raise OSError("the kernel refuses to list the addresses of this machine")
                if kind == RTM_NEWADDR:
                    yield from _one(data[HEADER.size : length])
                data = data[_aligned(length) :]


def _one(message: bytes) -> Iterator[tuple[int, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    family, _, flags, _, index = ADDRESS.unpack_from(message)
    attributes = dict(_attributes(message[ADDRESS.size :]))
    data = attributes.get(IFA_LOCAL) or attributes.get(IFA_ADDRESS)  # on a point-to-point link ADDRESS is the peer's
    if family not in (socket.AF_INET, socket.AF_INET6) or data is None:
        return
    if family == socket.AF_INET6 and flags & PASSING_V6:
        return
    yield index, ipaddress.ip_address(data)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= ATTRIBUTE.size:
        length, kind = ATTRIBUTE.unpack_from(data)
        if length < ATTRIBUTE.size:
            return
        yield kind, data[ATTRIBUTE.size : length]
        data = data[_aligned(length) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3
