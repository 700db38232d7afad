"""TLS identities: self-signed certificates, and their private keys as PostgreSQL keeps them (R-TLS-01).

Needs ``cryptography``, which only the server extra installs: nothing that a Node imports may import this module.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.x509.oid import NameOID

KEY_VERSION = 1  # AES-256-GCM: 12 bytes of nonce, then ciphertext and tag; version and key id are authenticated
NONCE_BYTES = 12
ENCRYPTION_KEY_BYTES = 32
MAX_COMMON_NAME = 64  # X.520


class KeyUndecipherable(Exception):
    """The ciphertext is not what this key made under this version and key id. Never a reason to make a new one (R-TLS-03)."""


def generate_identity(hosts: Sequence[str], days: int = 3650, *, now: datetime | None = None) -> tuple[str, str]:
    """A new EC P-256 key and its self-signed certificate for ``hosts`` (names and IPs, v4 and v6), both as PEM.

    Valid from five minutes ago, so that a small skew between machines does not matter. Raises ValueError without hosts.
    """
    if not hosts:
        raise ValueError("a certificate needs at least one host name or IP address")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:MAX_COMMON_NAME])])
    start = (now or datetime.now(UTC)) - timedelta(minutes=5)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), key_pem.decode()


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
    except ValueError:
        return x509.DNSName(host)


def encrypt_key(key_pem: str, encryption_key: bytes, key_id: str) -> bytes:
    """``key_pem`` under ``encryption_key`` (32 bytes). ``key_id`` names that key and must be given again to decrypt."""
    cipher = AESGCM(_checked(encryption_key))
    nonce = os.urandom(NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, key_pem.encode(), _associated(KEY_VERSION, key_id))


def decrypt_key(ciphertext: bytes, encryption_key: bytes, *, version: int, key_id: str) -> str:
    """The private key as PEM. Raises KeyUndecipherable."""
    if version != KEY_VERSION:
        raise KeyUndecipherable(f"the key was encrypted in version {version}; this program knows version {KEY_VERSION}")
    cipher = AESGCM(_checked(encryption_key))
    try:
        return cipher.decrypt(ciphertext[:NONCE_BYTES], ciphertext[NONCE_BYTES:], _associated(version, key_id)).decode()
    except (InvalidTag, ValueError) as error:
        raise KeyUndecipherable(f"the key encrypted under {key_id!r} cannot be decrypted with the given secret") from error


def _checked(encryption_key: bytes) -> bytes:
    if len(encryption_key) != ENCRYPTION_KEY_BYTES:
        raise ValueError(f"the encryption key must have {ENCRYPTION_KEY_BYTES} bytes, not {len(encryption_key)}")
    return encryption_key


def _associated(version: int, key_id: str) -> bytes:
    return f"tuneplane identity v{version} {key_id}".encode()
