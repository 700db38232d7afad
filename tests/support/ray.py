"""The real Ray, of one exact version from the package index, as a container image and as a directory to run it from."""

from __future__ import annotations

import fcntl
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from ops.demo.image import demo_image

from .podman import Podman

VERSION = "2.60.0"
NAME = f"localhost/ray:{VERSION}"
UNUSED = "/ray/(rllib|data|serve|tune|train|llm|workflow)/"  # two thirds of Ray's Python, which no test here imports
CACHE = Path(tempfile.gettempdir()) / "tuneplane-test-ray"  # shared by runs and checkouts: it is made of nothing but its inputs


@cache
def ray_archive() -> Path:
    """A docker-archive with Python and Ray; built once a machine (20 s), by whichever run comes first."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return demo_image(CACHE, [], lambda _: None, (f"ray=={VERSION}",), compile_but=UNUSED)


def load_ray(podman: Podman) -> str:
    """Bring the image into ``podman`` without a registry; its reference with digest."""
    digest = podman.directory / "ray-digest"
    storage = f"overlay@{podman.directory}/root+{podman.directory}/run"
    target = f"containers-storage:[{storage}]{NAME}"
    command = ["skopeo", "copy", "-q", "--digestfile", str(digest), f"docker-archive:{ray_archive()}", target]
    done = subprocess.run(command, env=podman.env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"skopeo copy to {target}: {done.stderr.strip()}"
    return f"localhost/ray@{digest.read_text().strip()}"
