"""The console's sessions: a signed cookie (JWT) and the CSRF token that unsafe methods repeat in a header.

The signature says that we made the cookie; whether its session still lives, a row in the database says at every request.
"""

from __future__ import annotations

import base64
import hmac
from datetime import timedelta

import jwt
from attrs import field, frozen

from tuneplane.control.api import Clock, Entropy
from tuneplane.domain.accounts import ConsoleSession
from tuneplane.domain.errors import Refused
from tuneplane.domain.ids import SessionId

COOKIE = "__Host-tuneplane"  # the prefix makes browsers insist on Secure, Path=/ and no Domain
CSRF_HEADER = "X-CSRF-Token"
ALGORITHM = "HS256"
AUDIENCE = "tuneplane-console"
SESSION_LIFE = timedelta(hours=12)  # a working day
MOST_COOKIE = 4096  # characters, the browsers' own bound


@frozen(kw_only=True)
class Session:
    """Which session a cookie names, and the CSRF token that belongs to it."""

    id: SessionId
    csrf: str = field(repr=False)


@frozen(kw_only=True)
class Sessions:
    """Signs and reads cookies; keeps nothing, so every API replica with the same secret reads them."""

    secret: bytes = field(repr=False)
    clock: Clock
    entropy: Entropy

    def sign(self, session: ConsoleSession) -> tuple[str, Session]:
        """The cookie's value and what it names."""
        csrf = base64.urlsafe_b64encode(self.entropy(24)).decode()
        iat, exp = int(session.created_at.timestamp()), int(session.expires_at.timestamp())
        claims = {"sub": session.username, "sid": session.id, "aud": AUDIENCE, "iat": iat, "exp": exp, "csrf": csrf}
        return jwt.encode(claims, self.secret, ALGORITHM), Session(id=session.id, csrf=csrf)

    def read(self, cookie: str) -> Session:
        """Refused(code="unauthenticated") for anything that we did not sign, or that has expired."""
        if len(cookie) > MOST_COOKIE:
            raise _signed_out()
        try:
            claims = jwt.decode(
                cookie,
                self.secret,
                [ALGORITHM],
                audience=AUDIENCE,
                options={
                    "verify_exp": False,
                    "verify_iat": False,
                    "require": ["sub", "sid", "aud", "exp", "csrf"],
                },  # our clock judges, below
            )
        except jwt.InvalidTokenError:
            raise _signed_out() from None
        if claims["exp"] <= self.clock().timestamp():
            raise _signed_out()
        return Session(id=SessionId(claims["sid"]), csrf=claims["csrf"])


def check_csrf(session: Session, given: str, fetch_site: str) -> None:
    """Refused(code="csrf") unless the header repeats the session's token and the browser calls the request our own."""
    ours = hmac.compare_digest(session.csrf.encode(), given.encode("utf-8", "replace"))
    if not ours or fetch_site not in ("", "same-origin", "none"):
        raise Refused("csrf", f"a request with the console's session repeats its CSRF token in {CSRF_HEADER}")


def _signed_out() -> Refused:
    return Refused("unauthenticated", "the session is unknown or has expired; sign in again")
