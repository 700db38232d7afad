"""A TCP relay in a process of its own, between one Node and any number of gateways: a balancer that a test can spoil.

It passes bytes through (TLS stays end to end) and gives every new connection the next backend that accepts. ``cut`` and
``freeze`` are the ways in which a network fails:

- ``freeze`` is SIGSTOP: the kernel goes on acknowledging, nobody forwards (a half-open connection);
- ``blackhole`` swallows: connections stay, new ones are accepted, not a byte comes through, in either direction;
- ``reset`` ends every connection with RST, and every new one;
- ``delay`` holds every piece back for a while.

Each may be for one backend only (by its index) or for all. Run as ``python -m tests.support.relay PORT BACKEND...``; one
JSON command a line in, one line of numbers out.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attrs import define, field

PIECE_BYTES = 65536
CONNECT_SECONDS = 1.0
LOOK_SECONDS = 0.02
ANSWER_SECONDS = 30.0  # a command takes microseconds; two busy cores may take far longer
NO_LINGER = struct.pack("ii", 1, 0)  # close() then sends RST


# ---------------------------------------------------------------- the test's side


@define(eq=False)
class Relay:
    """The running relay. All its methods return when the relay has done it."""

    port: int
    process: subprocess.Popen[bytes]
    frozen: bool = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def blackhole(self, backend: int | None = None) -> None:
        self._tell(mode="blackhole", backend=backend)

    def reset(self, backend: int | None = None) -> None:
        self._tell(mode="reset", backend=backend)

    def delay(self, seconds: float, backend: int | None = None) -> None:
        self._tell(mode="delay", backend=backend, seconds=seconds)

    def freeze(self) -> None:
        """SIGSTOP. No other command until :meth:`heal`."""
        self.process.send_signal(signal.SIGSTOP)
        self.frozen = True

    def heal(self) -> None:
        """Everything through again; connections that were swallowed stay dead, as those of a balancer that came back do."""
        if self.frozen:
            self.process.send_signal(signal.SIGCONT)
            self.frozen = False
        self._tell(mode="pass", backend=None)

    def accepted(self) -> list[int]:
        """How many connections each backend has been given so far."""
        return self._tell(mode="count", backend=None)

    def live(self) -> list[int]:
        """How many connections each backend has now, swallowed ones not counted."""
        return self._tell(mode="live", backend=None)

    def longest_silence(self) -> float:
        """Seconds, the longest time since the last call in which no client sent a byte."""
        return self._tell(mode="silence", backend=None)[0] / 1000

    def _tell(self, **command: Any) -> list[int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert not self.frozen, "the relay is frozen"
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()
        return list(json.loads(self.process.stdout.readline()))


@contextmanager
def open_relay(*backends: int) -> Iterator[Relay]:
    """A relay to 127.0.0.1 at the ports ``backends``; killed at the end."""
    command = [sys.executable, "-m", "tests.support.relay", *map(str, backends)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield Relay(int(process.stdout.readline()), process)
        finally:
            process.kill()


# ---------------------------------------------------------------- the relay's side


@define(eq=False)
class _Pair:
    """One connection through the relay, two threads of it."""

    backend: int
    client: socket.socket
    server: socket.socket | None = None
    dead: bool = False  # was swallowed: stays silent for ever
    directions: int = 2  # that are still open

    def kill(self) -> None:
        for end in (self.client, self.server):
            if end is not None:
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                    end.shutdown(socket.SHUT_RDWR)
                with suppress(OSError):
                    end.close()


@define(eq=False)
class _Server:
    backends: list[int]
    modes: list[str] = field(factory=list)
    delays: list[float] = field(factory=list)
    counts: list[int] = field(factory=list)
    pairs: set[_Pair] = field(factory=set)
    lock: threading.Lock = field(factory=threading.Lock)
    turn: int = 0
    heard_at: float = field(factory=time.monotonic)  # the last byte of any client
    silence: float = 0.0

    def command(self, mode: str, backend: int | None, seconds: float = 0.0) -> list[int]:
        with self.lock:
            if mode == "count":
                return list(self.counts)
            if mode == "live":
                return [sum(pair.backend == index and not pair.dead for pair in self.pairs) for index in range(len(self.backends))]
            if mode == "silence":
                longest, self.silence = max(self.silence, time.monotonic() - self.heard_at), 0.0
                return [round(longest * 1000)]
            chosen = [index for index in range(len(self.backends)) if backend in (None, index)]
            for index in chosen:
                self.modes[index], self.delays[index] = mode, seconds
            touched = [pair for pair in self.pairs if pair.backend in chosen]
        for pair in touched:
            if mode == "blackhole":
                pair.dead = True
            if mode == "reset":
                pair.kill()
        return [len(touched)]

    def serve(self, listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=self._receive, args=(client,), daemon=True).start()

    def _receive(self, client: socket.socket) -> None:
        pair = self._connect(client)
        if pair is None:
            _Pair(-1, client).kill()
            return
        with self.lock:
            self.pairs.add(pair)
        if pair.server is not None:
            threading.Thread(target=self._pump, args=(pair, pair.server, client), daemon=True).start()
            self._pump(pair, client, pair.server)

    def _connect(self, client: socket.socket) -> _Pair | None:
        """To the next backend that accepts: one that refuses is passed over at once. A swallowing one is not noticed."""
        with self.lock:
            first, self.turn = self.turn, (self.turn + 1) % len(self.backends)
        for index in [*range(first, len(self.backends)), *range(first)]:
            if self.modes[index] == "reset":
                continue
            if self.modes[index] == "blackhole":
                return _Pair(index, client, dead=True)
            with suppress(OSError):
                server = socket.create_connection(("127.0.0.1", self.backends[index]), CONNECT_SECONDS)
                server.settimeout(None)
                self.counts[index] += 1
                return _Pair(index, client, server)
        return None

    def _pump(self, pair: _Pair, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(PIECE_BYTES):
                if source is pair.client:
                    self._note_heard()
                if (seconds := self.delays[pair.backend]) > 0:
                    time.sleep(seconds)
                if pair.dead:
                    return  # the sockets stay open: nobody is told
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pair.kill()
        self._note_over(pair)

    def _note_heard(self) -> None:
        with self.lock:
            now = time.monotonic()
            self.silence, self.heard_at = max(self.silence, now - self.heard_at), now

    def _note_over(self, pair: _Pair) -> None:
        with self.lock:
            pair.directions -= 1
            if pair.directions == 0 and not pair.dead:
                self.pairs.discard(pair)
                pair.kill()


def _main() -> None:
    backends = [int(text) for text in sys.argv[1:]]
    count = len(backends)
    server = _Server(backends, ["pass"] * count, [0.0] * count, [0] * count)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    threading.Thread(target=server.serve, args=(listener,), daemon=True).start()
    os.write(1, f"{listener.getsockname()[1]}\n".encode())
    for line in sys.stdin.buffer:
        os.write(1, json.dumps(server.command(**json.loads(line))).encode() + b"\n")


if __name__ == "__main__":
    _main()
