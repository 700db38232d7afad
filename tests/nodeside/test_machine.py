"""Inventory, storage probe, locks, address, small files: what the daemon knows of its machine."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import Factory, evolve, frozen

from tuneplane.domain.errors import InvalidInput, Refused
from tuneplane.domain.frames import InventoryReport
from tuneplane.domain.inventory import Budgets, Gpu, Interface
from tuneplane.domain.node_ports import Cards, EngineDown, EngineInfo, NetworkHidden
from tuneplane.domain.timings import Timings
from tuneplane.nodeside import storage_probe
from tuneplane.nodeside.address import Reach, find_address, reach_of, route_address
from tuneplane.nodeside.card_desk import look_once
from tuneplane.nodeside.cards import read_cards
from tuneplane.nodeside.cdi import read_cdi
from tuneplane.nodeside.config import NodeConfig, prepare_state_dir
from tuneplane.nodeside.files import write_durably
from tuneplane.nodeside.inventory import runtime_problems, survey
from tuneplane.nodeside.locks import hold_runtime, hold_state_dir
from tuneplane.nodeside.machine import LinuxMachine
from tuneplane.nodeside.session import Patience
from tuneplane.nodeside.storage_probe import StorageTrouble, make_output_directory, probe_storage, run_killable
from tuneplane.wire.node_codec import decode_node_frame, encode_node_frame

CARD = Gpu(index=0, uuid="GPU-a", name="NVIDIA H100", memory_bytes=80 << 30)


class StandingEngine:
    def __init__(self, gpu: bool = False, down: bool = False) -> None:
        self.gpu, self.down = gpu, down

    async def info(self) -> EngineInfo:
        if self.down:
            raise EngineDown("the container runtime at /x does not answer")
        return EngineInfo(kind="podman", version="4.3.1", gpu_runtime=self.gpu)


@frozen
class StandingNetwork:
    """eth0, ib0 and a bridge with the address that every Docker host has; host-a stands for all of them (nss-myhostname)."""

    route: str = "10.0.0.5"
    names: dict[str, tuple[str, ...]] = Factory(lambda: {"host-a": ("10.0.0.5", "172.17.0.1", "192.168.9.5"), "gateway": ("10.0.0.99",)})
    hidden: bool = False
    more: tuple[Interface, ...] = ()

    async def interfaces(self) -> tuple[Interface, ...]:
        if self.hidden:
            raise NetworkHidden("may not enter")
        names = {"docker0": ("172.17.0.1",), "eth0": ("10.0.0.5",), "ib0": ("192.168.9.5",), "lo": (), "veth12": ()}
        return (*self.more, *(Interface(name=name, addresses=addresses) for name, addresses in names.items()))

    async def source_towards(self, address: str) -> str:
        return self.route

    async def resolve(self, name: str) -> tuple[str, ...]:
        return self.names.get(name, ())

    async def taken(self, ports: tuple[int, ...]) -> tuple[int, ...]:
        return ()


async def look(cards: Cards = Cards(), **changes: Any) -> Any:  # noqa: B008 - frozen
    async def read() -> Cards:
        return cards

    budgets = changes.get("budgets", Budgets(cpu_millis=1000, memory_bytes=1000, gpu_indexes=()))
    values = {
        "budgets": budgets,
        "storage_root": "",
        "mark": "t",
        "engine": StandingEngine(),
        "network": StandingNetwork(),
        "reach": Reach("host-a", "gateway"),
        "look_at_cards": partial(look_once, read, budgets),
    }
    return await survey(**{**values, **changes})


async def test_survey_of_a_cpu_only_machine_has_no_problems() -> None:
    """R-ENR-09, R-ENR-12: an empty GPU list needs no GPU runtime."""
    found = await look()
    assert found.inventory.problems == ()
    assert found.inventory.cpu_count >= 1
    assert found.inventory.memory_bytes > 1 << 28
    assert found.inventory.runtime == "podman 4.3.1"
    assert found.digest == (await look()).digest


async def test_survey_tells_the_interfaces_that_peers_could_use_and_the_address_on_the_route() -> None:
    """R-LCH-11, L-H5: the host's name stands for docker0's address too; the one towards the gateway is taken."""
    found = (await look()).inventory
    assert [one.name for one in found.interfaces] == ["docker0", "eth0", "ib0"]
    assert found.route_address == "10.0.0.5"


async def test_report_of_any_interface_that_a_kernel_allows_is_one_that_a_gateway_takes() -> None:
    """R-SES-05: a service proxy's interface has thousands of addresses, a name may be of any bytes; neither costs the session."""
    services = tuple(f"10.96.{number >> 8}.{number & 255}" for number in range(2000))
    odd = (Interface(name="kube-ipvs0", addresses=services), Interface(name="b\udcff\udcfer", addresses=("10.1.1.1",)))
    many = tuple(Interface(name=f"veth{number}", addresses=("10.2.2.2",)) for number in range(2000))
    found = await look(network=StandingNetwork(more=(*odd, *many)))
    report = InventoryReport(inventory=found.inventory, digest=found.digest)
    told = decode_node_frame(encode_node_frame(report))
    assert isinstance(told, InventoryReport)
    assert told.inventory.interfaces == found.inventory.interfaces
    assert told.inventory.interfaces[0].addresses[0] == "10.96.0.0"
    assert all(one.name != odd[1].name for one in told.inventory.interfaces)


