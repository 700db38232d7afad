"""One rig for all cases; each begins with a healthy system."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .rig import Rig, open_rig


@pytest.fixture(scope="session")
def whole_rig() -> Iterator[Rig]:
    with open_rig() as opened:
        yield opened


@pytest.fixture
def rig(whole_rig: Rig) -> Rig:
    whole_rig.heal()
    return whole_rig
