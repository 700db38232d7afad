"""State diagrams drawn from the transition tables themselves, so that a page about them cannot lie.

``ops/diagrams`` writes them into the docs, and a test fails when a page is stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum

from .launch_table import ATTEMPT_TABLE, MEMBER_TABLE, AttemptAction, AttemptState, MemberPhase
from .member_table import NODE_MEMBER_TABLE, NodePhase
from .session_table import SESSION_TABLE, SessionState

MARKED = re.compile(r"(<!-- diagram: ([a-z-]+) -->).*?(<!-- end -->)", re.DOTALL)

Arrow = tuple[str, str, str]
"""From, to, label ("" for none)."""


def attempt_diagram() -> str:
    """Mermaid of the attempt table; a label is ``event / action``, events that lead the same way share an arrow."""
    merged: dict[tuple[str, str, str], list[str]] = {}
    for (state, event), (target, action) in ATTEMPT_TABLE.items():
        done = "" if action is AttemptAction.NOTHING else f" / {action.value}"
        merged.setdefault((state.value, target.value, done), []).append(event.value)
    arrows = [(state, target, ", ".join(events) + done) for (state, target, done), events in merged.items()]
    return _mermaid(AttemptState.PENDING.value, arrows, _ends(AttemptState, arrows))


def member_diagram() -> str:
    """Mermaid of what observations may turn a member into, control side. Staying in a phase is left out."""
    arrows = [(phase.value, target.value, "") for phase, targets in MEMBER_TABLE.items() for target in targets if target is not phase]
    return _mermaid(MemberPhase.PENDING.value, arrows, _ends(MemberPhase, arrows))


def node_member_diagram() -> str:
    """Mermaid of the Node's table. Rows that stay in their phase are left out; ``forgotten`` returns to ``absent``."""
    merged: dict[tuple[str, str], list[str]] = {}
    for (phase, event), row in NODE_MEMBER_TABLE.items():
        if row.phase is not phase:
            merged.setdefault((phase.value, row.phase.value), []).append(event.value)
    return _mermaid(NodePhase.ABSENT.value, [(*ends, ", ".join(events)) for ends, events in merged.items()], [])


def session_diagram() -> str:
    """Mermaid of the session table; a label is ``sender: frames``."""
    merged: dict[tuple[str, str, str], list[str]] = {}
    for (state, sender), row in SESSION_TABLE.items():
        for kind, target in row.items():
            merged.setdefault((state.value, target.value, sender.value), []).append(kind.__name__)
    arrows = [(state, target, f"{sender}, {', '.join(frames)}") for (state, target, sender), frames in merged.items()]
    return _mermaid(SessionState.OPENED.value, arrows, _ends(SessionState, arrows))


def _ends(states: Iterable[Enum], arrows: list[Arrow]) -> list[str]:
    """States that nothing leaves."""
    left = {source for source, target, _ in arrows if source != target}
    return [str(state.value) for state in states if state.value not in left]


def _mermaid(start: str, arrows: list[Arrow], ends: list[str]) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {start}"]
    lines += [f"    {source} --> {target}" + (f" : {label}" if label else "") for source, target, label in arrows]
    lines += [f"    {end} --> [*]" for end in ends]
    return "\n".join(lines) + "\n"


DIAGRAMS: dict[str, Callable[[], str]] = {
    "attempt": attempt_diagram,
    "member": member_diagram,
    "node-member": node_member_diagram,
    "session": session_diagram,
}


def with_fresh_diagrams(page: str) -> str:
    """``page`` with each marked diagram drawn again. The marks are ``<!-- diagram: NAME -->`` and ``<!-- end -->``."""
    return MARKED.sub(lambda found: f"{found[1]}\n```mermaid\n{DIAGRAMS[found[2]]()}```\n{found[3]}", page)
