"""Password hashing (argon2id) off the event loop, with a bound on how much of it runs and waits at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import trio
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError
from attrs import define, field

from tuneplane.domain.errors import InvalidInput, Refused

T = TypeVar("T")

HASHING_AT_ONCE = 2  # each takes 64 MiB and a core for some 50 ms; more would slow the sessions in this process
HASHING_WAITING = 32  # about a second's worth of sign-ins; a flood beyond it is told to come back
LEAST_PASSWORD = 12  # characters
MOST_PASSWORD = 1024  # argon2 reads all of it: a bound on the work of a stranger


def check_password(password: str, at: str = "password") -> None:
    """Raise InvalidInput unless ``password`` may be used for an account."""
    if not LEAST_PASSWORD <= len(password) <= MOST_PASSWORD:
        raise InvalidInput(at, f"must have {LEAST_PASSWORD} to {MOST_PASSWORD} characters")


@define
class Passwords:
    """Hashes and verifies. Cancelling waits for the thread in hand (some 50 ms), so that no thread is left behind."""

    _hasher: PasswordHasher = field(factory=PasswordHasher)
    _limiter: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(HASHING_AT_ONCE))
    _decoy: str = field(init=False, default="")
    _decoy_lock: threading.Lock = field(factory=threading.Lock)

    async def hash(self, password: str) -> str:
        """The encoded argon2id hash. Refused(code="busy") when too many are waiting."""
        return await self._off_loop(self._hasher.hash, password)

    async def verify(self, stored: str | None, password: str) -> bool:
        """Whether ``password`` matches; an account without one costs the same time as a wrong password."""
        if len(password) > MOST_PASSWORD:
            return False
        return await self._off_loop(self._verify, stored, password)

    async def _off_loop(self, work: Callable[..., T], *args: object) -> T:
        if self._limiter.statistics().tasks_waiting >= HASHING_WAITING:
            raise Refused("busy", "too many people are signing in at this moment; try again in a few seconds")
        return await trio.to_thread.run_sync(work, *args, limiter=self._limiter)

    def _verify(self, stored: str | None, password: str) -> bool:
        try:
            return self._hasher.verify(stored or self._made_decoy(), password) and stored is not None
        except (VerifyMismatchError, VerificationError, InvalidHashError):
            return False

    def _made_decoy(self) -> str:
        with self._decoy_lock:
            if not self._decoy:
                self._decoy = self._hasher.hash("nobody has this password")
            return self._decoy
