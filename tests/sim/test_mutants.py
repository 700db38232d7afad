"""The simulator finds what is removed from the product: the recorded seed of each mutation still kills it (house, Proof).

The search is ``python -m tests.sim.mutants``; here the recorded seeds run, mutated and not.
"""

from __future__ import annotations

import pytest

from .mutants import ROOT, Stale, mutated_text, mutated_tree, recorded, replay_all
from .mutation import Edit, Mutation
from .mutation_list import MUTATIONS

RULES = {f"P-{number:02}" for number in range(1, 11)}


@pytest.fixture(scope="module")
def problems() -> dict[str, str]:
    """Of all mutations, two at a time: each in a process of its own, on a copy of the tree."""
    return replay_all()


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_found_and_the_product_holds(problems: dict[str, str], name: str) -> None:
    """P-01 to P-10, P-11, R-LCH-02, R-LCH-03, R-LCH-04, R-LCH-06, R-LCH-12."""
    assert not problems[name], problems[name]


def test_each_rule_is_removed_once() -> None:
    assert {mutation.rule for mutation in MUTATIONS.values()} >= RULES


@pytest.mark.parametrize("old", ["no such line", "ABSENT"])
def test_edit_that_does_not_fit_once_is_stale(old: str) -> None:
    edit = Edit("tuneplane/domain/member_table.py", old, "")
    with pytest.raises(Stale, match="not once"):
        mutated_text(Mutation(name="x", rule="P-01", why="", edits=(edit,)))


def test_mutation_is_made_in_a_copy() -> None:
    mutation = MUTATIONS["no-fence"]
    path = mutation.edits[0].path
    before = (ROOT / path).read_text()
    with mutated_tree(mutation) as copy:
        assert (copy / path).read_text() == mutated_text(mutation)[path] != before
    assert (ROOT / path).read_text() == before
    assert not copy.exists()


def test_nothing_is_recorded_of_mutations_that_are_gone() -> None:
    assert set(recorded()) == set(MUTATIONS)
