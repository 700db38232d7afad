"""The HTTP API from the outside: one synchronous client for the commands, the demo and the end-to-end tests.

Where to find the console, in this order: ``TUNEPLANE_URL`` and ``TUNEPLANE_TOKEN`` of the environment, then the file
that ``tuneplane login`` wrote (mode 0600). HTTPS only and always verified; a private CA comes from the login file, from
``TUNEPLANE_CA`` or from ``SSL_CERT_FILE``.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from attrs import asdict, field, frozen

from tuneplane.domain.errors import Reason, TuneplaneError
from tuneplane.domain.faultpoint import fault_point

ANSWER_SECONDS = 60.0  # the slowest plain request is a submit that resolves an image tag at a far registry
FOLLOW_SILENCE_SECONDS = 60.0  # the API sends a comment line well within this while nothing is logged
PAGE_SIZE = 500  # the API's own most: fewest round trips
MOST_PAGES = 200  # 100,000 rows: more than a person reads; a server that never ends its list must not hold us


class ClientError(TuneplaneError):
    """The console could not be asked, or failed: worth a retry. Exit status 1."""

    code = "client"


class ApiRefused(TuneplaneError):
    """The console understood and said no (a 4xx problem document). Exit status 2."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(str(problem.get("detail") or problem.get("title") or f"HTTP status {status}"))
        self.status = status
        self.code = str(problem.get("code", "refused"))
        self.field = str(problem.get("field") or "")
        raw = [reason for reason in problem.get("reasons") or [] if isinstance(reason, dict)]
        self.reasons = [Reason(*_texts(reason)) for reason in raw]


def path_of(*parts: str) -> str:
    """``/api/…`` of words as they were typed: none of them leads to another address than its own. ApiRefused for an empty one."""
    if "" in parts:
        raise ApiRefused(404, {"code": "not-found", "detail": "there is nothing whose id is empty"})
    dots = {".": "%2E", "..": "%2E%2E"}  # which the HTTP library would follow
    return "/api/" + "/".join(dots.get(part) or quote(part, safe="", errors="surrogateescape") for part in parts)


def _texts(reason: Mapping[str, Any]) -> tuple[str, str, str]:
    code, detail, subject = (str(reason.get(name, "")) for name in ("code", "detail", "subject"))
    return code, detail, subject


def _unsendable(error: Exception) -> ApiRefused:
    """What was typed is too long for an address, or no text at all."""
    return ApiRefused(422, {"code": "invalid-input", "detail": f"this cannot be sent: {error}"})


def _stripped(text: str) -> str:
    return text.strip()


@frozen(kw_only=True, repr=False)
class Credentials:
    """How to reach one console as one user; ``ca_pem`` is empty where the system's roots do."""

    url: str
    token: str = field(converter=_stripped)  # a secret mounted as a file ends with a newline
    ca_pem: str = ""

    @token.validator
    def _check_token(self, _: object, token: str) -> None:
        """Here, because the HTTP library refuses a bad header by showing it (R-CRD-05)."""
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ClientError("the API token has characters in it that no token has; copy it again")


def credentials_path(environ: Mapping[str, str]) -> Path:
    if named := environ.get("TUNEPLANE_CREDENTIALS"):
        return Path(named)
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "/")) / ".config")
    return Path(base) / "tuneplane" / "credentials.json"


def read_credentials(environ: Mapping[str, str]) -> Credentials:
    """The console to talk to. ClientError when nobody has logged in."""
    saved = _read_saved(credentials_path(environ))
    url = environ.get("TUNEPLANE_URL") or (saved.url if saved else "")
    token = environ.get("TUNEPLANE_TOKEN") or (saved.token if saved else "")
    if not url or not token:
        raise ClientError("not logged in: run `tuneplane login URL`, or set TUNEPLANE_URL and TUNEPLANE_TOKEN")
    ca = environ.get("TUNEPLANE_CA")
    ca_pem = _read_pem(Path(ca)) if ca else (saved.ca_pem if saved else "")
    return Credentials(url=check_url(url), token=token, ca_pem=ca_pem)


def write_credentials(credentials: Credentials, path: Path) -> None:
    """Write mode 0600, whole or not at all."""
    write_private(path, json.dumps(asdict(credentials), indent=1) + "\n")


