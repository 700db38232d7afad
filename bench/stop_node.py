"""The Node of the stop benchmark: the production daemon's tree with its journal on a real disk, over a runtime in memory.

``python -m bench.stop_node TARGET CERTIFICATE DIRECTORY``: dials TARGET as ``node-0``, and leaves when its input ends.
The command of a member says what its container does: ``sleep``, or ``chat BYTES`` a second, in lines.
"""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path

import trio

from tests.support.engine import PlayContainer, PlayEngine, PlayNetwork
from tuneplane.actors import SupervisorSpec, open_system
from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.ids import NodeId
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.node_member import Grants
from tuneplane.domain.node_ports import Cards, Life
from tuneplane.domain.timings import PRODUCTION
from tuneplane.nodeside.config import NodeConfig
from tuneplane.nodeside.core import NodeCore
from tuneplane.nodeside.daemon import node_root
from tuneplane.nodeside.journal import open_journal
from tuneplane.nodeside.logs import LogStore
from tuneplane.nodeside.machine import LinuxMachine
from tuneplane.nodeside.runner import ThreadRunner
from tuneplane.nodeside.session import Dial
from tuneplane.wire.link import run_node_session
from tuneplane.wire.tls import client_context

from .gateway_server import FLEET
from .session_frames import say
from .stop_plane import storage_root

NODE = NodeId("node-0")
SLOW = "registry.example/slow@sha256:" + "1" * 64  # an image that never arrives
BUDGETS = Budgets(cpu_millis=10_000_000, memory_bytes=1 << 50, gpu_indexes=())
TURNS_A_SECOND = 4
LINE = b"step 100000: loss 0.12345678, 1234 tokens a second\n"


async def no_cards() -> Cards:
    return Cards()


async def chat(engine: PlayEngine) -> None:
    """Let every container that chats write its share of a second, again and again."""
    while True:
        for container in list(engine.containers.values()):
            if container.life is Life.RUNNING and container.spec.command[0] == "chat":
                container.write(_share(container))
        await trio.sleep(1 / TURNS_A_SECOND)


def _share(container: PlayContainer) -> bytes:
    size = int(container.spec.command[1]) // TURNS_A_SECOND
    return _shares.setdefault(size, (LINE * (size // len(LINE) + 1))[:size])


_shares: dict[int, bytes] = {}


async def main(target: str, certificate: str, directory: str) -> None:
    state_dir = Path(directory) / "node"
    state_dir.mkdir(mode=0o700)
    engine = PlayEngine(slow={SLOW})
    tls = client_context(trust_pem=Path(certificate).read_text(encoding="ascii"))  # noqa: ASYNC240 - nothing runs yet
    root = str(storage_root(Path(directory)))
    config = NodeConfig(state_dir=state_dir, budgets=BUDGETS, storage_root=root, timings=PRODUCTION)
    async with open_bridge(), open_journal(state_dir, ThreadRunner()) as journal:
        core = NodeCore(
            node=NODE,
            fleet=FLEET,
            state_dir=state_dir,
            journal=journal,
            engine=engine,
            machine=LinuxMachine(),
            network=PlayNetwork(),
            logs=LogStore(state_dir / "logs", ThreadRunner()),
            disk=ThreadRunner(),
            timings=PRODUCTION,
            grants=Grants(budgets=BUDGETS, storage_root=root),
        )
        dial = Dial(target=target, tls=tls, credential=f"tpn_{NODE}", address="127.0.0.1", run=run_node_session)
        tree = SupervisorSpec(name="root", children=(node_root(core, config, dial, no_cards),))
        async with open_system("node", tree), trio.open_nursery() as nursery:
            nursery.start_soon(chat, engine)
            say(up=True)
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    gc.set_threshold(20_000, 20, 20)
    trio.run(main, *sys.argv[1:])