async def test_survey_of_a_network_that_cannot_be_looked_at_is_a_problem_and_without_a_runtime_no_second_one() -> None:
    found = (await look(network=StandingNetwork(hidden=True))).inventory
    assert (found.interfaces, found.route_address) == ((), "")
    assert any("may not enter" in problem for problem in found.problems)
    assert len((await look(network=StandingNetwork(hidden=True), engine=StandingEngine(down=True))).inventory.problems) == 1


@pytest.mark.parametrize(
    ("said", "network", "address"),
    [
        ("203.0.113.7", StandingNetwork(), "203.0.113.7"),  # what an operator says stands, also behind NAT
        ("127.0.0.1", StandingNetwork(), "127.0.0.1"),  # a Fleet of one machine
        ("host-a", StandingNetwork(route="192.168.9.5"), "192.168.9.5"),
        ("host-a", StandingNetwork(route="10.9.9.9"), "10.0.0.5"),  # by another way than the name says: the name is the word
        ("host-a", StandingNetwork(names={"host-a": ("127.0.1.1",), "gateway": ("10.0.0.99",)}), "10.0.0.5"),  # Debian's /etc/hosts
        ("host-a", StandingNetwork(names={}), ""),
        ("", StandingNetwork(), "10.0.0.5"),
        ("host-a", StandingNetwork(route="", names={}), ""),
    ],
)
async def test_route_address_is_what_was_said_or_what_the_route_says(said: str, network: StandingNetwork, address: str) -> None:
    """L-H5, L-H6: a name is resolved here, and never to an address that every host has when another one leads to peers."""
    assert await route_address(Reach(said, "gateway"), network) == address


def test_reach_takes_the_host_of_a_gateway_target() -> None:
    assert reach_of("a", "gw.example:8443") == Reach("a", "gw.example")
    assert reach_of("a", "[2001:db8::1]:8443") == Reach("a", "2001:db8::1")
    assert reach_of("a", "") == Reach("a", "")


async def test_survey_grants_only_the_cards_of_the_budget() -> None:
    """L-D1: indexes are for people, work is bound by UUID."""
    other = evolve(CARD, index=1, uuid="GPU-b")
    found = await look(
        Cards(gpus=(CARD, other)), budgets=Budgets(cpu_millis=1, memory_bytes=1, gpu_indexes=(1,)), engine=StandingEngine(gpu=True)
    )
    assert found.grants.gpu_uuids == {"GPU-b"}
    assert found.inventory.problems == ()


async def test_survey_names_unset_budgets_a_silent_runtime_and_others_alarms() -> None:
    found = await look(budgets=Budgets(), engine=StandingEngine(down=True), alarms=("the roof leaks",))
    text = "\n".join(found.inventory.problems)
    for part in ("TUNEPLANE_NODE_CPUS", "TUNEPLANE_NODE_MEMORY_GB", "TUNEPLANE_NODE_GPU_IDS", "does not answer", "the roof leaks"):
        assert part in text
    assert found.inventory.runtime == ""


async def test_cards_granted_without_a_runtime_for_them_or_of_a_silent_driver_are_problems() -> None:
    """R-ENR-12, L-D4: no driver's answer is not no cards."""
    budgets = Budgets(cpu_millis=1, memory_bytes=1, gpu_indexes=(0,))
    assert "Container Toolkit" in " ".join((await look(Cards(gpus=(CARD,)), budgets=budgets)).inventory.problems)
    mute = (await look(Cards(problem="the GPU driver is stuck"), budgets=budgets, engine=StandingEngine(gpu=True))).inventory
    assert (mute.problems, mute.cards_known) == (("the GPU driver is stuck",), False)
    assert (await look(Cards(problem="stuck"))).inventory.problems == ()  # a CPU-only Node needs none


