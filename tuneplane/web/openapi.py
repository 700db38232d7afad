"""The OpenAPI 3.1 document, generated from the route table. ``schemas/openapi.json`` is its checked-in copy."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, get_type_hints

import attrs

from tuneplane.domain import codec
from tuneplane.domain.errors import Reason

from .problems import MEDIA_TYPE
from .routing import Raw, Route, Who
from .schema import Schema, Schemas, used_both_ways

SECURITY: list[dict[str, list[str]]] = [{"token": []}, {"session": [], "csrf": []}]
PROBLEM: Schema = {
    "type": "object",
    "description": "RFC 9457 problem document. `code` is stable; `detail` is one sentence a person can act on.",
    "additionalProperties": False,
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
        "field": {"type": "string", "description": "dotted path of the field that is wrong"},
        "reasons": {"type": "array", "items": {"$ref": "#/components/schemas/Reason"}},
        "trace": {"type": "string", "description": "names the request in the console's log"},
    },
}


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """The whole document as plain data, in a stable order."""
    both = used_both_ways([r.body for r in routes if r.body], [kind for r in routes for kind in r.answers.values() if _is_json(kind)])
    schemas = Schemas(both)
    schemas.of(Reason, "out")
    paths: dict[str, dict[str, Any]] = {}
    for route in sorted(routes, key=lambda one: (one.path, one.method)):
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tuneplane", "version": version, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": {**dict(sorted(schemas.components.items())), "Problem": PROBLEM},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "an API token (tpu_…)"},
                "session": {"type": "apiKey", "in": "cookie", "name": "__Host-tuneplane"},
                "csrf": {"type": "apiKey", "in": "header", "name": "X-CSRF-Token", "description": "with the session, unsafe methods"},
            },
        },
    }


def spell(doc: dict[str, Any]) -> bytes:
    """The bytes that are served and checked in."""
    return (json.dumps(doc, indent=1, ensure_ascii=False) + "\n").encode()


def _is_json(kind: Any) -> bool:
    return kind is not None and not isinstance(kind, Raw)


def _operation(route: Route, schemas: Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": route.handler.__name__, "summary": route.summary, "tags": [route.tag]}
    if parameters := [*_path_parameters(route), *_query_parameters(route, schemas), *_header_parameters(route)]:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": schemas.of(route.body, "in")}}
        operation["requestBody"] = {"required": True, "content": content}
    operation["responses"] = _responses(route, schemas)
    if route.who is not Who.ALL:
        operation["security"] = SECURITY
    if route.acts:
        operation["x-audit-actions"] = list(route.acts)
    if route.who is Who.ADMIN:
        operation["description"] = "For administrators."
    return operation


def _path_parameters(route: Route) -> list[Schema]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(route: Route, schemas: Schemas) -> list[Schema]:
    if route.query is None:
        return []
    hints = get_type_hints(route.query)
    parameters = []
    for one in attrs.fields(route.query):
        schema = schemas.of(hints[one.name], "in")
        if "anyOf" in schema:  # an absent parameter is how a query says null
            schema = next(option for option in schema["anyOf"] if option != {"type": "null"})
        if not isinstance(one.default, attrs.Factory) and one.default not in (None, attrs.NOTHING, ()):  # type: ignore[arg-type]
            schema["default"] = codec.encode(one.default)
        parameters.append({"name": codec.wire_name(one.name), "in": "query", "required": False, "schema": schema})
    return parameters


def _header_parameters(route: Route) -> list[Schema]:
    return [{"name": name, "in": "header", "required": False, "schema": {"type": "string"}} for name in route.headers]


def _responses(route: Route, schemas: Schemas) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in sorted(route.answers.items()):
        response: dict[str, Any] = {"description": kind.description if isinstance(kind, Raw) else HTTPStatus(status).phrase}
        if isinstance(kind, Raw):
            response["content"] = {kind.media_type: {"schema": {"type": "object" if kind.media_type.endswith("json") else "string"}}}
        elif kind is not None:
            response["content"] = {"application/json": {"schema": schemas.of(kind, "out")}}
        responses[str(status)] = response
    for status in sorted({*route.problems, *_common_problems(route)}):
        content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    return responses


def _common_problems(route: Route) -> set[int]:
    common = {500, 503}
    if route.who is not Who.ALL:
        common |= {401, 403} if route.who is Who.ADMIN or route.method != "GET" else {401}
    if route.body is not None or route.query is not None or route.method != "GET":
        common |= {422}
    if route.body is not None or route.method != "GET":
        common |= {408, 413, 415}
    if "{" in route.path:
        common |= {404}
    return common


def main() -> None:
    """Print the document: ``python -m tuneplane.web.openapi > schemas/openapi.json``."""
    from tuneplane import __version__

    from .routes import API_ROUTES

    sys.stdout.buffer.write(spell(document(API_ROUTES, __version__)))


if __name__ == "__main__":
    main()
