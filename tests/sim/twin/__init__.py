"""The in-memory twin of the storage ports: it passes the contract suite of PostgreSQL, and the simulator runs on it.

Linearizable by construction: every method is one synchronous step on the :class:`Book`, at one moment between its call
and its return. ``Weather`` decides what happens on the way there and back. Any number of :class:`Twin` clients share one
:class:`Database`. Not imported by production code; it shares only pure helpers (text and page rules) with ``storage``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .accounts import Accounts
from .base import Calm, Client, Database, Weather
from .card_orders import CardOrders
from .drains import Drains
from .hardware import Hardware
from .jobs import Jobs
from .launches import Launches
from .losses import Losses
from .nodes import Nodes
from .observations import Observations
from .people import People
from .rows import Book, Change
from .sessions import Sessions
from .sight import Sights
from .strangers import Strangers

if TYPE_CHECKING:
    from tuneplane.domain.ports import Storage

__all__ = ["Book", "Calm", "Change", "Client", "Database", "Twin", "Weather"]


class Twin(Accounts, People, Hardware, Nodes, CardOrders, Losses, Sessions, Observations, Strangers, Sights, Drains, Jobs, Launches):
    """One process's connection to the shared :class:`Database`."""


if TYPE_CHECKING:

    def _implements(twin: Twin) -> Storage:
        return twin
