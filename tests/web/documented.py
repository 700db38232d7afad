"""Holds every answer of a client against the OpenAPI document: status, media type and JSON schema."""

from __future__ import annotations

import re
from typing import Any

import httpx
from attrs import define, field
from jsonschema import Draft202012Validator

from tuneplane import __version__
from tuneplane.web.openapi import document
from tuneplane.web.routes import API_ROUTES

DOCUMENT = document(API_ROUTES, __version__)


@define
class Documented:
    """A response hook: ``client.event_hooks["response"] = [documented.check]``; ``seen`` has (METHOD, template, status)."""

    seen: set[tuple[str, str, int]] = field(factory=set)

    async def check(self, response: httpx.Response) -> None:
        method, path = response.request.method, response.request.url.path
        template = find_template(path)
        operation = DOCUMENT["paths"].get(template, {}).get(method.lower())
        if operation is None:
            assert response.status_code in (404, 405), f"{method} {path} is served and not in the document"
            await _check_problem(response)
            return
        self.seen.add((method, template, response.status_code))
        check_answer(operation, response, await _json_or_none(response))


def find_template(path: str) -> str:
    """The documented path that serves ``path``: exact ones first, or the path itself."""
    for template in sorted(DOCUMENT["paths"], key=lambda one: one.count("{")):
        if re.fullmatch(re.sub(r"\{[a-z_]+\}", "[^/]+", template), path):
            return str(template)
    return path


def check_answer(operation: dict[str, Any], response: httpx.Response, value: Any) -> None:
    """Assert that the answer is one of the operation's, with its media type and schema."""
    where = f"{response.request.method} {response.request.url.path} -> {response.status_code} {value}"
    documented = operation["responses"].get(str(response.status_code))
    assert documented is not None, f"undocumented status: {where}"
    content = documented.get("content")
    if content is None:
        assert not response.headers.get("content-length", "0").strip("0"), f"undocumented body: {where}"
        return
    media_type = response.headers["content-type"].partition(";")[0]
    if media_type == "text/event-stream":
        return
    assert media_type in content, f"undocumented media type {media_type}: {where}"
    if media_type.endswith("json"):
        validate(value, content[media_type]["schema"])


def validate(value: Any, schema: dict[str, Any]) -> None:
    """Validate against a schema of the document."""
    validator = Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    faults = [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(value)]
    assert not faults, faults


async def _json_or_none(response: httpx.Response) -> Any:
    if not response.headers.get("content-type", "").partition(";")[0].endswith("json"):
        return None
    await response.aread()
    return response.json()


async def _check_problem(response: httpx.Response) -> None:
    assert response.headers["content-type"] == "application/problem+json"
    await response.aread()
    validate(response.json(), {"$ref": "#/components/schemas/Problem"})
