"""Whatever a Node says of its progress, the gateway reads it: a frame that it refuses ends the session, each time again."""

from __future__ import annotations

import ast
from pathlib import Path

import tuneplane.nodeside
from tuneplane.wire.fields import code

NODESIDE = Path(tuneplane.nodeside.__file__).parent


def test_every_phase_of_progress_is_a_code_that_crosses_the_wire() -> None:
    """L-E9: a stop that waits for its confirmation was told in prose, and cost the Node its session."""
    phases = [
        keyword.value.value
        for path in NODESIDE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Progress"
        for keyword in node.keywords
        if keyword.arg == "phase" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str)
    ]
    assert "stop-unconfirmed" in phases
    for phase in phases:
        assert code(phase, "progress.phase") == phase
