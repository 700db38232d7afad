"""Starts our processes by fork from one that has imported everything: a real process each, there in a tenth of the time.

The fault tests restart some process a few hundred times; most of a start is Python importing libraries. The child runs
the same ``main`` of the same command line, with its own environment, working directory and log. Only imports are
shared: nothing of ours runs before the fork, and there is one thread.

Run as ``python -m tests.support.zygote``: one JSON request a line in (``argv``, ``env``, ``cwd``, ``log``), one JSON
line out for each child that began (``pid``) or ended (``ended``, ``status``).
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field

BEGIN_SECONDS = 60.0  # the imports, once, on two busy cores
PROGRAMS = ("tuneplane", "tuneplane-node")


# ---------------------------------------------------------------- the test's side


@define(eq=False)
class Child:
    """What :class:`subprocess.Popen` offers, as far as tests need it."""

    zygote: Zygote
    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        self.zygote.read(0.0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        ends = time.monotonic() + timeout
        while self.returncode is None:
            left = ends - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.zygote.read(left)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@define(eq=False)
class Zygote:
    """The forking process. Made by :func:`open_zygote`."""

    process: subprocess.Popen[bytes]
    _children: dict[int, Child] = field(factory=dict)
    _buffer: bytes = b""
    _begun: list[int] = field(factory=list)

    def spawn(self, command: list[str], env: dict[str, str], cwd: Path, log: Path) -> Child:
        """Start ``command`` (a program of ours by name or path)."""
        assert self.process.stdin is not None
        log.touch()  # whoever reads it need not wait for the child
        request = {"argv": [Path(command[0]).name, *command[1:]], "env": env, "cwd": str(cwd), "log": str(log)}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        ends = time.monotonic() + BEGIN_SECONDS
        while not self._begun:
            assert time.monotonic() < ends, "the zygote does not answer"
            self.read(1.0)
        return self._children[self._begun.pop()]

    def read(self, seconds: float) -> None:
        """Take in what the zygote says within ``seconds``, or nothing."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        if not select.select([descriptor], [], [], seconds)[0]:
            return
        data = os.read(descriptor, 65536)
        assert data, "the zygote has ended"
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, said: dict[str, int]) -> None:
        if "pid" in said:
            self._children[said["pid"]] = Child(self, said["pid"])
            self._begun.append(said["pid"])
        else:
            self._children.pop(said["ended"]).returncode = said["status"]


@contextmanager
def open_zygote() -> Iterator[Zygote]:
    """Start it; at the end kill it and every child that still runs."""
    command = [sys.executable, "-m", "tests.support.zygote"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        zygote = Zygote(process)
        try:
            yield zygote
        finally:
            for child in list(zygote._children.values()):
                child.kill()
            process.kill()


# ---------------------------------------------------------------- the zygote's side


def _serve() -> None:
    import tuneplane.app.admin
    import tuneplane.app.roots
    import tuneplane.app.up  # noqa: F401
    from tuneplane.app import cli, node_cli

    mains = dict(zip(PROGRAMS, (cli.main, node_cli.main), strict=True))
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.freeze()
    while True:
        ready = select.select([0, wake_read], [], [])[0]
        if wake_read in ready:
            os.read(wake_read, 4096)
            _reap()
        if 0 in ready:
            line = sys.stdin.buffer.readline()
            if not line:
                return
            _say({"pid": _fork(json.loads(line), mains)})


def _say(what: dict[str, int]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _fork(request: dict[str, Any], mains: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        status = _become(request, mains)
    finally:
        sys.stderr.flush()
        os._exit(status)


def _become(request: dict[str, Any], mains: dict[str, Any]) -> int:
    """Everything that an exec would have given it, then the command's own main; the exit status."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, lambda *_: _tell_tasks())
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    os.closerange(3, 4096)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    try:
        mains[request["argv"][0]](args=request["argv"][1:], prog_name=request["argv"][0])
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _tell_tasks() -> None:
    """Where every Trio task of this process waits, into its log: for a failure that nobody understands."""
    import trio

    waiting = [trio.lowlevel.current_root_task()]
    while waiting:
        task = waiting.pop()
        if task is None:
            continue
        frames = [f"{Path(frame.f_code.co_filename).name}:{line} {frame.f_code.co_name}" for frame, line in task.iter_await_frames()]
        print(f"TASK {task.name}: {' > '.join(frames)}", file=sys.stderr)
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    sys.stderr.flush()


if __name__ == "__main__":
    _serve()
