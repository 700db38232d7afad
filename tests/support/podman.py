"""One isolated Podman service per call: own storage, locks, events, bridge and socket; nothing is left behind.

Several test runs may use this at once: every instance takes a free octet (its bridge name and subnet) by a file lock,
and everything else lives below its own directory. Containers of Tuneplane use the host's network, so no firewall rule
is made; a test that wants the bridge runs its instance in a network namespace of its own (``netns``).
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attrs import Factory, define

READY_SECONDS = 20.0  # measured 0.1 s; two busy cores may take far longer
GONE_SECONDS = 20.0
LOCKS = Path(tempfile.gettempdir()) / "tuneplane-test-locks"
OCTETS = range(90, 190)  # 10.N.0.0/16, one an instance: more than ever run at once on one machine

CONMON = """#!/bin/sh
# conmon writes its out-of-memory marker into its working directory, Podman looks for it in the bundle's
p=; for a in "$@"; do [ "$p" = -b ] && { cd "$a" || exit 1; break; }; p=$a; done
exec /usr/bin/conmon "$@"
"""

CONTAINERS_CONF = """[containers]
default_ulimits = ["nofile={nofile}:{nofile}", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
conmon_path = ["{dir}/conmon-wrap"]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{dir}/tmp"
static_dir = "{dir}/root/libpod"
volume_path = "{dir}/vol"
events_logfile_path = "{dir}/tmp/events.log"
[engine.runtimes]
runc = ["/usr/sbin/runc", "/usr/bin/runc"]
[network]
network_backend = "netavark"
network_config_dir = "{dir}/net"
default_subnet = "10.{octet}.0.0/16"
"""


@define(eq=False)
class Podman:
    """A running (or killed) Podman service. ``env`` makes the ``podman`` command line use the same storage."""

    directory: Path
    socket: Path
    octet: int
    netns: str | None = None
    env: dict[str, str] = Factory(dict)
    process: subprocess.Popen[bytes] | None = None

    def run(self, *args: str, check: bool = True) -> str:
        """``podman ARGS…`` on this instance's storage; its standard output."""
        done = subprocess.run(["podman", *args], env=self.env, cwd=self.directory, capture_output=True, text=True, timeout=60)
        if check and done.returncode != 0:
            raise AssertionError(f"podman {' '.join(args)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def containers(self, label: str = "") -> list[dict[str, object]]:
        """All containers, ended ones too (those with ``label`` when given), as ``podman ps`` tells."""
        extra = ("--filter", f"label={label}") if label else ()
        return list(json.loads(self.run("ps", "-a", "--format", "json", *extra) or "[]"))

    def start(self) -> None:
        """Start the service and wait until it answers."""
        enter = ["nsenter", f"--net=/run/netns/{self.netns}"] if self.netns else []
        command = [*enter, "podman", "system", "service", "--time", "0", f"unix://{self.socket}"]
        with (self.directory / "service.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=self.env, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait_ready()

    def kill(self) -> None:
        """SIGKILL the service: containers live on (their conmon does not belong to it)."""
        self._end(signal.SIGKILL)
        self.socket.unlink(missing_ok=True)

    def pause(self) -> None:
        """Freeze the service: calls hang, nothing is refused. A busy machine takes a moment to stop all of its threads."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        ends = time.monotonic() + GONE_SECONDS
        while any(state != "T" for state in _thread_states(self.process.pid)) and time.monotonic() < ends:
            time.sleep(0.001)  # the kernel tells only a parent that waits for it, which Popen must not lose

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Remove all containers, end the service, unmount, delete; raise when anything resists."""
        if self.process is not None and self.process.poll() is None:
            self.resume()
        self.run("rm", "-fa", "-t", "0", check=False)
        self._end(signal.SIGTERM)
        _end_orphans(self.directory)
        for mount in _mounts_below(self.directory):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        shutil.rmtree(self.directory)
        left = _mounts_below(self.directory)
        assert not left, f"still mounted: {left}"

    def _end(self, number: int) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(GONE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(GONE_SECONDS)
        self.process = None

    def _wait_ready(self) -> None:
        ends = time.monotonic() + READY_SECONDS
        last = "no answer yet"
        while time.monotonic() < ends:
            assert self.process is not None
            if self.process.poll() is not None:
                last = f"the service ended with {self.process.returncode}"
                break
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.settimeout(2)
                    probe.connect(str(self.socket))
                    probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                    if probe.recv(64).split(b" ")[1:2] == [b"200"]:
                        return
            except OSError as error:
                last = str(error)
            time.sleep(0.02)  # the service tells nobody when it is ready
        raise AssertionError(f"podman service: {last}; {(self.directory / 'service.log').read_text()[-500:]}")


@contextmanager
def open_podman(tmp: Path, octet: int | None = None, *, netns: str | None = None) -> Iterator[Podman]:
    """A Podman service of its own below ``tmp`` (short: a Unix socket's path ends at 107 bytes)."""
    with _taken_octet(octet) as number:
        directory = Path(tempfile.mkdtemp(prefix="pod-", dir=tmp if len(str(tmp)) < 60 else None))
        podman = Podman(directory, directory / "podman.sock", number, netns)
        _write_files(podman)
        try:
            podman.start()
            yield podman
        finally:
            podman.close()


@contextmanager
def _taken_octet(wanted: int | None) -> Iterator[int]:
    LOCKS.mkdir(exist_ok=True)
    for number in [wanted] if wanted is not None else OCTETS:
        handle = _try_lock(LOCKS / f"octet-{number}")
        if handle is not None:
            with handle:
                yield number
            return
    raise AssertionError(f"no free octet: {wanted if wanted is not None else OCTETS} taken by other test runs")


def _try_lock(path: Path) -> IO[bytes] | None:
    handle = path.open("ab")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    return handle


def _write_files(podman: Podman) -> None:
    directory = podman.directory
    for name in ("root", "run", "tmp", "net", "vol"):
        (directory / name).mkdir()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = min(hard, 65536)  # soft = hard: the Docker-compatible API of 4.3.1 swaps the two
    wrapper = directory / "conmon-wrap"
    wrapper.write_text(CONMON)
    wrapper.chmod(0o755)
    (directory / "containers.conf").write_text(CONTAINERS_CONF.format(dir=directory, octet=podman.octet, nofile=limit))
    (directory / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{directory}/root"\nrunroot = "{directory}/run"\n')
    (directory / "net" / "podman.json").write_text(json.dumps(_network(podman)))
    podman.env = {
        **os.environ,
        "CONTAINERS_CONF": f"{directory}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{directory}/storage.conf",
    }


def _network(podman: Podman) -> dict[str, object]:
    return {
        "name": "podman",
        "id": f"{podman.octet:064x}",
        "driver": "bridge",
        "network_interface": f"tpt{podman.octet}",
        "created": "2026-01-01T00:00:00Z",
        "subnets": [{"subnet": f"10.{podman.octet}.0.0/16", "gateway": f"10.{podman.octet}.0.1"}],
        "ipv6_enabled": False,
        "internal": False,
        "dns_enabled": False,
        "ipam_options": {"driver": "host-local"},
    }


def _thread_states(pid: int) -> list[str]:
    return [path.read_text().rsplit(")", 1)[1].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]


def _end_orphans(directory: Path) -> None:
    """A service that was killed between creating and starting a container leaves its monitor and ``runc init`` behind,
    which never start and which nobody can name any more."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{directory}/".encode() not in (process / "cmdline").read_bytes():
                continue
            children = (process / "task" / process.name / "children").read_text().split()
            for each in (*children, process.name):
                os.kill(int(each), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue


def _mounts_below(directory: Path) -> list[str]:
    mounts = [line.split(" ")[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((mount for mount in mounts if mount.startswith(f"{directory}/")), reverse=True)
