"""What people type becomes part of an address of the API, and of no other one than it names."""

from __future__ import annotations

import pytest

from tuneplane.app.client import ApiRefused, ClientError, check_url, path_of


@pytest.mark.parametrize(
    ("word", "spelt"),
    [("a/b", "a%2Fb"), ("..", "%2E%2E"), (".", "%2E"), ("a?b#c", "a%3Fb%23c"), ("\udcff", "%FF"), ("cy.x", "cy.x")],
)
def test_word_that_was_typed_names_one_object_and_never_another_address(word: str, spelt: str) -> None:
    assert path_of("users", word) == f"/api/users/{spelt}"


def test_nothing_has_an_empty_id() -> None:
    """Without it the address would be that of the whole list."""
    with pytest.raises(ApiRefused, match="whose id is empty"):
        path_of("fleets", "")


def test_console_address_that_is_none_is_said_in_one_sentence() -> None:
    with pytest.raises(ClientError, match="must look like"):
        check_url("https://[::1")
