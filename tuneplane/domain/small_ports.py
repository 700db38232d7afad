"""The small ones of the storage ports; the rules of ports.py hold here, too."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from .clocks import Offset
from .ids import NodeId
from .jobs import EncryptedIdentity
from .nodes import Node
from .sight import Sight


class SightStore(Protocol):
    async def look_around(self, missed: bool, now: datetime) -> Sight:
        """One look at all Nodes: keep what is seen (domain/sight.py), and lift the storage cordons whose cause is gone for
        ``storage_steady`` seconds by a confirmed inventory (R-LIV-03). ``missed``: the caller's last look failed."""

    async def load_sight(self, now: datetime) -> Sight | None:
        """As the last look left it. None: nobody has ever looked."""


class DrainStore(Protocol):
    """What gateways keep of a Node beside its work."""

    async def set_machine_drain(self, node: NodeId, epoch: int, wanted: bool, reason: str, now: datetime) -> Node:
        """Keep what was asked on the machine itself: the ``machine`` cordon is set or lifted, with its audit line in the same
        unit; a repeat changes nothing. How the Node stands then. Raises Fenced."""

    async def note_clock(self, node: NodeId, epoch: int, offset: Offset, now: datetime) -> None:
        """How far the Node's clock is off, as measured in this session; of another session: nothing."""


class IdentityStore(Protocol):
    async def load_identity(self, name: str) -> EncryptedIdentity | None: ...

    async def publish_identity(self, identity: EncryptedIdentity) -> EncryptedIdentity:
        """Write unless one exists; answer the one that counts (serialised by an advisory lock, R-TLS-02)."""