def write_private(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` with mode 0600 from its first byte, by rename; durable when it returns."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    with fault_point("app.write-file"):
        os.replace(partial, path)
        _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_url(url: str) -> str:
    """``https://host[:port]`` without a trailing slash, or ClientError."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme != "https" or not parsed.host or parsed.path not in ("", "/"):
        raise ClientError(f"the console's address must look like https://console.example:9443, not {url!r}")
    return url.rstrip("/")


def _read_saved(path: Path) -> Credentials | None:
    try:
        return Credentials(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ClientError(f"cannot read {path}: {error}") from error


def _read_pem(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"cannot read the CA file {path}: {error}") from error


def tls_context(ca_pem: str) -> ssl.SSLContext:
    """Verified TLS with the system's roots (``SSL_CERT_FILE`` included) and ``ca_pem`` added to them (R-TLS-08)."""
    context = ssl.create_default_context()
    if ca_pem:
        try:
            context.load_verify_locations(cadata=ca_pem)
        except ssl.SSLError as error:
            raise ClientError(f"the CA is not PEM: {error.reason}") from error
    return context


class ApiClient:
    """Requests as one user; every method raises ClientError or ApiRefused. Close it, or use it in ``with``."""

    def __init__(self, credentials: Credentials) -> None:
        self.url = credentials.url
        self._http = httpx.Client(
            base_url=credentials.url,
            verify=tls_context(credentials.ca_pem),
            headers={"Authorization": f"Bearer {credentials.token}"} if credentials.token else {},
            timeout=ANSWER_SECONDS,
        )

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **params: Any) -> Any:
        return self._json("GET", path, params=_given(params))

    def post(self, path: str, body: Any = None, *, idempotency_key: str | None = None) -> Any:
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._json("POST", path, json={} if body is None else body, headers=headers)

    def patch(self, path: str, body: Any) -> Any:
        return self._json("PATCH", path, json=body)

    def put(self, path: str) -> Any:
        return self._json("PUT", path, json={})

    def delete(self, path: str) -> Any:
        return self._json("DELETE", path)

    def list_all(self, path: str, **params: Any) -> list[Any]:
        """All items of a paged list, newest first."""
        items: list[Any] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = self.get(path, limit=PAGE_SIZE, cursor=cursor, **params)
            items += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        return items

    def log_in(self, username: str, password: str) -> None:
        """Open a browser-like session: its cookie and CSRF header go with every later request of this client."""
        answer = self._request("POST", "/api/auth/login", json={"username": username, "password": password})
        if csrf := (answer.json() or {}).get("csrf_token"):
            self._http.headers["X-CSRF-Token"] = csrf

    def read_log(self, job: str, **params: Any) -> tuple[bytes, int]:
        """One bounded read of a log: the bytes and the offset behind them."""
        answer = self._request("GET", path_of("jobs", job, "logs"), params=_given(params))
        return answer.content, int(answer.headers.get("X-Next-Offset", "0"))

    @contextmanager
    def open_events(self, path: str, **params: Any) -> Iterator[Iterator[tuple[str, Any]]]:
        """A server-sent event stream as ``(event, decoded data)``; ends when the server ends it."""
        timeout = httpx.Timeout(ANSWER_SECONDS, read=FOLLOW_SILENCE_SECONDS)
        try:
            with self._http.stream("GET", path, params=_given(params), timeout=timeout, headers={"Accept": "text/event-stream"}) as answer:
                if answer.is_error:
                    answer.read()
                    _raise_for(answer)
                yield read_events(answer.iter_lines())
        except httpx.HTTPError as error:
            raise ClientError(f"the stream of {self.url}{path} broke: {error or type(error).__name__}") from error
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise _unsendable(error) from error

    def _json(self, method: str, path: str, **options: Any) -> Any:
        answer = self._request(method, path, **options)
        return answer.json() if answer.content else None

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise ClientError(f"cannot reach the console at {self.url}: {error or type(error).__name__}") from error
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise _unsendable(error) from error
        _raise_for(answer)
        return answer


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in params.items() if value is not None}


def _raise_for(answer: httpx.Response) -> None:
    if not answer.is_error:
        return
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    refused = ApiRefused(answer.status_code, problem)
    if answer.status_code >= 500:
        raise ClientError(f"the console failed ({answer.status_code}): {refused}")
    raise refused


def read_events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """Server-sent events from lines: the event's name (``message`` by default) and its data as JSON."""
    name, data = "message", ""
    for line in lines:
        if not line:
            if data:
                yield name, json.loads(data)
            name, data = "message", ""
        elif line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].lstrip()
