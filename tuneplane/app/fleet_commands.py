"""``tuneplane fleets | hardware``: what administrators register, over the HTTP API. Conventions as in client_commands.py."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import click

from . import tables
from .client import path_of
from .client_commands import failing_politely, json_option, open_client, show

KINDS = click.Choice(["node", "kubernetes", "slurm"])
DELIVERIES = click.Choice(["shared-mount", "object-pull"])
CAPABILITIES = click.Choice(["train", "eval", "serve", "env"])
STATES = click.Choice(["active", "draining", "disabled"])


def _path(fleet: str) -> str:
    return path_of("fleets", fleet)


def _pairs(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """``KEY=VALUE`` options as a mapping."""
    pairs = [text.partition("=") for text in texts]
    if wrong := [key for key, equals, _ in pairs if not equals or not key]:
        raise click.BadParameter(f"must look like KEY=VALUE, not {wrong[0]!r}")
    return {key: value for key, _, value in pairs}


def _show_fleet(fleet: Any, as_json: bool) -> None:
    """The warnings go to standard error, for a person who only looks at the exit status too (R-FLT-03)."""
    for warning in fleet.get("warnings", []):
        click.echo(f"warning: {warning}", err=True)
    show(as_json, fleet, lambda out: tables.fleet_details(fleet, out))


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
@failing_politely
def fleets(context: click.Context, as_json: bool) -> None:
    """List the Fleets you may see."""
    if context.invoked_subcommand is None:
        with open_client() as client:
            items = client.list_all("/api/fleets")
        show(as_json, items, lambda out: out.print(tables.fleets_table(items)))


@fleets.command("show")
@click.argument("name")
@json_option
@failing_politely
def show_fleet(name: str, as_json: bool) -> None:
    """Show Fleet NAME with the settings it overrides, and what is wrong with them."""
    with open_client() as client:
        fleet = client.get(_path(name))
    _show_fleet(fleet, as_json)


@fleets.command("create")
@click.argument("name")
@click.option("--kind", type=KINDS, default="node", show_default=True, help="What its machines are; never changes.")
@click.option("--delivery", type=DELIVERIES, help="How inputs get there; never changes. The kind's own by default.")
@click.option("--capability", "capabilities", type=CAPABILITIES, multiple=True, default=("train",), show_default=True)
@click.option("--project", help="Only the members of this project see it; everybody by default.")
@click.option("--state", type=STATES, default="active", show_default=True)
@click.option("--config", metavar="KEY=VALUE", multiple=True, callback=_pairs, help="A setting that it overrides; may be repeated.")
@json_option
@failing_politely
def create_fleet(name: str, delivery: str | None, project: str | None, as_json: bool, **body: Any) -> None:
    """Create a Fleet (administrators)."""
    chosen = {"delivery": delivery} if delivery else {}
    private = {"visibility": "project", "project": project} if project else {}
    with open_client() as client:
        fleet = client.post("/api/fleets", {"id": name, **_listed(body), **chosen, **private})
    _show_fleet(fleet, as_json)


@fleets.command("update")
@click.argument("name")
@click.option("--capability", "capabilities", type=CAPABILITIES, multiple=True, help="All that it can from now on; may be repeated.")
@click.option("--project", help="Only the members of this project see it from now on.")
@click.option("--public", is_flag=True, help="Everybody sees it from now on.")
@click.option("--state", type=STATES, help="'draining' and 'disabled' stop new work; running work goes on.")
@click.option("--config", metavar="KEY=VALUE", multiple=True, callback=_pairs, help="A setting that it overrides; others stay.")
@click.option("--unset", metavar="KEY", multiple=True, help="A setting that it overrides no longer.")
@json_option
@failing_politely
def update_fleet(
    name: str, public: bool, project: str | None, config: dict[str, str], unset: tuple[str, ...], as_json: bool, **body: Any
) -> None:
    """Change Fleet NAME (administrators). What is not named stays; kind and delivery never change."""
    if public and project:
        raise click.UsageError("--public and --project exclude each other")
    change = {field: value for field, value in _listed(body).items() if value}
    change |= {"visibility": "public"} if public else {"visibility": "project", "project": project} if project else {}
    with open_client() as client:
        if config or unset:
            known = client.get(_path(name))["config"]
            if missing := [key for key in unset if key not in known]:
                raise click.UsageError(f"Fleet {name} does not override {missing[0]!r}")
            change["config"] = {key: value for key, value in {**known, **config}.items() if key not in unset}
        if not change:
            raise click.UsageError("nothing to change: give at least one option")
        fleet = client.patch(_path(name), change)
    _show_fleet(fleet, as_json)


def _listed(body: dict[str, Any]) -> dict[str, Any]:
    return {field: list(value) if isinstance(value, tuple) else value for field, value in body.items()}


@fleets.command("delete")
@click.argument("name")
@failing_politely
def delete_fleet(name: str) -> None:
    """Delete Fleet NAME, which has no Nodes and no work left (administrators)."""
    with open_client() as client:
        client.delete(_path(name))
    click.echo(f"Fleet {name} is deleted", err=True)


@fleets.command("join-token")
@click.argument("name")
@json_option
@failing_politely
def join_token(name: str, as_json: bool) -> None:
    """Mint a Join Token: single use, 24 hours (administrators). Prints the one line to paste on the machine."""
    with open_client() as client:
        minted = client.post(f"{_path(name)}/join-tokens")
        url = client.url
    direct = f"TUNEPLANE_FLEET={name} TUNEPLANE_JOIN_TOKEN={minted['token']} tuneplane-node join --server {url}"
    show(as_json, minted, lambda out: click.echo(f"{minted['command']}\n\nor, where the package is installed:\n\n{direct}"))


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
@failing_politely
def hardware(context: click.Context, as_json: bool) -> None:
    """List the hardware series, and which cards are in each."""
    if context.invoked_subcommand is None:
        with open_client() as client:
            items = client.list_all("/api/hardware")
        show(as_json, items, lambda out: out.print(tables.hardware_table(items)))


@hardware.command("add")
@click.argument("series")
@click.argument("card_names", metavar="CARD_NAME...", nargs=-1, required=True)
@json_option
@failing_politely
def add_hardware(series: str, card_names: tuple[str, ...], as_json: bool) -> None:
    """Add cards, named as the driver reports them, to SERIES, which is made if new (administrators)."""
    with open_client() as client:
        made = client.post("/api/hardware", {"series": series, "card_names": list(card_names)})
    show(as_json, made, lambda out: out.print(tables.hardware_table([made])))


@hardware.command("remove")
@click.argument("series")
@click.option("--card", help="Take only this card out of the series.")
@failing_politely
def remove_hardware(series: str, card: str | None) -> None:
    """Remove SERIES, which no job that has not ended pins (administrators)."""
    with open_client() as client:
        client.delete(
            path_of("hardware", series) + (f"?{urlencode({'card_name': card}, errors='surrogateescape')}" if card is not None else "")
        )
    click.echo(f"{card!r} is in series {series} no more" if card is not None else f"series {series} is removed", err=True)


COMMANDS: tuple[click.Command, ...] = (fleets, hardware)
