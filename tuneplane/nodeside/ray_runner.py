"""What the container of a Ray member runs first: one file, standard library only, on whatever Python 3.8+ the image has.

    python3 ray_runner.py SETTINGS COMMAND...      SETTINGS is JSON, see domain/ray.py, runner_settings

Rank 0 starts Ray's head, waits until all members have joined, runs COMMAND with RAY_ADDRESS set and ends with its exit
code; signals that it gets go to COMMAND. Every other rank joins and stays until the head is gone (ends with 0: the
head's outcome is the verdict) or until it is stopped. What it has to say goes to standard error; Ray's own output goes to
a file and is shown only when Ray fails. The Node copies this file beside the plan and imports nothing from it.

It is the container's first process: whatever it leaves behind ends with it. Run by something else (a shared process
namespace), it ends its own descendants and nothing more; ``ray stop`` would end every Ray that it can see.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

VERSION, PORT_TAKEN, START_FAILED, PEERS_MISSING, LOST = range(91, 96)  # domain/ray.py gives them their reasons
NOT_FOUND, NOT_EXECUTABLE, SIGNALLED = 127, 126, 128  # as shells say it
PASSED_ON = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
HANDLED = PASSED_ON | {signal.SIGCHLD}
PR_SET_CHILD_SUBREAPER = 36
LOOK_SECONDS = 0.2  # between two looks at something that tells nobody when it is ready
HEAD_LOOK_SECONDS = 2.0  # between two looks of a member at the head
HEAD_ANSWER_SECONDS = 5.0  # for one connection attempt
HEAD_LOST_SECONDS = 60.0  # unreachable for so long: Ray itself gives a head up after the same time
REFUSALS = 2  # in a row: a firewall that is being reloaded refuses once, too
LOST_SECONDS = 30.0  # what the command gets to end by itself when its Ray is gone: its own exit code says more than ours
RAY_END_SECONDS = 2.0  # asked to end, Ray drains for up to 30 s, and nobody is left to drain for
SAY_SECONDS = 15.0  # between two lines about who is still missing
TAIL_BYTES = 4096  # of Ray's output, when it fails


class Failed(Exception):
    """The end, with its exit code and what to say."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def say(text: str, output: int = 2) -> None:
    os.write(output, f"tuneplane-ray: {text}\n".encode(errors="replace"))


class Processes:
    """Our children: started with the caller's signal mask, reaped as the first process of a container must."""

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as whoever starts us may have it, no child could be reaped
        with suppress(OSError, AttributeError):  # as the first process we are the reaper anyway
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.codes: dict[int, int] = {}

    def start(self, command: list[str], env: dict[str, str], stdout: int | None = None, stderr: int | None = None) -> int:
        """Start ``command`` in a session of its own; its pid. Its output is ours unless given. Raises OSError."""
        process = subprocess.Popen(  # noqa: S603 - the job's own command is what we are for
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED),  # we have no threads
        )
        process.returncode = 0  # we reap, the object must not
        return process.pid

    def wait(self, seconds: float) -> int:
        """Sleep until a signal arrives that is to be passed on (its number), a child ended, or time is up (0)."""
        got = signal.sigtimedwait(HANDLED, max(seconds, 0.0))
        self.reap()
        return 0 if got is None or got.si_signo == signal.SIGCHLD else got.si_signo

    def reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self.codes[pid] = SIGNALLED + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def send(self, pid: int, number: int) -> None:
        if pid not in self.codes:
            os.kill(pid, number)

    def end(self, pid: int, number: int, seconds: float) -> None:
        """Ask, wait, and leave the rest to :meth:`end_all`."""
        self.send(pid, number)
        ends = time.monotonic() + seconds
        while pid not in self.codes and time.monotonic() < ends:
            self.wait(ends - time.monotonic())

    def end_all(self) -> None:
        """Kill every descendant. Those of children that we kill become our children, so look until there is none."""
        while True:
            children = _children()
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            for pid in children:
                os.waitpid(pid, 0)
            if not children:
                return


def _children() -> list[int]:
    """Of this process, which has one thread."""
    me = os.getpid()
    with suppress(OSError):  # a kernel without this file: what we leave behind ends with the container
        return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
    return []


