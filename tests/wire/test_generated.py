"""Generated code is what the .proto files say, and the .proto files are clean."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "tuneplane" / "wire" / "pb"
PROTO = ROOT / "schemas" / "proto"
BUF = shutil.which("buf")  # npm's @bufbuild/buf; ops/test installs it


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    """Run ops/generate-proto when this fails."""
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "ops" / "generate-proto", tmp_path], check=True, env=environment, timeout=60)
    fresh = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in GENERATED.iterdir() if path.is_file()}
    assert sorted(kept) == sorted(fresh)
    assert [name for name in fresh if kept[name] != fresh[name]] == []


@pytest.mark.skipif(BUF is None, reason="buf is not on PATH; ops/test installs it through npm")
def test_proto_files_are_clean_to_buf() -> None:
    assert BUF is not None
    checked = subprocess.run([BUF, "lint", str(PROTO)], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
