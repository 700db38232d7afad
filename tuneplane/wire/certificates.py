"""What a certificate says, and whether a key belongs to it: the checks behind R-TLS-03. Needs ``cryptography`` (server extra)."""

from __future__ import annotations

import ipaddress
from datetime import datetime

from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import serialization


@frozen
class CertificateFacts:
    """Names are DNS names and IP addresses of the subject alternative name; the common name counts for nothing."""

    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime

    def covers(self, host: str) -> bool:
        """Whether a client that dials ``host`` accepts it: an exact name or address, or one label under a wildcard."""
        wanted = _spelled(host)
        return any(wanted == name or (name.startswith("*.") and wanted.partition(".")[2] == name[2:]) for name in self.names)

    def valid_at(self, now: datetime) -> bool:
        return self.not_before <= now < self.not_after


def read_certificate(pem: str) -> CertificateFacts:
    """The facts of the first certificate in ``pem``. Raises ValueError."""
    certificate = x509.load_pem_x509_certificate(pem.encode())
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        found: list[str] = []
    else:
        found = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
        found += [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return CertificateFacts(tuple(found), certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def key_matches(certificate_pem: str, key_pem: str) -> bool:
    """Whether the private key is the certificate's. Raises ValueError for what is neither."""
    certificate = x509.load_pem_x509_certificate(certificate_pem.encode())
    key = serialization.load_pem_private_key(key_pem.encode(), password=None)
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return key.public_key().public_bytes(*form) == certificate.public_key().public_bytes(*form)


def _spelled(host: str) -> str:
    bare = host.removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return bare.rstrip(".").lower()
