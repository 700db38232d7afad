"""R-LCH-06: image references and the registry's protocol, against a registry that answers as awkward ones do."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import h11
import pytest
import trio
from attrs import define, field

from tuneplane.control.images import MANIFEST_TYPES, RegistryResolver, parse_image
from tuneplane.domain.errors import Refused

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("reference", "registry", "path", "tag"),
    [
        ("busybox", "docker.io", "library/busybox", "latest"),
        ("busybox:1.36", "docker.io", "library/busybox", "1.36"),
        ("team/train:2", "docker.io", "team/train", "2"),
        ("docker.io/team/train", "docker.io", "team/train", "latest"),
        ("registry.corp/train", "registry.corp", "train", "latest"),
        ("registry.corp:5000/a/b/c:x", "registry.corp:5000", "a/b/c", "x"),
        ("localhost/train:1", "localhost", "train", "1"),
        ("127.0.0.1:5000/t/bb:1", "127.0.0.1:5000", "t/bb", "1"),
    ],
)
def test_reference_is_read_as_the_engines_do(reference: str, registry: str, path: str, tag: str) -> None:
    image = parse_image(reference)
    assert (image.registry, image.path, image.tag) == (registry, path, tag)


@pytest.mark.parametrize(
    "reference",
    [
        "",
        ":",
        "a:",
        "UPPER",
        "a//b",
        "a/",
        "/a",
        "x@sha256:12",
        "x@md5:" + "a" * 32,
        "x@",
        "reg.corp:99999999/x",
        "a b",
        "a?x=1",
        "http://x/y",
    ],
)
def test_what_is_no_reference_is_refused_naming_the_field(reference: str) -> None:
    if reference in ("a:", "x@"):
        parse_image(reference)  # the engines take an empty tag or digest for none
        return
    with pytest.raises(Refused) as refused:
        parse_image(reference)
    assert (refused.value.code, refused.value.field) == ("image-unresolved", "spec.runtime.image")


async def test_reference_by_digest_is_kept_and_nobody_is_asked() -> None:
    assert await RegistryResolver().resolve(f"registry.invalid/train@{DIGEST}") == f"registry.invalid/train@{DIGEST}"
    assert await RegistryResolver().resolve(f"registry.invalid/train:2@{DIGEST}") == f"registry.invalid/train@{DIGEST}"


Answer = tuple[int, dict[str, str], bytes]
Handler = Callable[[h11.Request], Answer]


@define
class AwkwardRegistry:
    """A registry of one handler. ``asked`` has ``METHOD target`` of every request."""

    handler: Handler
    address: str = ""
    asked: list[str] = field(factory=list)

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            protocol = h11.Connection(h11.SERVER)
            while (event := protocol.next_event()) is h11.NEED_DATA or not isinstance(event, h11.Request):
                if event is h11.NEED_DATA:
                    protocol.receive_data(await stream.receive_some(65536))
            self.asked.append(f"{event.method.decode()} {event.target.decode()}")
            status, headers, body = self.handler(event)
            given = {"content-length": str(len(body)), "connection": "close", **headers}
            data = protocol.send(h11.Response(status_code=status, headers=list(given.items()))) or b""
            if event.method != b"HEAD":
                data += protocol.send(h11.Data(data=body)) or b""
            await stream.send_all(data)


@asynccontextmanager
async def open_registry(handler: Handler) -> AsyncIterator[AwkwardRegistry]:
    registry = AwkwardRegistry(handler)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    registry.address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, registry.serve, listeners)
        yield registry
        nursery.cancel_scope.cancel()


def _header(request: h11.Request, name: bytes) -> str:
    return dict(request.headers).get(name, b"").decode()


async def test_every_manifest_type_is_accepted_and_the_registrys_digest_counts() -> None:
    """Without Accept a registry gives the digest of a schema-1 rendering: a different one."""
    seen: list[str] = []

    def handler(request: h11.Request) -> Answer:
        seen.append(_header(request, b"accept"))
        return 200, {"docker-content-digest": DIGEST}, b""

    async with open_registry(handler) as registry:
        assert await RegistryResolver().resolve(f"{registry.address}/t/x:1") == f"{registry.address}/t/x@{DIGEST}"
        assert registry.asked == ["HEAD /v2/t/x/manifests/1"]
    assert seen == [MANIFEST_TYPES]


async def test_anonymous_token_is_fetched_once_and_used() -> None:
    def handler(request: h11.Request) -> Answer:
        if request.target.startswith(b"/token"):
            return 200, {}, b'{"token": "abc"}'
        if _header(request, b"authorization") == "Bearer abc":
            return 200, {"docker-content-digest": DIGEST}, b""
        realm = f"http://{_header(request, b'host')}/token"
        return 401, {"www-authenticate": f'Bearer realm="{realm}",service="s",scope="repository:t/x:pull"'}, b""

    async with open_registry(handler) as registry:
        assert await RegistryResolver().resolve(f"{registry.address}/t/x:1") == f"{registry.address}/t/x@{DIGEST}"
        assert registry.asked[1] == "GET /token?service=s&scope=repository%3At%2Fx%3Apull"
        assert len(registry.asked) == 3


async def test_registry_without_a_digest_header_is_read_and_hashed() -> None:
    body = b'{"schemaVersion": 2}'
    async with open_registry(lambda request: (200, {}, body)) as registry:
        resolved = await RegistryResolver().resolve(f"{registry.address}/t/x:1")
        assert resolved == f"{registry.address}/t/x@sha256:{hashlib.sha256(body).hexdigest()}"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((404, {}, b""), "has no tag"),
        ((500, {}, b""), "status 500"),
        ((403, {}, b""), "no anonymous access"),
        ((401, {}, b""), "asks for credentials"),
        ((401, {"www-authenticate": 'Basic realm="x"'}, b""), "asks for credentials"),
        ((401, {"www-authenticate": 'Bearer realm="http://169.254.169.254/token"'}, b""), "not HTTPS"),
        ((401, {"www-authenticate": 'Bearer realm="file:///etc/passwd"'}, b""), "not HTTPS"),
        ((302, {"location": "http://169.254.169.254/latest"}, b""), "not HTTPS"),
        ((302, {"location": "/v2/t/x/manifests/1"}, b""), "redirects too often"),
        ((200, {"docker-content-digest": "sha256:zz"}, b"x" * (5 << 20)), "more than"),
    ],
)
async def test_awkward_registry_is_refused_with_the_reason(answer: Answer, words: str) -> None:
    async with open_registry(lambda request: answer) as registry:
        with pytest.raises(Refused, match=words) as refused:
            await RegistryResolver().resolve(f"{registry.address}/t/x:1")
        assert (refused.value.code, refused.value.field) == ("image-unresolved", "spec.runtime.image")


@pytest.mark.parametrize("token", [b"", b"[]", b"{}", b'{"token": 5}', b'{"token": "a\\nb"}', b"x" * 100_000, b"[" * 50_000])
async def test_awkward_token_is_refused(token: bytes) -> None:
    def handler(request: h11.Request) -> Answer:
        if request.target.startswith(b"/token"):
            return 200, {}, token
        return 401, {"www-authenticate": f'Bearer realm="http://{_header(request, b"host")}/token"'}, b""

    async with open_registry(handler) as registry:
        with pytest.raises(Refused, match=r"anonymous access|more than"):
            await RegistryResolver().resolve(f"{registry.address}/t/x:1")


async def test_plain_http_is_spoken_only_to_loopback_and_named_registries() -> None:
    resolver = RegistryResolver(insecure=frozenset({"reg.corp", "other.corp:5000"}))
    assert resolver._plain("127.0.0.1:5000")
    assert resolver._plain("localhost")
    assert resolver._plain("reg.corp:443")
    assert resolver._plain("other.corp:5000")
    assert not resolver._plain("other.corp:5001")
    assert not resolver._plain("127.0.0.1.evil.example")
    assert not resolver._plain("registry-1.docker.io")


async def test_registry_that_hangs_ends_with_the_callers_deadline() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def hang(stream: trio.SocketStream) -> None:
            async with stream:
                await trio.sleep_forever()

        await nursery.start(trio.serve_listeners, hang, listeners)
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.3):
            await RegistryResolver().resolve(f"127.0.0.1:{port}/t/x:1")
        nursery.cancel_scope.cancel()
