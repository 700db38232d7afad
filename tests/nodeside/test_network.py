"""What workloads' network has, looked at in real network namespaces: interfaces, addresses, routes, listeners."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from attrs import define, frozen

from tests.nodeside.harness import make_plan
from tests.support.engine import PlayNetwork
from tuneplane.domain.inventory import Interface
from tuneplane.domain.node_ports import EngineDown, NetworkHidden
from tuneplane.nodeside.address import Reach, route_address
from tuneplane.nodeside.network import LinuxNetwork, run_in_namespace
from tuneplane.nodeside.preparation import check_network

T = TypeVar("T")
DOCKER0 = "172.17.0.1"
LISTENER = """
import socket, sys
runtime = socket.socket(socket.AF_UNIX); runtime.bind(sys.argv[1]); runtime.listen()
held = []
for spec in sys.argv[2:]:
    host, port = spec.rsplit("=", 1)
    one = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    one.bind((host, int(port))); one.listen(); held.append(one)
print("up", flush=True)
sys.stdin.read()
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@frozen
class Host:
    """A network namespace with a runtime's socket that a process in it answers."""

    name: str
    socket: Path


@contextmanager
def a_host(directory: Path, name: str, addresses: dict[str, str], listen: tuple[str, ...] = ()) -> Iterator[Host]:
    """``addresses``: interface -> ADDRESS/PREFIX, or "" for an interface without one. The first one has the default route."""
    space = f"tpg{os.getpid()}{name}"
    with ExitStack() as stack:
        ip("netns", "add", space)
        stack.callback(ip, "netns", "del", space)
        ip("-n", space, "link", "set", "lo", "up")
        for interface, address in addresses.items():
            ip("-n", space, "link", "add", interface, "type", "bridge")
            ip("-n", space, "link", "set", interface, "up")
            if address:
                ip("-n", space, "addr", "add", address, "dev", interface, "nodad")
        ip("-n", space, "route", "add", "default", "dev", next(iter(addresses)))
        path = directory / f"{name}.sock"
        command = ["ip", "netns", "exec", space, sys.executable, "-c", LISTENER, str(path), *listen]
        process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield Host(space, path)


@pytest.fixture
def listening_here(tmp_path: Path) -> Iterator[Path]:
    """A runtime's socket that this very process answers: its network is ours."""
    with closing(socket.socket(socket.AF_UNIX)) as ours:
        path = tmp_path / "ours.sock"
        ours.bind(str(path))
        ours.listen()
        yield path


async def test_interfaces_are_those_of_the_runtimes_namespace(tmp_path: Path) -> None:
    """R-LCH-11, L-H6: not of this daemon's, and nobody asks /etc/hosts."""
    with a_host(tmp_path, "a", {"eth0": "10.77.0.1/24", "ib0": "2001:db8:77::1/64", "docker0": f"{DOCKER0}/16", "empty": ""}) as host:
        found = await LinuxNetwork(host.socket).interfaces()
    assert found == (
        Interface(name="docker0", addresses=(DOCKER0,)),
        Interface(name="empty"),
        Interface(name="eth0", addresses=("10.77.0.1",)),
        Interface(name="ib0", addresses=("2001:db8:77::1",)),
        Interface(name="lo"),
    )


async def test_interfaces_of_a_runtime_in_our_own_network_are_ours(listening_here: Path) -> None:
    found = await LinuxNetwork(listening_here).interfaces()
    assert {one.name for one in found} == {name for _, name in socket.if_nameindex()}


async def test_looking_at_another_namespace_leaves_this_one_alone(tmp_path: Path, listening_here: Path) -> None:
    """The thread that entered it never does other work."""
    ours = await LinuxNetwork(listening_here).interfaces()
    with a_host(tmp_path, "b", {"eth0": "10.77.0.2/24"}) as host:
        other = LinuxNetwork(host.socket)
        for _ in range(3):
            await other.interfaces()
            assert await LinuxNetwork(listening_here).interfaces() == ours
            assert await trio.to_thread.run_sync(socket.if_nameindex) == socket.if_nameindex()


async def test_two_machines_with_the_same_docker0_are_reached_by_their_own_addresses(tmp_path: Path) -> None:
    """L-H5: eth0, ib0 and docker0 with one address on all; the host's name stands for all of them, the route decides."""
    reached = []
    for number in (1, 2):
        addresses = {"eth0": f"10.78.0.{number}/24", "ib0": f"10.79.0.{number}/24", "docker0": f"{DOCKER0}/16"}
        with a_host(tmp_path, f"c{number}", addresses) as host:
            looked = LinuxNetwork(host.socket)
            assert await looked.source_towards("10.78.0.99") == f"10.78.0.{number}"
            assert await looked.source_towards("10.79.0.99") == f"10.79.0.{number}"
            reached.append(await route_address(Reach("", "10.78.0.99"), looked))
            there = {one.name: one.addresses for one in await looked.interfaces()}
            assert there["docker0"] == (DOCKER0,)
    assert reached == ["10.78.0.1", "10.78.0.2"]


