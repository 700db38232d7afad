"""``tuneplane up``: worker, gateway and console in one supervision tree, on an embedded PostgreSQL unless one is named."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import click
from attrs import evolve

from tuneplane.actors import SupervisorSpec
from tuneplane.bridge.loop import open_bridge
from tuneplane.control.api import FirstAdministrator
from tuneplane.storage import migrate
from tuneplane.storage.embedded import open_embedded
from tuneplane.wire.tls import server_context

from .client import write_private
from .data_dir import (
    ConsoleCertificate,
    StartRefused,
    choose_port,
    endpoint_on_any_free,
    load_secrets,
    lock_data_dir,
    open_data_dir,
    remove_up_file,
    write_up_file,
)
from .first_admin import FILE, ensure_first_administrator
from .hosts import advertised, machine_address
from .process import Stopping, run_process, run_system
from .roots import (
    Addresses,
    Keys,
    console_tls,
    gateway_identity,
    internal_identity,
    make_api,
    make_gateway,
    make_web,
    make_worker,
    open_base,
    patiently,
    trust_of,
)
from .settings import CONSOLE_PORT, GATEWAY_PORT, ControlSettings, Endpoint, WrongSetting

POSTGRES_DIR = "postgres"


def run_up(settings: ControlSettings, data_dir: Path) -> None:
    """Run until stopped. StartRefused, WrongSetting and the errors of the parts say what stands in the way."""
    if not settings.gateway_tls_auto_generate:
        raise WrongSetting("TUNEPLANE_GATEWAY_TLS_AUTO_GENERATE", "must be true for `tuneplane up`; run api, gateway and worker instead")
    chosen = open_data_dir(data_dir)
    tls_dir = chosen / "gateway-tls" if settings.gateway_tls_dir == settings.data_dir / "gateway-tls" else settings.gateway_tls_dir
    settings = evolve(settings, data_dir=chosen, gateway_tls_dir=tls_dir)
    with lock_data_dir(chosen):
        secrets = load_secrets(chosen, settings.secret_enc_key, settings.jwt_secret)
        keys = Keys(enc_key=secrets.enc_key.reveal(), jwt_secret=secrets.jwt_secret.reveal())
        addresses = choose_addresses(settings)
        try:
            run_process("up", partial(_up, settings, keys, addresses))
        finally:
            remove_up_file(chosen)


def choose_addresses(settings: ControlSettings) -> Addresses:
    """Ports that are free now; the gateway's is kept for later starts, because enrolled Nodes know it."""
    file = settings.data_dir / "addresses.json"
    saved = json.loads(file.read_text()) if file.exists() else {}
    host = "0.0.0.0"  # noqa: S104 - people and machines come from elsewhere
    console = endpoint_on_any_free(settings.console_listen, CONSOLE_PORT)
    if settings.gateway_listen is not None:
        gateway = _with_port(settings.gateway_listen)
    elif "gateway_port" in saved:
        gateway = Endpoint(host, saved["gateway_port"])
        if choose_port(host, gateway.port) != gateway.port:
            raise StartRefused(f"port {gateway.port}, which enrolled Nodes know, is taken: free it, or set TUNEPLANE_GATEWAY_LISTEN")
    else:
        gateway = Endpoint(host, choose_port(host, GATEWAY_PORT))
    console = _with_port(console)
    known = saved.get("gateway_host") or machine_address()
    target = settings.node_gateway_target or advertised(gateway, known)
    write_private(file, json.dumps({"gateway_port": gateway.port, "gateway_host": known}) + "\n")
    return Addresses(
        console=console,
        gateway=gateway,
        relay=settings.relay_listen,
        public_url=settings.public_url or f"https://{advertised(console, known)}",
        gateway_target=target,
    )


def _with_port(listen: Endpoint) -> Endpoint:
    """Port 0 becomes a free one now: it must be known before anybody is told of it."""
    return listen if listen.port else Endpoint(listen.host, choose_port(listen.host, 0))


@asynccontextmanager
async def open_database(settings: ControlSettings) -> AsyncIterator[str]:
    """The DSN of the settings, or that of the embedded server, which runs for the length of the block."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    async with open_embedded(settings.data_dir / POSTGRES_DIR) as server:
        yield server.dsn


async def _up(settings: ControlSettings, keys: Keys, addresses: Addresses, stopping: Stopping) -> None:
    async with open_database(settings) as dsn:
        async with open_bridge():
            await migrate(dsn)
        async with open_base(settings, dsn) as storage:
            host = addresses.gateway_target.host
            trust = await trust_of(settings, storage, host, keys.enc_key)
            identity = await gateway_identity(settings, storage, host, keys.enc_key)
            internal = await internal_identity(settings, storage, keys.enc_key)
            api = make_api(settings, storage, addresses, trust, internal)
            first = await patiently(lambda: ensure_first_administrator(api.accounts, settings.data_dir))
            certificate = console_tls(settings, addresses.public_url)
            tree = SupervisorSpec(
                name="tuneplane",
                children=(
                    make_worker(settings, storage),
                    make_gateway(settings, storage, addresses.gateway, server_context(identity.certificate, identity.key), internal),
                    make_web(settings, storage, api, addresses.console, certificate, keys.jwt_secret),
                ),
            )
            await run_system("tuneplane", tree, stopping, partial(_announce, settings, addresses, certificate, first))


async def _announce(
    settings: ControlSettings, addresses: Addresses, certificate: ConsoleCertificate, first: FirstAdministrator | None
) -> None:
    """Tell scripts (``up.json``) and the person at the terminal where everything is; secrets are printed this once."""
    ca = "" if certificate.ca is None else str(certificate.ca)
    write_up_file(settings.data_dir, {"console": addresses.public_url, "gateway": str(addresses.gateway_target), "ca": ca})
    lines = ["", "Tuneplane is up.", f"  console    {addresses.public_url}", f"  gateway    {addresses.gateway_target}"]
    if ca:
        lines.append(f"  trust      {ca} (the console's private CA)")
    if first is not None:
        lines += [f"  sign in    {first.username} with password {first.password}", f"  API token  {first.token}"]
        lines.append(f"             both are kept in {settings.data_dir / FILE} (mode 0600) and printed this once")
    else:
        lines.append(f"  sign in    the first start wrote user, password and API token to {settings.data_dir / FILE}")
    trust = f" --ca {ca}" if ca else ""
    lines += [f"  commands   tuneplane login {addresses.public_url}{trust}", ""]
    click.echo("\n".join(lines))
