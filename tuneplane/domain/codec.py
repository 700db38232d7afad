"""attrs values to and from plain JSON data: the one decoder of every border.

cattrs is the one library beyond attrs that this room may import, and only here: storage, wire, nodeside and web
all decode the same values, so the decoder belongs below them. It is as pure as attrs itself.
Unknown keys are refused everywhere; an error names the dotted path of the field and the rule.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.errors import (
    AttributeValidationNote,
    BaseValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
    IterableValidationNote,
)
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from .errors import InvalidInput

T = TypeVar("T")


def decode(kind: type[T], data: object, at: str = "") -> T:
    """Plain JSON ``data`` as a value of ``kind``. Raises InvalidInput with the first offending field's path."""
    try:
        return _converter.structure(data, kind)
    except InvalidInput as error:
        raise InvalidInput(_join(at, error.field) or "body", error.rule) from None
    except Exception as error:  # cattrs raises whatever a constructor raises; all of it means bad input
        path, rule = _first_fault(error, at)
        raise InvalidInput(path or "body", rule) from None


def encode(value: object) -> Any:
    """A value as plain JSON data (dicts, lists, strings, numbers, booleans, ``None``)."""
    return _converter.unstructure(value)


def spell(value: object) -> bytes:
    """A value as UTF-8 JSON for people and programs, keys in the order of the class."""
    return json.dumps(encode(value), ensure_ascii=False, allow_nan=False).encode()


def canonical(value: object) -> bytes:
    """The one byte form of a value: sorted keys, no blanks, UTF-8. Digests are taken over it."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest(data: bytes) -> str:
    """``sha256:<hex>`` of ``data``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _first_fault(error: BaseException, path: str) -> tuple[str, str]:
    if isinstance(error, InvalidInput):
        return _join(path, error.field), error.rule
    if isinstance(error, ForbiddenExtraKeysError):
        return _join(path, sorted(error.extra_fields)[0]), "unknown field"
    if isinstance(error, (BaseValidationError, IterableValidationError)):
        inner = error.exceptions[0]
        for note in getattr(inner, "__notes__", ()):
            if isinstance(note, AttributeValidationNote):
                return _first_fault(inner, path if isinstance(inner, KeyError) else _join(path, wire_name(note.name)))
            if isinstance(note, IterableValidationNote):
                return _first_fault(inner, f"{path}[{note.index}]")
        return _first_fault(inner, path)
    if isinstance(error, KeyError):
        return _join(path, str(error.args[0])), "required field is missing"
    if isinstance(error, TypeError) and "missing" in str(error):
        return path, "a required field is missing"
    return path, str(error)[:200] or type(error).__name__


def _join(path: str, name: str) -> str:
    between = "" if name.startswith("[") else "."
    return f"{path}{between}{name}" if path and name else path or name


def _make_converter() -> Converter:
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)

    def structured(kind: type) -> Any:
        return make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True, **_renames(kind))

    def structure_attrs(kind: type) -> Any:
        inner = structured(kind)

        def checked(data: object, _: type) -> Any:
            if not isinstance(data, dict):
                raise InvalidInput("", f"must be an object, not {_json_name(data)}")
            return inner(data, kind)

        return checked

    converter.register_structure_hook_factory(attrs.has, structure_attrs)
    converter.register_unstructure_hook_factory(attrs.has, lambda kind: make_dict_unstructure_fn(kind, converter, **_renames(kind)))
    exact = {str: _exactly(str, "a string"), bool: _exactly(bool, "true or false"), int: _structure_int, float: _structure_float}
    for kind, hook in exact.items():
        converter.register_structure_hook(kind, _or_enum(hook))
    converter.register_structure_hook_factory(_is_sequence, lambda kind: _structure_sequence(converter, kind))
    converter.register_structure_hook_factory(_is_mapping, lambda kind: _structure_mapping(converter, kind))
    converter.register_structure_hook(datetime, _structure_datetime)
    converter.register_unstructure_hook(datetime, lambda value: value.astimezone(UTC).isoformat().replace("+00:00", "Z"))
    converter.register_structure_hook_func(_is_enum, _structure_enum)
    converter.register_unstructure_hook_func(_is_enum, lambda value: value.value)
    return converter


def wire_name(name: str) -> str:
    """The JSON name of an attrs field: ``try_`` is ``try`` (a Python keyword takes a trailing underscore)."""
    return name.rstrip("_")


def _renames(kind: type) -> dict[str, Any]:
    fields = attrs.fields(kind)
    return {f.name: override(rename=wire_name(f.name)) for f in fields if wire_name(f.name) != f.name}


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _json_name(data: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(data), "null" if data is None else type(data).__name__)


def _or_enum(hook: Any) -> Any:
    """cattrs hands a hook for ``str`` our str-valued enums too, because they are subclasses."""
    return lambda data, kind: _structure_enum(data, kind) if _is_enum(kind) else hook(data, kind)


def _is_sequence(kind: Any) -> bool:
    return get_origin(kind) in (tuple, list)


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) is dict


def _structure_sequence(converter: Converter, kind: Any) -> Any:
    """A JSON array, never a string: ``tuple[X, ...]`` or ``list[X]`` of one kind of item."""
    of, make = get_args(kind)[0], get_origin(kind)
    inner = converter.get_structure_hook(of)

    def structure(data: object, _: type) -> object:
        if not isinstance(data, (list, tuple)):
            raise InvalidInput("", f"must be an array, not {_json_name(data)}")
        return make(_at(f"[{number}]", inner, item, of) for number, item in enumerate(data))

    return structure


def _structure_mapping(converter: Converter, kind: Any) -> Any:
    of = get_args(kind)[1]
    inner = converter.get_structure_hook(of)

    def structure(data: object, _: type) -> object:
        if not isinstance(data, dict):
            raise InvalidInput("", f"must be an object, not {_json_name(data)}")
        return {str(key): _at(str(key), inner, item, of) for key, item in data.items()}

    return structure


def _at(place: str, hook: Any, data: object, kind: Any) -> Any:
    try:
        return hook(data, kind)
    except Exception as error:
        raise InvalidInput(*_first_fault(error, place)) from None


def _exactly(kind: type, name: str) -> Any:
    def structure(data: object, _: type) -> object:
        if type(data) is not kind:
            raise InvalidInput("", f"must be {name}, not {_json_name(data)}")
        return data

    return structure


def _structure_int(data: object, _: type) -> int:
    if isinstance(data, bool) or not isinstance(data, int):
        raise InvalidInput("", f"must be a whole number, not {_json_name(data)}")
    return data


def _structure_float(data: object, _: type) -> float:
    if isinstance(data, bool) or not isinstance(data, (int, float)):
        raise InvalidInput("", f"must be a number, not {_json_name(data)}")
    return float(data)


def _structure_datetime(data: object, _: type) -> datetime:
    if isinstance(data, datetime):
        return data
    if isinstance(data, str):
        try:
            moment: datetime | None = datetime.fromisoformat(data)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return moment.astimezone(UTC)
    raise InvalidInput("", "must be an RFC 3339 time with a zone, such as 2026-11-30T12:00:00Z")


def _structure_enum(data: object, kind: type) -> object:
    try:
        return kind(data)
    except ValueError:
        allowed = ", ".join(str(member.value) for member in kind)  # type: ignore[attr-defined]
        raise InvalidInput("", f"must be one of {allowed}") from None


_converter = _make_converter()
