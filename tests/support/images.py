"""Container images made of nothing but this machine's static busybox: docker-archives that both engines load."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from functools import cache
from pathlib import Path

from .registry import Registry

BUSYBOX = Path("/bin/busybox")


def image_archive(target: Path, tag: str, layer: bytes, command: list[str], labels: dict[str, str] | None = None) -> Path:
    """Write a docker-archive with one ``layer`` (a tar) to ``target``; the same input gives the same digest."""
    layer_digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": command, "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], **({"Labels": labels} if labels else {})},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
            "history": [{"created": "1970-01-01T00:00:00Z"}],
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [tag], "Layers": [f"{layer_digest}.tar"]}]).encode()
    with tarfile.open(target, "w") as archive:
        for name, data in ((config_name, config), (f"{layer_digest}.tar", layer), ("manifest.json", manifest)):
            _add_file(archive, name, data, 0o644)
    return target


def busybox_layer(extra: dict[str, bytes] | None = None) -> bytes:
    """A root file system: busybox, its applets, empty mount points, and ``extra`` files (executable)."""
    applets = subprocess.run([str(BUSYBOX), "--list"], capture_output=True, text=True, check=True).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for directory in ("bin", "dev", "etc", "proc", "sys", "tmp", "run", "tuneplane"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
            layer.addfile(entry)
        _add_file(layer, "bin/busybox", BUSYBOX.read_bytes(), 0o755)
        _add_file(layer, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n", 0o644)
        for applet in sorted(set(applets) - {"busybox"}):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
        for name, data in (extra or {}).items():
            _add_file(layer, name, data, 0o755)
    return buffer.getvalue()


@cache
def busybox_archive() -> Path:
    """The busybox image as a docker-archive, made once a session (its directory goes with the process)."""
    return image_archive(Path(_scratch().name) / "busybox.tar", "localhost/busybox:1", busybox_layer(), ["sh"])


@cache
def busybox_image(registry: Registry) -> str:
    """Push the busybox image to ``registry`` (once); its reference with digest."""
    return registry.push(busybox_archive(), "t/busybox:1")


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tuneplane-images-", ignore_cleanup_errors=True)


def _add_file(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
