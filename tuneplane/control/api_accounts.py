"""Accounts: the first administrator, signing in, API tokens (R-ADM-01)."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime, timedelta

from attrs import field, frozen

from tuneplane.domain.accounts import AccountChange, ConsoleSession
from tuneplane.domain.errors import InvalidInput, NotFound, Refused
from tuneplane.domain.ids import SessionId, TokenId, UserName
from tuneplane.domain.jobs import ApiToken, Page, User
from tuneplane.domain.secrets import SECRET_ENTROPY_BYTES, SecretKind, secret_hash, spell_secret

from .api_base import Base, log, require_admin
from .passwords import Passwords, check_password

ROLES = ("admin", "user")
USER_NAME = re.compile(r"^[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?$")
FIRST_ADMINISTRATOR = UserName("admin")
FIRST_START = UserName("(first start)")  # who made that account; no name that an account may have
COMMAND_LINE = UserName("(command line)")  # who has the database's own access, and says no name
MOST_TOKENS = 100  # a person's; each is looked through when tokens are listed
MOST_NAME = 100  # characters of a token's name


@frozen(kw_only=True)
class Credentials:
    """Body of ``POST /api/auth/login``."""

    username: str
    password: str = field(repr=False)


@frozen(kw_only=True)
class UserDraft:
    """Body of ``POST /api/users``. Without a password nobody can sign in as it until one is set."""

    username: str
    role: str = "user"
    password: str | None = field(default=None, repr=False)


@frozen(kw_only=True)
class UserPatch:
    """Body of ``PATCH /api/users/{username}``: what is absent stays.

    ``disabled`` and ``password`` end the account's console sessions; ``revoke_tokens`` ends its API tokens, which a new
    password alone leaves as they are.
    """

    role: str | None = None
    disabled: bool | None = None
    password: str | None = field(default=None, repr=False)
    revoke_tokens: bool = False


@frozen(kw_only=True)
class TokenDraft:
    """Body of ``POST /api/tokens``: a name for people."""

    name: str = "token"


@frozen(kw_only=True)
class NewToken:
    """A minted API token; ``token`` is shown this once (only its hash is stored)."""

    id: TokenId
    name: str
    token: str = field(repr=False)
    created_at: datetime


@frozen(kw_only=True)
class FirstAdministrator:
    """The secrets of the account that a new console starts with. Keep them (0600) before the account is created."""

    username: UserName
    password: str = field(repr=False)
    token: str = field(repr=False)


@frozen(kw_only=True)
class Accounts(Base):
    """Who somebody is. Every look reads the account again, so that disabling one takes effect at once."""

    passwords: Passwords = field(factory=Passwords)

    async def prepare_first_administrator(self) -> FirstAdministrator | None:
        """Fresh secrets for the first account, or None when there are accounts. Writes nothing."""
        if await self.storage.count_users():
            return None
        return FirstAdministrator(
            username=FIRST_ADMINISTRATOR,
            password=spell_secret(SecretKind.API_TOKEN, self.entropy(SECRET_ENTROPY_BYTES))[4:28],
            token=spell_secret(SecretKind.API_TOKEN, self.entropy(SECRET_ENTROPY_BYTES)),
        )

    async def create_first_administrator(self, first: FirstAdministrator) -> bool:
        """Create the account and its token, both or neither: the next start takes an account for a whole one.

        False when another replica was faster (its secrets count, not these).
        """
        token = self._new_token(first.username, "first administrator")
        hashed = await self.passwords.hash(first.password)
        try:
            made = (token, secret_hash(first.token))
            await self.storage.create_user(first.username, "admin", hashed, self.clock(), token=made, by=FIRST_START)
        except Refused as refusal:
            if refusal.code == "exists":
                return False
            raise
        self.tell(FIRST_START, "user.create", first.username, "admin")
        return True

    async def create_user(self, by: UserName, username: str, role: str, password: str | None) -> User:
        """A new account, made by ``by``. InvalidInput for a bad name, role or password; Refused(code="exists")."""
        if not USER_NAME.fullmatch(username):
            raise InvalidInput("username", "must be 1 to 63 of a-z, 0-9, '.', '_' and '-', starting and ending with a letter or digit")
        _check_role(role)
        hashed = await self._hash(password)
        user = await self.storage.create_user(UserName(username), role, hashed, self.clock(), by=by)
        self.tell(by, "user.create", username, role)
        return user

    async def _hash(self, password: str | None) -> str | None:
        if password is None:
            return None
        check_password(password)
        return await self.passwords.hash(password)

    async def create(self, caller: User, draft: UserDraft) -> User:
        require_admin(caller)
        return await self.create_user(caller.username, draft.username, draft.role, draft.password)

    async def list_page(self, caller: User, page: Page) -> tuple[list[User], str | None]:
        require_admin(caller)
        return await self.storage.list_users(page)

    async def update(self, caller: User, username: UserName, patch: UserPatch) -> User:
        """Change an account; every process and every open stream acts on it at once. Refused(code="last-admin")."""
        require_admin(caller)
        if patch.role is not None:
            _check_role(patch.role)
        hashed = await self._hash(patch.password)
        change = AccountChange(role=patch.role, disabled=patch.disabled, password_hash=hashed, revoke_tokens=patch.revoke_tokens)
        user = await self.storage.update_user(username, change, caller.username, self.clock())
        self.tell(caller.username, "user.update", username, str(change))
        return user

    async def look_up(self, usernames: Collection[UserName]) -> dict[UserName, User]:
        """Those of the accounts that are enabled, as they are now."""
        return {user.username: user for user in await self.storage.get_users(usernames) if not user.disabled}

    async def login(self, credentials: Credentials, life: timedelta) -> tuple[User, ConsoleSession]:
        """Open a console session with a name and its password. Refused(code="wrong-credentials") never says which was wrong."""
        known = USER_NAME.fullmatch(credentials.username) is not None
        name = UserName(credentials.username)
        stored = await self.storage.password_hash(name) if known else None
        matches = await self.passwords.verify(stored, credentials.password)
        now = self.clock()
        session = ConsoleSession(id=SessionId(self.new_id("ses")), username=name, created_at=now, expires_at=now + life)
        user = await self.storage.open_console_session(session, stored) if matches and stored is not None else None
        if user is None:
            log.warning("sign-in refused", username=name if stored is not None else "")  # an unknown name may be a password
            raise Refused("wrong-credentials", "the user name or the password is wrong, or the account is disabled")
        self.tell(name, "session.open", session.id)
        return user, session

    async def user_of_token(self, token: str) -> User:
        """The enabled owner of a live API token. Refused(code="unauthenticated")."""
        user = await self.storage.user_by_token(secret_hash(token), self.clock())
        if user is None or user.disabled:
            raise Refused("unauthenticated", "the API token is unknown or revoked, or its owner is disabled")
        return user

    async def user_of_session(self, session: SessionId) -> User:
        """The enabled owner of a session that has not ended. Refused(code="unauthenticated")."""
        user = await self.storage.user_by_session(session, self.clock())
        if user is None:
            raise Refused("unauthenticated", "the session has ended, or its account is disabled; sign in again")
        return user

    async def logout(self, caller: User, session: SessionId) -> None:
        """End the session, in every process at once."""
        if await self.storage.close_console_session(session, self.clock()):
            self.tell(caller.username, "session.close", session)

    async def create_token(self, username: UserName, draft: TokenDraft, *, by: UserName | None = None) -> NewToken:
        """Mint an API token of ``username``, who does it himself unless ``by`` says who does."""
        if not 1 <= len(draft.name) <= MOST_NAME or not draft.name.isprintable():
            raise InvalidInput("name", f"must be 1 to {MOST_NAME} printable characters")
        if len(await self.storage.list_api_tokens(username)) >= MOST_TOKENS:
            raise Refused("too-many-tokens", f"an account has at most {MOST_TOKENS} API tokens; revoke one first")
        secret = spell_secret(SecretKind.API_TOKEN, self.entropy(SECRET_ENTROPY_BYTES))
        stored = await self._store_token(username, draft.name, secret, by or username)
        return NewToken(id=stored.id, name=stored.name, token=secret, created_at=stored.created_at)

    async def list_tokens(self, caller: User) -> list[ApiToken]:
        return await self.storage.list_api_tokens(caller.username)

    async def revoke_token(self, caller: User, token: TokenId) -> None:
        """A repeat changes nothing; a token that is not the caller's is NotFound."""
        if not await self.storage.revoke_api_token(caller.username, token, self.clock(), by=caller.username):
            raise NotFound("API token", token)
        self.tell(caller.username, "token.revoke", token)

    def _new_token(self, username: UserName, name: str) -> ApiToken:
        return ApiToken(id=TokenId(self.new_id("tok")), username=username, name=name, created_at=self.clock())

    async def _store_token(self, username: UserName, name: str, secret: str, by: UserName) -> ApiToken:
        token = self._new_token(username, name)
        await self.storage.create_api_token(token, secret_hash(secret), by=by)
        self.tell(by, "token.create", token.id, f"{name} of {username}")
        return token


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise InvalidInput("role", f"must be one of {', '.join(ROLES)}")
