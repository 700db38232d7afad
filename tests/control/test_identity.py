"""TLS identities: made once, the same for all, never silently replaced (R-TLS-01, R-TLS-02, R-TLS-03)."""

from __future__ import annotations

import stat
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
import trio

from tests.control.plane import now, open_plane
from tuneplane.control.identity import IdentityRefused, TlsIdentity, open_gateway_identity, open_internal_identity
from tuneplane.domain.jobs import EncryptedIdentity
from tuneplane.domain.small_ports import IdentityStore
from tuneplane.wire.certificates import read_certificate
from tuneplane.wire.identity import generate_identity
from tuneplane.wire.relay import RELAY_NAME
from tuneplane.wire.tls import client_context, server_context

KEY = b"k" * 32
HOST = "gateway.example"


@attrs.define
class MemoryIdentities:
    """The port in memory, with its one rule: the first published counts."""

    kept: dict[str, EncryptedIdentity] = attrs.field(factory=dict)

    async def load_identity(self, name: str) -> EncryptedIdentity | None:
        await trio.lowlevel.checkpoint()
        return self.kept.get(name)

    async def publish_identity(self, identity: EncryptedIdentity) -> EncryptedIdentity:
        await trio.lowlevel.checkpoint()
        return self.kept.setdefault(identity.name, identity)


async def _open(store: IdentityStore, directory: Path, *, host: str = HOST, key: bytes = KEY, days: int = 0) -> TlsIdentity:
    when = now() + timedelta(days=days)
    return await open_gateway_identity(store, host=host, encryption_key=key, directory=directory, now=when)


@pytest.mark.postgres
async def test_identity_first_start_makes_one_for_the_target(database: str, tmp_path: Path) -> None:
    """R-TLS-01: 3650 days, that name, key 0600, and nothing in the clear in PostgreSQL."""
    async with open_plane(database, tmp_path, bare=True) as plane:
        identity = await _open(plane.storage, tmp_path / "tls")
        facts = read_certificate(identity.certificate_pem)
        assert facts.names == (HOST,)
        assert (facts.not_after - facts.not_before).days == 3650
        assert stat.S_IMODE(identity.key.stat().st_mode) == 0o600
        assert identity.key.parent == tmp_path / "tls" / "current"
        stored = await plane.storage.load_identity("gateway")
        assert stored is not None
        assert b"PRIVATE KEY" not in stored.key_ciphertext
        assert stored.certificate_pem == identity.certificate_pem
        server_context(identity.certificate, identity.key)
        client_context(trust_pem=identity.certificate_pem)


@pytest.mark.postgres
async def test_identity_concurrent_first_starts_end_with_the_same_one(database: str, tmp_path: Path) -> None:
    """R-TLS-02."""
    async with open_plane(database, tmp_path, bare=True) as plane:
        found: list[TlsIdentity] = []

        async def start(number: int) -> None:
            found.append(await _open(plane.storage, tmp_path / f"replica-{number}"))

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(start, number)
        assert len({identity.certificate_pem for identity in found}) == 1
        assert len({identity.key.read_text() for identity in found}) == 1


async def test_identity_restart_keeps_it_and_a_lost_cache_is_rebuilt(tmp_path: Path) -> None:
    store = MemoryIdentities()
    first = await _open(store, tmp_path)
    key = first.key.read_text()
    assert await _open(store, tmp_path) == first
    for file in first.key.parent.iterdir():
        file.unlink()
    first.key.parent.rmdir()
    assert await _open(store, tmp_path) == first
    assert first.key.read_text() == key


async def test_identity_a_local_one_is_imported_when_the_database_has_none(tmp_path: Path) -> None:
    """R-TLS-02."""
    certificate, key = generate_identity([HOST])
    _put(tmp_path, certificate, key)
    store = MemoryIdentities()
    assert (await _open(store, tmp_path)).certificate_pem == certificate
    assert store.kept["gateway"].certificate_pem == certificate


