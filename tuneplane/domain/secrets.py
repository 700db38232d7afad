"""How our bearer secrets look and how they are stored: a prefix that makes a leak recognisable, and only a hash."""

from __future__ import annotations

import base64
import hashlib
from enum import Enum

SECRET_ENTROPY_BYTES = 32  # 256 bits: a plain hash of it needs no salt and no stretching


class SecretKind(str, Enum):
    """The value is the prefix (interfaces.md, "HTTP API conventions")."""

    API_TOKEN = "tpu"  # noqa: S105 - a public prefix
    JOIN_TOKEN = "tpj"  # noqa: S105 - a public prefix
    NODE_CREDENTIAL = "tpn"
    ATTEMPT_READ = "tpa"


def spell_secret(kind: SecretKind, entropy: bytes) -> str:
    """``tpu_…``: the prefix and 256 bits of the caller's randomness, safe in URLs, shells and headers."""
    if len(entropy) < SECRET_ENTROPY_BYTES:
        raise ValueError(f"a secret needs {SECRET_ENTROPY_BYTES} bytes of entropy, got {len(entropy)}")
    return f"{kind.value}_{base64.urlsafe_b64encode(entropy[:SECRET_ENTROPY_BYTES]).decode('ascii').rstrip('=')}"


def secret_hash(secret: str) -> str:
    """What is stored and looked up: the lower-case hex SHA-256 of the secret as UTF-8."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
