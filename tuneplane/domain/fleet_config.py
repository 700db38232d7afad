"""What a Fleet's ``config`` may say: the settings that it overrides, each with its rule (R-FLT-03, R-FLT-10).

A known key with a value that its setting could not read is refused; an unknown one is kept and warned about, for it may
be that of a newer version. So is a key that no Fleet of this kind reads: its operator believes that it is in effect.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from difflib import get_close_matches
from urllib.parse import urlsplit

from attrs import frozen

from .errors import InvalidInput
from .fleets import FleetKind
from .ids import SLUG

MOST_KEYS = 64  # far more than there are settings; a bound on what one Fleet row holds
MOST_TEXT = 4096  # characters of one key or value: a URL or a path
MOST_GANG_DEADLINE_SECONDS = 86400.0  # reservations are held as long, and nobody else gets the machines meanwhile
LEAST_PORT, MOST_PORT = 1024, 65535
SECONDS = re.compile(r"^[0-9]{1,6}(\.[0-9]{1,6})?\Z")  # float() reads '1_0' and ' 600 ' too, which say no number to people
PORTS = re.compile(r"^([0-9]{1,5})-([0-9]{1,5})\Z")
PARTITION = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
ACCOUNT = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}\Z")
HOST = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z|^[0-9A-Fa-f:.]{2,45}\Z")

NODE, SLURM, KUBERNETES = FleetKind.NODE, FleetKind.SLURM, FleetKind.KUBERNETES


def gang_deadline(config: dict[str, str]) -> float | None:
    """``gang_deadline_seconds``: how long the members of a gang wait for one another. None: not (well) said."""
    text = config.get("gang_deadline_seconds", "")
    seconds = float(text) if SECONDS.match(text) else 0.0
    return seconds if 1 <= seconds <= MOST_GANG_DEADLINE_SECONDS else None


def serving_ports(config: dict[str, str]) -> tuple[int, int] | None:
    """``serving_port_range``, first and last: where serving workloads listen. None: not (well) said."""
    match = PORTS.match(config.get("serving_port_range", ""))
    ports = (int(match[1]), int(match[2])) if match is not None else (0, 0)
    return ports if LEAST_PORT <= ports[0] <= ports[1] <= MOST_PORT else None


def is_absolute_path(text: str) -> bool:
    """As the same path is written on every machine (R-ENR-11): no "..", no double slash; one at the end does no harm."""
    clean = posixpath.normpath(text) == (text.rstrip("/") or "/")
    return text.startswith("/") and not text.startswith("//") and clean and text.strip("/") != "" and text.isprintable()


def is_url(text: str) -> bool:
    """A base address: http or https, a host, perhaps a path. No credentials, query or fragment: it is shown to people."""
    try:
        parts = urlsplit(text)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        return False
    plain = not (parts.username or parts.password or parts.query or parts.fragment or "@" in parts.netloc)
    whole = text.isascii() and text.isprintable() and " " not in text and not text.endswith(("?", "#"))
    return parts.scheme in ("http", "https") and HOST.match(parts.hostname or "") is not None and port_is_good and plain and whole


def storage_root(config: dict[str, str], default: str) -> str:
    """The shared directory, as Nodes are told it: without a slash at its end."""
    return config.get("storage_root", default).rstrip("/")


def why_other_root(config: dict[str, str], told: str) -> str:
    """Why a machine that was told the storage root ``told`` takes no work of a Fleet that names its own (R-ENR-11); "" if it may."""
    root = storage_root(config, "")
    if not root or told.rstrip("/") == root:
        return ""
    return f"its TUNEPLANE_STORAGE_ROOT is {told or 'not set'}, and its Fleet's storage root is {root}"


@frozen
class Setting:
    """One key: on Fleets of which kinds it is read, what its value must be, and the same for a machine."""

    kinds: tuple[FleetKind, ...]
    rule: str
    accepts: Callable[[str], bool]


URL_RULE = "must be an http or https address: a host, perhaps a port and a path; no user, query or fragment"
LABEL_RULE = "must be 1 to 63 of a-z, 0-9 and '-', starting and ending with a letter or digit"

SETTINGS: dict[str, Setting] = {
    "slurm_rest_url": Setting((SLURM,), URL_RULE, is_url),
    "slurm_partition": Setting(
        (SLURM,), "must be a partition's name: 1 to 64 letters, digits, '_', '.' or '-'", lambda text: PARTITION.match(text) is not None
    ),
    "slurm_user": Setting(
        (SLURM,), "must be a user's name on the cluster, such as svc-train", lambda text: ACCOUNT.match(text) is not None
    ),
    "kubernetes_api_url": Setting((KUBERNETES,), URL_RULE, is_url),
    "kubernetes_namespace": Setting((KUBERNETES,), LABEL_RULE, lambda text: SLUG.match(text) is not None),
    "kuberay_namespace": Setting((KUBERNETES,), LABEL_RULE, lambda text: SLUG.match(text) is not None),
    "storage_root": Setting((NODE, SLURM, KUBERNETES), "must be an absolute path below '/', without '..' in it", is_absolute_path),
    "serving_port_range": Setting(
        (NODE,),
        f"must look like 30000-30999, within {LEAST_PORT}-{MOST_PORT}",
        lambda text: serving_ports({"serving_port_range": text}) is not None,
    ),
    "gang_deadline_seconds": Setting(
        (NODE, SLURM, KUBERNETES),
        f"must be a number of seconds from 1 to {MOST_GANG_DEADLINE_SECONDS:.0f}",
        lambda text: gang_deadline({"gang_deadline_seconds": text}) is not None,
    ),
}


def check_config(config: dict[str, str]) -> None:
    """Raise InvalidInput, naming ``config.KEY``, for a value that its setting could not read; also on a Fleet that does not read it."""
    if len(config) > MOST_KEYS:
        raise InvalidInput("config", f"at most {MOST_KEYS} keys")
    for key, value in config.items():
        at = f"config.{key[:64]}"
        if max(len(key), len(value)) > MOST_TEXT:
            raise InvalidInput(at, f"at most {MOST_TEXT} characters")
        setting = SETTINGS.get(key)
        if setting is not None and not setting.accepts(value):
            raise InvalidInput(at, setting.rule)


def config_warnings(config: dict[str, str], kind: FleetKind) -> tuple[str, ...]:
    """One sentence a key that no setting reads on a Fleet of this kind (R-FLT-03)."""
    return tuple(warning for key in sorted(config) if (warning := _warning(key, kind)))


def _warning(key: str, kind: FleetKind) -> str:
    setting = SETTINGS.get(key)
    if setting is None:
        close = get_close_matches(key, SETTINGS, n=1)
        return f"config key {key!r} is read by no setting; is it misspelled?" + (f" There is {close[0]!r}." if close else "")
    if kind not in setting.kinds:
        names = " or ".join(repr(one.value) for one in setting.kinds)
        return f"config key {key!r} is read by no setting of a Fleet of kind {kind.value!r}, only on kind {names}"
    return ""
