"""All query modules as the one Storage object of domain/ports.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .accounts import Accounts
from .audit_log import AuditLog
from .cards import Cards
from .commands import Commands
from .drains import Drains
from .enrolment import Enrolment
from .fleets import Fleets
from .hardware import Hardware
from .identities import Identities
from .inventories import Inventories
from .jobs import Jobs
from .launches import Launches
from .migrations import check
from .nodes import Nodes
from .observations import Observations
from .pokes import Pokes
from .projects import Projects
from .sessions import Sessions
from .sight import Sights
from .stranger_stops import Strangers

if TYPE_CHECKING:
    from tuneplane.domain.ports import Storage


class PostgresStorage(
    Accounts,
    Projects,
    AuditLog,
    Fleets,
    Hardware,
    Enrolment,
    Nodes,
    Cards,
    Sessions,
    Inventories,
    Observations,
    Commands,
    Jobs,
    Launches,
    Identities,
    Strangers,
    Sights,
    Drains,
    Pokes,
):
    """Storage on PostgreSQL. Made by :func:`tuneplane.storage.open_storage`; any number of tasks may use it at once."""

    async def ping(self) -> None:
        await check(self._db)


if TYPE_CHECKING:

    def _implements(storage: PostgresStorage) -> Storage:
        return storage
