"""``tuneplane-node``: enrol this machine, serve, and say how it stands. Thin over :mod:`tuneplane.nodeside`.

Exit status: 0 done, 1 failed, 2 wrong usage, a wrong setting, or refused, 3 still draining. Works from the base install.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import trio
from attrs import evolve

from tuneplane import __version__
from tuneplane.bridge.loop import open_bridge
from tuneplane.domain.errors import InvalidInput, NotFound, Refused, TuneplaneError
from tuneplane.domain.ids import FleetId
from tuneplane.domain.inventory import Budgets
from tuneplane.domain.jobspec import GB
from tuneplane.nodeside.config import NodeConfig, prepare_state_dir
from tuneplane.nodeside.daemon import look_at_machine, open_node
from tuneplane.nodeside.drain import load_wish
from tuneplane.nodeside.identity import load_identity
from tuneplane.nodeside.join import JoinOrder, join_fleet
from tuneplane.nodeside.journal_peek import look_for_hold
from tuneplane.nodeside.locks import hold_state_dir
from tuneplane.nodeside.precedence import take_precedence

from .faults import card_reader_from, install_fault_hook_from
from .node_drain import drain as drain_machine
from .process import Stopping, run_process, run_system
from .settings import NodeSettings, WrongSetting, read_node_settings

log = logging.getLogger(__name__)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tuneplane-node")
def main() -> None:
    """The daemon of a machine that runs jobs."""


def guarded(run: Callable[[], None]) -> None:
    """One sentence and the promised exit status instead of a traceback."""
    try:
        run()
    except (WrongSetting, InvalidInput, Refused, NotFound) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except (TuneplaneError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


def node_config(settings: NodeSettings) -> NodeConfig:
    """The daemon's configuration: what the operator declared, in its units."""
    trust = settings.trust_bundle.read_text(encoding="utf-8") if settings.trust_bundle is not None else None
    return NodeConfig(
        state_dir=settings.require_state_dir(),
        budgets=Budgets(
            cpu_millis=None if settings.cpus is None else round(settings.cpus * 1000),
            memory_bytes=None if settings.memory_gb is None else round(settings.memory_gb * GB),
            gpu_indexes=settings.gpu_ids,
            gpu_uuids=settings.gpu_uuids,
            port_first=settings.ports[0],
            port_last=settings.ports[1],
            staging_bytes=round(settings.staging_capacity_gb * GB),
        ),
        storage_root=str(settings.storage_root or ""),
        runtime=settings.runtime,
        runtime_socket=settings.runtime_socket,
        insecure_registries=settings.insecure_registries,
        address=settings.address or "",
        gateway=str(settings.gateway or ""),
        trust_pem=trust,
        timings=settings.timings,
    )


@main.command()
@click.option("--server", required=True, help="The console: https://console.example[:port].")
@click.option("--fleet", help="The Fleet to join (TUNEPLANE_FLEET).")
@click.option("--token", help="The Join Token; better by TUNEPLANE_JOIN_TOKEN: arguments show in process lists.")
@click.option("--address", help="Host name or IP address for the machines' peers; found when omitted.")
@click.option("--trust-bundle", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="PEM of the console's private CA.")
@click.option("--force", is_flag=True, help="Make a new Node of a machine that is already enrolled.")
def join(server: str, fleet: str | None, token: str | None, address: str | None, trust_bundle: Path | None, force: bool) -> None:
    """Enrol this machine once; its identity is kept in TUNEPLANE_NODE_STATE_DIR."""

    def run() -> None:
        settings = read_node_settings()
        trust = trust_bundle or settings.enrollment_trust_bundle
        secret = token or (settings.join_token.reveal().decode() if settings.join_token else None)
        order = JoinOrder(
            server=server,
            fleet=FleetId(_given(fleet or settings.fleet, "TUNEPLANE_FLEET", "--fleet")),
            token=_given(secret, "TUNEPLANE_JOIN_TOKEN", "--token"),
            address=address or settings.address or "",
            trust_pem=trust.read_text(encoding="utf-8") if trust is not None else None,
            force=force,
        )
        install_fault_hook_from(os.environ)
        trio.run(_join, order, node_config(settings))

    guarded(run)


