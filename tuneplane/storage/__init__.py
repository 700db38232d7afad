"""PostgreSQL: the schema's migrations, one query module per aggregate, and the embedded server. Rows never leave it.

:func:`open_storage` gives the one object that implements :class:`tuneplane.domain.ports.Storage`. Every method is one
unit of work with one fault point around its COMMIT (``storage.<method>``; reads have none). Locks are taken in one
order everywhere: project, account, job, attempt, Node, session, member, command, capacity, holds; within a kind by id. So units wait for
each other and never deadlock.

Long-lived tasks: ``EmbeddedPostgres.run`` (one, owned by whoever runs it; holds the server process), and one LISTEN
task an open ``open_pokes`` block (owned by the block; a set of at most six topics). Connections: ``size`` in the pool
and one a LISTEN; a caller waits for a free one as long as its own scope allows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tuneplane.bridge.postgres import open_pool
from tuneplane.domain.timings import PRODUCTION, Timings

from .database import Database
from .migrations import SchemaMismatch, SchemaUnusable, migrate
from .store import PostgresStorage

__all__ = ["PostgresStorage", "SchemaMismatch", "SchemaUnusable", "migrate", "open_storage"]

POOL_SIZE = 8  # connections a process; a hundred are allowed by the server, and units take milliseconds


@asynccontextmanager
async def open_storage(dsn: str, *, size: int = POOL_SIZE, timings: Timings = PRODUCTION) -> AsyncIterator[PostgresStorage]:
    """The storage on ``dsn``; needs an open bridge. Opening succeeds while PostgreSQL is away: ``ping`` tells.

    Leaving cuts the connections at once; a unit in flight ends with StorageUnavailable.
    """
    async with open_pool(dsn, size=size) as pool:
        yield PostgresStorage(Database(pool, timings))
