"""The control plane of the stop benchmark, in a process of its own: PostgreSQL, gateway and worker, all as in production.

``python -m bench.stop_plane CERTIFICATE KEY DIRECTORY``: makes a database and enrols one Node (``node-0``, credential
``tpn_node-0``), prints ``{"port": …, "dsn": …}`` when the gateway listens, and leaves when its input ends. The internal
identity is left in DIRECTORY.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path

import structlog
import trio

from tuneplane.actors import SupervisorSpec, open_system
from tuneplane.bridge.loop import open_bridge
from tuneplane.control.gateway import gateway_root
from tuneplane.control.relay import WhereAreYou
from tuneplane.control.worker import worker_root
from tuneplane.domain.ids import GatewayId, WorkerId
from tuneplane.domain.ports import Storage
from tuneplane.domain.timings import PRODUCTION
from tuneplane.storage import migrate, open_storage
from tuneplane.storage.embedded import open_embedded
from tuneplane.wire.identity import generate_identity
from tuneplane.wire.relay import RELAY_NAME
from tuneplane.wire.tls import server_context

from .gateway_server import enrol, now
from .session_frames import say


def storage_root(place: Path) -> Path:
    """As plane and Node are told."""
    return place / "root"


def make_internal_identity(place: Path) -> tuple[Path, Path]:
    certificate, key = place / "internal.crt", place / "internal.key"
    for path, pem in zip((certificate, key), generate_identity([RELAY_NAME]), strict=True):
        path.write_text(pem)
    return certificate, key


def plane(storage: Storage, certificate: Path, key: Path, place: Path) -> SupervisorSpec:
    internal, internal_key = make_internal_identity(place)
    gateway = gateway_root(
        storage,
        GatewayId("bench"),
        PRODUCTION,
        now,
        os.urandom,
        listen=("127.0.0.1", 0),
        tls=server_context(certificate, key),
        relay=("127.0.0.1", 0),
        relay_tls=server_context(internal, internal_key, client_ca=internal),
    )
    worker = worker_root(storage, WorkerId("bench"), PRODUCTION, now, os.urandom, storage_root=str(storage_root(place)))
    return SupervisorSpec(name="root", children=(gateway, worker))


async def main(certificate: str, key: str, directory: str) -> None:
    place = Path(directory)
    storage_root(place).mkdir()
    async with open_bridge(), open_embedded(place / "postgres") as server:
        await migrate(server.dsn)
        async with open_storage(server.dsn) as storage:
            await enrol(storage, 1)
            async with open_system("bench", plane(storage, Path(certificate), Path(key), place)) as system:
                _, port = await system.find("root/gateway/listener").ask(WhereAreYou(), 5.0)
                say(port=port, dsn=server.dsn)
                await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    gc.set_threshold(20_000, 20, 20)
    trio.run(main, *sys.argv[1:])
