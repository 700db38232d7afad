"""PostgreSQL inside Trio: a pool, units of work, and LISTEN that comes back by itself.

Single statements go through triopg. Anything of more than one statement is a *unit of work*: one asyncio coroutine
over the asyncpg connection, bridged once (three times faster than crossing per statement). A unit awaits nothing but
its connection and imports neither asyncio nor Trio.

Cancelling any function here cancels the statement on the server and rolls its transaction back, unless COMMIT was
already sent. Every exit is bounded: by ``COMMAND_SECONDS`` for a server that answers late, and by ``EXIT_SECONDS``
after a cancellation or an error, when the connection is cut off instead of waited for.

Long-lived tasks: one per open listener, owned by its ``async with`` block; its queue is a set of channel names, so it
cannot hold more than the channels asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import asyncpg
import trio
import triopg
from attrs import define, field

from .groups import unwrapped
from .loop import from_trio

P = ParamSpec("P")
T = TypeVar("T")

Row: TypeAlias = Any  # asyncpg.Record: a mapping by column name; rows never leave the storage room
Connection: TypeAlias = Any  # asyncpg's connection as a unit of work sees it: fetch, fetchrow, fetchval, execute, executemany
Unit: TypeAlias = Callable[Concatenate[Connection, P], Awaitable[T]]
Bracket: TypeAlias = Callable[[], AbstractContextManager[None]]

COMMAND_SECONDS = 10.0  # the slowest statement of ours takes milliseconds; a frozen server is noticed in this time
CONNECT_SECONDS = 5.0
EXIT_SECONDS = 2.0  # for ROLLBACK and release after a cancellation; then the connection is cut
IDLE_TRANSACTION = "30s"  # the server ends a transaction whose client died half-open
UNIT_TRIES = 3  # a deadlock or serialisation failure was rolled back for certain: repeat, but not for ever
PROBE_SECONDS = 5.0  # a half-open LISTEN connection is noticed within PROBE_SECONDS + PROBE_ANSWER_SECONDS
PROBE_ANSWER_SECONDS = 5.0
RECONNECT_FIRST_SECONDS = 0.1
RECONNECT_MOST_SECONDS = 2.0  # one listener a process: no stampede to spread


class PostgresUnavailable(Exception):
    """The server did not answer, or not to the end. The outcome of a write is unknown (P-09)."""


class ConstraintViolated(Exception):
    """The statement broke a constraint; its transaction changed nothing. ``constraint`` is its name."""

    def __init__(self, constraint: str, detail: str) -> None:
        super().__init__(f"{constraint}: {detail}")
        self.constraint = constraint
        self.detail = detail


class StatementFailed(Exception):
    """The server refused the statement for another reason (its SQLSTATE says which): a mistake of ours."""

    def __init__(self, sqlstate: str, detail: str) -> None:
        super().__init__(f"SQLSTATE {sqlstate}: {detail}")
        self.sqlstate = sqlstate


class _Repeatable(Exception):
    """The unit was rolled back for a reason that a repeat cures."""


_GONE = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_ROLLED_BACK = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCachedStatementError,  # a migration changed a table under a prepared statement
)
_UNAVAILABLE = (
    OSError,  # refused, reset, timed out (TimeoutError is one), or a fault point's lost answer
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,  # shutting down, starting up, query cancelled by an operator
    asyncpg.InsufficientResourcesError,  # too many connections, disk full
    asyncio.CancelledError,  # the loop ended the task, not our Trio scope
)


@contextmanager
def _translated() -> Iterator[None]:
    """asyncpg's errors as ours. Errors of the unit itself pass unchanged."""
    try:
        yield
    except asyncpg.IntegrityConstraintViolationError as error:
        raise ConstraintViolated(error.constraint_name or "", error.detail or str(error)) from error
    except _ROLLED_BACK as error:
        raise _Repeatable(str(error)) from error
    except _UNAVAILABLE as error:
        raise PostgresUnavailable(f"PostgreSQL did not answer: {error or type(error).__name__}") from error
    except asyncpg.PostgresError as error:
        raise StatementFailed(error.sqlstate or "", str(error)) from error


