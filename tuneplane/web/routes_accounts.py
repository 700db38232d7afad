"""Signing in and out, who am I, API tokens."""

from __future__ import annotations

from attrs import field, frozen

from tuneplane.control.api import Credentials, NewToken, TokenDraft
from tuneplane.domain.ids import TokenId, UserName
from tuneplane.domain.jobs import ApiToken

from .routing import Answer, Call, Router, Who
from .sessions import COOKIE, SESSION_LIFE
from .site import Site

router = Router("accounts")

ATTRIBUTES = "Path=/; Secure; HttpOnly; SameSite=Lax"


@frozen(kw_only=True)
class SignedIn:
    """The session is in the cookie; unsafe methods repeat ``csrf_token`` in X-CSRF-Token."""

    username: UserName
    role: str
    csrf_token: str = field(repr=False)


@frozen(kw_only=True)
class WhoAmI:
    """The caller's own account."""

    username: UserName
    role: str
    projects: tuple[str, ...]


@frozen(kw_only=True)
class Tokens:
    """The caller's live API tokens, without their secrets."""

    items: tuple[ApiToken, ...]
    next_cursor: str | None


@router.route("POST", "/api/auth/login", who=Who.ALL, body=Credentials, answers={200: SignedIn}, problems=(401,), acts=("session.open",))
async def login(site: Site, call: Call) -> Answer:
    """Open a session with a user name and a password."""
    user, opened = await site.api.accounts.login(call.body, SESSION_LIFE)
    cookie, session = site.sessions.sign(opened)
    value = SignedIn(username=user.username, role=user.role, csrf_token=session.csrf)
    age = int(SESSION_LIFE.total_seconds())
    return Answer(value=value, headers={"Set-Cookie": f"{COOKIE}={cookie}; Max-Age={age}; {ATTRIBUTES}"})


@router.route("POST", "/api/auth/logout", who=Who.USER, answers={204: None}, acts=("session.close",))
async def logout(site: Site, call: Call) -> Answer:
    """End the session that this request came with, everywhere; a request with an API token has none to end."""
    if call.session is not None:
        await site.api.accounts.logout(call.user, call.session)
    return Answer(status=204, headers={"Set-Cookie": f"{COOKIE}=; Max-Age=0; {ATTRIBUTES}"})


@router.route("GET", "/api/whoami", who=Who.USER, answers={200: WhoAmI})
async def whoami(site: Site, call: Call) -> Answer:
    """The caller's account."""
    return Answer(value=WhoAmI(username=call.user.username, role=call.user.role, projects=call.user.projects))


@router.route("GET", "/api/tokens", who=Who.USER, answers={200: Tokens})
async def list_tokens(site: Site, call: Call) -> Answer:
    """The caller's API tokens."""
    return Answer(value=Tokens(items=tuple(await site.api.accounts.list_tokens(call.user)), next_cursor=None))


@router.route("POST", "/api/tokens", who=Who.USER, body=TokenDraft, answers={201: NewToken}, problems=(409,), acts=("token.create",))
async def create_token(site: Site, call: Call) -> Answer:
    """Mint an API token; its secret is shown this once."""
    return Answer(status=201, value=await site.api.accounts.create_token(call.user.username, call.body))


@router.route("DELETE", "/api/tokens/{token}", who=Who.USER, answers={204: None}, acts=("token.revoke",))
async def revoke_token(site: Site, call: Call) -> Answer:
    """Revoke one of the caller's API tokens."""
    await site.api.accounts.revoke_token(call.user, TokenId(call.path["token"]))
    return Answer(status=204)
