"""What an operator has told this Node, as one value. The composition root reads the environment and fills it in."""

from __future__ import annotations

from pathlib import Path

from attrs import field, frozen

from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.timings import PRODUCTION, Timings


@frozen(kw_only=True)
class NodeConfig:
    """``None`` and "" mean *not declared*. ``budgets`` with ``None`` amounts make the Node not ready (R-ENR-09)."""

    state_dir: Path
    budgets: Budgets = Budgets()
    storage_root: str = ""
    runtime: str = ""  # "docker", "podman", or "" = whichever is there
    runtime_socket: Path | None = None
    insecure_registries: frozenset[str] = frozenset()
    address: str = ""  # overrides the enrolled one (R-ENR-13)
    gateway: str = ""  # HOST:PORT; overrides what enrolment saved (R-TLS-04)
    trust_pem: str | None = field(default=None, repr=False)  # overrides it too
    timings: Timings = PRODUCTION


def prepare_state_dir(config: NodeConfig) -> None:
    """Make the state directory, private to this user (R-ENR-04). InvalidInput when it may not be where it is."""
    state_dir = config.state_dir
    if not state_dir.is_absolute():
        raise InvalidInput("TUNEPLANE_NODE_STATE_DIR", "must be an absolute path")
    if config.storage_root and state_dir.resolve().is_relative_to(Path(config.storage_root).resolve()):
        raise InvalidInput("TUNEPLANE_NODE_STATE_DIR", "must not lie below TUNEPLANE_STORAGE_ROOT: it is private to this machine")
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        state_dir.chmod(0o700)
    except OSError as error:
        raise InvalidInput("TUNEPLANE_NODE_STATE_DIR", f"cannot be used: {error}") from error