async def test_identity_a_local_one_that_differs_is_refused(tmp_path: Path) -> None:
    """R-TLS-03."""
    store = MemoryIdentities()
    await _open(store, tmp_path / "a")
    certificate, key = generate_identity([HOST])
    _put(tmp_path / "b", certificate, key)
    with pytest.raises(IdentityRefused, match="is not the gateway identity"):
        await _open(store, tmp_path / "b")
    assert (tmp_path / "b" / "current" / "tls.crt").read_text() == certificate


async def test_identity_an_incomplete_local_one_is_refused(tmp_path: Path) -> None:
    store = MemoryIdentities()
    identity = await _open(store, tmp_path)
    identity.key.unlink()
    with pytest.raises(IdentityRefused, match=r"tls\.key missing"):
        await _open(store, tmp_path)


async def test_identity_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    _put(tmp_path, generate_identity([HOST])[0], generate_identity([HOST])[1])
    with pytest.raises(IdentityRefused, match="does not belong to its private key"):
        await _open(MemoryIdentities(), tmp_path)


async def test_identity_another_target_is_refused(tmp_path: Path) -> None:
    store = MemoryIdentities()
    await _open(store, tmp_path)
    with pytest.raises(IdentityRefused, match=r"is for gateway\.example, not for 192\.0\.2\.1"):
        await _open(store, tmp_path, host="192.0.2.1")


async def test_identity_an_expired_one_is_refused(tmp_path: Path) -> None:
    store = MemoryIdentities()
    await _open(store, tmp_path / "a")
    with pytest.raises(IdentityRefused, match="the gateway identity in the database is valid from"):
        await _open(store, tmp_path / "b", days=3660)


async def test_identity_a_wrong_key_never_regenerates(tmp_path: Path) -> None:
    """R-TLS-03: neither with a cache nor without; the database keeps what it had."""
    store = MemoryIdentities()
    await _open(store, tmp_path / "a")
    kept = dict(store.kept)
    for place in ("a", "new"):
        with pytest.raises(IdentityRefused, match="TUNEPLANE_SECRET_ENC_KEY"):
            await _open(store, tmp_path / place, key=b"x" * 32)
    assert store.kept == kept
    assert not (tmp_path / "new").exists()


async def test_identity_a_spoiled_ciphertext_is_refused(tmp_path: Path) -> None:
    store = MemoryIdentities()
    await _open(store, tmp_path / "a")
    spoiled = attrs.evolve(store.kept["gateway"], key_ciphertext=b"\0" * 60)
    store.kept["gateway"] = spoiled
    with pytest.raises(IdentityRefused, match="cannot be decrypted"):
        await _open(store, tmp_path / "b")


async def test_identity_internal_serves_mutual_tls_under_the_relay_s_name(tmp_path: Path) -> None:
    """P-23."""
    identity = await open_internal_identity(MemoryIdentities(), encryption_key=KEY, directory=tmp_path, now=now())
    assert read_certificate(identity.certificate_pem).names == (RELAY_NAME,)
    server_context(identity.certificate, identity.key, client_ca=identity.certificate)
    client_context(trust_pem=identity.certificate_pem, certificate=identity.certificate, key=identity.key)


@pytest.mark.parametrize(
    ("hosts", "dialled", "covered"),
    [
        (["a.example"], "A.example.", True),
        (["a.example"], "b.example", False),
        (["*.example"], "a.example", True),
        (["*.example"], "a.b.example", False),
        (["192.0.2.1"], "192.0.2.1", True),
        (["2001:db8::1"], "[2001:db8:0::1]", True),
        (["a.example"], "192.0.2.1", False),
    ],
)
def test_certificate_covers_what_a_client_would_accept(hosts: list[str], dialled: str, covered: bool) -> None:
    assert read_certificate(generate_identity(hosts)[0]).covers(dialled) is covered


def _put(directory: Path, certificate: str, key: str) -> None:
    place = directory / "current"
    place.mkdir(parents=True)
    (place / "tls.crt").write_text(certificate)
    (place / "tls.key").write_text(key)
