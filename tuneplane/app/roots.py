"""The composition roots: storage, identities and supervision trees of ``api``, ``gateway`` and ``worker``.

Each process opens, in this order: the bridge, the storage, what it reads from it, its tree; and closes them in reverse.
A process whose PostgreSQL is away at the start waits for it for ``DATABASE_SECONDS``; one whose PostgreSQL goes away
later keeps running.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
import trio
from attrs import evolve, frozen

from tuneplane.actors import SupervisorSpec
from tuneplane.bridge.loop import open_bridge
from tuneplane.control.api import ControlApi, GatewayTrust, RegistryResolver, make_control_api
from tuneplane.control.gateway import gateway_root
from tuneplane.control.identity import TlsIdentity, open_gateway_identity, open_internal_identity
from tuneplane.control.log_archive import LogArchive
from tuneplane.control.logs import RelayLogReader
from tuneplane.control.worker import worker_root
from tuneplane.domain.errors import StorageUnavailable
from tuneplane.domain.ids import ID_ENTROPY_BYTES, GatewayId, WorkerId, spell_id
from tuneplane.storage import PostgresStorage, SchemaUnusable, open_storage
from tuneplane.web.server import web_root
from tuneplane.wire.tls import client_context, server_context

from .data_dir import ConsoleCertificate, console_certificate, endpoint_on_any_free, open_data_dir, utc_now
from .first_admin import ensure_first_administrator
from .hosts import advertised, console_hosts, machine_address
from .process import Stopping, run_process, run_system
from .settings import CONSOLE_PORT, GATEWAY_PORT, ControlSettings, Endpoint, WrongSetting

T = TypeVar("T")

log = structlog.get_logger(__name__)

DATABASE_SECONDS = 60.0  # a machine that boots starts PostgreSQL beside us
DATABASE_LOOK_SECONDS = 0.5


@frozen(kw_only=True)
class Addresses:
    """Where the parts of one control plane listen, and what people and Nodes are told."""

    console: Endpoint
    gateway: Endpoint
    relay: Endpoint
    public_url: str
    gateway_target: Endpoint


@frozen(kw_only=True)
class Keys:
    """The two secrets that the replicas share."""

    enc_key: bytes
    jwt_secret: bytes


@asynccontextmanager
async def open_base(settings: ControlSettings, dsn: str) -> AsyncIterator[PostgresStorage]:
    """Bridge and storage; returns once PostgreSQL answers with the schema we know. StorageUnavailable, SchemaMismatch."""
    async with open_bridge(), open_storage(dsn, timings=settings.timings) as storage:
        await patiently(storage.ping)
        yield storage


async def patiently(step: Callable[[], Awaitable[T]]) -> T:
    """One idempotent step of a start, repeated until PostgreSQL has answered to its end.

    Raises the last error when it does not in time, or when waiting cannot help.
    """
    give_up = trio.current_time() + DATABASE_SECONDS
    while True:
        try:
            return await step()
        except StorageUnavailable as error:
            if isinstance(error, SchemaUnusable) or trio.current_time() > give_up:
                raise
            log.warning("waiting for PostgreSQL", reason=str(error))
        await trio.sleep(DATABASE_LOOK_SECONDS)


async def gateway_identity(settings: ControlSettings, storage: PostgresStorage, host: str, enc_key: bytes) -> TlsIdentity:
    """R-TLS-01: from the database, made at the first start."""
    directory = settings.gateway_tls_dir
    return await patiently(lambda: open_gateway_identity(storage, host=host, encryption_key=enc_key, directory=directory, now=utc_now()))


async def internal_identity(settings: ControlSettings, storage: PostgresStorage, enc_key: bytes) -> TlsIdentity:
    """What the control plane's processes show each other (P-23)."""
    directory = settings.data_dir / "internal-tls"
    return await patiently(lambda: open_internal_identity(storage, encryption_key=enc_key, directory=directory, now=utc_now()))


def make_worker(settings: ControlSettings, storage: PostgresStorage) -> SupervisorSpec:
    worker = WorkerId(spell_id("worker", os.urandom(ID_ENTROPY_BYTES)))
    root = str(settings.storage_root or "")
    return worker_root(storage, worker, settings.timings, utc_now, os.urandom, storage_root=root)


def make_gateway(
    settings: ControlSettings, storage: PostgresStorage, listen: Endpoint, tls: ssl.SSLContext, internal: TlsIdentity
) -> SupervisorSpec:
    relay = settings.relay_listen
    return gateway_root(
        storage,
        GatewayId(spell_id("gateway", os.urandom(ID_ENTROPY_BYTES))),
        settings.timings,
        utc_now,
        os.urandom,
        listen=(listen.host, listen.port),
        tls=tls,
        relay=(relay.host, relay.port),
        relay_tls=server_context(internal.certificate, internal.key, client_ca=internal.certificate),
        relay_published_host=advertised(relay, machine_address()).host,
    )


