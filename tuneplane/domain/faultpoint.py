"""Named fault points: every durable write and every external effect passes one.

Production has no hook, so a pass costs one ``None`` check. The fault tests install a hook that kills the process
before or after the step, or lets the step happen and then loses its answer. ``FAULT_POINTS`` is the generated test's
list: a name that is used and not listed, or listed and never reached, fails the build (house.md, "Proof").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

FaultHook = Callable[[str, str], None]
"""``hook(name, moment)`` with moment ``before`` or ``after``; it may kill the process or raise :class:`AnswerLost`."""


class AnswerLost(OSError):
    """Raised by a fault hook after the step took place: the caller cannot know whether it did."""


# name -> the process that passes it and what is made durable or done there
FAULT_POINTS: dict[str, str] = {}

_hook: FaultHook | None = None


def install_fault_hook(hook: FaultHook | None) -> None:
    """Install (or with ``None`` remove) the process-wide hook. Only app/ and tests call this."""
    global _hook
    _hook = hook


@contextmanager
def fault_point(name: str) -> Iterator[None]:
    """Bracket one durable write or external effect. An exception inside the block skips the ``after`` moment."""
    if _hook is None:
        yield
        return
    _hook(name, "before")
    yield
    _hook(name, "after")
