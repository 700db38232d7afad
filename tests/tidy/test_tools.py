"""ruff, flake8-async and mypy --strict, run as tests: one command checks all."""

from __future__ import annotations

import subprocess
import sys

from .source import ROOT

TOOL_SECONDS = 300  # mypy without a cache on two busy cores
# ASYNC109: deadlines that travel in envelopes are parameters on purpose (contract of the kernel).
# ASYNC114, ASYNC128: they cannot see through our helpers that hand task_status on; the tests of readiness do.
# ASYNC127: the house chose httpx, with the reason in house.md.
# ASYNC124: handlers, ports and test doubles are async because their callers await them, whatever is in them.
FLAKE8_IGNORED = "ASYNC109,ASYNC114,ASYNC124,ASYNC127,ASYNC128"
# bridge: asyncio-side coroutines, whose exits are bounded by the Trio scope around them, not by an asyncio one.
FLAKE8_PER_FILE = "tuneplane/bridge/*:ASYNC102,ASYNC123"


def _run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=TOOL_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_is_clean() -> None:
    _run("ruff", "check", "--no-cache", "tuneplane", "tests", "bench", "ops", "examples")


def test_flake8_async_is_clean() -> None:
    """The product and its benchmarks; tests do on purpose what it warns of, and ruff's own port of the rules reads them."""
    rules = (
        "--isolated",
        "--select=ASYNC1,ASYNC2,ASYNC3",
        f"--ignore={FLAKE8_IGNORED}",
        f"--per-file-ignores={FLAKE8_PER_FILE}",
        "--exclude=tuneplane/wire/pb",
    )
    _run("flake8", *rules, "tuneplane", "bench", "ops")


def test_mypy_strict_is_clean() -> None:
    _run("mypy")
