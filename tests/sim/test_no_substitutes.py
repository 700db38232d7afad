"""The simulator runs what production runs: no module of control/ or nodeside/ may know that it is simulated."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tuneplane

from .clock import SimClock
from .stream import Network, installed
from .world import Fate

PACKAGE = Path(tuneplane.__file__).parent
ROOMS = [path for room in ("control", "nodeside", "wire", "domain", "actors") for path in sorted((PACKAGE / room).rglob("*.py"))]
WORDS = ("simulat", "mock", "autojump", "tests.", "pytest", "twin", "fake")
ALLOWED = {  # a word in prose that explains a port
    ("nodeside/runner.py", "simulat"),
    ("nodeside/runner.py", "mock"),
    ("domain/node_ports.py", "simulat"),
    ("domain/ports.py", "simulat"),
    ("domain/ports.py", "twin"),
    ("domain/faultpoint.py", "tests."),
}


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_has_no_branch_or_substitute_for_the_simulator(path: Path) -> None:
    """Docstrings may explain; names, strings and conditions may not ask."""
    name = str(path.relative_to(PACKAGE))
    tree = ast.parse(path.read_text())
    found = {word for node in ast.walk(tree) for word in WORDS if word in _said(node).lower()}
    assert not {word for word in found if (name, word) not in ALLOWED}


def _said(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.alias):
        return node.name
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_only_stream_and_child_processes_are_replaced_by_name() -> None:
    """Storage, runtime, clock and disk come in through ports. Leaving the block, wire has its bridge again."""
    from tuneplane.bridge.grpc import open_call, serve_calls
    from tuneplane.wire import relay
    from tuneplane.wire.link import gateway, node

    with installed(Network(Fate(0), SimClock())):
        assert gateway.serve_calls is not serve_calls
    assert (gateway.serve_calls, relay.serve_calls, node.open_call) == (serve_calls, serve_calls, open_call)
