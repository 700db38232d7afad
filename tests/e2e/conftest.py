"""One whole system of separate processes for all tests here that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.system import WholeSystem, open_system_of_processes


@pytest.fixture(scope="session")
def system() -> Iterator[WholeSystem]:
    """api, gateway, worker, node and PostgreSQL, all up; a test that kills one of them brings it up again."""
    with open_system_of_processes() as opened:
        yield opened
