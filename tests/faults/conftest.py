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
    """A system that one case left beyond healing fails the others at once, not after a minute each."""
    assert not whole_rig.broken, "an earlier case left the system beyond healing"
    whole_rig.broken = True
    whole_rig.heal()
    whole_rig.broken = False
    return whole_rig