class Runner:
    """One member, from its start to its exit code."""

    def __init__(self, settings: dict[str, Any], command: list[str]) -> None:
        self.settings, self.command = settings, command
        self.head = (str(settings["head"][0]), int(settings["head"][1]))
        self.processes = Processes()
        self.output = tempfile.TemporaryFile(prefix="tuneplane-ray-")  # noqa: SIM115 - as long as this process
        self.ray = 0
        self.deadline = time.monotonic() + settings["join_seconds"]

    def run(self) -> int:
        check_version(self.settings["ray_version"])
        options = [*self.settings["options"], *port_options(self.settings)]
        if self.settings["rank"] == 0:
            self.start_ray(options)
            self.await_members()
            return self.run_command()
        self.await_head()
        self.start_ray(options)
        return self.stay()

    # ---------------------------------------------------------------- Ray

    def start_ray(self, options: list[str]) -> None:
        say(f"starting Ray {self.settings['ray_version']} as {'the head' if self.settings['rank'] == 0 else 'a member'}")
        command, output = [sys.executable, __file__, "--ray", "start", "--block", *options], self.output.fileno()
        self.ray = self.processes.start(command, self.env(), output, output)

    def env(self, **more: str) -> dict[str, str]:
        """For Ray's own processes: a RAY_ADDRESS of the job's would point them elsewhere."""
        return {**{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}, **self.settings["environment"], **more}

    def tail(self) -> str:
        """The end of what Ray printed."""
        end = os.fstat(self.output.fileno()).st_size
        data = os.pread(self.output.fileno(), TAIL_BYTES, max(0, end - TAIL_BYTES))
        return data.decode(errors="replace").strip() or "it printed nothing"

    def check_ray(self, doing: str) -> None:
        code = self.processes.codes.get(self.ray)
        if code is not None:
            raise Failed(START_FAILED, f"Ray ended with {code} while {doing}. It printed last:\n{self.tail()}")

    def pause(self, seconds: float, doing: str) -> None:
        """Wait before there is a command; a signal ends everything at once."""
        number = self.processes.wait(seconds)
        if number:
            raise Failed(SIGNALLED + number, f"stopped by {signal.Signals(number).name} while {doing}")

    # ---------------------------------------------------------------- rank 0

    def await_members(self) -> None:
        """A short driver of our own asks Ray who has joined, and says whom it waits for. One that asks too early may be ended
        by Ray's own checks: then another one asks."""
        doing = f"waiting for {self.settings['world']} members to join"
        while self.ask_for_members(doing) != 0:
            if time.monotonic() < self.deadline:
                continue
            raise Failed(PEERS_MISSING, f"gave up after {self.settings['join_seconds']:g} s {doing}. Ray printed last:\n{self.tail()}")

    def ask_for_members(self, doing: str) -> int:
        arguments = json.dumps([self.settings["world"], max(0.0, self.deadline - time.monotonic())])
        command = [sys.executable, __file__, "--await", arguments]
        asker = self.processes.start(command, self.env(RAY_ADDRESS=self.settings["ray_address"]), self.output.fileno())
        while asker not in self.processes.codes:
            self.check_ray(doing)
            self.pause(LOOK_SECONDS, doing)
        return self.processes.codes[asker]

    def run_command(self) -> int:
        try:
            command = self.processes.start(self.command, {**os.environ, "RAY_ADDRESS": self.settings["ray_address"]})
        except FileNotFoundError:
            raise Failed(NOT_FOUND, f"{self.command[0]}: no such program in this image") from None
        except OSError as error:
            raise Failed(NOT_EXECUTABLE, f"{self.command[0]}: {error.strerror}") from None
        while command not in self.processes.codes:
            if self.ray in self.processes.codes:
                return self.without_ray(command)
            number = self.processes.wait(HEAD_LOOK_SECONDS)
            if number:
                self.processes.send(command, number)
        return self.processes.codes[command]

    def without_ray(self, command: int) -> int:
        """Ray is gone under the command (a script that ends with ``ray stop`` does that): its own end still counts."""
        say(f"Ray ended with {self.processes.codes[self.ray]} while the command was running. It printed last:\n{self.tail()}")
        ends = time.monotonic() + LOST_SECONDS
        while command not in self.processes.codes and time.monotonic() < ends:
            number = self.processes.wait(ends - time.monotonic())
            if number:
                self.processes.send(command, number)
        if command in self.processes.codes:
            return self.processes.codes[command]
        self.processes.end(command, signal.Signals[self.settings["stop_signal"]], self.settings["grace_seconds"])
        raise Failed(LOST, f"the command did not end within {LOST_SECONDS:g} s of the end of Ray")

    # ---------------------------------------------------------------- other ranks

    def await_head(self) -> None:
        doing = f"waiting for the head at {self.settings['ray_address']}"
        say(doing)
        while reach(self.head) is not None:
            if time.monotonic() > self.deadline:
                raise Failed(PEERS_MISSING, f"gave up after {self.settings['join_seconds']:g} s {doing}")
            self.pause(LOOK_SECONDS, doing)

    def stay(self) -> int:
        """Serve until the head is gone. A stop leaves the head its grace: its command may need this member to save."""
        answered, refused, stopped, stop_by, lost_by = time.monotonic(), 0, 0, float("inf"), float("inf")
        while True:
            number = self.processes.wait(LOOK_SECONDS if stopped or refused or lost_by < float("inf") else HEAD_LOOK_SECONDS)
            if number and not stopped:
                stopped = number
                stop_by = time.monotonic() + max(0.0, self.settings["grace_seconds"] - RAY_END_SECONDS - HEAD_ANSWER_SECONDS)
            problem, now = reach(self.head), time.monotonic()
            answered = now if problem is None else answered
            refused = refused + 1 if problem == errno.ECONNREFUSED else 0
            if refused >= REFUSALS:
                say("the head is gone: this member ends")
                return SIGNALLED + stopped if stopped else 0
            if now >= stop_by:
                raise Failed(SIGNALLED + stopped, f"stopped by {signal.Signals(stopped).name}")
            if self.ray in self.processes.codes:  # a head that ends may take it along before it is gone itself
                lost_by = min(lost_by, now + HEAD_ANSWER_SECONDS)
            if now >= lost_by:
                raise Failed(LOST, f"Ray ended with {self.processes.codes[self.ray]} on this member. It printed last:\n{self.tail()}")
            if now - answered > HEAD_LOST_SECONDS:
                raise Failed(LOST, f"the head could not be reached for {now - answered:.0f} s: {os.strerror(problem or 0)}")


