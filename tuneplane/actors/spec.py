"""Child specifications: a supervision tree as validated data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Union

from attrs import field, frozen, validators

from .actor import Actor
from .restart import Backoff, Budget, Restart, Strategy

POOL_CAPACITY = 16_384  # children: every session a gateway can hold (10,000 Nodes) and half as many again
NAME = r"[A-Za-z0-9][A-Za-z0-9._:@-]*\Z"  # a path is names joined by slashes


@frozen(kw_only=True)
class ChildSpec:
    """How to start, stop and restart one actor. ``factory`` makes a fresh one for every incarnation."""

    name: str = field(validator=validators.matches_re(NAME))
    factory: Callable[[], Actor]
    restart: Restart = Restart.PERMANENT
    start_seconds: float = field(default=10.0, validator=validators.gt(0))  # for on_start
    stop_seconds: float = field(default=5.0, validator=validators.ge(0))  # the grace between being asked and being cancelled
    cleanup_seconds: float = field(default=2.0, validator=validators.gt(0))  # for on_stop


@frozen(kw_only=True)
class SupervisorSpec:
    """A supervisor and its children in the order of their start. ``restart`` is what its own supervisor does with it."""

    name: str = field(validator=validators.matches_re(NAME))
    children: tuple[AnySpec, ...] = field(default=())
    strategy: Strategy = Strategy.ONE_FOR_ONE
    restart: Restart = Restart.PERMANENT
    budget: Budget = Budget()
    backoff: Backoff = Backoff()
    capacity: int = field(default=POOL_CAPACITY, validator=validators.gt(0))  # children at once, started ones included

    @children.validator
    def _names_differ(self, _: object, children: tuple[AnySpec, ...]) -> None:
        names = [child.name for child in children]
        if len(set(names)) < len(names):
            raise ValueError(f"children of {self.name} share a name: {names}")


AnySpec = Union[ChildSpec, SupervisorSpec]
