"""Who this Node is: one file, 0600, written whole or not at all (R-ENR-04)."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from attrs import field, frozen

from tuneplane.domain import codec
from tuneplane.domain.errors import InvalidInput, NotFound
from tuneplane.domain.ids import FleetId, NodeId

from .files import write_durably

FILE_NAME = "identity.json"
VERSION = 1


@frozen(kw_only=True)
class Identity:
    """What enrolment saved. ``gateway_trust_pem`` "" means the system's roots."""

    version: int = VERSION
    node: NodeId
    fleet: FleetId
    server: str
    address: str
    credential: str = field(repr=False)
    credential_expires_at: datetime
    gateway_target: str
    gateway_trust_pem: str = field(default="", repr=False)


def load_identity(state_dir: Path) -> Identity:
    """NotFound when this machine is not enrolled; InvalidInput for a file that is not ours."""
    path = state_dir / FILE_NAME
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFound("enrolment in", str(state_dir)) from None
    except ValueError as error:
        raise InvalidInput(str(path), f"is not readable: {error}") from None
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise InvalidInput(str(path), f"has a version that this Node does not know (it knows {VERSION})")
    return codec.decode(Identity, data, str(path))


def save_identity(state_dir: Path, identity: Identity) -> None:
    """Durable when it returns. OSError leaves the old one in place (L-A7)."""
    write_durably(state_dir / FILE_NAME, json.dumps(codec.encode(identity), indent=1).encode(), point="node.identity.write")


def is_enrolled(state_dir: Path) -> bool:
    return (state_dir / FILE_NAME).exists()
