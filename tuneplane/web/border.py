"""The ASGI border between hypercorn and the application.

hypercorn, given a group with both errors and a cancellation, logs the errors and drops the cancellation. Nothing but a
cancellation leaves this border: errors are logged here, and a client that has seen nothing yet gets a problem document.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from .problems import MEDIA_TYPE, Problem, problem_of

log = structlog.get_logger("tuneplane.web.border")

Message = Any
Send = Callable[[Message], Awaitable[None]]
NO_WEBSOCKETS = Problem(status=404, code="not-found", detail="There is no WebSocket at this address.")


class Border:
    """An ASGI application around another one."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        if scope["type"] == "websocket":
            await _refuse_websocket(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except BaseExceptionGroup as group:
            errors, rest = group.split(Exception)
            if errors is not None:
                _report(scope, errors)
            if rest is not None:
                raise rest from None
        except Exception as error:
            _report(scope, error)
        else:
            return
        if not started:
            await send_problem(send, problem_of(RuntimeError()))


def _report(scope: Message, error: BaseException) -> None:
    log.error("the application failed", method=scope.get("method", ""), path=scope.get("path", ""), exc_info=error)


async def send_problem(send: Send, problem: Problem, kind: str = "http") -> None:
    """A problem document as ASGI messages."""
    body = problem.body()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    await send({"type": f"{kind}.response.start", "status": problem.status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": body, "more_body": False})


async def _refuse_websocket(scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
    await receive()  # websocket.connect
    if "websocket.http.response" in scope.get("extensions", {}):
        await send_problem(send, NO_WEBSOCKETS, "websocket.http")
    else:
        await send({"type": "websocket.close", "code": 1008})
