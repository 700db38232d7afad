"""Fleets as values (R-FLT-01)."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from attrs import Factory, frozen

from .errors import InvalidInput
from .ids import SLUG, FleetId


class FleetKind(str, Enum):
    NODE = "node"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"


class Delivery(str, Enum):
    SHARED_MOUNT = "shared-mount"
    OBJECT_PULL = "object-pull"


class Capability(str, Enum):
    TRAIN = "train"
    EVAL = "eval"
    SERVE = "serve"
    ENV = "env"


class Visibility(str, Enum):
    PUBLIC = "public"
    PROJECT = "project"


class FleetState(str, Enum):
    ACTIVE = "active"
    DRAINING = "draining"
    DISABLED = "disabled"


DEFAULT_DELIVERY = {  # R-FLT-02
    FleetKind.NODE: Delivery.SHARED_MOUNT,
    FleetKind.SLURM: Delivery.SHARED_MOUNT,
    FleetKind.KUBERNETES: Delivery.OBJECT_PULL,
}


@frozen(kw_only=True)
class Fleet:
    """A named set of machines and the back end that runs work on them."""

    id: FleetId
    kind: FleetKind
    delivery: Delivery
    capabilities: tuple[Capability, ...]
    visibility: Visibility = Visibility.PUBLIC
    project: str | None = None
    state: FleetState = FleetState.ACTIVE
    config: dict[str, str] = Factory(dict)
    created_at: datetime


def check_slug(name: str, at: str) -> None:
    """Raise InvalidInput unless ``name`` is a slug."""
    if not SLUG.match(name):
        raise InvalidInput(at, "must be 1 to 63 of a-z, 0-9 and '-', starting and ending with a letter or digit")
