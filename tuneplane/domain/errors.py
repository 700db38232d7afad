"""The errors that cross rooms. Each says what was being done to what; the web room turns them into problem documents."""

from __future__ import annotations

from attrs import frozen


class TuneplaneError(Exception):
    """Base of all errors of ours that a caller may want to catch."""

    code: str = "internal"


class InvalidInput(TuneplaneError):
    """Input from outside broke a rule: names the ``field`` (a dotted path) and the ``rule``. Nothing was changed."""

    code = "invalid-input"

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


@frozen
class Reason:
    """One machine-readable reason: a stable kebab-case ``code``, a sentence, what it is about, and its numbers (L-L1)."""

    code: str
    detail: str
    subject: str = ""  # a Fleet, Node or job id where the reason concerns one
    unit: str = ""  # of ``need`` and ``have``: "cpu_millis", "memory_bytes", "gpus", "ports" or "machines"
    need: int | None = None
    have: int | None = None


class Refused(TuneplaneError):
    """The request is well formed and must not be done (now). ``code`` is stable; ``reasons`` explain."""

    def __init__(
        self, code: str, detail: str, *, field: str = "", reasons: tuple[Reason, ...] = (), retry_after_seconds: float = 0.0
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.field = field
        self.reasons = reasons
        self.retry_after_seconds = retry_after_seconds  # > 0: the same may be granted then


class NotFound(TuneplaneError):
    """No such object, or one that the caller may not see: the two are never told apart (R-FLT-08)."""

    code = "not-found"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"no {kind} named {name!r}")
        self.kind = kind
        self.name = name


class IllegalTransition(TuneplaneError):
    """A transition table has no row for this pair: names machine, state and event."""

    code = "illegal-transition"

    def __init__(self, machine: str, state: str, event: str) -> None:
        super().__init__(f"{machine}: event {event!r} is illegal in state {state!r}")
        self.machine = machine
        self.state = state
        self.event = event


class StorageUnavailable(TuneplaneError):
    """PostgreSQL did not answer. The outcome of a write in flight is unknown: re-read before acting (P-09)."""

    code = "storage-unavailable"


class Fenced(TuneplaneError):
    """The caller's epoch is no longer the current one (P-05, R-SES-02): drop what you were doing."""

    code = "fenced"
