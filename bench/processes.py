"""Child processes of the session and gateway benchmarks: started, asked, measured from /proc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, frozen

from tuneplane.wire.identity import generate_identity


@frozen
class Certificate:
    certificate: Path
    key: Path


@contextmanager
def make_certificate() -> Iterator[Certificate]:
    certificate, key = generate_identity(["127.0.0.1"])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tls.crt").write_text(certificate)
        (Path(folder) / "tls.key").write_text(key)
        yield Certificate(Path(folder) / "tls.crt", Path(folder) / "tls.key")


@define
class Child:
    """A ``python -m`` child that speaks one JSON object a line."""

    process: subprocess.Popen[str]

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_kib(self) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


@contextmanager
def start(module: str, *arguments: object) -> Iterator[Child]:
    """The child lives as long as the block; its input then ends, and it has 15 s to leave."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Child(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(15)
        finally:
            process.kill()