@define(eq=False)
class Pool:
    """Connections of one database. Made by :func:`open_pool`; several tasks may use it at once.

    A task that finds all connections busy waits for one, as long as its own scope allows.
    """

    _dsn: str = field(repr=False)  # may hold a password
    _proxy: Any  # triopg's pool

    async def run(self, unit: Unit[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``unit(connection, *args)`` in one transaction and COMMIT it."""
        result: T = await self._run(unit, nullcontext, {}, args, kwargs)
        return result

    async def run_bracketed(self, bracket: Bracket, unit: Unit[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As :meth:`run`, with ``bracket()`` around the COMMIT alone: before it nothing is durable, after it all is."""
        result: T = await self._run(unit, bracket, {}, args, kwargs)
        return result

    async def read(self, unit: Unit[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``unit`` in one read-only snapshot: all its statements see the same moment."""
        result: T = await self._run(unit, nullcontext, {"isolation": "repeatable_read", "readonly": True}, args, kwargs)
        return result

    async def fetch(self, sql: str, *args: object) -> list[Row]:
        result: list[Row] = await self._single("fetch", sql, args)
        return result

    async def fetchrow(self, sql: str, *args: object) -> Row | None:
        return await self._single("fetchrow", sql, args)

    async def fetchval(self, sql: str, *args: object) -> Any:
        return await self._single("fetchval", sql, args)

    async def execute(self, sql: str, *args: object) -> str:
        """The statement's command tag, such as ``UPDATE 1``."""
        return str(await self._single("execute", sql, args))

    def terminate(self) -> None:
        """Cut every connection at once. What was in flight ends with PostgresUnavailable."""
        self._proxy.terminate()

    async def _run(self, unit: Any, bracket: Bracket, options: dict[str, Any], args: Any, kwargs: Any) -> Any:
        for _ in range(UNIT_TRIES):
            try:
                with _translated():
                    return await from_trio(_transact, self._proxy._asyncpg_pool, unit, bracket, options, args, kwargs)
            except _Repeatable as error:
                failure = error
        raise PostgresUnavailable(f"rolled back {UNIT_TRIES} times: {failure}") from failure

    async def _single(self, method: str, sql: str, args: tuple[object, ...]) -> Any:
        cut: asyncio.TimerHandle | None = None
        try:
            with _translated():
                async with self._proxy.acquire() as connection:
                    try:
                        return await getattr(connection, method)(sql, *args)
                    except BaseException:  # triopg's release is shielded and would wait for a frozen server
                        cut = _cut_later(connection._asyncpg_conn)
                        raise
        except _Repeatable as error:
            raise PostgresUnavailable(str(error)) from error
        finally:
            if cut is not None:
                cut.cancel()

    @asynccontextmanager
    async def open_listener(self, channels: tuple[str, ...]) -> AsyncIterator[Listener]:
        """LISTEN on ``channels`` over a connection of its own, re-established whenever it is lost.

        Iterating yields the channels that were notified since the last turn, coalesced; and *all* of them whenever
        the LISTEN has just been (re-)established, because what happened before is unknown. Ends with the block.
        """
        listener = Listener(channels=frozenset(channels), dsn=self._dsn)
        with unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listener.keep)
                yield listener
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_pool(dsn: str, *, size: int, command_seconds: float = COMMAND_SECONDS) -> AsyncIterator[Pool]:
    """A pool of at most ``size`` connections, made when first needed: opening succeeds while the server is down.

    Needs an open bridge. Leaving cuts the connections at once (closing them politely can wait for ever).
    """
    proxy = triopg.create_pool(
        dsn,
        min_size=0,
        max_size=size,
        timeout=CONNECT_SECONDS,
        command_timeout=command_seconds,
        server_settings=_settings("tuneplane"),
    )
    with _translated():
        await proxy.__aenter__()
    try:
        yield Pool(dsn, proxy)
    finally:
        proxy.terminate()


def _settings(name: str) -> dict[str, str]:
    return {"application_name": name, "idle_in_transaction_session_timeout": IDLE_TRANSACTION, "timezone": "UTC"}


# ---------------------------------------------------------------- asyncio's side


async def _transact(pool: Any, unit: Any, bracket: Bracket, options: dict[str, Any], args: Any, kwargs: Any) -> Any:
    connection = await pool.acquire()
    cut: asyncio.TimerHandle | None = None
    committed = False
    transaction = connection.transaction(**options)
    try:
        await transaction.start()
        result = await unit(connection, *args, **kwargs)
        with bracket():
            await _commit(connection, transaction)
            committed = True
        return result
    except BaseException:
        cut = _cut_later(connection)
        if not committed:
            with suppress(*_GONE):  # the error that ended the unit is the one to tell; nothing may have begun
                await transaction.rollback()
        raise
    finally:
        with suppress(*_GONE):  # a connection that cannot be reset has been thrown away
            await pool.release(connection)
        if cut is not None:
            cut.cancel()


async def _commit(connection: Any, transaction: Any) -> None:
    """COMMIT to its end: a cancellation that arrives meanwhile waits for the answer, at most ``EXIT_SECONDS``."""
    commit = asyncio.ensure_future(transaction.commit())
    try:
        await asyncio.shield(commit)
    except asyncio.CancelledError:
        cut = _cut_later(connection)
        await asyncio.wait({commit})
        cut.cancel()
        if not commit.cancelled():
            commit.exception()  # taken note of: the caller is told that it was cancelled, and may not assume either
        raise


def _cut_later(connection: Any) -> asyncio.TimerHandle:
    """Cut ``connection`` in ``EXIT_SECONDS``, unless what follows has ended by then and cancels the timer."""
    return asyncio.get_running_loop().call_later(EXIT_SECONDS, _cut, connection)


def _cut(connection: Any) -> None:
    try:
        connection.terminate()
    except asyncpg.InterfaceError:  # released meanwhile
        return


# ---------------------------------------------------------------- LISTEN


@define(eq=False, kw_only=True)
class Listener:
    """Yields sets of channel names, for ever. One task iterates it. Made by :meth:`Pool.open_listener`."""

    channels: frozenset[str]
    dsn: str = field(repr=False)
    connected: int = 0  # how often LISTEN has been established
    _pending: set[str] = field(factory=set, init=False)
    _wake: trio.Event = field(factory=trio.Event, init=False)

    def __aiter__(self) -> Listener:
        return self

    async def __anext__(self) -> frozenset[str]:
        """The channels notified since the last turn; waits until there is one. Cancelled, it has taken nothing."""
        await trio.lowlevel.checkpoint()
        while not self._pending:
            self._wake = trio.Event()
            await self._wake.wait()
        taken = frozenset(self._pending)
        self._pending.clear()
        return taken

    def mark(self, channels: frozenset[str]) -> None:
        """Let the next turn yield ``channels`` too."""
        self._pending |= channels & self.channels
        self._wake.set()

    async def keep(self) -> None:
        """The task: connect, LISTEN, probe; when the connection is lost, back off and do it again. Never returns."""
        pause = RECONNECT_FIRST_SECONDS
        while True:
            before = self.connected
            try:
                with _translated():
                    await self._listen()
            except (PostgresUnavailable, StatementFailed):  # the latter: a database that is just being created
                pass
            pause = RECONNECT_FIRST_SECONDS if self.connected > before else min(pause * 2, RECONNECT_MOST_SECONDS)
            await trio.sleep(pause)

    async def _listen(self) -> None:
        lost = trio.Event()
        connection = await from_trio(
            asyncpg.connect,
            self.dsn,
            timeout=CONNECT_SECONDS,
            command_timeout=PROBE_ANSWER_SECONDS,
            server_settings=_settings("tuneplane-listen"),
        )
        try:
            connection.add_termination_listener(lambda _: lost.set())
            for channel in sorted(self.channels):
                await from_trio(connection.add_listener, channel, self._notified)
            self.connected += 1
            self.mark(self.channels)
            while not lost.is_set():
                with trio.move_on_after(PROBE_SECONDS):
                    await lost.wait()
                if not lost.is_set():
                    await from_trio(connection.fetchval, "SELECT 1")
        finally:
            connection.terminate()

    def _notified(self, connection: object, backend: int, channel: str, payload: object) -> None:
        self.mark(frozenset({channel}))
