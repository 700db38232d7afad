"""Rules of the house that a reader would otherwise have to remember, each with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuneplane.domain.faultpoint import FAULT_POINTS

from .source import GENERATED, PACKAGE, ROOT, modules, room, tracked_files, tree

MOST_LINES = 500
TEXT = {".py", ".md", ".toml", ".sql", ".proto", ".html", ".css", ".js", ".yaml", ".yml", ".sh", ".cfg", ""}
PROCESSES = ("api", "gateway", "worker", "node", "control", "app")


def _calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))


def _callee(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""


def _at(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def test_python_files_end_before_five_hundred_lines() -> None:
    """A room that a newcomer cannot read in one sitting wants a second file."""
    files = [path for path in tracked_files() if path.suffix == ".py" and GENERATED not in path.parents]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert not {name: lines for name, lines in lengths.items() if lines > MOST_LINES}


def test_channels_are_bounded() -> None:
    """An unbounded buffer hides a slow consumer until memory ends: name a capacity and its reason."""
    broken = []
    for path in modules():
        for call in _calls(path):
            text = ast.unparse(call)
            if _callee(call) in ("open_memory_channel", "Queue", "SimpleQueue", "LifoQueue", "PriorityQueue"):
                if "inf" in text or not (call.args or call.keywords) or (re.search(r"\((0|maxsize=0)\)$", text) and "channel" not in text):
                    broken.append(f"{_at(path, call)} {text}")
            if _callee(call) == "deque" and path.parent.name in ("actors", "wire") and len(call.args) + len(call.keywords) == 0:
                continue  # a deque is bounded where it is appended to: the mailbox and the lanes test their own limits
    assert not broken


def test_nurseries_are_attributes_only_in_actors_and_app() -> None:
    """A nursery kept on an object is a task without an owner (style, traps): start tasks through Context or a scope."""
    broken = []
    for path in modules():
        if path.parent == PACKAGE or room(path) in ("actors", "app"):
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                broken += [_at(path, field) for field in node.body if isinstance(field, ast.AnnAssign) and "Nursery" in ast.unparse(field)]
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                held = any(isinstance(target, ast.Attribute) for target in targets)
                if held and isinstance(node.value, (ast.Name, ast.Attribute, ast.Await)) and ast.unparse(node.value).endswith("nursery"):
                    broken.append(_at(path, node))
    assert not broken


def test_nothing_asks_quart_for_its_nursery() -> None:
    """quart-trio's app.nursery outlives requests and has no supervisor: start a child of an actor instead."""
    broken = []
    for path in modules():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and (ast.unparse(node).endswith("app.nursery") or node.attr == "add_background_task"):
                broken.append(_at(path, node))
    assert not broken


def test_no_bare_or_base_exception_handler_swallows() -> None:
    """``except:`` and ``except BaseException`` without a raise swallow Cancelled: catch what you mean."""
    broken = []
    for path in modules():
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = "BaseException" if node.type is None else ast.unparse(node.type)
            if caught in ("BaseException", "trio.Cancelled") and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
                broken.append(_at(path, node))
    assert not broken


def _is_fault_point(call: ast.Call) -> bool:
    """``fault_point(NAME)``, or ``partial(fault_point, NAME)``."""
    names = [node.id for node in ast.walk(call) if isinstance(node, ast.Name)]
    return _callee(call) == "fault_point" or (_callee(call) == "partial" and "fault_point" in names)


def _literals(path: Path) -> set[str]:
    return {node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _fault_points_used() -> tuple[dict[str, str], dict[str, set[str]]]:
    """Names given as literals, and where; and for names with a computed end (``f"storage.{name}"``) the possible ends."""
    used: dict[str, str] = {}
    computed: dict[str, set[str]] = {}
    for path in modules():
        for call in _calls(path):
            if not _is_fault_point(call) or path.name == "faultpoint.py":
                continue
            argument = call.args[-1]
            if isinstance(argument, ast.Constant):
                used[str(argument.value)] = _at(path, call)
            elif isinstance(argument, ast.JoinedStr) and isinstance(argument.values[0], ast.Constant):
                near = [other for other in modules() if other.parent != PACKAGE and room(other) in (room(path), "domain")]
                ends = {text for other in near if other.name != "faultpoint.py" for text in _literals(other)}
                computed[str(argument.values[0].value)] = ends
            else:
                assert isinstance(argument, ast.Name), f"{_at(path, call)}: a fault point's name is a literal, so that it can be listed"
                used |= dict.fromkeys(_literals(path) & set(FAULT_POINTS), _at(path, call))
    return used, computed


def test_fault_points_in_code_are_registered() -> None:
    """House, Proof: every durable write and external effect passes a *named* fault point (computed ones are checked as they pass)."""
    missing = {name: where for name, where in _fault_points_used()[0].items() if name not in FAULT_POINTS}
    assert not missing, "add them to domain.faultpoint.FAULT_POINTS"


def test_registered_fault_points_are_in_code() -> None:
    used, computed = _fault_points_used()
    ends = {prefix + end for prefix, found in computed.items() for end in found}
    handed_in = {text for path in modules() if path.name != "faultpoint.py" for text in _literals(path)}
    unused = set(FAULT_POINTS) - set(used) - ends - handed_in
    assert not unused, "registered, and nothing passes them"


@pytest.mark.parametrize("name", sorted(FAULT_POINTS))
def test_fault_point_names_its_process_and_effect(name: str) -> None:
    process, colon, effect = FAULT_POINTS[name].partition(": ")
    assert colon, "write it as 'process: what is made durable or done'"
    assert effect
    assert process in PROCESSES


def test_tree_names_no_path_of_this_checkout() -> None:
    """What works only on the machine where it was written does not work."""
    own = f"{ROOT}/"
    files = [path for path in tracked_files() if path.suffix in TEXT]
    assert not [str(path) for path in files if own in path.read_text(encoding="utf-8", errors="replace")]


def test_packages_say_what_lives_in_them() -> None:
    """Habit 1: a package's docstring lists its long-lived tasks, their owners and queue sizes."""
    bare = [path for path in modules() if path.name == "__init__.py" and not ast.get_docstring(tree(path))]
    assert not bare
