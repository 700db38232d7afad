"""A database that answers late does not keep a gateway from starting (P-17)."""

from __future__ import annotations

import os
from typing import ClassVar

import trio
import trio.testing
from attrs import define, field

from tests.control.plane import now
from tests.sim.twin import Calm, Twin
from tuneplane.actors import Actor, ChildSpec, Context, MailboxSpec, SupervisorSpec, handles, open_system
from tuneplane.control.patience import Backoff
from tuneplane.control.presence import Presence, Registration
from tuneplane.control.relay import WhereAreYou
from tuneplane.control.roster import Roster
from tuneplane.domain.ids import GatewayId
from tuneplane.domain.timings import PRODUCTION

SLOW_SECONDS = 60.0  # far beyond the kernel's patience with a start


@define(eq=False)
class SlowAtFirst(Calm):
    """The first registration takes SLOW_SECONDS to arrive."""

    tries: int = 0
    done: trio.Event = field(factory=trio.Event)

    async def arrive(self, name: str) -> None:
        if name == "register_gateway":
            self.tries += 1
            await trio.sleep(SLOW_SECONDS if self.tries == 1 else 0.01)

    async def depart(self, name: str) -> None:
        if name == "register_gateway":
            self.done.set()


@define
class AnsweringRelay(Actor):
    mailboxes: ClassVar[tuple[MailboxSpec, ...]] = (MailboxSpec("address", 8, "the presence asks once a renewal"),)

    @handles(WhereAreYou)
    async def where(self, message: WhereAreYou, context: Context) -> tuple[str, int]:
        return "127.0.0.1", 9000


async def test_presence_starts_while_the_database_is_slow_and_registers_once_it_answers(autojump_clock: trio.testing.MockClock) -> None:
    weather, made = SlowAtFirst(), []
    storage, gateway = Twin(weather=weather), GatewayId("gateway-1")

    def make() -> Presence:
        made.append(
            Presence(
                storage=storage,
                gateway=gateway,
                timings=PRODUCTION,
                clock=now,
                backoff=Backoff(os.urandom),
                roster=Roster(),
                registration=Registration(),
            )
        )
        return made[-1]

    children = (ChildSpec(name="relay", factory=AnsweringRelay), ChildSpec(name="presence", factory=make))
    async with open_system("gateway", SupervisorSpec(name="root", children=children)):
        with trio.fail_after(SLOW_SECONDS / 2):
            await weather.done.wait()
        assert storage.book.gateways.get(gateway) is not None
    assert len(made) == 1, "it was not restarted"
