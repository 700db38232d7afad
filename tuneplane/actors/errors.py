"""The kernel's typed errors. Each says what was being done to which actor."""

from __future__ import annotations

from .exits import ExitReason, describe


class ActorError(Exception):
    """Base of everything that the kernel raises on purpose."""


class MailboxFull(ActorError):
    """The letter was refused at once; nothing was kept. Retry later, or shed the load."""

    def __init__(self, path: str, mailbox: str, capacity: int) -> None:
        super().__init__(f"mailbox {mailbox!r} of {path} holds its {capacity} letters")
        self.path = path
        self.mailbox = mailbox


class ActorGone(ActorError):
    """The target is dead, stopping or unknown, or died before it answered. ``reason`` is None when it never lived."""

    def __init__(self, path: str, reason: ExitReason | None) -> None:
        super().__init__(f"{path} is gone ({describe(reason) if reason is not None else 'no such actor'})")
        self.path = path
        self.reason = reason


class AskExpired(ActorError):
    """No reply by the deadline. The work may still be done, unless it had not begun: then it never will."""

    def __init__(self, path: str, message: object, seconds: float) -> None:
        super().__init__(f"{path} did not answer {type(message).__name__} within {seconds:g} s")
        self.path = path


class AskFailed(ActorError):
    """The handler raised; ``__cause__`` and ``error`` are what it raised."""

    def __init__(self, path: str, message: object, error: Exception) -> None:
        super().__init__(f"{path} failed at {type(message).__name__}: {type(error).__name__}: {error}")
        self.path = path
        self.error = error
        self.__cause__ = error


class AskCycle(ActorError):
    """This ask could never be answered: the mailboxes along ``cycle`` each wait for the next one's reply."""

    def __init__(self, cycle: tuple[str, ...]) -> None:
        super().__init__("ask cycle: " + " -> ".join(cycle))
        self.cycle = cycle


class NoHandler(ActorError):
    """A programming error: the actor has no handler for this class of message, or no signal of this name."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} has no handler for {what}")


class StartOverdue(ActorError):
    """``on_start`` did not return within the child's ``start_seconds``."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__(f"{path} was not ready within {seconds:g} s")


class CleanUpOverdue(ActorError):
    """``on_stop`` was cancelled by its deadline."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__(f"the clean-up of {path} took longer than {seconds:g} s")


class StartFailed(ActorError):
    """A dynamic child ended before it was ready; it is not in the pool."""

    def __init__(self, path: str, reason: ExitReason) -> None:
        super().__init__(f"{path} did not start: {describe(reason)}")
        self.path = path
        self.reason = reason


class NameTaken(ActorError):
    """A living child of the pool has this name."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} exists already")


class PoolFull(ActorError):
    """The pool holds as many children as it may."""

    def __init__(self, path: str, capacity: int) -> None:
        super().__init__(f"pool {path} holds its {capacity} children")


class SystemFailed(ActorError):
    """The root supervisor gave up (or broke): the whole tree is down. ``reason`` nests the way it came up."""

    def __init__(self, name: str, reason: ExitReason) -> None:
        super().__init__(f"actor system {name} failed: {describe(reason)}")
        self.reason = reason
