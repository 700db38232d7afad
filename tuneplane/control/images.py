"""Image references: a tag is resolved to a digest once, at admission (R-LCH-06).

The registry is asked with every manifest type in ``Accept``: without it a registry answers with the digest of a
schema-1 rendering that nobody can pull. Plain HTTP is spoken to loopback registries and to those an operator names
in ``TUNEPLANE_INSECURE_REGISTRIES``; all others over verified HTTPS. Nothing is cached: a tag means what it means now.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import ssl
from functools import cached_property
from typing import NoReturn, Protocol
from urllib.parse import urljoin, urlsplit

import httpx
import trio
from attrs import define, frozen

from tuneplane.domain.errors import Refused

FIELD = "spec.runtime.image"
MANIFEST_TYPES = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
DEFAULT_REGISTRY = "docker.io"
DEFAULT_REGISTRY_HOST = "registry-1.docker.io"  # where docker.io answers
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(?::[0-9]{1,5})?")
PATH = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*")
CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')
MOST_REDIRECTS = 3  # a registry behind a load balancer needs one
MOST_TOKEN_BYTES = 64 * 1024  # a registry token is a JWT of a few KiB
MOST_MANIFEST_BYTES = 4 << 20  # the registries' own limit for a manifest


class ImageResolver(Protocol):
    """What admission asks of a registry."""

    async def resolve(self, reference: str) -> str:
        """``repository@sha256:…`` for an image reference. Refused(code="image-unresolved") names the field."""


@frozen(kw_only=True)
class ImageName:
    """A reference taken apart. ``registry`` is as people write it (``docker.io``)."""

    registry: str
    path: str
    tag: str
    digest: str | None

    @property
    def repository(self) -> str:
        return f"{self.registry}/{self.path}"

    @property
    def host(self) -> str:
        return DEFAULT_REGISTRY_HOST if self.registry == DEFAULT_REGISTRY else self.registry


def parse_image(reference: str) -> ImageName:
    """Read a reference as the container engines do. Refused when it is not one."""
    rest, _, digest = reference.partition("@")
    if digest and not DIGEST.fullmatch(digest):
        _refuse(reference, "its digest is not sha256 and 64 hexadecimal digits")
    first, slash, remainder = rest.partition("/")
    named = bool(slash) and ("." in first or ":" in first or first == "localhost")
    registry, path = (first, remainder) if named else (DEFAULT_REGISTRY, rest)
    path, _, tag = path.partition(":")
    if registry == DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    if not (HOST.fullmatch(registry) and PATH.fullmatch(path) and TAG.fullmatch(tag or "latest")):
        _refuse(reference, "it does not look like registry/repository:tag")
    return ImageName(registry=registry, path=path, tag=tag or "latest", digest=digest or None)


def _refuse(reference: str, why: str) -> NoReturn:
    raise Refused("image-unresolved", f"image {reference[:200]!r} cannot be resolved to a digest: {why}", field=FIELD)


@define
class RegistryResolver:
    """Resolves tags over the registry HTTP API v2. The deadline is the caller's scope is the deadline; cancelling closes the connection."""

    insecure: frozenset[str] = frozenset()  # host or host:port that an operator trusts over plain HTTP

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        return httpx.create_ssl_context()  # the system's roots, or SSL_CERT_FILE

    async def resolve(self, reference: str) -> str:
        """See ImageResolver. A reference that already has a digest asks nobody."""
        image = parse_image(reference)
        if image.digest is not None:
            return f"{image.repository}@{image.digest}"
        try:
            async with httpx.AsyncClient(verify=self._trust, timeout=None) as client:  # noqa: S113 - the caller's scope is the deadline
                digest = await _Lookup(client, image, reference, self._plain(image.host)).digest()
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            _refuse(reference, f"registry {image.host} did not answer: {str(error) or type(error).__name__}")
        return f"{image.repository}@{digest}"

    def _plain(self, host: str) -> bool:
        name = host.rpartition(":")[0] or host
        return host in self.insecure or name in self.insecure or _is_loopback(name)


