"""How an actor class declares what it does with which letter and signal: two decorators and the table they build."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, TypeVar

from attrs import frozen

Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])


@frozen(eq=False)
class Handler:
    """One row of an actor class's table. ``what`` is the message's name in traces."""

    what: str
    mailbox: str
    method: Callable[..., Awaitable[Any]]
    raises: tuple[type[Exception], ...]


def handles(message: type, *, mailbox: str = "", raises: tuple[type[Exception], ...] = ()) -> Callable[[Method], Method]:
    """``async def method(self, message, context) -> reply``, run by a worker of ``mailbox`` (default: the first one).

    An ask is answered with what the method returns. Errors listed in ``raises`` are answers too: the asker gets
    AskFailed and the actor lives. Any other error, and any error at a tell, crashes the actor; an asker whose letter
    was in hand still gets AskFailed with it.
    """
    _require_immutable(message)

    def mark(method: Method) -> Method:
        method.__handles__ = (message, mailbox, raises)  # type: ignore[attr-defined]
        return method

    return mark


def on_signal(name: str) -> Callable[[Method], Method]:
    """``async def method(self, context)``, run by the actor's signal task when ``name`` was raised, once for many raises."""

    def mark(method: Method) -> Method:
        method.__on_signal__ = name  # type: ignore[attr-defined]
        return method

    return mark


def _require_immutable(message: type) -> None:
    """A mutable object inside a message is shared state: frozen attrs classes, tuples, enums and plain values only."""
    guarded = any("__setattr__" in vars(base) for base in message.__mro__[:-1])
    mutable = not guarded and not issubclass(message, Enum | tuple | str | bytes | int | float)
    if mutable:
        raise TypeError(f"{message.__qualname__} cannot be a message: make it @frozen")


def handler_table(cls: type, mailboxes: tuple[str, ...]) -> dict[type, Handler]:
    """The rows of ``cls`` and its bases. TypeError for a mailbox that the class does not have."""
    table: dict[type, Handler] = {}
    for method in _marked(cls, "__handles__"):
        message, mailbox, raises = method.__handles__
        if not mailboxes or (mailbox and mailbox not in mailboxes):
            raise TypeError(f"{cls.__qualname__}.{method.__name__}: no mailbox {mailbox!r} among {mailboxes}")
        if message in table:
            raise TypeError(f"{cls.__qualname__}: two handlers for {message.__qualname__}")
        table[message] = Handler(message.__name__, mailbox or mailboxes[0], method, raises)
    return table


def signal_table(cls: type) -> dict[str, Callable[..., Awaitable[None]]]:
    return {method.__on_signal__: method for method in _marked(cls, "__on_signal__")}


def _marked(cls: type, mark: str) -> list[Any]:
    """The methods that carry ``mark``, as ``cls`` resolves their names: an override replaces its base's method."""
    names = {name: None for base in reversed(cls.__mro__) for name in vars(base)}
    return [method for name in names if hasattr(method := getattr(cls, name, None), mark)]
