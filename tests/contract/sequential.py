"""The twin as a sequential object, and results as they are compared: for ``linearizer``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from attrs import asdict, define, evolve

from tests.contract.storage_world import START
from tests.sim.twin import Twin
from tests.sim.twin.base import TriggerRefused
from tuneplane.bridge.postgres import ConstraintViolated
from tuneplane.domain.errors import StorageUnavailable, TuneplaneError
from tuneplane.domain.ports import Storage

Act = Callable[[Storage], Awaitable[object]]


@define(eq=False)
class TwinModel:
    """The twin as a sequential object. The timeline is no state of anybody's answer, and its order is the order of commits."""

    twin: Twin

    def keep(self) -> object:
        backup = self.twin.book.backup()
        backup.pop("timeline")
        return backup

    def restore(self, kept: Any) -> None:
        self.twin.book.restore(kept)


class Still:
    """The weather of a model: nothing happens on the way, not even a turn of the scheduler."""

    async def arrive(self, name: str) -> None: ...

    async def depart(self, name: str) -> None: ...

    def loses_poke(self) -> bool:
        return False


def at_once(act: Awaitable[object]) -> object:
    """The result of a coroutine that never waits."""
    assert isinstance(act, Coroutine)
    try:
        act.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the model waits")


# ---------------------------------------------------------------- results, as they are compared


def plain(result: object) -> Hashable:
    """What a caller can tell of a result. Times that the database's own clock decides are left out."""
    if isinstance(result, (list, tuple)):
        return tuple(plain(one) for one in result)
    if isinstance(result, dict):
        return tuple(sorted((str(key), plain(value)) for key, value in result.items()))
    if hasattr(result, "__attrs_attrs__"):
        return plain({key: value for key, value in asdict(result, recurse=False).items() if key not in ("node_silent_since", "since")})  # type: ignore[arg-type]
    if isinstance(result, Enum):
        return str(result.value)
    return result if isinstance(result, (int, float, bytes, datetime, type(None))) else str(result)


async def said(act: Act, storage: Storage) -> Hashable:
    """The result, or the refusal, which is one."""
    try:
        return plain(await act(storage))
    except StorageUnavailable:
        raise
    except TuneplaneError as error:
        return ("refused", type(error).__name__, error.code)
    except (ConstraintViolated, TriggerRefused):
        return ("refused", "by the database", "")


@contextmanager
def skipping(twin: Twin, result: Any) -> Iterator[None]:
    """While a claim whose caller got ``result`` is made, attempts that it left out are not there: others had locked them."""
    attempts = twin.book.attempts.rows
    hidden = {} if result is None else {key: row for key, row in attempts.items() if str(key) not in str(result)}
    for key, row in hidden.items():
        attempts[key] = evolve(row, claim_until=START + timedelta(days=1))
    yield
    attempts.update(hidden)
