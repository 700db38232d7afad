"""ruff, flake8-async and mypy --strict, run as tests: one command checks all."""

from __future__ import annotations

import subprocess
import sys

from .source import ROOT

TOOL_SECONDS = 300  # mypy without a cache on two busy cores
# ASYNC109: deadlines that travel in envelopes are parameters on purpose (contract of the kernel).
# ASYNC251: a blocking sleep is a bug in async code and the only way in the synchronous client and test helpers; ruff checks it too.
FLAKE8_IGNORED = "ASYNC109"


def _run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=TOOL_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_is_clean() -> None:
    _run("ruff", "check", "--no-cache", "tuneplane", "tests", "bench", "ops", "examples")


def test_flake8_async_is_clean() -> None:
    rules = ("--isolated", "--select=ASYNC", f"--ignore={FLAKE8_IGNORED}", "--exclude=tuneplane/wire/pb")
    _run("flake8", *rules, "tuneplane", "tests", "bench")


def test_mypy_strict_is_clean() -> None:
    _run("mypy")
