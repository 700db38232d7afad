"""``tuneplane users | projects | audit``: accounts and the audit log over the HTTP API, for administrators.

Tables for people, ``--json`` for programs, exit status as in client_commands.py. A password is asked for, never an argument.
"""

from __future__ import annotations

from typing import Any

import click

from . import tables
from .client import path_of
from .client_commands import ask_secret, failing_politely, json_option, open_client, show


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
@failing_politely
def users(context: click.Context, as_json: bool) -> None:
    """List the accounts, their roles and projects."""
    if context.invoked_subcommand is None:
        with open_client() as client:
            items = client.list_all("/api/users")
        show(as_json, items, lambda out: out.print(tables.users_table(items)))


@users.command("add")
@click.argument("name")
@click.option("--admin", is_flag=True, help="An administrator, who sees and changes everything.")
@json_option
@failing_politely
def add_user(name: str, admin: bool, as_json: bool) -> None:
    """Create the account NAME; its password is asked for, or read from standard input when that is no terminal."""
    body = {"username": name, "role": "admin" if admin else "user", "password": ask_secret("Password")}
    with open_client() as client:
        made = client.post("/api/users", body)
    show(as_json, made, lambda out: out.print(tables.users_table([made])))


@users.command("set")
@click.argument("name")
@click.option("--role", type=click.Choice(["admin", "user"]))
@click.option("--disable/--enable", "disabled", default=None, help="Disabling ends sessions and open streams at once; its jobs run on.")
@click.option("--password", "ask_password", is_flag=True, help="Ask for a new password; it ends the account's console sessions.")
@click.option("--revoke-tokens", is_flag=True, help="Revoke its API tokens, which a new password leaves as they are.")
@json_option
@failing_politely
def set_user(name: str, role: str | None, disabled: bool | None, ask_password: bool, revoke_tokens: bool, as_json: bool) -> None:
    """Change the account NAME; what is not said stays."""
    change: dict[str, Any] = {"role": role, "disabled": disabled, "revoke_tokens": revoke_tokens or None}
    if ask_password:
        change["password"] = ask_secret("New password")
    change = {key: value for key, value in change.items() if value is not None}
    if not change:
        raise click.UsageError("say what to change: --role, --disable, --enable, --password or --revoke-tokens")
    with open_client() as client:
        changed = client.patch(path_of("users", name), change)
    show(as_json, changed, lambda out: out.print(tables.users_table([changed])))


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
@failing_politely
def projects(context: click.Context, as_json: bool) -> None:
    """List the projects and their members."""
    if context.invoked_subcommand is None:
        with open_client() as client:
            items = client.list_all("/api/projects")
        show(as_json, items, lambda out: out.print(tables.projects_table(items)))


@projects.command("create")
@click.argument("name")
@json_option
@failing_politely
def create_project(name: str, as_json: bool) -> None:
    """Create a project without members. It stays for ever."""
    with open_client() as client:
        made = client.post("/api/projects", {"id": name})
    show(as_json, made, lambda out: out.print(tables.projects_table([made])))


@projects.command("add")
@click.argument("project")
@click.argument("username")
@failing_politely
def add_member(project: str, username: str) -> None:
    """Make USERNAME a member of PROJECT: its Fleets and jobs come into sight."""
    with open_client() as client:
        client.put(path_of("projects", project, "members", username))
    click.echo(f"{username} is a member of {project}", err=True)


@projects.command("remove")
@click.argument("project")
@click.argument("username")
@failing_politely
def remove_member(project: str, username: str) -> None:
    """End USERNAME's membership in PROJECT: what is its own is out of sight at once, jobs that USERNAME submitted there included."""
    with open_client() as client:
        client.delete(path_of("projects", project, "members", username))
    click.echo(f"{username} is no member of {project} any more", err=True)


@click.command()
@click.option("--actor", help="Who did it.")
@click.option("--action", help="What was done, such as node.delete.")
@click.option("--subject", help="To which object.")
@click.option("--forced", is_flag=True, default=None, help="Only what was done by force.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="So many lines, the newest.")
@json_option
@failing_politely
def audit(actor: str | None, action: str | None, subject: str | None, forced: bool | None, limit: int, as_json: bool) -> None:
    """Show the audit log, newest first."""
    with open_client() as client:
        lines = client.get("/api/audit", actor=actor, action=action, subject=subject, forced=forced, limit=limit)["items"]
    show(as_json, lines, lambda out: out.print(tables.audit_table(lines)))


COMMANDS: tuple[click.Command, ...] = (users, projects, audit)
