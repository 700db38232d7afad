"""An actor class's table is checked when the class is made, a specification when it is written."""

from __future__ import annotations

from collections import namedtuple
from enum import Enum

import pytest
from attrs import define, frozen

from tuneplane.actors import Actor, ChildSpec, Context, MailboxSpec, SupervisorSpec, handles

BOX = MailboxSpec("work", 1, "test")


@frozen
class Go:
    pass


def test_handler_of_unknown_mailbox_is_refused_at_class_creation() -> None:
    with pytest.raises(TypeError, match="no mailbox 'side'"):

        class Broken(Actor):
            mailboxes = (BOX,)

            @handles(Go, mailbox="side")
            async def go(self, message: Go, context: Context) -> None: ...


def test_handler_without_any_mailbox_is_refused_at_class_creation() -> None:
    with pytest.raises(TypeError, match="no mailbox"):

        class Broken(Actor):
            @handles(Go)
            async def go(self, message: Go, context: Context) -> None: ...


def test_two_handlers_for_one_message_are_refused() -> None:
    with pytest.raises(TypeError, match="two handlers for Go"):

        class Broken(Actor):
            mailboxes = (BOX,)

            @handles(Go)
            async def go(self, message: Go, context: Context) -> None: ...

            @handles(Go)
            async def again(self, message: Go, context: Context) -> None: ...


def test_mailbox_names_that_repeat_are_refused() -> None:
    with pytest.raises(TypeError, match="repeat"):

        class Broken(Actor):
            mailboxes = (BOX, BOX)


def test_mutable_message_class_is_refused() -> None:
    """A mutable object inside a message is shared state between two actors."""

    @define
    class Open:
        value: int = 0

    with pytest.raises(TypeError, match="frozen"):
        handles(Open)


@pytest.mark.parametrize("message", [Go, namedtuple("Pair", "a b"), Enum("Colour", "RED"), str, int])
def test_immutable_message_classes_are_taken(message: type) -> None:
    handles(message)


def test_subclass_inherits_handlers_and_overrides_replace_them() -> None:
    class Base(Actor):
        mailboxes = (BOX,)

        @handles(Go)
        async def go(self, message: Go, context: Context) -> str:
            return "base"

    class Heir(Base):
        pass

    class Other(Base):
        @handles(Go)
        async def go(self, message: Go, context: Context) -> str:
            return "other"

    assert Heir.__handlers__[Go].method is Base.go
    assert Other.__handlers__[Go].method is Other.go


@pytest.mark.parametrize("name", ["", "a/b", ".", "a b", "a\n"])
def test_child_name_that_would_break_a_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        ChildSpec(name=name, factory=Actor)


def test_children_that_share_a_name_are_refused() -> None:
    child = ChildSpec(name="a", factory=Actor)
    with pytest.raises(ValueError, match="share a name"):
        SupervisorSpec(name="root", children=(child, child))


@pytest.mark.parametrize("numbers", [{"capacity": 0}, {"capacity": 1, "workers": 0}])
def test_mailbox_without_room_or_worker_is_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        MailboxSpec("work", why="test", **numbers)
