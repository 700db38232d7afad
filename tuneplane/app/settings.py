"""Settings: environment variables, and an env file that reads the same. The environment wins over the file.

A wrong value stops start-up with the variable's name and the rule (:class:`WrongSetting`, exit status 2). Secrets live
in :class:`Secret`, whose repr shows nothing (R-CRD-05). This module reads the environment once, when a composition
root asks; nothing else in the product looks at ``os.environ``.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from attrs import field, frozen

from tuneplane.domain.errors import TuneplaneError
from tuneplane.domain.timings import PRODUCTION, Timings

from .machine_settings import gpu_indexes, gpu_uuids, port_range, runtime_name

T = TypeVar("T")

DEFAULT_DATA_DIR = ".tuneplane-data"
CONSOLE_PORT = 9443
GATEWAY_PORT = 8443  # R-SES-08
ENC_KEY_BYTES = 32  # AES-256
LEAST_JWT_SECRET = 32  # characters: HS256 wants a key at least as long as its digest
MAX_ENV_FILE_BYTES = 1 << 20  # a settings file, not a log that somebody named .env
HOST = re.compile(r"^(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)$")
NODE_ENV_FILE = Path("/etc/tuneplane-node.env")


class WrongSetting(TuneplaneError):
    """A setting broke a rule: names the ``variable`` and the ``rule``, never the value (it may be a secret)."""

    code = "wrong-setting"

    def __init__(self, variable: str, rule: str) -> None:
        super().__init__(f"{variable} {rule}")
        self.variable = variable
        self.rule = rule


class Secret:
    """A string or bytes that no repr, log or trace shows. ``reveal()`` is the one way out."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__


