"""Making a member ready to start: its plan on disk, its output directory, its image. Every step may be done twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import trio
from attrs import define, frozen

from tuneplane.domain.faultpoint import fault_point
from tuneplane.domain.frames import Progress
from tuneplane.domain.ids import MemberId
from tuneplane.domain.node_member import NodeMember
from tuneplane.domain.node_ports import EngineUnclear, Network, NetworkHidden, PullFailed, PullProgress
from tuneplane.domain.plan import MemberPlan
from tuneplane.domain.ray import RUNNER

from . import ray_runner
from .core import NodeCore
from .files import write_durably
from .storage_probe import StorageTrouble, make_output_directory

# Waits between tries of a pull that failed for a reason that may pass (a registry being restarted); then it is given up.
PULL_WAITS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
NOTHING = "nothing"  # an empty directory: what containers see in place of ours on the storage root
PROGRESS_SECONDS = 3.0  # how often a person looks; each report is a transaction, of every member that is being prepared


@frozen
class Unfit:
    """Why the member can never be prepared here."""

    code: str
    detail: str


async def prepare(core: NodeCore, record: NodeMember, plan: MemberPlan) -> Unfit | None:
    """Everything but containers. None: it is ready. Cancelled by a stop or the end of the hold at any point."""
    core.note_progress(record.member, Progress(phase="prepare"))
    data = await core.journal.plan(record.member)
    await core.disk(lambda: write_plan(core.member_dir(record.member), data, ray=plan.orchestrator == "ray"))
    try:
        if plan.storage_root:
            await make_output_directory(plan.storage_root, plan.output_dir)
    except StorageTrouble as error:
        return Unfit(error.code, str(error))
    trouble = await check_network(core.network, plan)
    if trouble is not None:
        return trouble
    core.note_progress(record.member, Progress(phase="pull"))
    problem = await _fetch_image(core, record.member, plan.image)
    core.note_progress(record.member, None)
    return problem


async def check_network(network: Network, plan: MemberPlan) -> Unfit | None:
    """What the plan says of the network must be true where the workload will run (R-LCH-11), and its ports must be free.

    A port that something foreign listens on is no port to lease: another attempt leases another one.
    """
    try:
        trouble = await _check_interface(network, plan) if plan.interface is not None else None
        taken = await network.taken(plan.ports)
    except NetworkHidden as error:
        return Unfit(error.code, str(error))
    except OSError as error:  # of the kernel: tried again, it would use the hold up, and nobody would learn why
        return Unfit(NetworkHidden.code, f"the network that containers get cannot be looked at: {error}")
    if trouble is None and taken:
        ports = ", ".join(map(str, taken))
        return Unfit("port-taken", f"port {ports} was leased to this member, but another program of this machine listens on it")
    return trouble


async def _check_interface(network: Network, plan: MemberPlan) -> Unfit | None:
    there = {one.name: one.addresses for one in await network.interfaces()}
    if plan.interface not in there:
        names = ", ".join(sorted(there))
        return Unfit("no-interface", f"interface {plan.interface} does not exist where containers run on this machine; there are {names}")
    if plan.world > 1 and plan.address not in there[plan.interface]:
        now = ", ".join(there[plan.interface]) or "no address that peers could use"
        return Unfit("no-interface", f"interface {plan.interface} has {now}, not {plan.address} that the plan gives to the peers")
    return None


async def _fetch_image(core: NodeCore, member: MemberId, image: str) -> Unfit | None:
    async with core.pulls:
        for wait in (*PULL_WAITS_SECONDS, None):
            try:
                return await _pull_once(core, member, image)
            except PullFailed as error:
                if error.lasting or wait is None:
                    return Unfit("image-unavailable", str(error))
            except EngineUnclear as error:
                if wait is None:
                    return Unfit("image-unavailable", str(error))
            await trio.sleep(wait)
    return None


async def _pull_once(core: NodeCore, member: MemberId, image: str) -> Unfit | None:
    if await core.engine.has_image(image):
        return None
    await core.engine.pull(image, Teller(core, member).tell)
    if await core.engine.has_image(image):  # under its digest: the engine has verified it
        return None
    return Unfit("image-unavailable", f"image {image} was pulled, but the container runtime does not have it under this digest")


@define
class Teller:
    """Passes a pull's progress on, at most once in PROGRESS_SECONDS."""

    core: NodeCore
    member: MemberId
    _last: float = -PROGRESS_SECONDS

    def tell(self, progress: PullProgress) -> None:
        now = trio.current_time()
        if now - self._last >= PROGRESS_SECONDS:
            self._last = now
            self.core.note_progress(self.member, Progress(phase="pull", done=progress.done_bytes, total=progress.total_bytes))


def write_plan(directory: Path, data: bytes, *, ray: bool = False) -> None:
    """The plan, and for a Ray member its runner, as the container sees them: readable by whatever user the image runs as,
    inside a private directory."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    visible = directory / "plan"
    visible.mkdir(mode=0o755, exist_ok=True)
    visible.chmod(0o755)
    (directory / NOTHING).mkdir(mode=0o755, exist_ok=True)
    write_durably(visible / "plan.json", data, mode=0o644, point="node.plan.write")
    if ray:  # a copy, whatever the modes of our own installation and whenever an update replaces it
        write_durably(visible / RUNNER, Path(ray_runner.__file__).read_bytes(), mode=0o644, point="node.plan.write")


def remove_tree(directory: Path) -> None:
    if directory.exists():
        with fault_point("node.plan.delete"):
            shutil.rmtree(directory)
