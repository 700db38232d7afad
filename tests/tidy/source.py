"""The product's source as the tidy tests read it: files, their rooms, and what they import."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tuneplane"
GENERATED = PACKAGE / "wire" / "pb"


@frozen
class Import:
    """``module`` (absolute, with the imported name appended: it may itself be a module) at ``path:line``."""

    path: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.module}"


@cache
def modules(*, generated: bool = False) -> tuple[Path, ...]:
    """All modules of the product."""
    found = sorted(PACKAGE.rglob("*.py"))
    return tuple(path for path in found if generated or GENERATED not in path.parents)


def room(path: Path) -> str:
    """``control`` for ``tuneplane/control/…``."""
    return path.relative_to(PACKAGE).parts[0]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> Iterator[Import]:
    """Every import of ``path``, relative ones made absolute, ``TYPE_CHECKING`` ones included: an arrow is an arrow."""
    package = ["tuneplane", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(path, node.lineno, f"{module}.{alias.name}")


def under(module: str, *names: str) -> bool:
    """Whether ``module`` is one of ``names`` or lies below it."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


@cache
def tracked_files() -> tuple[Path, ...]:
    """All files that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(path for name in listing.split("\0") if name and (path := ROOT / name).is_file())
