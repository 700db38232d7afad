"""The docs show the tables that the code runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuneplane.domain.diagrams import DIAGRAMS, MARKED, with_fresh_diagrams
from tuneplane.domain.launch_table import ATTEMPT_TABLE

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_docs_diagrams_are_fresh(page: Path) -> None:
    text = page.read_text()
    assert with_fresh_diagrams(text) == text, f"{page} is stale: run ops/diagrams"


def test_docs_show_every_table() -> None:
    shown = {found[2] for page in DOCS.glob("*.md") for found in MARKED.finditer(page.read_text())}
    assert shown == set(DIAGRAMS)


def test_attempt_diagram_draws_every_row() -> None:
    drawn = DIAGRAMS["attempt"]()
    for (state, event), (target, _) in ATTEMPT_TABLE.items():
        assert any(line.strip().startswith(f"{state.value} --> {target.value} :") and event.value in line for line in drawn.splitlines())