def test_card_that_the_runtime_cannot_name_is_a_problem_before_a_job_fails_by_it(tmp_path: Path) -> None:
    """L-D2, R-ENR-12: cards are asked for by explicit CDI names, which are their UUIDs; by index alone they are not offered."""
    by_index = '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", "containerEdits": {}}]}'
    by_uuid = 'cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- containerEdits: {}\n  name: GPU-a\n- name: "MIG-c738"\n'
    budgets = Budgets(gpu_indexes=(0,))
    (tmp_path / "other.json").write_text('{"kind": "vendor.com/nic", "devices": [{"name": "GPU-a"}]}')
    assert read_cdi([tmp_path, tmp_path / "none"]) == frozenset()
    (tmp_path / "nvidia.json").write_text(by_index)
    info = EngineInfo(kind="podman", version="4", gpu_runtime=True, cards=read_cdi([tmp_path]))
    (problem,) = runtime_problems(budgets, info, frozenset({"GPU-a"}))
    assert "name no device GPU-a" in problem
    (tmp_path / "uuid.yaml").write_text(by_uuid)
    assert read_cdi([tmp_path]) >= {"0", "GPU-a", "MIG-c738"}
    info = EngineInfo(kind="podman", version="4", gpu_runtime=True, cards=read_cdi([tmp_path]))
    assert runtime_problems(budgets, info, frozenset({"GPU-a", "MIG-c738"})) == ()


async def test_cards_of_a_machine_without_a_driver_are_none() -> None:
    assert await read_cards() == Cards()


async def test_storage_root_that_can_be_written_is_seen_and_left_clean(tmp_path: Path) -> None:
    """L-J2."""
    assert (await probe_storage(str(tmp_path), "node-1")).seen
    assert os.listdir(tmp_path) == []


async def test_storage_probe_never_writes_through_what_a_workload_planted_in_its_place(tmp_path: Path) -> None:
    """L-J2: jobs write to the root as well; their link must not make the daemon truncate a file of the machine, a pipe not hang it."""
    root, precious = tmp_path / "root", tmp_path / "precious"
    root.mkdir()
    precious.write_text("of the machine")
    place = root / ".tuneplane-probe-node-1"
    plants: list[Callable[[], None]] = [lambda: place.symlink_to(precious), lambda: place.hardlink_to(precious), lambda: os.mkfifo(place)]
    for plant in plants:
        plant()
        assert (await probe_storage(str(root), "node-1")).seen
        assert os.listdir(root) == []
        assert precious.read_text() == "of the machine"


async def test_storage_root_that_is_not_there_is_not_seen_with_the_reason(tmp_path: Path) -> None:
    sight = await probe_storage(str(tmp_path / "gone"), "node-1")
    assert not sight.seen
    assert "gone" in sight.problem


async def test_storage_access_that_hangs_is_given_up_at_its_deadline() -> None:
    """L-J1: a child that does not answer is killed and left, the daemon goes on."""
    begun = time.monotonic()
    with pytest.raises(StorageTrouble, match=r"did not answer within 0\.2 s"):
        await run_killable(["sleep", "60"], 0.2, "the storage root")
    assert time.monotonic() - begun < 5


async def test_storage_access_that_is_cancelled_leaves_no_child(tmp_path: Path) -> None:
    mark = f"37.{os.getpid()}"
    with trio.move_on_after(0.2):
        await run_killable(["sleep", mark], 60, "x")
    assert not _sleeping(mark)


