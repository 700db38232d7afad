"""``./ops/up --demo``, whole: the image built from this machine's Python, a real training run, a stop, and nothing left."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e]

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 400


def _left_behind() -> set[str]:
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if "tuneplane-demo" in line]
    return {*mounts, *(path.name for path in Path(tempfile.gettempdir()).glob("tuneplane-demo-*"))}


def test_demo_succeeds_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = _left_behind()
    done = subprocess.run(
        [ROOT / "ops" / "up", "--demo", "--data-dir", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "TUNEPLANE_PUBLIC_URL": "https://not-for-the-demo.example"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[-1] == "demo: succeeded"
    assert sum('"event": "epoch"' in line for line in lines) == 20
    assert _left_behind() <= before


def test_demo_without_root_says_so_in_one_sentence() -> None:
    command = [ROOT / "ops" / "up", "--demo"]
    done = subprocess.run(command, user="nobody", cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "run ./ops/up --demo as root" in done.stderr
