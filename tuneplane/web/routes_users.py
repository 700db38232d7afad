"""Accounts as administrators manage them."""

from __future__ import annotations

from attrs import frozen

from tuneplane.control.api import UserDraft, UserPatch
from tuneplane.domain.ids import UserName
from tuneplane.domain.jobs import User

from .inputs import PageQuery
from .routing import Answer, Call, Router, Who
from .site import Site

router = Router("users")


@frozen(kw_only=True)
class UserPage:
    """One page of accounts, newest first."""

    items: tuple[User, ...]
    next_cursor: str | None


@router.route("GET", "/api/users", who=Who.ADMIN, query=PageQuery, answers={200: UserPage})
async def list_users(site: Site, call: Call) -> Answer:
    """Accounts with their roles and projects."""
    items, cursor = await site.api.accounts.list_page(call.user, call.query.page())
    return Answer(value=UserPage(items=tuple(items), next_cursor=cursor))


@router.route("POST", "/api/users", who=Who.ADMIN, body=UserDraft, answers={201: User}, problems=(409,), acts=("user.create",))
async def create_user(site: Site, call: Call) -> Answer:
    """Create an account."""
    return Answer(status=201, value=await site.api.accounts.create(call.user, call.body))


@router.route("PATCH", "/api/users/{username}", who=Who.ADMIN, body=UserPatch, answers={200: User}, problems=(409,), acts=("user.update",))
async def update_user(site: Site, call: Call) -> Answer:
    """Change an account's role or password, disable or enable it; it takes effect at once everywhere."""
    return Answer(value=await site.api.accounts.update(call.user, UserName(call.path["username"]), call.body))
