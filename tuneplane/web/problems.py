"""Errors as RFC 9457 problem documents: one table from our errors to status and title, one renderer.

``code`` is stable and kebab-case; ``detail`` is one sentence a person can act on. An error that is not ours becomes
``internal``: its text stays in the log, with the trace id that the document shows.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import trio
from attrs import Factory, frozen
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from tuneplane.domain import codec
from tuneplane.domain.errors import InvalidInput, NotFound, Reason, Refused, StorageUnavailable, TuneplaneError

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 2  # PostgreSQL restarts, gateways reconnect and queues drain within seconds

STATUS_OF_CODE = {  # of a Refused; any other code is a conflict with the state of things: 409
    "unauthenticated": 401,
    "wrong-credentials": 401,
    "forbidden": 403,
    "csrf": 403,
    "token-unknown": 403,
    "token-expired": 403,
    "token-revoked": 403,
    "token-used": 403,
    "no-fleet-fits": 422,
    "fleet-refused": 422,
    "no-such-series": 422,
    "fleet-unnamed": 422,
    "image-unresolved": 422,
    "idempotency-key-reused": 422,
    "unsupported-media-type": 415,
    "body-too-large": 413,
    "busy": 503,
    "node-unreachable": 503,
    "node-removed": 410,
    "log-unavailable": 503,
    "overdue": 503,
}
CODE_OF_STATUS = {  # of an HTTP error that the framework raises
    400: "bad-request",
    404: "not-found",
    405: "method-not-allowed",
    408: "request-timeout",
    413: "body-too-large",
    414: "address-too-long",
    415: "unsupported-media-type",
    431: "headers-too-large",
}
DETAIL_OF_STATUS = {
    404: "There is nothing at this address.",
    405: "This address does not know that method; the Allow header lists those that it knows.",
    408: "The request's body did not arrive in time.",
    413: "The request's body is larger than this address takes.",
}


@frozen(kw_only=True)
class Problem:
    """One problem document and the headers that go with it."""

    status: int
    code: str
    detail: str
    field: str = ""
    reasons: tuple[Reason, ...] = ()
    trace: str = ""
    headers: dict[str, str] = Factory(dict)

    def document(self) -> dict[str, Any]:
        """The JSON members; ``field``, ``reasons`` and ``trace`` only where they help."""
        document: dict[str, Any] = {
            "type": f"urn:tuneplane:problem:{self.code}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        extra = {"field": self.field, "reasons": codec.encode(self.reasons), "trace": self.trace}
        return {**document, **{name: value for name, value in extra.items() if value}}

    def body(self) -> bytes:
        return json.dumps(self.document()).encode()


def problem_of(error: BaseException) -> Problem:
    """The document of any error. What is not ours is ``internal``: whoever calls logs it."""
    if isinstance(error, InvalidInput):
        return Problem(status=422, code=error.code, detail=f"{error.field}: {error.rule}", field=error.field)
    if isinstance(error, NotFound):
        return Problem(status=404, code=error.code, detail=_sentence(error))
    if isinstance(error, Refused):
        return _refused(error)
    if isinstance(error, StorageUnavailable):
        detail = "The database does not answer at this moment; the outcome of a change is unknown. Look again, then repeat."
        return Problem(status=503, code=error.code, detail=detail, headers=_retry())
    if isinstance(error, trio.TooSlowError):
        detail = "This took longer than a request may take; the outcome of a change is unknown. Look again, then repeat."
        return Problem(status=503, code="overdue", detail=detail, headers=_retry())
    if isinstance(error, HTTPException):
        return _of_http(error)
    return Problem(status=500, code="internal", detail="Something went wrong here; the log of this console says what, under this trace id.")


def is_ours(error: BaseException) -> bool:
    """Whether the error was raised on purpose: it is answered, and not logged as a fault of this program."""
    return isinstance(error, (InvalidInput, NotFound, Refused, StorageUnavailable, trio.TooSlowError, HTTPException))


def _refused(error: Refused) -> Problem:
    status = STATUS_OF_CODE.get(error.code, 409)
    headers = _retry() if status == 503 else {"WWW-Authenticate": 'Bearer realm="tuneplane"'} if status == 401 else {}
    return Problem(status=status, code=error.code, detail=_sentence(error), field=error.field, reasons=error.reasons, headers=headers)


def _of_http(error: HTTPException) -> Problem:
    status = error.code or 500
    headers = {}
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        headers["Allow"] = ", ".join(sorted(error.valid_methods))
    detail = DETAIL_OF_STATUS.get(status, HTTPStatus(status).phrase)
    return Problem(status=status, code=CODE_OF_STATUS.get(status, "bad-request"), detail=detail, headers=headers)


def _sentence(error: TuneplaneError) -> str:
    text = str(error)
    plain = text.partition(" ")[0].isalpha()  # an id at the beginning stays as it is: it is there to be copied
    return (text[:1].upper() + text[1:] if plain else text) + ("" if text.endswith((".", "!", "?")) else ".")


def _retry() -> dict[str, str]:
    return {"Retry-After": str(RETRY_SECONDS)}