def _is_loopback(name: str) -> bool:
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@define
class _Lookup:
    """One look-up: HEAD, at most one token, GET only where the registry gives no digest header."""

    client: httpx.AsyncClient
    image: ImageName
    reference: str
    plain: bool
    token: str = ""

    async def digest(self) -> str:
        scheme = "http" if self.plain else "https"
        url = f"{scheme}://{self.image.host}/v2/{self.image.path}/manifests/{self.image.tag}"
        response = await self._ask("HEAD", url)
        if response.status_code == 401 and not self.token:
            await self._fetch_token(response.headers.get("www-authenticate", ""))
            response = await self._ask("HEAD", url)
        self._check(response)
        given = response.headers.get("docker-content-digest", "")
        return given if DIGEST.fullmatch(given) else await self._computed(url)

    async def _ask(self, method: str, url: str) -> httpx.Response:
        headers = {"Accept": MANIFEST_TYPES}
        for _ in range(MOST_REDIRECTS + 1):
            same_host = urlsplit(url).netloc == self.image.host
            sent = {**headers, "Authorization": f"Bearer {self.token}"} if self.token and same_host else headers
            response = await self.client.request(method, self._allowed(url), headers=sent)
            if not response.has_redirect_location:
                return response
            url = urljoin(url, response.headers["location"])
        _refuse(self.reference, f"registry {self.image.host} redirects too often")

    def _allowed(self, url: str) -> str:
        """HTTPS anywhere; plain HTTP only back to the registry that may speak it."""
        parts = urlsplit(url)
        if parts.scheme == "https" or (self.plain and parts.scheme == "http" and parts.netloc == self.image.host):
            return url
        _refuse(self.reference, f"registry {self.image.host} points to an address that is not HTTPS")

    async def _fetch_token(self, challenge: str) -> None:
        """Anonymous bearer token (the distribution token protocol)."""
        scheme, _, rest = challenge.partition(" ")
        given = dict(CHALLENGE.findall(rest))
        if scheme.lower() != "bearer" or "realm" not in given:
            _refuse(self.reference, f"registry {self.image.host} asks for credentials, and this console has none for it")
        query = {key: given[key] for key in ("service", "scope") if key in given}
        query.setdefault("scope", f"repository:{self.image.path}:pull")
        async with self.client.stream("GET", self._allowed(given["realm"]), params=query) as response:
            body = await self._read(response, MOST_TOKEN_BYTES)
        try:
            answer = json.loads(body) if response.status_code == 200 else {}
            token = answer.get("token") or answer.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            _refuse(self.reference, f"registry {self.image.host} gives no anonymous access to it")
        self.token = token

    async def _computed(self, url: str) -> str:
        async with self.client.stream("GET", self._allowed(url), headers=self._headers()) as response:
            self._check(response)
            return "sha256:" + hashlib.sha256(await self._read(response, MOST_MANIFEST_BYTES)).hexdigest()

    def _headers(self) -> dict[str, str]:
        return {"Accept": MANIFEST_TYPES, **({"Authorization": f"Bearer {self.token}"} if self.token else {})}

    async def _read(self, response: httpx.Response, most: int) -> bytes:
        body = bytearray()
        with trio.CancelScope() as scope:
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > most:
                    scope.cancel()  # not a raise: httpx's nested generators are unwound only from within
        if scope.cancelled_caught or len(body) > most:
            _refuse(self.reference, f"registry {self.image.host} answers with more than {most} bytes")
        return bytes(body)

    def _check(self, response: httpx.Response) -> None:
        if response.status_code in (401, 403):
            _refuse(self.reference, f"registry {self.image.host} gives no anonymous access to it, or it does not exist")
        if response.status_code == 404:
            _refuse(self.reference, f"registry {self.image.host} has no tag {self.image.tag!r} of {self.image.path!r}")
        if response.status_code != 200:
            _refuse(self.reference, f"registry {self.image.host} answered with status {response.status_code}")
