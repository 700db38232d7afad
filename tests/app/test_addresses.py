"""What people type becomes part of an address of the API, and of no other one than it names; or is refused in a sentence."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tuneplane.app.cli import main
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


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("metadata: {labels: {day: 2026-01-01}}", "put it in quotes"),
        ("spec: {priority: .nan}", "put it in quotes"),
        ("[" * 100_000, "neither YAML nor JSON"),
        ("a: [", "neither YAML nor JSON"),
    ],
)
def test_spec_that_cannot_be_sent_is_wrong_usage(spec: str, told: str) -> None:
    done = CliRunner().invoke(main, ["submit", "-"], input=spec)
    assert (done.exit_code, told in done.stderr) == (2, True)


def test_word_of_a_followed_log_that_is_no_text_is_refused() -> None:
    environment = {"TUNEPLANE_URL": "https://127.0.0.1:1", "TUNEPLANE_TOKEN": "tpu_x", "TUNEPLANE_CREDENTIALS": "/nowhere"}
    done = CliRunner().invoke(main, ["logs", "-f", "job-1", "--member", "\udcff"], env=environment)
    assert (done.exit_code, "cannot be sent" in done.stderr) == (2, True)
