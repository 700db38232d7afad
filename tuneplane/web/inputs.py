"""Reading what strangers send: JSON bodies, query strings, ids in paths. Everything is bounded and exact.

The decoder of values is ``domain.codec``; this module only turns bytes and strings into plain data that it may see,
and refuses what JSON allows and nothing behind us does: NUL, lone surrogates, infinities, integers beyond 2**53.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin

import attrs

from tuneplane.domain import codec
from tuneplane.domain.errors import InvalidInput, Refused
from tuneplane.domain.jobs import Page

T = TypeVar("T")

MOST_BODY_BYTES = 1 << 20  # the largest JobSpec with 512 variables is far below; a plan ends at 900 KiB
MOST_EXACT = 1 << 53  # beyond it JSON numbers lose digits in half of all clients
MOST_DEPTH = 64  # of nested arrays and objects: a JobSpec has six
MOST_LIMIT = 500
MOST_CURSOR = 512  # characters; ours have some forty
PATH_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
CARD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,159}")  # its driver's word, not ours


def read_json(body: bytes, content_type: str) -> object:
    """Plain data of a JSON body. Refused for another media type, InvalidInput for anything that is not usable JSON."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise Refused("unsupported-media-type", "send the body as Content-Type: application/json")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput("body", f"is not UTF-8 (byte {error.start})") from None
    try:
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise InvalidInput("body", "is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InvalidInput("body", f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError:
        raise InvalidInput("body", "holds a number with too many digits") from None
    _check_plain(data, "", 0)
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidInput("body", f"is not JSON: {name} is no JSON number")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    data: dict[str, object] = {}
    for name, value in pairs:
        if name in data:
            raise InvalidInput(name[:64] or "body", "is given twice")
        data[name] = value
    return data


def _check_plain(data: object, at: str, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise InvalidInput(at or "body", "is nested too deeply")
    if isinstance(data, str):
        check_text(data, at or "body")
    elif isinstance(data, dict):
        for key, value in data.items():
            check_text(key, at or "body")
            _check_plain(value, f"{at}.{key}" if at else key, depth + 1)
    elif isinstance(data, list):
        for number, value in enumerate(data):
            _check_plain(value, f"{at}[{number}]", depth + 1)
    elif isinstance(data, (int, float)) and not -MOST_EXACT <= data <= MOST_EXACT:
        raise InvalidInput(at or "body", "is a number beyond 2**53")


def check_text(text: str, at: str) -> None:
    """Refuse what PostgreSQL and UTF-8 cannot hold."""
    if "\0" in text:
        raise InvalidInput(at, "must not contain a NUL character")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidInput(at, "must be valid Unicode (a lone surrogate was found)")


def read_query(kind: type[T], given: Mapping[str, Sequence[str]]) -> T:
    """A query string as a value of ``kind``: its fields are the parameters, a tuple field may be repeated."""
    resolved: Any = attrs.resolve_types(kind)  # type: ignore[type-var]  # annotations are strings until somebody asks
    fields = {codec.wire_name(field.name): field for field in attrs.fields(resolved)}
    data: dict[str, object] = {}
    for name, texts in given.items():
        if name not in fields:
            raise InvalidInput(name[:64], "unknown query parameter")
        data[name] = _query_value(fields[name].type, texts, name)
    return codec.decode(kind, data)


def _query_value(kind: Any, texts: Sequence[str], at: str) -> object:
    for text in texts:
        check_text(text, at)
    if get_origin(kind) is tuple:
        return list(texts)
    if len(texts) != 1:
        raise InvalidInput(at, "is given more than once")
    return _plain_value(_without_none(kind), texts[0], at)


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        return next(one for one in get_args(kind) if one is not type(None))
    return kind


def _plain_value(kind: Any, text: str, at: str) -> object:
    if kind is int:
        if not re.fullmatch(r"-?[0-9]{1,16}", text):
            raise InvalidInput(at, "must be a whole number")
        return int(text)
    if kind is bool:
        if text not in ("true", "false"):
            raise InvalidInput(at, "must be true or false")
        return text == "true"
    return text


@attrs.frozen(kw_only=True)
class PageQuery:
    """``?limit=`` (default 50, at most 500) and ``?cursor=``."""

    limit: int = 50
    cursor: str | None = None

    def page(self) -> Page:
        if not 1 <= self.limit <= MOST_LIMIT:
            raise InvalidInput("limit", f"must be between 1 and {MOST_LIMIT}")
        if self.cursor is not None and not 1 <= len(self.cursor) <= MOST_CURSOR:
            raise InvalidInput("cursor", "is not a cursor of this list")
        return Page(limit=self.limit, cursor=self.cursor)


def is_path_id(text: str, name: str = "") -> bool:
    """Whether ``text`` could be an id of ours at all: what could not is *not found* without asking storage."""
    return (CARD_ID if name == "card" else PATH_ID).fullmatch(text) is not None
