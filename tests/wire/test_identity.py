"""TLS identities: what generate_identity makes is a certificate that our own contexts accept, and its key comes back."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tuneplane.wire.identity import KEY_VERSION, KeyUndecipherable, decrypt_key, encrypt_key, generate_identity
from tuneplane.wire.tls import client_context, server_context

SECRET = bytes(range(32))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """A TLS handshake in memory; raises what the client raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    left = client.wrap_bio(to_client, to_server, server_hostname=name)
    right = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (left, right):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return left


def write(tmp_path: Path, certificate: str, key: str) -> tuple[Path, Path]:
    (tmp_path / "tls.crt").write_text(certificate)
    (tmp_path / "tls.key").write_text(key)
    return tmp_path / "tls.crt", tmp_path / "tls.key"


def test_identity_is_self_signed_p256_for_ten_years() -> None:
    """R-TLS-01."""
    start = datetime(2026, 11, 30, tzinfo=UTC)
    certificate_pem, key_pem = generate_identity(["gateway.example", "10.0.0.7", "[::1]"], now=start)
    certificate = x509.load_pem_x509_certificate(certificate_pem.encode())
    assert certificate.issuer == certificate.subject
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc == timedelta(days=3650)
    assert start - timedelta(minutes=10) < certificate.not_valid_before_utc < start
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gateway.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "::1"]
    key = load_pem_private_key(key_pem.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp256r1"


@pytest.mark.parametrize("name", ["gateway.example", "10.0.0.7"])
def test_identity_as_its_own_trust_is_accepted_for_its_hosts(tmp_path: Path, name: str) -> None:
    """R-TLS-04: a Node trusts the gateway's public certificate itself."""
    certificate, key = generate_identity(["gateway.example", "10.0.0.7"])
    agreed = handshake(server_context(*write(tmp_path, certificate, key)), client_context(trust_pem=certificate), name)
    assert agreed.version() == "TLSv1.3"
    assert agreed.selected_alpn_protocol() == "h2"


@pytest.mark.parametrize("name", ["other.example", "10.0.0.8"])
def test_identity_for_other_hosts_is_refused(tmp_path: Path, name: str) -> None:
    certificate, key = generate_identity(["gateway.example", "10.0.0.7"])
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(server_context(*write(tmp_path, certificate, key)), client_context(trust_pem=certificate), name)


def test_identity_needs_a_host() -> None:
    with pytest.raises(ValueError, match="host"):
        generate_identity([])


def test_client_context_with_a_private_key_in_its_bundle_is_refused() -> None:
    """R-TLS-09."""
    certificate, key = generate_identity(["a"])
    with pytest.raises(ValueError, match="private key"):
        client_context(trust_pem=certificate + key)


@pytest.mark.parametrize("bundle", ["", "nonsense"])
def test_client_context_without_a_certificate_in_its_bundle_is_refused(bundle: str) -> None:
    with pytest.raises((ssl.SSLError, ValueError)):
        client_context(trust_pem=bundle)


def test_server_below_tls_1_3_is_refused(tmp_path: Path) -> None:
    certificate, key = generate_identity(["a"])
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.load_cert_chain(*write(tmp_path, certificate, key))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(old, client_context(trust_pem=certificate), "a")


def test_encrypted_key_comes_back_with_its_secret_only() -> None:
    _, key = generate_identity(["a"])
    ciphertext = encrypt_key(key, SECRET, "key-1")
    assert key.encode() not in ciphertext
    assert decrypt_key(ciphertext, SECRET, version=KEY_VERSION, key_id="key-1") == key


@pytest.mark.parametrize(
    ("secret", "version", "key_id"),
    [(bytes(32), KEY_VERSION, "key-1"), (SECRET, KEY_VERSION + 1, "key-1"), (SECRET, KEY_VERSION, "key-2")],
)
def test_encrypted_key_under_other_terms_is_undecipherable(secret: bytes, version: int, key_id: str) -> None:
    """R-TLS-03: a wrong key is an error, never a reason to make a new identity."""
    ciphertext = encrypt_key("the key", SECRET, "key-1")
    with pytest.raises(KeyUndecipherable):
        decrypt_key(ciphertext, secret, version=version, key_id=key_id)


@pytest.mark.parametrize("cut", [0, 5, 20])
def test_damaged_ciphertext_is_undecipherable(cut: int) -> None:
    with pytest.raises(KeyUndecipherable):
        decrypt_key(encrypt_key("the key", SECRET, "k")[:cut], SECRET, version=KEY_VERSION, key_id="k")


def test_same_key_twice_gives_different_ciphertexts() -> None:
    assert encrypt_key("the key", SECRET, "k") != encrypt_key("the key", SECRET, "k")


def test_wire_without_identity_needs_no_cryptography() -> None:
    """The base install of a Node has no cryptography."""
    import subprocess
    import sys

    code = "import sys; sys.modules['cryptography'] = None; import tuneplane.wire.link, tuneplane.wire.relay, tuneplane.wire.tls"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
