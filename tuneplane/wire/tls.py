"""TLS contexts: version 1.3 at least, HTTP/2 by ALPN, verified host names. Nodes present no certificate (R-SES-08).

Loading a certificate again into a live context (``load_cert_chain``) rotates it for later handshakes.
"""

from __future__ import annotations

import ssl
from pathlib import Path

ALPN = ["h2"]  # gRPC is HTTP/2; both ends check that it was agreed


def server_context(certificate: Path, key: Path, *, client_ca: Path | None = None) -> ssl.SSLContext:
    """For a listening side. With ``client_ca`` the peer must present a certificate that it signed (mutual TLS).

    Raises OSError (a missing file, or ssl.SSLError for one that is not what it should be).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(ALPN)
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(*, trust_pem: str | None, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """For a dialling side: trusts ``trust_pem`` (one or more certificates) or, when None, the system's roots.

    Raises ssl.SSLError for a bundle that holds no certificate, ValueError for one that holds a private key (R-TLS-09).
    """
    if trust_pem is not None and "PRIVATE KEY" in trust_pem:
        raise ValueError("the trust bundle contains a private key; it must hold certificates only")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(ALPN)
    if trust_pem is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cadata=trust_pem)
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context
