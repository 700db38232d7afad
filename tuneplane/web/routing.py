"""Routes as data: one table that serves requests, checks who asks, and writes the OpenAPI document.

A handler gets a :class:`Call` (who asks, decoded body and query) and returns an :class:`Answer`. All it may raise is
turned into a problem document at one place (``app.py``). Handlers run in the task of their request: a client that goes
away cancels them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from attrs import Factory, field, frozen
from quart.wrappers.response import ResponseBody

from tuneplane.domain.ids import SessionId
from tuneplane.domain.jobs import User

from .problems import Problem

if TYPE_CHECKING:
    from .site import Site


class Who(str, Enum):
    """Who may call: all, any signed-in account, or administrators. Finer rules are the services' own."""

    ALL = "all"
    USER = "user"
    ADMIN = "admin"


@frozen(kw_only=True)
class Call:
    """One request, taken apart. ``user`` is set unless the route is for all."""

    path: Mapping[str, str]
    body: Any = None
    query: Any = None
    headers: Mapping[str, str] = Factory(dict)
    caller: User | None = None
    again: Callable[[], Awaitable[User]] | None = field(default=None, repr=False)  # holds the caller's secret
    csrf: str = ""  # of the session that signed the request in, for the console's pages
    session: SessionId | None = None  # None: the caller came with an API token
    trace: str = ""

    @property
    def user(self) -> User:
        assert self.caller is not None  # the route is not for all: the gate saw to it
        return self.caller

    async def authenticate_again(self) -> User:
        """Whose call this still is, by the very token or session that it came with. Refused(code="unauthenticated")."""
        assert self.again is not None  # as for ``user``
        return await self.again()


@frozen(kw_only=True)
class Answer:
    """What a handler answers: a value to encode, raw bytes, or a stream."""

    status: int = 200
    value: Any = None
    raw: bytes | None = None
    stream: ResponseBody | None = None
    media_type: str = "application/json"
    headers: Mapping[str, str] = Factory(dict)


Handler = Callable[["Site", Call], Awaitable[Answer]]
ErrorPage = Callable[["Site", Problem, str], Answer]


@frozen(kw_only=True)
class Route:
    """One method of one path; ``path`` has ``{name}`` parts. ``answers``: status to class, media type or None."""

    method: str
    path: str
    who: Who
    summary: str
    handler: Handler
    body: type | None = None
    query: type | None = None
    answers: Mapping[int, Any] = Factory(dict)
    problems: tuple[int, ...] = ()
    headers: tuple[str, ...] = ()  # request headers that it reads
    acts: tuple[str, ...] = ()  # the actions in the audit log of which an accepted request writes one line (R-ADM-02)
    page: ErrorPage | None = None  # for a page of the console: how it shows a problem; pages are not in the document
    tag: str = ""

    @property
    def rule(self) -> str:
        """The path as werkzeug spells it."""
        return self.path.replace("{", "<").replace("}", ">")


@frozen
class Raw:
    """An answer that is not JSON: its media type and what it is."""

    media_type: str
    description: str


class Router:
    """Collects routes: ``@router.route("GET", "/api/…", …)`` on a handler."""

    def __init__(self, tag: str, **facts: Any) -> None:
        self.tag = tag
        self.facts = facts
        self.routes: list[Route] = []

    def route(self, method: str, path: str, **facts: Any) -> Callable[[Handler], Handler]:
        """Register ``handler``; ``summary`` is the first line of its docstring."""

        def register(handler: Handler) -> Handler:
            summary = (handler.__doc__ or "").strip().split("\n")[0]
            self.routes.append(Route(method=method, path=path, handler=handler, summary=summary, tag=self.tag, **{**self.facts, **facts}))
            return handler

        return register
