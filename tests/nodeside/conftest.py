"""One registry and one Podman for all tests of this room; every test has its own Node, journal and labels."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.images import busybox_image
from tests.support.podman import Podman, open_podman
from tests.support.registry import Registry, open_registry


@pytest.fixture(scope="session")
def short_tmp() -> Iterator[Path]:
    """A directory with a short name: the path of a Unix socket ends at 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tpn-") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def registry(short_tmp: Path) -> Iterator[Registry]:
    with open_registry(short_tmp) as opened:
        yield opened


@pytest.fixture(scope="session")
def podman(short_tmp: Path) -> Iterator[Podman]:
    with open_podman(short_tmp) as opened:
        yield opened


@pytest.fixture(scope="session")
def image(registry: Registry) -> str:
    """The busybox image, in the registry only: the first pull is a real one."""
    return busybox_image(registry)
