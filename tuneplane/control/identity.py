"""The TLS identities of the control plane: made once, kept in PostgreSQL, cached in files, never silently replaced.

Two of them: ``gateway``, which Nodes verify (R-TLS-01), and ``internal``, which every process of the control plane presents
to the others and trusts alone (P-23). All replicas end with the identity that was published first (R-TLS-02). Whatever does
not fit together stops the start-up with a sentence (R-TLS-03): a wrong key never leads to a new identity.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path

import trio
from attrs import frozen

from tuneplane.domain.errors import TuneplaneError
from tuneplane.domain.jobs import EncryptedIdentity
from tuneplane.domain.small_ports import IdentityStore
from tuneplane.wire.certificates import key_matches, read_certificate
from tuneplane.wire.identity import KEY_VERSION, KeyUndecipherable, decrypt_key, encrypt_key, generate_identity
from tuneplane.wire.relay import RELAY_NAME

from .identity_cache import CACHED_CERTIFICATE, CACHED_KEY, IncompleteCache, Pair, current_directory, read_cache, write_cache

GATEWAY = "gateway"
INTERNAL = "internal"
ENC_KEY_VARIABLE = "TUNEPLANE_SECRET_ENC_KEY"


class IdentityRefused(TuneplaneError):
    """A TLS identity cannot be used; the sentence says which, and what does not fit. Nothing was changed."""

    code = "tls-identity"


@frozen(kw_only=True)
class TlsIdentity:
    """Where the identity lies for ``wire.tls``, and its certificate for those who must trust it."""

    certificate: Path
    key: Path
    certificate_pem: str


def key_id_of(encryption_key: bytes) -> str:
    """Names an encryption key without telling it."""
    return hashlib.sha256(b"tuneplane key id " + encryption_key).hexdigest()[:16]


async def open_gateway_identity(store: IdentityStore, *, host: str, encryption_key: bytes, directory: Path, now: datetime) -> TlsIdentity:
    """The gateway's identity for the target ``host``, made now if this is the first start of all. IdentityRefused, OSError."""
    return await _open(_Wanted(GATEWAY, host, encryption_key, directory, now), store)


async def open_internal_identity(store: IdentityStore, *, encryption_key: bytes, directory: Path, now: datetime) -> TlsIdentity:
    """The identity of the control plane's processes among themselves. IdentityRefused, OSError."""
    return await _open(_Wanted(INTERNAL, RELAY_NAME, encryption_key, directory, now), store)


@frozen(repr=False)
class _Wanted:
    name: str
    host: str
    encryption_key: bytes
    directory: Path
    now: datetime


async def _open(wanted: _Wanted, store: IdentityStore) -> TlsIdentity:
    cached = await _read_cache(wanted)
    stored = await store.load_identity(wanted.name)
    if stored is None:
        stored = await store.publish_identity(_encrypted(_first(wanted, cached), wanted))
    pair = _decrypted(stored, wanted)
    _check(pair, wanted, f"the {wanted.name} identity in the database")
    if cached is None:
        cached = await trio.to_thread.run_sync(write_cache, wanted.directory, pair)
    if cached != pair:
        raise IdentityRefused(
            f"the certificate in {current_directory(wanted.directory)} is not the {wanted.name} identity of this control plane:"
            " remove that directory if the database is right"
        )
    place = current_directory(wanted.directory)
    return TlsIdentity(certificate=place / CACHED_CERTIFICATE, key=place / CACHED_KEY, certificate_pem=pair.certificate_pem)


async def _read_cache(wanted: _Wanted) -> Pair | None:
    try:
        cached = await trio.to_thread.run_sync(read_cache, wanted.directory)
    except IncompleteCache as error:
        raise IdentityRefused(str(error)) from error
    if cached is not None:
        _check(cached, wanted, f"the certificate in {current_directory(wanted.directory)}")
    return cached


def _first(wanted: _Wanted, cached: Pair | None) -> Pair:
    """What to publish when the database has none: an existing local pair (R-TLS-02), or a new one."""
    return cached or Pair(*generate_identity([wanted.host], now=wanted.now))


def _check(pair: Pair, wanted: _Wanted, what: str) -> None:
    try:
        facts, fits = read_certificate(pair.certificate_pem), key_matches(pair.certificate_pem, pair.key_pem)
    except ValueError as error:
        raise IdentityRefused(f"{what} cannot be read: {error}") from error
    if not fits:
        raise IdentityRefused(f"{what} does not belong to its private key")
    if not facts.valid_at(wanted.now):
        raise IdentityRefused(f"{what} is valid from {facts.not_before:%Y-%m-%d} to {facts.not_after:%Y-%m-%d}, not now")
    if not facts.covers(wanted.host):
        raise IdentityRefused(f"{what} is for {', '.join(facts.names) or 'no name'}, not for {wanted.host}")


def _encrypted(pair: Pair, wanted: _Wanted) -> EncryptedIdentity:
    key_id = key_id_of(wanted.encryption_key)
    return EncryptedIdentity(
        name=wanted.name,
        certificate_pem=pair.certificate_pem,
        key_ciphertext=encrypt_key(pair.key_pem, wanted.encryption_key, key_id),
        version=KEY_VERSION,
        key_id=key_id,
    )


def _decrypted(stored: EncryptedIdentity, wanted: _Wanted) -> Pair:
    given = key_id_of(wanted.encryption_key)
    if stored.key_id != given:
        raise IdentityRefused(
            f"the {wanted.name} identity is encrypted under key {stored.key_id}, but {ENC_KEY_VARIABLE} is key {given}: set the right one"
        )
    try:
        key_pem = decrypt_key(stored.key_ciphertext, wanted.encryption_key, version=stored.version, key_id=stored.key_id)
    except KeyUndecipherable as error:
        raise IdentityRefused(f"the {wanted.name} identity cannot be decrypted with {ENC_KEY_VARIABLE}: {error}") from error
    return Pair(stored.certificate_pem, key_pem)