def check_version(wanted: str) -> None:
    try:
        found = metadata.version("ray")
    except metadata.PackageNotFoundError:
        raise Failed(VERSION, f"the job asks for Ray {wanted}, and {sys.executable} in this image has no Ray") from None
    if found != wanted:
        raise Failed(VERSION, f"the job asks for Ray {wanted}, and this image has Ray {found}")


def port_options(settings: dict[str, Any]) -> list[str]:
    """The ports that depend on what is here. Raises Failed when one that Ray cannot do without is taken."""
    taken = [port for port in settings["fixed_ports"] if in_use(port)]
    workers = [port for port in settings["worker_ports"] if not in_use(port)]
    if taken or not workers:
        listed = ", ".join(map(str, taken or settings["worker_ports"]))
        raise Failed(PORT_TAKEN, f"port {listed} is in use on this machine by something that is not Tuneplane's")
    client = [f"--ray-client-server-port={settings['client_port']}"]  # Ray refuses the option where grpcio is missing
    needed = settings["rank"] == 0 and importlib.util.find_spec("grpc") is not None
    return [*(client if needed else []), f"--worker-port-list={','.join(map(str, workers))}"]


def in_use(port: int) -> bool:
    """Whether anything is bound to ``port`` on any address of this machine."""
    for family, anywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - to ask, not to listen
        with suppress(OSError), socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((anywhere, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False


def reach(head: tuple[str, int]) -> int | None:
    """None when something listens at the head's address, else why not, as an errno."""
    try:
        socket.create_connection(head, HEAD_ANSWER_SECONDS).close()
    except socket.timeout:  # noqa: UP041 - another class before Python 3.10
        return errno.ETIMEDOUT
    except OSError as error:
        return error.errno or errno.EIO
    return None


# ---------------------------------------------------------------- the two ways in which this file runs beside itself


def run_ray(arguments: list[str]) -> None:
    """The ``ray`` command line, wherever its script is: ``sys.path`` begins with our directory, not the job's."""
    sys.argv = ["ray", *arguments]
    importlib.import_module("ray.scripts.scripts").main()


def await_ranks(world: int, seconds: float) -> int:
    """Ask Ray until every rank has joined; 0, or 1 when time is up. Says who is missing, now and then."""
    words = os.dup(2)
    os.dup2(1, 2)  # what Ray has to say goes to the file
    ray = importlib.import_module("ray")
    ends, told, missing, grace = time.monotonic() + seconds, time.monotonic(), list(range(world)), HEAD_LOST_SECONDS
    while missing:
        with suppress(Exception):  # whatever it is, it is "not yet": the runner sees Ray itself end
            if not ray.is_initialized():
                ray.init(log_to_driver=False, logging_level="ERROR")
            names = {name for node in ray.nodes() if node["Alive"] for name in node["Resources"]}
            missing = [rank for rank in range(world) if f"tuneplane_rank_{rank}" not in names]
            grace = 0.0  # for a Ray that could not be asked at all before time was up
        over = time.monotonic() >= ends + grace
        if missing and (over or time.monotonic() >= told + SAY_SECONDS):
            told = time.monotonic()
            say(f"waiting for rank {', '.join(map(str, missing))} to join", words)
        if missing and over:
            return 1
        time.sleep(LOOK_SECONDS)
    say(f"all {world} members have joined", words)
    return 0


def main(arguments: list[str]) -> int:
    if arguments[0] == "--ray":
        run_ray(arguments[1:])
        return 0
    if arguments[0] == "--await":
        return await_ranks(*json.loads(arguments[1]))
    runner = Runner(json.loads(arguments[0]), arguments[1:])
    try:
        code = runner.run()
    except Failed as failed:
        say(str(failed))
        code = failed.code
    if runner.ray:
        runner.processes.end(runner.ray, signal.SIGTERM, RAY_END_SECONDS)
    runner.processes.end_all()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
