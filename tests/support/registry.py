"""A local image registry over plain HTTP on loopback, as a child process of the test."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import define

READY_SECONDS = 20.0  # measured 0.05 s

CONFIG = """version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {dir}/data}}, delete: {{enabled: true}}}}
http: {{addr: 127.0.0.1:{port}}}
"""


@define(eq=False)
class Registry:
    """``address`` is ``127.0.0.1:PORT`` and survives ``kill`` and ``start``."""

    directory: Path
    address: str
    process: subprocess.Popen[bytes] | None = None

    def push(self, archive: Path, name: str) -> str:
        """Push a docker-archive as ``name`` (such as ``t/busybox:1``); the reference with its digest."""
        digest = self.directory / "digest"
        target = f"docker://{self.address}/{name}"
        command = ["skopeo", "copy", "-q", "--dest-tls-verify=false", "--digestfile", str(digest), f"docker-archive:{archive}", target]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"skopeo copy to {target}: {done.stderr.strip()}"
        return f"{self.address}/{name.rsplit(':', 1)[0]}@{digest.read_text().strip()}"

    def start(self) -> None:
        """Start serving and wait until the port answers."""
        with (self.directory / "registry.log").open("ab") as log:
            command = ["docker-registry", "serve", str(self.directory / "config.yml")]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        host, port = self.address.split(":")
        ends = time.monotonic() + READY_SECONDS
        while time.monotonic() < ends and self.process.poll() is None:
            try:
                socket.create_connection((host, int(port)), 1).close()
                return
            except OSError:
                time.sleep(0.02)  # the registry tells nobody when it is ready
        raise AssertionError(f"docker-registry: no answer; {(self.directory / 'registry.log').read_text()[-500:]}")

    def kill(self) -> None:
        """End it at once; ``start`` brings it back with its images."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None


@contextmanager
def open_registry(tmp: Path) -> Iterator[Registry]:
    """A registry with its data below ``tmp``."""
    directory = Path(tempfile.mkdtemp(prefix="registry-", dir=tmp))
    registry = Registry(directory, f"127.0.0.1:{_free_port()}")
    (directory / "config.yml").write_text(CONFIG.format(dir=directory, port=registry.address.split(":")[1]))
    try:
        registry.start()
        yield registry
    finally:
        registry.kill()
        shutil.rmtree(directory)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