def _given(value: str | None, variable: str, option: str) -> str:
    if not value:
        raise WrongSetting(variable, f"must be set, or {option} given")
    return value


async def _join(order: JoinOrder, config: NodeConfig) -> None:
    prepare_state_dir(config)
    joined = await join_fleet(order, config.state_dir, await look_at_machine(config, cards=card_reader_from(os.environ)))
    click.echo(f"joined Fleet {joined.identity.fleet} as {joined.identity.node}, address {joined.identity.address}")
    click.echo(f"gateway {joined.identity.gateway_target}; now run: tuneplane-node serve")
    for warning in joined.warnings:
        click.echo(f"warning: {warning}", err=True)


@main.command()
@click.option("--target", help="The gateway, HOST:PORT; wins over TUNEPLANE_NODE_GATEWAY and what enrolment saved.")
def serve(target: str | None) -> None:
    """Connect to the gateway and run what it sends, until stopped. Containers outlive the daemon."""

    def run() -> None:
        config = node_config(read_node_settings())
        run_process("node", partial(_serve, evolve(config, gateway=target) if target else config))

    guarded(run)


async def _serve(config: NodeConfig, stopping: Stopping) -> None:
    for refused in take_precedence():
        log.info("this daemon was not given %s; a busy machine may slow it down", refused)
    async with open_bridge(), open_node(config, cards=card_reader_from(os.environ)) as tree:
        await run_system("node", tree, stopping)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status(as_json: bool) -> None:
    """Say who this Node is and whether its daemon runs. Exit status 1 when it does not."""

    def run() -> None:
        config = node_config(read_node_settings())
        identity = load_identity(config.state_dir)
        running = _daemon_runs(config.state_dir)
        hold, wish = look_for_hold(config.state_dir), load_wish(config.state_dir)
        facts = {
            "node": identity.node,
            "fleet": identity.fleet,
            "server": identity.server,
            "gateway": config.gateway or identity.gateway_target,
            "address": config.address or identity.address,
            "credential_expires_at": identity.credential_expires_at.isoformat().replace("+00:00", "Z"),
            "running": running,
            "held": str(hold) if hold is not None else None,
            "draining": wish is not None and wish.wanted,
        }
        click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(f"{name:22} {_said(value)}" for name, value in facts.items()))
        if not running:
            sys.exit(1)

    guarded(run)


@main.command()
@click.option("--wait", "wait", is_flag=True, help="Wait until the control plane has confirmed that nothing is left.")
@click.option("--timeout", type=click.FloatRange(min=0.1), help="Seconds to wait at most; exit status 3 when they are over.")
@click.option("--cancel", is_flag=True, help="Take work again; an operator's own drain or cordon stays.")
@click.option("--reason", default="", help="Shown to operators.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def drain(wait: bool, timeout: float | None, cancel: bool, reason: str, as_json: bool) -> None:
    """Finish what runs here and take no more. Kills nothing; remembered while the daemon or the gateway is away."""

    def run() -> None:
        if timeout is not None and not wait:
            raise WrongSetting("--timeout", "needs --wait")
        if timeout is not None and math.isnan(timeout):  # which no range excludes, and no clock reaches
            raise WrongSetting("--timeout", "must be a number of seconds")
        config = node_config(read_node_settings())
        load_identity(config.state_dir)
        seconds = (math.inf if timeout is None else timeout) if wait else 0.0
        running = _daemon_runs(config.state_dir)
        install_fault_hook_from(os.environ)
        drain_machine(config.state_dir, running, wanted=not cancel, reason=reason, seconds=seconds, as_json=as_json)

    guarded(run)


def _said(value: object) -> str:
    """For people: a hold that is not there is "no", not a word of Python."""
    return {"True": "yes", "False": "no", "None": "no"}.get(str(value), str(value))


def _daemon_runs(state_dir: Path) -> bool:
    try:
        with hold_state_dir(state_dir):
            return False
    except Refused:
        return True


if __name__ == "__main__":
    main()
