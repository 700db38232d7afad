"""The control plane's own gateway on a real PostgreSQL, in a process of its own, for the gateway benchmark.

``python -m bench.gateway_server CERTIFICATE KEY COUNT``: makes a database, enrols COUNT Nodes (``node-N``, credential
``tpn_node-N``), prints ``{"port": …}`` when the gateway listens, and leaves when its input ends.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog
import trio

from tuneplane.actors import SupervisorSpec, open_system
from tuneplane.bridge.loop import open_bridge
from tuneplane.control.gateway import gateway_root
from tuneplane.control.relay import WhereAreYou
from tuneplane.domain.fleets import Capability, Delivery, Fleet, FleetKind
from tuneplane.domain.ids import FleetId, GatewayId, NodeId, TokenId, UserName
from tuneplane.domain.inventory import Inventory
from tuneplane.domain.jobs import JoinRequest, JoinToken
from tuneplane.domain.ports import Storage
from tuneplane.domain.secrets import secret_hash
from tuneplane.storage import migrate, open_storage
from tuneplane.storage.embedded import open_embedded
from tuneplane.wire.identity import generate_identity
from tuneplane.wire.relay import RELAY_NAME
from tuneplane.wire.tls import server_context

from .session_frames import TIMINGS, say

FLEET = FleetId("bench")
ADMIN = UserName("bench")


def now() -> datetime:
    return datetime.now(UTC)


async def enrol(storage: Storage, count: int) -> None:
    fleet = Fleet(id=FLEET, kind=FleetKind.NODE, delivery=Delivery.SHARED_MOUNT, capabilities=(Capability.TRAIN,), created_at=now())
    await storage.create_user(ADMIN, "admin", None, now())
    await storage.create_fleet(fleet)
    inventory = Inventory(hostname="bench", node_version="0.1.0", cpu_count=8, memory_bytes=1 << 35)
    for number in range(count):
        name, token = f"node-{number}", f"tpj_{number}"
        made = JoinToken(id=TokenId(token), fleet=FLEET, created_by=ADMIN, created_at=now(), expires_at=now() + timedelta(days=1))
        await storage.mint_join_token(made, secret_hash(token))
        request = JoinRequest(
            token=token, join_key="key", try_=1, address="127.0.0.1", node_version="0.1.0", protocol=1, inventory=inventory
        )
        await storage.join(
            FLEET,
            request,
            node=NodeId(name),
            token_hash=secret_hash(token),
            join_key_hash=secret_hash("key"),
            credential_hash=secret_hash(f"tpn_{name}"),
            credential_expires_at=now() + timedelta(days=30),
            now=now(),
        )


def gateway(storage: Storage, certificate: Path, key: Path, place: Path) -> SupervisorSpec:
    internal, internal_key = place / "internal.crt", place / "internal.key"
    for path, pem in zip((internal, internal_key), generate_identity([RELAY_NAME]), strict=True):
        path.write_text(pem)
    return gateway_root(
        storage,
        GatewayId("bench"),
        TIMINGS,
        now,
        os.urandom,
        listen=("127.0.0.1", 0),
        tls=server_context(certificate, key),
        relay=("127.0.0.1", 0),
        relay_tls=server_context(internal, internal_key, client_ca=internal),
    )


async def main(certificate: str, key: str, count: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.chmod(folder, 0o755)  # PostgreSQL of a root runs as another user
        async with open_bridge(), open_embedded(place / "postgres") as server:
            await migrate(server.dsn)
            async with open_storage(server.dsn) as storage:
                await enrol(storage, int(count))
                root = SupervisorSpec(name="root", children=(gateway(storage, Path(certificate), Path(key), place),))
                async with open_system("bench", root) as system:
                    _, port = await system.find("root/gateway/listener").ask(WhereAreYou(), 5.0)
                    assert server.process is not None
                    say(port=port, postgres=server.process.pid)
                    await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    gc.set_threshold(20_000, 20, 20)
    trio.run(main, *sys.argv[1:])
