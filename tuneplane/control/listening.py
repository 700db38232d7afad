"""A ``task_status`` for servers that an actor runs in an effect task: the actor waits here for the bound port."""

from __future__ import annotations

import trio
from attrs import define, field


@define
class Listening:
    """Handed to ``serve_…(task_status=…)``. One use: a restarted actor makes a new one."""

    _port: int = field(default=0, init=False)
    _bound: trio.Event = field(factory=trio.Event, init=False)

    def started(self, port: int = 0) -> None:
        self._port = port
        self._bound.set()

    async def wait(self) -> None:
        """Return once the server listens. Its failure to do so cancels this wait with its actor."""
        await self._bound.wait()

    @property
    def port(self) -> int:
        """The bound port; 0 before :meth:`started`."""
        return self._port
