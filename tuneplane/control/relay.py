"""The relay of a gateway: other control-plane processes read a Node's logs here, over mutual TLS (P-23)."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from attrs import define, field, frozen

from tuneplane.actors import Actor, ActorError, AskFailed, Context, MailboxSpec, handles
from tuneplane.domain.errors import Refused
from tuneplane.domain.frames import LogPiece, LogQuery
from tuneplane.wire.relay import serve_relay

from .listening import Listening
from .rings import Ring, ring_bytes
from .roster import Entry, Roster
from .session import OpenLog

ADDRESS_QUESTIONS = 8  # only the presence asks, once a renewal
# Of one gateway at once; their rings are its only large memory, each kind 256 MiB at most, if every reader is stuck.
MAX_FOLLOWS = 512
MAX_READS = 60
OPEN_SECONDS = 10.0  # for a place among the Node's readers and in its reply lane


@frozen
class WhereAreYou:
    """Ask: answer ``(host, port)`` of the relay, as to be published."""


@define
class Relay(Actor):
    """Serves the relay. Ready when it listens; a crash loses the reads in progress and no session."""

    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = (MailboxSpec("address", ADDRESS_QUESTIONS, "the presence asks once a renewal"),)
    host: str
    port: int  # 0: any free one
    published_host: str
    tls: ssl.SSLContext
    roster: Roster
    _open: dict[bool, int] = field(factory=lambda: {True: 0, False: 0}, init=False)  # by whether they follow
    _listening: Listening = field(factory=Listening, init=False)

    async def on_start(self, context: Context) -> None:
        context.start_task(self._serve, name="serve")
        await self._listening.wait()

    @handles(WhereAreYou, mailbox="address")
    async def where(self, message: WhereAreYou, context: Context) -> tuple[str, int]:
        return self.published_host, self._listening.port

    async def _serve(self) -> None:
        await serve_relay(host=self.host, port=self.port, tls=self.tls, answer=self.answer, task_status=self._listening)

    @asynccontextmanager
    async def answer(self, query: LogQuery) -> AsyncIterator[AsyncIterator[LogPiece]]:
        """The pieces of one read; leaving the block ends it at the Node too. A refusal is a last piece with its error."""
        entry = self.roster.current(query.node)
        if entry is None:
            yield _refusal(f"Node {query.node} is not connected to this gateway")
            return
        if self._open[query.follow] >= (MAX_FOLLOWS if query.follow else MAX_READS):
            yield _refusal(f"this gateway already serves {self._open[query.follow]} log readers of this kind; try again later")
            return
        self._open[query.follow] += 1
        try:
            async with _read(entry, query) as pieces:
                yield pieces
        finally:
            self._open[query.follow] -= 1


@asynccontextmanager
async def _read(entry: Entry, query: LogQuery) -> AsyncIterator[AsyncIterator[LogPiece]]:
    ring = Ring(ring_bytes(query))
    try:
        error = await _open(entry, query, ring)
        yield _refusal(error) if error else ring
    finally:
        ring.abandoned = True
        entry.ref.signal("sweep")


async def _open(entry: Entry, query: LogQuery, ring: Ring) -> str:
    """Ask the session for the read; "" or why it refused."""
    try:
        await entry.ref.ask(OpenLog(query, ring), OPEN_SECONDS)
    except AskFailed as failed:
        if isinstance(failed.error, Refused):
            return str(failed.error)
        return f"the session of Node {query.node} failed"
    except ActorError as error:
        return f"Node {query.node} takes no log reads now: {error}"
    return ""


def _refusal(error: str) -> Ring:
    ring = Ring(limit=0)
    ring.end(error)
    return ring
