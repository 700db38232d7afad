"""Accounts, API tokens, the audit log (AccountStore)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.contract.storage_world import USER, OpenWorld, audit_lines
from tuneplane.domain.errors import InvalidInput, Refused
from tuneplane.domain.ids import TokenId, UserName
from tuneplane.domain.jobs import ApiToken, Page


async def test_create_user_with_a_taken_name_is_refused(open_world: OpenWorld) -> None:
    async with open_world() as world:
        made = await world.storage.create_user(USER, "admin", "hash", world.now)
        with pytest.raises(Refused) as caught:
            await world.storage.create_user(USER, "user", None, world.now)
        assert caught.value.code == "exists"
        assert await world.storage.get_user(USER) == made
        assert await world.storage.password_hash(USER) == "hash"
        assert await world.storage.count_users() == 1


async def test_get_user_that_does_not_exist_is_none(open_world: OpenWorld) -> None:
    async with open_world() as world:
        assert await world.storage.get_user(USER) is None
        assert await world.storage.password_hash(USER) is None


async def test_list_users_pages_from_the_newest_without_gap_or_repeat(open_world: OpenWorld) -> None:
    async with open_world() as world:
        for number in range(5):
            await world.storage.create_user(UserName(f"u{number}"), "user", None, world.later(number % 2))
        seen, cursor, pages = [], None, 0
        while True:
            users, cursor = await world.storage.list_users(Page(limit=2, cursor=cursor))
            seen += [user.username for user in users]
            pages += 1
            if cursor is None:
                break
        assert seen == ["u4", "u3", "u2", "u1", "u0"]
        assert pages == 3


@pytest.mark.parametrize("page", [Page(limit=0), Page(limit=501), Page(cursor="x"), Page(cursor="W10="), Page(cursor="é")])
async def test_list_with_a_page_that_we_did_not_make_is_invalid(open_world: OpenWorld, page: Page) -> None:
    async with open_world() as world:
        with pytest.raises(InvalidInput):
            await world.storage.list_users(page)


async def test_user_by_token_knows_live_tokens_only(open_world: OpenWorld) -> None:
    async with open_world() as world:
        user = await world.storage.create_user(USER, "user", None, world.now)
        token = ApiToken(id=TokenId("t1"), username=USER, name="laptop", created_at=world.now)
        await world.storage.create_api_token(token, "hash-1")
        await world.storage.create_api_token(token, "hash-1")  # repeated after a lost answer
        assert await world.storage.user_by_token("hash-1", world.now) == user
        assert await world.storage.user_by_token("hash-2", world.now) is None
        (listed,) = await world.storage.list_api_tokens(USER)
        assert listed.last_used_at == world.now
        assert await world.storage.revoke_api_token(USER, token.id, world.now)
        assert await world.storage.user_by_token("hash-1", world.now) is None
        assert await world.storage.list_api_tokens(USER) == []


async def test_revoke_api_token_of_another_user_is_false(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.storage.create_user(USER, "user", None, world.now)
        await world.storage.create_api_token(ApiToken(id=TokenId("t1"), username=USER, name="", created_at=world.now), "hash-1")
        assert not await world.storage.revoke_api_token(UserName("eve"), TokenId("t1"), world.now)
        assert await world.storage.user_by_token("hash-1", world.now) is not None


async def test_user_by_token_notes_use_at_most_once_a_minute(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.storage.create_user(USER, "user", None, world.now)
        await world.storage.create_api_token(ApiToken(id=TokenId("t1"), username=USER, name="", created_at=world.now), "hash-1")
        first = world.now
        await world.storage.user_by_token("hash-1", first)
        await world.storage.user_by_token("hash-1", first + timedelta(seconds=30))
        assert (await world.storage.list_api_tokens(USER))[0].last_used_at == first
        await world.storage.user_by_token("hash-1", first + timedelta(seconds=61))
        assert (await world.storage.list_api_tokens(USER))[0].last_used_at == first + timedelta(seconds=61)


async def test_create_api_token_for_nobody_is_refused(open_world: OpenWorld) -> None:
    async with open_world() as world:
        with pytest.raises(Refused):
            await world.storage.create_api_token(ApiToken(id=TokenId("t1"), username=USER, name="", created_at=world.now), "hash-1")


async def test_audit_takes_any_text(open_world: OpenWorld) -> None:
    async with open_world() as world:
        await world.storage.audit(USER, "node.delete", "n1", "why\0\ud800 \x1b]0;x\x07\n\t", True, world.now)
        assert [line[3] for line in await audit_lines(world.storage)] == ["why\ufffd? \ufffd]0;x\ufffd\n\t"]