async def test_children_that_a_dead_mount_keeps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-J1: a mount that is dead for days is not sent a child a quarter of a minute; when it lives again, it is asked again."""
    monkeypatch.setattr(storage_probe, "MAX_LEFT_BEHIND", 2)
    monkeypatch.setattr(storage_probe, "REAP_SECONDS", 0.05)
    deaf: list[int] = []  # as in uninterruptible sleep: SIGKILL has to wait
    with monkeypatch.context() as dead:
        dead.setattr(os, "killpg", lambda group, number: deaf.append(group))
        for _ in range(4):
            with pytest.raises(StorageTrouble):
                await run_killable(["sleep", "60"], 0.1, "the storage root")
        with pytest.raises(StorageTrouble, match="2 earlier accesses to the storage root still hang"):
            await run_killable(["true"], 5, "the storage root")
    assert len(deaf) == 2
    for group in deaf:
        os.killpg(group, signal.SIGKILL)
    for child in storage_probe._left_behind:
        await child.wait()
    await run_killable(["true"], 5, "the storage root")


def _sleeping(mark: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{mark}\0".encode():
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("directory", ["/elsewhere/out", "{root}", "{root}/../out", "{root}x/out"])
async def test_output_directory_outside_the_storage_root_is_refused(tmp_path: Path, directory: str) -> None:
    with pytest.raises(StorageTrouble):
        await make_output_directory(str(tmp_path), directory.format(root=tmp_path))


@pytest.mark.parametrize("planted", ["jobs", "jobs/a job", "jobs/a job/1"])
async def test_output_directory_is_made_through_no_link_that_a_workload_planted(tmp_path: Path, planted: str) -> None:
    """L-J2: a former attempt's link must not make the daemon create folders elsewhere on the machine. The root may be one."""
    real, root, elsewhere = tmp_path / "real", tmp_path / "root", tmp_path / "elsewhere"
    real.mkdir()
    elsewhere.mkdir()
    root.symlink_to(real)
    await make_output_directory(str(root), f"{root}/jobs/a job/0")
    assert sorted(path.relative_to(real).as_posix() for path in real.rglob("*")) == [".tuneplane", "jobs", "jobs/a job", "jobs/a job/0"]
    await make_output_directory(str(root), f"{root}/jobs/a job/0")  # again: harmless
    if (real / planted).exists():
        (real / planted).rename(tmp_path / "away")
    (real / planted).symlink_to(elsewhere)
    with pytest.raises(StorageTrouble, match=f"{planted} leads elsewhere"):
        await make_output_directory(str(root), f"{root}/jobs/a job/1")
    assert os.listdir(elsewhere) == []


def test_state_directory_below_the_storage_root_is_refused(tmp_path: Path) -> None:
    """R-ENR-04."""
    with pytest.raises(InvalidInput, match="TUNEPLANE_NODE_STATE_DIR"):
        prepare_state_dir(NodeConfig(state_dir=tmp_path / "s" / "state", storage_root=str(tmp_path / "s")))
    with pytest.raises(InvalidInput, match="absolute"):
        prepare_state_dir(NodeConfig(state_dir=Path("state")))
    prepare_state_dir(NodeConfig(state_dir=tmp_path / "state", storage_root=str(tmp_path / "s")))
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_locks_name_who_holds_them_and_are_free_afterwards(tmp_path: Path) -> None:
    """R-ENR-10."""
    first, second = tmp_path / "a", tmp_path / "b"
    for directory in (first, second):
        directory.mkdir()
    with hold_state_dir(first), hold_runtime(Path("/x.sock"), first, tmp_path):
        with pytest.raises(Refused, match=str(os.getpid())), hold_state_dir(first):
            pass
        with pytest.raises(Refused, match=str(first)), hold_runtime(Path("/x.sock"), second, tmp_path):
            pass
        with hold_runtime(Path("/y.sock"), second, tmp_path):
            pass
    with hold_state_dir(first), hold_runtime(Path("/x.sock"), second, tmp_path):
        pass


def test_file_whose_write_fails_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L-J8, L-A7: a full disk empties no identity."""
    path = tmp_path / "f"
    write_durably(path, b"old", point="node.identity.write")

    def full(descriptor: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        write_durably(path, b"new", point="node.identity.write")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["f"]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_address_is_a_name_that_resolves_elsewhere_or_the_source_towards_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-ENR-13, L-H6."""
    monkeypatch.setattr("socket.getfqdn", lambda: "localhost")
    assert await find_address("127.0.0.1") == "127.0.0.1"
    monkeypatch.setattr("socket.getfqdn", lambda: "192.0.2.7")
    assert await find_address("127.0.0.1") == "192.0.2.7"


def test_machine_tells_boot_and_time() -> None:
    machine = LinuxMachine()
    assert len(machine.boot_id()) == 36
    assert machine.boot_seconds() > 0
    assert machine.now().tzinfo is not None


def test_patience_grows_to_its_cap_and_begins_anew_after_a_long_session() -> None:
    """L-B6, L-B15: full jitter, capped; a gateway's wish and a settled refusal are honoured."""
    timings = Timings()
    patience = Patience(timings)

    def wait(**how: Any) -> float:
        return patience.next_wait(**{"jitter": 0.999, "lived_seconds": 0.0, "asked_seconds": 0.0, "settled": False, **how})

    waits = [wait() for _ in range(12)]
    assert waits == sorted(waits)
    assert waits[0] < timings.reconnect_first
    assert waits[-1] <= timings.reconnect_most
    assert wait(jitter=0.0, asked_seconds=7.0) == 7.0
    assert wait(settled=True, jitter=0.0) == timings.reconnect_most
    assert wait(lived_seconds=3600.0) < timings.reconnect_first
