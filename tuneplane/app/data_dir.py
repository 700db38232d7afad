"""The data directory of a control plane on one machine: secrets, the console's certificate, and what ``up`` chose.

    secrets.json        encryption key and session secret, made once (0600)
    console-ca.pem      the private CA's certificate: clients and Nodes verify the console with it
    console/            the CA's key and the console's certificate and key (0600), renewed before they end
    admin.json          first administrator, password and API token, as printed once at the first start (0600)
    up.json             addresses and process id of the ``tuneplane up`` that runs here

One ``up`` at a time: the directory is locked for the life of the process.
"""

from __future__ import annotations

import base64
import fcntl
import ipaddress
import json
import os
import secrets
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tuneplane.domain.errors import TuneplaneError

from .client import write_private
from .settings import ENC_KEY_BYTES, Endpoint, Secret

CA_DAYS = 3650
CERTIFICATE_DAYS = 397  # browsers refuse longer ones
RENEW_DAYS = 30


class StartRefused(TuneplaneError):
    """Start-up cannot go on; the sentence says what a person can do."""

    code = "start-refused"


@frozen(repr=False)
class Secrets:
    enc_key: Secret
    jwt_secret: Secret


@frozen
class ConsoleCertificate:
    certificate: Path
    key: Path
    ca: Path | None  # None when the certificate came from outside


def open_data_dir(path: Path) -> Path:
    """The absolute directory, made when new. Every secret in it is 0600 by itself: the directory may be passed through,
    because PostgreSQL, which refuses to run as root, enters it under an account of its own."""
    absolute = path.absolute()
    try:
        absolute.mkdir(mode=0o711, parents=True, exist_ok=True)
    except OSError as error:
        raise StartRefused(f"cannot make the data directory {absolute}: {error.strerror}") from error
    return absolute


def lock_data_dir(path: Path) -> IO[str]:
    """Hold the directory for this process; the lock goes with the returned file. StartRefused when another holds it."""
    file = (path / "lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise StartRefused(f"another `tuneplane up` runs on {path}; stop it, or choose another --data-dir") from error
    return file


def load_secrets(path: Path, enc_key: Secret | None, jwt_secret: Secret | None) -> Secrets:
    """The secrets of the settings, else those of the directory, made at the first call."""
    if enc_key is not None and jwt_secret is not None:
        return Secrets(enc_key, jwt_secret)
    file = path / "secrets.json"
    if not file.exists():
        made = {"enc_key": base64.b64encode(secrets.token_bytes(ENC_KEY_BYTES)).decode(), "jwt_secret": secrets.token_urlsafe(48)}
        write_private(file, json.dumps(made) + "\n")
    try:
        saved = json.loads(file.read_text())
        from_file = Secrets(Secret(base64.b64decode(saved["enc_key"])), Secret(saved["jwt_secret"].encode()))
    except (OSError, ValueError, KeyError) as error:
        raise StartRefused(f"cannot read the secrets in {file}; without them nothing encrypted can be read again") from error
    return Secrets(enc_key or from_file.enc_key, jwt_secret or from_file.jwt_secret)


def console_certificate(path: Path, hosts: list[str], now: datetime) -> ConsoleCertificate:
    """A certificate of our private CA that names ``hosts``; issued again when it ends soon or lacks one of them."""
    directory = path / "console"
    directory.mkdir(mode=0o700, exist_ok=True)
    ca_file, ca_key_file = path / "console-ca.pem", directory / "ca.key"
    if not ca_key_file.exists():
        certificate, key = _make_ca(now)
        _write_public(ca_file, _certificate_pem(certificate))
        write_private(ca_key_file, _key_pem(key))  # last: a key is there only with its certificate, whenever we crash
    found = ConsoleCertificate(directory / "tls.crt", directory / "tls.key", ca_file)
    if not _still_fits(found, hosts, now):
        ca = x509.load_pem_x509_certificate(ca_file.read_bytes())
        ca_key = serialization.load_pem_private_key(ca_key_file.read_bytes(), None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)  # we wrote it
        key = ec.generate_private_key(ec.SECP256R1())
        issued = _issue(ca, ca_key, key, hosts, now)
        write_private(found.key, _key_pem(key))
        _write_public(found.certificate, _certificate_pem(issued) + _certificate_pem(ca))
    return found


def _still_fits(found: ConsoleCertificate, hosts: list[str], now: datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(found.certificate.read_bytes())
        key = serialization.load_pem_private_key(found.key.read_bytes(), None)
    except (OSError, ValueError):
        return False
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    have = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
    fresh = certificate.not_valid_after_utc > now + timedelta(days=RENEW_DAYS)
    return fresh and set(hosts) <= have and certificate.public_key() == key.public_key()  # a crash may part the pair


def _make_ca(now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Tuneplane console CA {secrets.token_hex(4)}")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
    )
    return builder.sign(key, hashes.SHA256()), key


def _issue(
    ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePrivateKey, hosts: list[str], now: datetime
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Tuneplane console")])
    authority = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority), critical=False)
    )
    return builder.sign(ca_key, hashes.SHA256())


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign,
        key_cert_sign=sign,
        crl_sign=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


def _certificate_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _write_public(path: Path, text: str) -> None:
    write_private(path, text)
    path.chmod(0o644)


def choose_port(host: str, preferred: int) -> int:
    """``preferred`` when it can be bound on ``host`` now, else a free one of the kernel's choice."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in (preferred, 0):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise StartRefused(f"cannot bind any port on {host}")


def write_up_file(path: Path, facts: dict[str, str]) -> None:
    """What runs here, for scripts: addresses and process id."""
    write_private(path / "up.json", json.dumps({**facts, "pid": os.getpid()}, indent=1) + "\n")


def remove_up_file(path: Path) -> None:
    (path / "up.json").unlink(missing_ok=True)


def utc_now() -> datetime:
    """The control plane's clock."""
    return datetime.now(UTC)


def endpoint_on_any_free(listen: Endpoint | None, default_port: int, host: str = "0.0.0.0") -> Endpoint:  # noqa: S104 - a server
    """The configured address as it is, or the default port, or a free one when that is taken."""
    if listen is not None:
        return listen
    return Endpoint(host, choose_port(host, default_port))
