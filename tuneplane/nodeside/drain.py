"""A drain that is asked for on the machine itself: finish this, take no more (L-E15).

Two small files of the state directory carry it. The *wish* is written by ``tuneplane-node drain`` and read by the daemon,
which tells it to the control plane in every session; so it is remembered while the daemon or the gateway is away. What the
control plane *answered* is written by the daemon and read by ``drain --wait``. The daemon itself refuses nothing: what was
placed here before the control plane knew is finished, too.
"""

from __future__ import annotations

import json
import logging
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio
from attrs import define, field, frozen

from tuneplane.domain import codec
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.frames import DrainState, DrainWish
from tuneplane.domain.nodes import Left, NodeState
from tuneplane.wire.link import NodeLink

from .core import NodeCore
from .files import write_durably

log = logging.getLogger(__name__)

WISH_FILE, HEARD_FILE = "drain.json", "drain-answer.json"
VERSION = 1
MOST_REASON = 200  # characters; people read it on the Node's page
T = TypeVar("T")


@frozen(kw_only=True)
class Wish:
    """What was asked last on this machine. ``revision`` rises with every change; a repeat changes nothing."""

    version: int = VERSION
    revision: int
    wanted: bool
    reason: str = ""
    asked_at: datetime


@frozen(kw_only=True)
class Heard:
    """The control plane's newest answer to a wish, when it said something new."""

    version: int = VERSION
    revision: int
    state: NodeState
    drained: bool
    left: tuple[Left, ...] = ()
    heard_at: datetime


def ask_drain(state_dir: Path, *, wanted: bool, reason: str, now: datetime) -> Wish:
    """Keep the wish durably, and return it; without a ``reason`` the former one stays.

    InvalidInput for a reason that is too long; OSError keeps the former wish.
    """
    if len(reason) > MOST_REASON:
        raise InvalidInput("--reason", f"at most {MOST_REASON} characters")
    former = load_wish(state_dir)
    if former is not None and former.wanted == wanted and (not wanted or reason in ("", former.reason)):
        return former
    revision = 1 if former is None else former.revision + 1
    wish = Wish(revision=revision, wanted=wanted, reason=reason if wanted else "", asked_at=now)
    write_durably(state_dir / WISH_FILE, json.dumps(codec.encode(wish)).encode(), point="node.drain.wish")
    return wish


def load_wish(state_dir: Path) -> Wish | None:
    """None: nobody has ever asked. InvalidInput for a file that is not ours."""
    return _load(state_dir / WISH_FILE, Wish)


def load_heard(state_dir: Path) -> Heard | None:
    return _load(state_dir / HEARD_FILE, Heard)


def _load(path: Path, kind: type[T]) -> T | None:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(str(path), f"is not readable: {error}") from None
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise InvalidInput(str(path), f"has a version that this Node does not know (it knows {VERSION})")
    return codec.decode(kind, data, str(path))


@define(eq=False)
class DrainDesk:
    """Tells the wish in one session, and keeps what is answered. Owned by the session's task; ends with it.

    Looks at the file once a poll interval. Told at once, again while no answer comes, and once a heartbeat until drained, so
    that ``--wait`` sees how it goes on.
    """

    core: NodeCore
    link: NodeLink
    _answer: DrainState | None = field(default=None, init=False)  # the newest of this session
    _kept: bool = field(default=True, init=False)
    _told_at: float = field(default=0.0, init=False)
    _told_revision: int = field(default=0, init=False)
    _news: trio.Event = field(factory=trio.Event, init=False)

    def heard(self, answer: DrainState) -> None:
        self._kept = self._kept and answer == self._answer
        self._answer = answer
        self._news.set()

    async def serve(self) -> None:
        while True:
            self._news = trio.Event()
            try:
                await self._tell()
                await self._keep()
            except (OSError, InvalidInput) as error:  # a full disk, or a file that somebody edited: said, and tried again
                log.error("drain: %s", error)
            with trio.move_on_after(self.core.timings.poll):
                await self._news.wait()

    async def _tell(self) -> None:
        wish = await self.core.disk(partial(load_wish, self.core.state_dir))
        if wish is not None and self._is_due(wish):
            self._told_at, self._told_revision = trio.current_time(), wish.revision
            await self.link.send(DrainWish(revision=wish.revision, wanted=wish.wanted, reason=wish.reason))

    def _is_due(self, wish: Wish) -> bool:
        if self._told_revision == wish.revision and trio.current_time() - self._told_at < self.core.timings.heartbeat:
            return False
        answer = self._answer if self._answer is not None and self._answer.revision == wish.revision else None
        return answer is None or (wish.wanted and not answer.drained)

    async def _keep(self) -> None:
        answer = self._answer
        if answer is None or self._kept:
            return
        made = Heard(
            revision=answer.revision, state=answer.state, drained=answer.drained, left=answer.left, heard_at=self.core.machine.now()
        )
        data = json.dumps(codec.encode(made)).encode()
        await self.core.disk(partial(write_durably, self.core.state_dir / HEARD_FILE, data, point="node.drain.heard"))
        self._kept = answer == self._answer
