"""Fleets as values (R-FLT-01)."""

from __future__ import annotations

import re
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

FLEET_CONFIG_KEYS = frozenset(
    {  # the keys that a setting reads (R-FLT-10); others are kept and warned about (R-FLT-03)
        "slurm_rest_url",
        "slurm_partition",
        "slurm_user",
        "kubernetes_api_url",
        "kubernetes_namespace",
        "kuberay_namespace",
        "storage_root",
        "serving_port_range",
        "gang_deadline_seconds",
    }
)


SECONDS = re.compile(r"^[0-9]{1,6}(\.[0-9]{1,6})?\Z")  # float() reads '1_0' and ' 600 ' too, which say no number to people
MOST_GANG_DEADLINE_SECONDS = 86400.0  # reservations are held as long, and nobody else gets the machines meanwhile


def gang_deadline(config: dict[str, str]) -> float | None:
    """``gang_deadline_seconds`` of a Fleet: how long the members of a gang wait for one another. None: not (well) said."""
    text = config.get("gang_deadline_seconds", "")
    seconds = float(text) if SECONDS.match(text) else 0.0
    return seconds if 1 <= seconds <= MOST_GANG_DEADLINE_SECONDS else None


def check_fleet_config(config: dict[str, str]) -> None:
    """Raise InvalidInput for a key whose value its setting could not read."""
    if "gang_deadline_seconds" in config and gang_deadline(config) is None:
        raise InvalidInput("config.gang_deadline_seconds", f"must be a number of seconds from 1 to {MOST_GANG_DEADLINE_SECONDS:.0f}")


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


def config_warnings(config: dict[str, str]) -> tuple[str, ...]:
    """One sentence a ``config`` key that no setting reads (R-FLT-03)."""
    return tuple(f"config key {key!r} is read by no setting; is it misspelled?" for key in sorted(set(config) - FLEET_CONFIG_KEYS))
