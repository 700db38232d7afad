"""``tuneplane``: the control plane's processes, its administration, and the client commands.

Exit status: 0 done, 1 failed, 2 wrong usage, a wrong setting, or refused. Server commands need the extra ``server``;
they are imported when called, so that the client commands work from the base install.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tuneplane import __version__
from tuneplane.domain.errors import InvalidInput, NotFound, Refused, TuneplaneError

from . import account_commands
from .card_commands import CARD_COMMANDS
from .client_commands import COMMANDS, ask_secret, json_option
from .fleet_commands import COMMANDS as FLEET_COMMANDS
from .settings import ControlSettings, WrongSetting, read_control_settings

USAGE_ERRORS = (WrongSetting, Refused, InvalidInput, NotFound)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tuneplane")
def main() -> None:
    """A control plane for fleets of GPU machines."""


for command in (*COMMANDS, *FLEET_COMMANDS, *CARD_COMMANDS, *account_commands.COMMANDS):
    main.add_command(command)


def server(name: str) -> Any:
    """The server-side module ``name`` of this room; one sentence when its libraries are not installed."""
    try:
        return import_module(f".{name}", __package__)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tuneplane"):
            raise
        sentence = f"this command needs the server's libraries ({error.name} is missing): pip install 'tuneplane[server]'"
        raise click.ClickException(sentence) from error


def start(run: Callable[[], None]) -> None:
    """Run a process root; print one sentence instead of a traceback for what an operator can mend."""
    try:
        run()
    except USAGE_ERRORS as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except (TuneplaneError, OSError) as error:  # a disk that is full or read-only, a directory that is not ours
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


def settings_or_exit() -> ControlSettings:
    try:
        return read_control_settings()
    except WrongSetting as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


data_dir_option = click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Where everything durable lives (TUNEPLANE_DATA_DIR)."
)


@main.command()
@data_dir_option
def up(data_dir: Path | None) -> None:
    """Run console, gateway and worker in one process, on an embedded PostgreSQL unless TUNEPLANE_DATABASE_URL is set."""
    settings = settings_or_exit()
    start(lambda: server("up").run_up(settings, data_dir or settings.data_dir))


@main.command()
def api() -> None:
    """Run the HTTP API and console."""
    settings = settings_or_exit()
    start(lambda: server("roots").run_api(settings))


@main.command()
@click.option("--certificate", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="PEM chain (R-TLS-05).")
@click.option("--private-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its key.")
def gateway(certificate: Path | None, private_key: Path | None) -> None:
    """Run a gateway: the machines' daemons dial in here."""
    if (certificate is None) != (private_key is None):
        raise click.UsageError("--certificate and --private-key come together")
    settings = settings_or_exit()
    start(lambda: server("roots").run_gateway(settings, certificate, private_key))


@main.command()
def worker() -> None:
    """Run a worker: it places jobs and drives launches."""
    settings = settings_or_exit()
    start(lambda: server("roots").run_worker(settings))


@main.command()
@data_dir_option
def migrate(data_dir: Path | None) -> None:
    """Bring the database's schema to this version."""
    settings = settings_or_exit()
    start(lambda: server("admin").run_migrate(settings, data_dir or settings.data_dir))


@main.group()
def user() -> None:
    """Accounts, straight in the database."""


@user.command("add")
@click.argument("name")
@click.option("--admin", is_flag=True, help="May create Fleets and enrol machines.")
@data_dir_option
@json_option
def add_user(name: str, admin: bool, data_dir: Path | None, as_json: bool) -> None:
    """Create the account NAME; its password is asked for, or read from standard input when that is no terminal."""
    settings = settings_or_exit()
    password = ask_secret("Password")
    start(lambda: server("admin").run_add_user(settings, data_dir or settings.data_dir, name, admin, password, as_json))


@main.group()
def token() -> None:
    """API tokens, straight in the database."""


@token.command("create")
@click.option("--user", "username", default="admin", show_default=True, help="Whose token.")
@click.option("--name", default="command line", show_default=True, help="For people, in the list of tokens.")
@data_dir_option
@json_option
def create_token(username: str, name: str, data_dir: Path | None, as_json: bool) -> None:
    """Mint an API token and print it, this once."""
    settings = settings_or_exit()
    start(lambda: server("admin").run_create_token(settings, data_dir or settings.data_dir, username, name, as_json))


if __name__ == "__main__":
    main()