def make_api(
    settings: ControlSettings, storage: PostgresStorage, addresses: Addresses, trust_pem: str, internal: TlsIdentity
) -> ControlApi:
    dial = client_context(trust_pem=internal.certificate_pem, certificate=internal.certificate, key=internal.key)
    return make_control_api(
        timings=settings.timings,
        storage=storage,
        clock=utc_now,
        entropy=os.urandom,
        public_url=addresses.public_url,
        gateway=GatewayTrust(target=str(addresses.gateway_target), trust_pem=trust_pem),
        log_reader=RelayLogReader(storage=storage, tls=dial, clock=utc_now),
        archive=LogArchive(),
        storage_root=str(settings.storage_root or ""),
        images=RegistryResolver(insecure=settings.insecure_registries),
    )


def make_web(
    settings: ControlSettings,
    storage: PostgresStorage,
    api: ControlApi,
    listen: Endpoint,
    certificate: ConsoleCertificate,
    jwt_secret: bytes,
) -> SupervisorSpec:
    return web_root(
        api,
        storage,
        listen=(listen.host, listen.port),
        certificate=certificate.certificate,
        key=certificate.key,
        jwt_secret=jwt_secret,
        timings=settings.timings,
        clock=utc_now,
        entropy=os.urandom,
    )


def console_tls(settings: ControlSettings, public_url: str) -> ConsoleCertificate:
    """The certificate of the settings, or one of the data directory's private CA."""
    if settings.console_certificate is not None and settings.console_private_key is not None:
        return ConsoleCertificate(settings.console_certificate, settings.console_private_key, None)
    return console_certificate(settings.data_dir, console_hosts(public_url), utc_now())


async def trust_of(settings: ControlSettings, storage: PostgresStorage, host: str, enc_key: bytes) -> str:
    """What Nodes are told to trust: an explicit bundle, the generated identity, or "" for the system's roots (R-TLS-05)."""
    if settings.node_gateway_trust_bundle is not None:
        return settings.node_gateway_trust_bundle.read_text(encoding="utf-8")
    if not settings.gateway_tls_auto_generate:
        return ""
    return (await gateway_identity(settings, storage, host, enc_key)).certificate_pem


# ---------------------------------------------------------------- separate processes


def run_worker(settings: ControlSettings) -> None:
    """``tuneplane worker``."""
    run_process("worker", partial(_worker, settings, settings.require_database()))


async def _worker(settings: ControlSettings, dsn: str, stopping: Stopping) -> None:
    async with open_base(settings, dsn) as storage:
        await run_system("worker", make_worker(settings, storage), stopping)


def run_gateway(settings: ControlSettings, certificate: Path | None, key: Path | None) -> None:
    """``tuneplane gateway``; ``certificate`` and ``key`` replace the generated identity."""
    pair = (certificate, key) if certificate is not None and key is not None else None
    if pair is None and not settings.gateway_tls_auto_generate:
        raise WrongSetting("TUNEPLANE_GATEWAY_TLS_AUTO_GENERATE", "is false: give --certificate and --private-key")
    settings = evolve(settings, data_dir=open_data_dir(settings.data_dir))
    run_process("gateway", partial(_gateway, settings, settings.require_database(), settings.require_enc_key(), pair))


async def _gateway(settings: ControlSettings, dsn: str, enc_key: bytes, pair: tuple[Path, Path] | None, stopping: Stopping) -> None:
    async with open_base(settings, dsn) as storage:
        if pair is None:
            target = settings.require_gateway_target()
            identity = await gateway_identity(settings, storage, target.host, enc_key)
            pair = (identity.certificate, identity.key)
        internal = await internal_identity(settings, storage, enc_key)
        listen = settings.gateway_listen or Endpoint("0.0.0.0", GATEWAY_PORT)  # noqa: S104 - Nodes dial in from anywhere
        tree = make_gateway(settings, storage, listen, server_context(*pair), internal)
        await run_system("gateway", tree, stopping)


def run_api(settings: ControlSettings) -> None:
    """``tuneplane api``."""
    keys = Keys(enc_key=settings.require_enc_key(), jwt_secret=settings.require_jwt_secret())
    settings = evolve(settings, data_dir=open_data_dir(settings.data_dir))
    console = endpoint_on_any_free(settings.console_listen, CONSOLE_PORT)
    addresses = Addresses(
        console=console,
        gateway=settings.gateway_listen or Endpoint("", 0),
        relay=settings.relay_listen,
        public_url=settings.public_url or f"https://{advertised(console, machine_address())}",
        gateway_target=settings.require_gateway_target(),
    )
    run_process("api", partial(_api, settings, settings.require_database(), keys, addresses))


async def _api(settings: ControlSettings, dsn: str, keys: Keys, addresses: Addresses, stopping: Stopping) -> None:
    async with open_base(settings, dsn) as storage:
        trust = await trust_of(settings, storage, addresses.gateway_target.host, keys.enc_key)
        internal = await internal_identity(settings, storage, keys.enc_key)
        api = make_api(settings, storage, addresses, trust, internal)
        await patiently(lambda: ensure_first_administrator(api.accounts, settings.data_dir))
        certificate = console_tls(settings, addresses.public_url)
        tree = make_web(settings, storage, api, addresses.console, certificate, keys.jwt_secret)
        await run_system("api", tree, stopping)
