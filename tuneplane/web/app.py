"""The Quart-Trio application: routes bound to their handlers, and every error turned into a problem document.

Two traps are closed here. Quart-Trio, given a group of errors and a cancellation, keeps the cancellation and drops the
errors (or answers one of the errors and swallows the cancellation); here the errors are logged and the cancellation
goes on to its owner. And nothing uses ``app.nursery``: background work belongs to actors.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import structlog
import trio
from attrs import evolve
from quart import Request, Response, request
from quart_trio import QuartTrio

from tuneplane.domain import codec

from .gate import SAFE, make_call
from .inputs import MOST_BODY_BYTES
from .problems import MEDIA_TYPE, Problem, is_ours, problem_of
from .routing import Answer, Route
from .site import Site

log = structlog.get_logger("tuneplane.web")

REQUEST_SECONDS = 45.0  # longer than any step behind it: resolving an image (10 s), a bounded log read (20 s)
BODY_SECONDS = 20.0  # a MiB in 20 s is a very slow line; below it somebody holds us
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


class WebApp(QuartTrio):  # type: ignore[misc]  # its stubs are skipped
    """Quart-Trio with our error handling. ``site`` and ``routes`` are set once, before it serves."""

    def __init__(self, site: Site, routes: list[Route]) -> None:
        super().__init__("tuneplane.web", static_folder=None)
        self.site = site
        self.config.update(
            MAX_CONTENT_LENGTH=MOST_BODY_BYTES,
            BODY_TIMEOUT=BODY_SECONDS,
            RESPONSE_TIMEOUT=None,  # a slow reader is the connection's business: see connection.py
            PROPAGATE_EXCEPTIONS=False,
        )
        self.url_map.strict_slashes = False
        self.url_map.merge_slashes = False
        for route in routes:
            self._bind(route)

    def _bind(self, route: Route) -> None:
        async def endpoint(**path: str) -> Response:
            return await self._serve(route, path)

        name = f"{route.method} {route.path}"
        self.add_url_rule(route.rule, name, endpoint, methods=[route.method], provide_automatic_options=False)

    async def _serve(self, route: Route, path: dict[str, str]) -> Response:
        """One request, from the gate to the answer's head, within REQUEST_SECONDS."""
        trace, began = self.site.new_trace(), trio.current_time()
        try:
            with trio.fail_after(REQUEST_SECONDS):
                call = await make_call(self.site, route, request, path, trace)
                response = respond(await route.handler(self.site, call))
                if 304 in route.answers:
                    await make_conditional(response, call.headers.get("If-None-Match", ""))
        except Exception as error:
            response = self.answer_error(error, trace, route)
        response.headers["X-Trace-Id"] = trace
        if request.http_version.startswith("1") and (response.status_code == 413 or not request.body._complete.is_set()):
            response.headers["Connection"] = "close"  # answered before the body was in: what follows is no request
        seconds = trio.current_time() - began
        self.site.metrics.answered(route.method, route.path, response.status_code, seconds)
        if route.method not in SAFE:
            log.info("request", method=route.method, route=route.path, status=response.status_code, seconds=round(seconds, 3), trace=trace)
        return response

    def answer_error(self, error: BaseException, trace: str, route: Route | None) -> Response:
        """The problem document of ``error``; one that is not ours is logged here, once."""
        if not is_ours(error):
            log.error("request failed", route=route.path if route else "", trace=trace, exc_info=error)
        if route is not None and route.page is not None:
            return respond(route.page(self.site, problem_of(error), request.full_path))
        return respond_problem(evolve(problem_of(error), trace=trace))

    async def handle_request(self, request: Request) -> Any:
        """Dispatch; errors outside a handler (routing, a broken group) end here too."""
        async with self.request_context(request) as context:
            try:
                return await self.full_dispatch_request(context)
            except BaseExceptionGroup as group:
                return self.answer_error(self.split(group), self.site.new_trace(), None)
            except Exception as error:
                return self.answer_error(error, self.site.new_trace(), None)

    async def handle_user_exception(self, error: BaseException) -> Any:
        """Called by Quart for whatever dispatching raised."""
        if isinstance(error, BaseExceptionGroup):
            error = self.split(error)
        return self.answer_error(error, self.site.new_trace(), None)

    def split(self, group: BaseExceptionGroup[BaseException]) -> Exception:
        """The errors of a group, unless something in it is no error: then they are logged and the rest goes on."""
        errors, rest = group.split(Exception)
        if rest is not None:
            if errors is not None:
                log.error("request failed while it was cancelled", exc_info=errors)
            raise rest
        assert errors is not None  # a group is never empty
        return errors.exceptions[0] if len(errors.exceptions) == 1 else errors


def respond(answer: Answer) -> Response:
    """A handler's answer as a Quart response."""
    response = Response(_payload(answer), status=answer.status, content_type=answer.media_type)
    if answer.stream is not None:
        response.headers["X-Accel-Buffering"] = "no"  # a proxy in front must not hold events back
    elif answer.status == 204:
        del response.headers["Content-Type"]
    for name, value in {**HEADERS, **answer.headers}.items():
        response.headers[name] = value
    return response


async def make_conditional(response: Response, known: str) -> None:
    """Name the answer's body by its digest; 304 without one when the client has it already (L-L2). ``known``: If-None-Match."""
    tag = f'"{sha256(await response.get_data(as_text=False)).hexdigest()[:32]}"'
    response.headers["ETag"] = tag
    response.headers["Cache-Control"] = "private, no-cache"  # to be kept, and asked about every time
    if tag in [one.strip().removeprefix("W/") for one in known.split(",")]:
        response.status_code = 304
        response.set_data(b"")
        del response.headers["Content-Type"]


def _payload(answer: Answer) -> Any:
    if answer.stream is not None:
        return answer.stream
    if answer.raw is not None:
        return answer.raw
    return b"" if answer.status == 204 else codec.spell(answer.value)


def respond_problem(problem: Problem) -> Response:
    """A problem document as a Quart response."""
    response = Response(problem.body(), status=problem.status, content_type=MEDIA_TYPE)
    for name, value in {**HEADERS, **problem.headers}.items():
        response.headers[name] = value
    return response
