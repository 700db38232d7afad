"""The gate: from an HTTP request to a :class:`Call` that a handler may trust."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from attrs import frozen
from quart import Request

from tuneplane.domain import codec
from tuneplane.domain.errors import InvalidInput, NotFound, Refused
from tuneplane.domain.ids import SessionId
from tuneplane.domain.jobs import User

from .inputs import check_text, is_path_id, read_json, read_query
from .routing import Call, Route, Who
from .sessions import COOKIE, CSRF_HEADER, check_csrf
from .site import Site

SAFE = frozenset({"GET", "HEAD"})
MOST_TOKEN = 200  # characters of an Authorization value: ours have 47


@frozen
class NoQuery:
    """Of an address without parameters."""


@frozen
class _Caller:
    user: User
    again: Callable[[], Awaitable[User]]
    csrf: str = ""
    session: SessionId | None = None


async def make_call(site: Site, route: Route, request: Request, path: Mapping[str, str], trace: str) -> Call:
    """Authenticate, authorise by role, then decode. Nothing of the body is read for a stranger.

    Refused (401, 403, 415), InvalidInput (422), NotFound for a path part that can be no id, 413 and 408 by the framework.
    """
    caller = None if route.who is Who.ALL else await _authenticate(site, route, request)
    if route.who is Who.ADMIN and caller is not None and caller.user.role != "admin":
        raise Refused("forbidden", "only an administrator may do this")
    for name, value in path.items():
        if not is_path_id(value, name):
            raise NotFound(name, value[:64])
    return Call(
        path=path,
        body=await _body(route, request),
        query=_query(route, request),
        headers=_headers(route, request),
        caller=caller.user if caller else None,
        again=caller.again if caller else None,
        csrf=caller.csrf if caller else "",
        session=caller.session if caller else None,
        trace=trace,
    )


async def _authenticate(site: Site, route: Route, request: Request) -> _Caller:
    header = request.headers.get("Authorization")
    if header is not None:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token.strip() or len(token) > MOST_TOKEN:
            raise Refused("unauthenticated", "send Authorization: Bearer and an API token")
        by_token = partial(site.api.accounts.user_of_token, token.strip())
        return _Caller(await by_token(), by_token)
    cookie = request.cookies.get(COOKIE)
    if not cookie:
        raise Refused("unauthenticated", "send Authorization: Bearer and an API token, or sign in on the console")
    session = site.sessions.read(cookie)
    if route.method not in SAFE:
        check_csrf(session, request.headers.get(CSRF_HEADER, ""), request.headers.get("Sec-Fetch-Site", ""))

    async def by_session() -> User:
        return await site.api.accounts.user_of_session(site.sessions.read(cookie).id)

    return _Caller(await by_session(), by_session, session.csrf, session.id)


async def _body(route: Route, request: Request) -> object:
    if route.method in SAFE:
        return None
    raw = bytes(await request.get_data(cache=False, as_text=False, parse_form_data=False))
    if route.body is not None:
        return codec.decode(route.body, read_json(raw, request.headers.get("Content-Type", "")))
    if raw.strip() and read_json(raw, request.headers.get("Content-Type", "")) != {}:
        raise InvalidInput("body", "this address takes none")
    return None


def _query(route: Route, request: Request) -> object:
    """Nothing is changed on the word of somebody who said more than was read: ``?force=true`` that is not heard, say."""
    if route.query is None and route.method in SAFE:
        return None
    return read_query(route.query or NoQuery, request.args.to_dict(flat=False))


def _headers(route: Route, request: Request) -> dict[str, str]:
    given = {name: request.headers[name] for name in route.headers if name in request.headers}
    for name, value in given.items():
        check_text(value, name)
    return given