@frozen
class Endpoint:
    """``host:port`` where something listens or is reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@frozen(kw_only=True)
class ControlSettings:
    """What ``tuneplane up|api|gateway|worker|migrate|user|token`` read."""

    data_dir: Path
    database_url: str | None = field(repr=False)  # may hold a password. None: the embedded PostgreSQL of ``up``
    secret_enc_key: Secret | None
    jwt_secret: Secret | None
    public_url: str | None
    storage_root: Path | None
    console_listen: Endpoint | None
    console_certificate: Path | None
    console_private_key: Path | None
    gateway_listen: Endpoint | None
    relay_listen: Endpoint
    node_gateway_target: Endpoint | None
    node_gateway_trust_bundle: Path | None
    gateway_tls_dir: Path
    gateway_tls_auto_generate: bool
    insecure_registries: frozenset[str]
    timings: Timings

    def require_database(self) -> str:
        """The PostgreSQL DSN, for the processes that bring none of their own."""
        return _required("TUNEPLANE_DATABASE_URL", self.database_url)

    def require_enc_key(self) -> bytes:
        return _required("TUNEPLANE_SECRET_ENC_KEY", self.secret_enc_key).reveal()

    def require_jwt_secret(self) -> bytes:
        return _required("TUNEPLANE_JWT_SECRET", self.jwt_secret).reveal()

    def require_gateway_target(self) -> Endpoint:
        return _required("TUNEPLANE_NODE_GATEWAY_TARGET", self.node_gateway_target)


@frozen(kw_only=True)
class NodeSettings:
    """What ``tuneplane-node`` reads. ``None`` and empty mean *not declared*: the Node then says what is missing."""

    state_dir: Path | None
    gateway: Endpoint | None
    trust_bundle: Path | None
    enrollment_trust_bundle: Path | None
    cpus: float | None
    memory_gb: float | None
    gpu_ids: tuple[int, ...] | None  # () declares a CPU-only Node (R-ENR-09), or one whose cards are granted by UUID
    gpu_uuids: tuple[str, ...]
    ports: tuple[int, int]
    staging_capacity_gb: float
    runtime: str  # "docker", "podman" or "" = find
    runtime_socket: Path | None
    address: str | None
    storage_root: Path | None
    fleet: str | None
    join_token: Secret | None
    insecure_registries: frozenset[str]
    timings: Timings

    def require_state_dir(self) -> Path:
        """R-ENR-04: unset is refused; one under the storage root too."""
        state_dir = _required("TUNEPLANE_NODE_STATE_DIR", self.state_dir)
        root = self.storage_root
        if root is not None and (state_dir.resolve() == root.resolve() or root.resolve() in state_dir.resolve().parents):
            raise WrongSetting("TUNEPLANE_NODE_STATE_DIR", "must not lie under TUNEPLANE_STORAGE_ROOT: it is private to this machine")
        return state_dir


def read_control_settings(environ: Mapping[str, str] | None = None, *, env_file: Path | None = Path(".env")) -> ControlSettings:
    """All settings of the control plane. Raises WrongSetting for the first one that breaks its rule."""
    values = _values(environ, env_file)
    data_dir = _path(values, "TUNEPLANE_DATA_DIR") or Path(DEFAULT_DATA_DIR)
    certificate, key = _pair(values, "TUNEPLANE_CONSOLE_CERTIFICATE", "TUNEPLANE_CONSOLE_PRIVATE_KEY")
    return ControlSettings(
        data_dir=data_dir,
        database_url=_read(values, "TUNEPLANE_DATABASE_URL", _database_url),
        secret_enc_key=_read(values, "TUNEPLANE_SECRET_ENC_KEY", _enc_key),
        jwt_secret=_read(values, "TUNEPLANE_JWT_SECRET", _jwt_secret),
        public_url=_read(values, "TUNEPLANE_PUBLIC_URL", _https_url),
        storage_root=_absolute(values, "TUNEPLANE_STORAGE_ROOT"),
        console_listen=_read(values, "TUNEPLANE_CONSOLE_LISTEN", _endpoint),
        console_certificate=certificate,
        console_private_key=key,
        gateway_listen=_read(values, "TUNEPLANE_GATEWAY_LISTEN", _endpoint),
        relay_listen=_read(values, "TUNEPLANE_RELAY_LISTEN", _endpoint) or Endpoint("127.0.0.1", 0),
        node_gateway_target=_read(values, "TUNEPLANE_NODE_GATEWAY_TARGET", _target),
        node_gateway_trust_bundle=_trust_bundle(values, "TUNEPLANE_NODE_GATEWAY_TRUST_BUNDLE"),
        gateway_tls_dir=_path(values, "TUNEPLANE_GATEWAY_TLS_DIR") or data_dir / "gateway-tls",
        gateway_tls_auto_generate=_or(_read(values, "TUNEPLANE_GATEWAY_TLS_AUTO_GENERATE", _boolean), True),
        insecure_registries=_insecure_registries(values),
        timings=_timings(values),
    )


def read_node_settings(environ: Mapping[str, str] | None = None, *, env_file: Path | None = None) -> NodeSettings:
    """All settings of the Node daemon; the env file defaults to ``/etc/tuneplane-node.env``, else ``.env``."""
    if env_file is None:
        env_file = NODE_ENV_FILE if NODE_ENV_FILE.exists() else Path(".env")
    values = _values(environ, env_file)
    return NodeSettings(
        state_dir=_absolute(values, "TUNEPLANE_NODE_STATE_DIR"),
        gateway=_read(values, "TUNEPLANE_NODE_GATEWAY", _target),
        trust_bundle=_trust_bundle(values, "TUNEPLANE_NODE_TRUST_BUNDLE"),
        enrollment_trust_bundle=_trust_bundle(values, "TUNEPLANE_NODE_ENROLLMENT_TRUST_BUNDLE"),
        cpus=_read(values, "TUNEPLANE_NODE_CPUS", _positive),
        memory_gb=_read(values, "TUNEPLANE_NODE_MEMORY_GB", _positive),
        gpu_ids=_gpus(values, gpu_indexes),
        gpu_uuids=_gpus(values, gpu_uuids),
        ports=_read(values, "TUNEPLANE_NODE_PORT_RANGE", port_range) or (20000, 20999),
        staging_capacity_gb=_or(_read(values, "TUNEPLANE_NODE_STAGING_CAPACITY_GB", _not_negative), 0.0),
        runtime=_read(values, "TUNEPLANE_NODE_RUNTIME", runtime_name) or "",
        runtime_socket=_absolute(values, "TUNEPLANE_NODE_RUNTIME_SOCKET"),
        address=_read(values, "TUNEPLANE_NODE_ADDRESS", _host),
        storage_root=_absolute(values, "TUNEPLANE_STORAGE_ROOT"),
        fleet=_read(values, "TUNEPLANE_FLEET", str),
        join_token=_read(values, "TUNEPLANE_JOIN_TOKEN", lambda text: Secret(text.encode())),
        insecure_registries=_insecure_registries(values),
        timings=_timings(values),
    )


def read_env_file(path: Path) -> dict[str, str]:
    """``NAME=value`` lines; ``#`` comments, blank lines, ``export`` and matching quotes are understood, nothing expands."""
    try:
        if path.stat().st_size > MAX_ENV_FILE_BYTES:
            raise WrongSetting(str(path), f"is larger than {MAX_ENV_FILE_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise WrongSetting(str(path), f"cannot be read as a settings file: {error}") from error
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip().removeprefix("export ").lstrip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name.strip()):
            raise WrongSetting(str(path), f"line {number} must look like NAME=value")
        values[name.strip()] = _unquote(value.strip())
    return values