async def test_ports_are_asked_of_the_runtimes_namespace(tmp_path: Path, listening_here: Path) -> None:
    """R-PLC-05: whatever address the foreign program listens on."""
    ports = (20001, 20002, 20003, 20004)
    listen = ("0.0.0.0=20001", "10.77.0.3=20002", "::=20003")
    with a_host(tmp_path, "d", {"eth0": "10.77.0.3/24"}, listen) as host:
        assert await LinuxNetwork(host.socket).taken(ports) == ports[:3]
        assert await LinuxNetwork(host.socket).taken(ports[3:]) == ()
    assert await LinuxNetwork(listening_here).taken(ports) == ()


async def test_a_port_that_only_waits_for_late_packets_is_free(listening_here: Path) -> None:
    """A gang that ended a moment ago leaves its connections in TIME_WAIT: no reason to refuse the next one its port."""
    with closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert await LinuxNetwork(listening_here).taken((port,)) == (port,)
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = listener.accept()
        served.close()  # the side that closes first keeps the port in TIME_WAIT
        assert client.recv(1) == b""
        client.close()
    assert await LinuxNetwork(listening_here).taken((port,)) == ()


async def test_without_a_runtime_there_is_no_network_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(EngineDown):
        await LinuxNetwork(tmp_path / "nobody.sock").interfaces()


def test_a_namespace_that_may_not_be_entered_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a daemon without CAP_SYS_ADMIN: telling that it is another one still works, and ours is not shown instead."""
    with a_host(tmp_path, "e", {"eth0": "10.77.0.4/24"}) as host:
        pid = int(subprocess.run(["ip", "netns", "pids", host.name], check=True, capture_output=True, text=True).stdout.split()[0])

        def refuse(*_: object) -> int:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr("tuneplane.nodeside.network.os.open", refuse)
        with pytest.raises(NetworkHidden, match="another network namespace"):
            run_in_namespace(pid, socket.if_nameindex)


@pytest.mark.parametrize("pid", [0, os.getpid(), 1 << 30], ids=["hidden", "ours", "ended"])
def test_look_that_fails_is_made_once(pid: int) -> None:
    """A kernel that does not answer costs one time-out."""
    looks: list[int] = []

    def fail() -> None:
        looks.append(pid)
        raise TimeoutError("the kernel does not answer")

    with pytest.raises(TimeoutError):
        run_in_namespace(pid, fail)
    assert looks == [pid]


async def test_names_resolve_to_numeric_addresses_or_to_none(listening_here: Path) -> None:
    assert "127.0.0.1" in await LinuxNetwork(listening_here).resolve("localhost")
    assert await LinuxNetwork(listening_here).resolve("no-such-host.invalid") == ()


# ---------------------------------------------------------------- what a preparation says


async def test_preparation_refuses_an_interface_that_is_not_there_or_has_another_address(tmp_path: Path) -> None:
    """R-LCH-11: the interface must exist in the workload's namespace."""
    with a_host(tmp_path, "f", {"eth0": "10.77.0.5/24", "bond0": ""}) as host:
        looked = LinuxNetwork(host.socket)
        assert await check_network(looked, make_plan("i", ("c",), interface="eth0", world=2, address="10.77.0.5")) is None
        assert await check_network(looked, make_plan("i", ("c",), interface="bond0")) is None  # alone it needs no address
        for wrong, detail in (("ib0", "there are bond0, eth0, lo"), ("bond0", "no address that peers could use")):
            trouble = await check_network(looked, make_plan("i", ("c",), interface=wrong, world=2, address="10.77.0.5"))
            assert trouble is not None
            assert trouble.code == "no-interface"
            assert detail in trouble.detail
        moved = await check_network(looked, make_plan("i", ("c",), interface="eth0", world=2, address="10.77.0.99"))
        assert moved is not None
        assert "has 10.77.0.5, not 10.77.0.99" in moved.detail


@define(eq=False)
class Unreadable(PlayNetwork):
    """A kernel that answers one of the questions with an error."""

    question: str

    async def interfaces(self) -> tuple[Interface, ...]:
        return await self._answer("interfaces", super().interfaces)

    async def taken(self, ports: tuple[int, ...]) -> tuple[int, ...]:
        return await self._answer("taken", lambda: PlayNetwork.taken(self, ports))

    async def _answer(self, question: str, ask: Callable[[], Awaitable[T]]) -> T:
        if question == self.question:
            raise OSError(errno.EMFILE, "Too many open files")
        return await ask()


@pytest.mark.parametrize("question", ["interfaces", "taken"])
async def test_preparation_says_why_the_kernel_does_not_tell_of_the_network(question: str) -> None:
    """R-LCH-11, L-J8: at once and in the kernel's words, instead of a hold that runs out."""
    trouble = await check_network(Unreadable(question), make_plan("i", ("c",), interface="lo", ports=(20007,)))
    assert trouble is not None
    assert trouble.code == "network-hidden"
    assert "Too many open files" in trouble.detail


async def test_preparation_refuses_a_leased_port_that_something_foreign_listens_on(tmp_path: Path) -> None:
    """L-H3: the port is named, so that a person finds the program; another attempt leases another one."""
    with a_host(tmp_path, "g", {"eth0": "10.77.0.6/24"}, ("0.0.0.0=20007",)) as host:
        trouble = await check_network(LinuxNetwork(host.socket), make_plan("i", ("c",), ports=(20007,)))
        assert trouble is not None
        assert trouble.code == "port-taken"
        assert "20007" in trouble.detail
        assert await check_network(LinuxNetwork(host.socket), make_plan("i", ("c",), ports=(20008,))) is None
