"""The small Trio plugin: an ``async def test_…`` runs under ``trio.run`` with a deadline.

Markers: ``seconds(n)`` replaces the deadline. Fixtures: ``autojump_clock`` runs the test on Trio's mock clock;
``nursery`` is opened around the test and cancelled after it.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import trio
import trio.testing

from tests.support.postgres import blank_database, database, postgres  # noqa: F401  fixtures

DEADLINE_SECONDS = 30.0  # of the real clock: a hung test says so instead of holding CI


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "seconds(n): the test's deadline on the real clock, instead of 30 s")


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


class _Opened:
    """Stands for a nursery until the test's own trio.run opens it."""


@pytest.fixture
def nursery() -> Any:
    return _Opened()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    marker = pyfuncitem.get_closest_marker("seconds")
    deadline = float(marker.args[0]) if marker else DEADLINE_SECONDS
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    clock = arguments.get("autojump_clock")

    async def run() -> None:
        if "nursery" not in arguments:
            await pyfuncitem.obj(**arguments)
            return
        async with trio.open_nursery() as opened:
            await pyfuncitem.obj(**{**arguments, "nursery": opened})
            opened.cancel_scope.cancel()

    async def bounded() -> None:
        with trio.fail_after(deadline if clock is None else 1e9):
            await run()

    try:
        trio.run(bounded, clock=clock, strict_exception_groups=True)
    except BaseExceptionGroup as group:  # a nursery of the test's own wraps its failure: show the one inside
        leaf: BaseException = group
        while isinstance(leaf, BaseExceptionGroup) and len(leaf.exceptions) == 1:
            leaf = leaf.exceptions[0]
        raise leaf from (None if leaf is group else group)
    return True
