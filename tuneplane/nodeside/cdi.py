"""Which NVIDIA devices the machine's CDI specifications offer to containers, by name (R-ENR-12, L-D2)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

CDI_DIRECTORIES = (Path("/etc/cdi"), Path("/run/cdi"), Path("/var/run/cdi"))
KIND = "nvidia.com/gpu"
MOST_FILES = 64  # a vendor has one, some have two
MOST_BYTES = 1 << 22  # of one: eight cards cut into seven instances each are some hundred kilobytes
# "- name: GPU-…" or "name": "GPU-…". What else of a specification has a name is taken too, and hurts nobody
NAME = re.compile(r"\"?name\"?\s*:\s*[\"']?([A-Za-z0-9][A-Za-z0-9_.:-]{0,159})")


def read_cdi(directories: Iterable[Path] = CDI_DIRECTORIES) -> frozenset[str]:
    """The names; empty when no specification of this kind is there, or may be read."""
    files = [path for directory in directories if directory.is_dir() for path in sorted(directory.iterdir())]
    texts = [_read(path) for path in files[:MOST_FILES] if path.suffix in (".yaml", ".yml", ".json")]
    return frozenset(name for text in texts if KIND in text for name in NAME.findall(text))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
