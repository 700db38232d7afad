"""The simulator runs what production runs: no module of control/ or nodeside/ may know that it is simulated."""

from __future__ import annotations

import ast
import re
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
    assert not {word for word in _traces(path.read_text()) if (name, word) not in ALLOWED}


@pytest.mark.parametrize(
    "code",
    [
        "if simulated: pass",
        "from tests.sim import clock",
        "import tests.sim.clock",
        "def run(simulator=None): ...",
        "run(simulator=None)",
        "class FakeEngine: ...",
        "if isinstance(clock, MockClock): pass",
        "if 'pytest' in sys.modules: pass",
        "SIM = os.environ.get('TUNEPLANE_SIM')",
        "storage = storage.twin",
        "async def autojump(): ...",
    ],
)
def test_check_finds_each_way_of_knowing(code: str) -> None:
    """A guard that cannot fail guards nothing."""
    assert _traces(code)


def test_check_lets_similar_words_pass() -> None:
    assert not _traces("similar = simple.sim2(simplex='a simple contest')")


def _traces(code: str) -> set[str]:
    """What in ``code`` tells of the simulator: words of WORDS, and ``sim`` as a word of its own."""
    said = {text.lower() for node in ast.walk(ast.parse(code)) for text in _said(node)}
    found = {word for text in said for word in WORDS if word in text}
    return found | {"sim" for text in said if re.search(r"(?<![a-z0-9])sim(?![a-z0-9])", text)}


def _said(node: ast.AST) -> tuple[str, ...]:
    """Every name and text of this node itself."""
    if isinstance(node, ast.ImportFrom):
        return (f"{node.module}.",)
    fields = (getattr(node, name, None) for name in ("id", "attr", "name", "arg", "asname", "value", "kind"))
    return tuple(text for text in fields if isinstance(text, str))


def test_only_stream_and_child_processes_are_replaced_by_name() -> None:
    """Storage, runtime, clock and disk come in through ports. Leaving the block, wire has its bridge again."""
    from tuneplane.bridge.grpc import open_call, serve_calls
    from tuneplane.wire import relay
    from tuneplane.wire.link import gateway, node

    with installed(Network(Fate(0), SimClock())):
        assert gateway.serve_calls is not serve_calls
    assert (gateway.serve_calls, node.open_call) == (serve_calls, open_call)
    assert (relay.serve_calls, relay.open_call) == (serve_calls, open_call)
