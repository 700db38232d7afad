"""R-CRD-05: no secret of ours reaches a log, however it got into the event."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tuneplane.app.logs import redact, redact_event
from tuneplane.domain.secrets import SecretKind, spell_secret

SECRETS = [spell_secret(kind, bytes(range(32))) for kind in SecretKind]

SCRIPT = """
import logging, structlog
from tuneplane.app.logs import install_logging
install_logging("worker")
secret = {secret!r}
structlog.get_logger("a").info("asked", header="Bearer " + secret, nested={{"list": [secret, (secret,)]}}, object=ValueError(secret))
logging.getLogger("library").warning("token %s", secret)
try:
    raise RuntimeError("while using " + secret)
except RuntimeError:
    logging.getLogger("library").exception("failed")
"""


@pytest.mark.parametrize("secret", SECRETS)
def test_redact_secret_inside_text_is_replaced(secret: str) -> None:
    assert redact(f"Authorization: Bearer {secret}, and more") == "Authorization: Bearer [secret], and more"


def test_redact_plain_words_are_kept() -> None:
    assert redact("tpu_short stays, so does http_tpu and job-abc") == "tpu_short stays, so does http_tpu and job-abc"


def test_redact_event_reaches_nested_values() -> None:
    event = redact_event(None, "info", {"a": {"b": [SECRETS[0]]}, SECRETS[1]: 1, "n": 3, "none": None})
    assert SECRETS[0] not in json.dumps(event)
    assert event["n"] == 3


def test_installed_logging_writes_redacted_json_lines_for_both_libraries() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(secret=SECRETS[2])], capture_output=True, text=True, timeout=30, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["asked", "token [secret]", "failed"]
    assert {line["process"] for line in lines} == {"worker"}
    assert "RuntimeError" in lines[2]["exception"]
    assert SECRETS[2] not in done.stderr


def test_password_of_a_database_address_is_hidden() -> None:
    """Libraries quote the address they could not reach."""
    shown = redact("cannot connect to postgresql://tuneplane:hunter2@db.example:5432/tuneplane")
    assert "hunter2" not in shown
    assert "db.example:5432" in shown