def _unquote(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.split(" #", 1)[0].rstrip()


def _values(environ: Mapping[str, str] | None, env_file: Path | None) -> dict[str, str]:
    from_file = read_env_file(env_file) if env_file is not None else {}
    return {**from_file, **(os.environ if environ is None else environ)}


def _required(variable: str, value: T | None) -> T:
    if value is None:
        raise WrongSetting(variable, "must be set")
    return value


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _read(values: Mapping[str, str], variable: str, parse: Callable[[str], T]) -> T | None:
    """The parsed value; empty counts as unset. A ValueError's text is the rule."""
    text = values.get(variable, "").strip()
    if not text:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise WrongSetting(variable, str(error)) from None


def _path(values: Mapping[str, str], variable: str) -> Path | None:
    return _read(values, variable, Path)


def _absolute(values: Mapping[str, str], variable: str) -> Path | None:
    path = _path(values, variable)
    if path is not None and not path.is_absolute():
        raise WrongSetting(variable, "must be an absolute path")
    return path


def _pair(values: Mapping[str, str], certificate: str, key: str) -> tuple[Path | None, Path | None]:
    first, second = _path(values, certificate), _path(values, key)
    if (first is None) != (second is None):
        raise WrongSetting(certificate if first is None else key, "must be set too: certificate and key come together")
    return first, second


def _trust_bundle(values: Mapping[str, str], variable: str) -> Path | None:
    """A PEM file of certificates; one that contains a private key is refused (R-TLS-09)."""
    path = _path(values, variable)
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise WrongSetting(variable, f"names a file that cannot be read: {error.strerror}") from error
    if "PRIVATE KEY" in text:
        raise WrongSetting(variable, "names a file with a private key in it; a trust bundle holds certificates only")
    if "BEGIN CERTIFICATE" not in text:
        raise WrongSetting(variable, "names a file without a PEM certificate")
    return path


def _database_url(text: str) -> str:
    if not text.startswith(("postgresql://", "postgres://")):
        raise ValueError("must look like postgresql://user@host/database")
    return text


def _https_url(text: str) -> str:
    if not re.fullmatch(r"https://[^/\s]+/?", text):
        raise ValueError("must look like https://console.example (HTTPS only, no path)")
    return text.rstrip("/")


def _enc_key(text: str) -> Secret:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"must be {ENC_KEY_BYTES} bytes in base64") from None
    if len(key) != ENC_KEY_BYTES:
        raise ValueError(f"must be {ENC_KEY_BYTES} bytes in base64")
    return Secret(key)


def _jwt_secret(text: str) -> Secret:
    if len(text) < LEAST_JWT_SECRET:
        raise ValueError(f"must have at least {LEAST_JWT_SECRET} characters")
    return Secret(text.encode())


def _host(text: str) -> str:
    if not HOST.match(text):
        raise ValueError("must be a host name or an IP address")
    return text.strip("[]")


def _endpoint(text: str) -> Endpoint:
    """``host:port`` to listen on; port 0 means any free one."""
    host, colon, port = text.rpartition(":")
    if not colon or not HOST.match(host) or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("must look like host:port, such as gateway.example:8443 or [::1]:8443")
    return Endpoint(host.strip("[]"), int(port))


def _target(text: str) -> Endpoint:
    endpoint = _endpoint(text)
    if endpoint.port == 0:
        raise ValueError("must name a port between 1 and 65535")
    return endpoint


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "1", "yes", "on"):
        return True
    if text.lower() in ("false", "0", "no", "off"):
        return False
    raise ValueError("must be true or false")


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError("must be a finite number")
    return number


def _positive(text: str) -> float:
    number = _number(text)
    if number <= 0:
        raise ValueError("must be above 0")
    return number


def _not_negative(text: str) -> float:
    number = _number(text)
    if number < 0:
        raise ValueError("must not be negative")
    return number


def _gpus(values: Mapping[str, str], read: Callable[[str | None], T]) -> T:
    try:
        return read(values.get("TUNEPLANE_NODE_GPU_IDS"))
    except ValueError as error:
        raise WrongSetting("TUNEPLANE_NODE_GPU_IDS", str(error)) from None


def _insecure_registries(values: Mapping[str, str]) -> frozenset[str]:
    return _read(values, "TUNEPLANE_INSECURE_REGISTRIES", _registries) or frozenset()


def _registries(text: str) -> frozenset[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not all(re.fullmatch(r"[A-Za-z0-9.-]+(:\d{1,5})?", name) for name in names):
        raise ValueError("must be registries such as registry.corp:5000, separated by commas")
    return frozenset(names)


def _timings(values: Mapping[str, str]) -> Timings:
    """``TUNEPLANE_TIMINGS_FACTOR`` scales every protocol duration; for tests, and only downwards."""

    def factor(text: str) -> float:
        number = _number(text)
        if not 0 < number <= 1:
            raise ValueError("must be above 0 and at most 1")
        return number

    return PRODUCTION.scaled(_or(_read(values, "TUNEPLANE_TIMINGS_FACTOR", factor), 1.0))
