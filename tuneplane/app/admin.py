"""``tuneplane migrate | user add | token create``: straight in the database, of a running control plane or a stopped one."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import click
import trio
from attrs import evolve

from tuneplane.bridge.loop import open_bridge
from tuneplane.control.api import COMMAND_LINE, Accounts, TokenDraft
from tuneplane.domain.errors import NotFound
from tuneplane.domain.ids import UserName
from tuneplane.storage import migrate, open_storage
from tuneplane.storage.cluster import dsn as embedded_dsn

from .data_dir import StartRefused, lock_data_dir, open_data_dir, utc_now
from .faults import install_fault_hook_from
from .logs import install_logging
from .settings import ControlSettings
from .up import POSTGRES_DIR, open_database


def run_migrate(settings: ControlSettings, data_dir: Path) -> None:
    async def work(dsn: str) -> None:
        applied = await migrate(dsn)
        click.echo(f"applied {applied} migrations" if applied else "the schema is up to date")

    _run(settings, data_dir, work)


def run_add_user(settings: ControlSettings, data_dir: Path, name: str, admin: bool, password: str, as_json: bool) -> None:
    async def work(dsn: str) -> None:
        async with _open_accounts(dsn) as accounts:
            user = await accounts.create_user(COMMAND_LINE, name, "admin" if admin else "user", password)
        click.echo(json.dumps({"username": user.username, "role": user.role}) if as_json else f"created {user.role} {user.username}")

    _run(settings, data_dir, work)


def run_create_token(settings: ControlSettings, data_dir: Path, username: str, name: str, as_json: bool) -> None:
    async def work(dsn: str) -> None:
        async with _open_accounts(dsn) as accounts:
            if await accounts.storage.get_user(UserName(username)) is None:
                raise NotFound("user", username)
            token = await accounts.create_token(UserName(username), TokenDraft(name=name), by=COMMAND_LINE)
        click.echo(json.dumps({"id": token.id, "name": token.name, "token": token.token}) if as_json else token.token)

    _run(settings, data_dir, work)


@asynccontextmanager
async def _open_accounts(dsn: str) -> AsyncIterator[Accounts]:
    async with open_storage(dsn, size=2) as storage:
        await storage.ping()
        yield Accounts(storage=storage, clock=utc_now, entropy=os.urandom)


def _run(settings: ControlSettings, data_dir: Path, work: Callable[[str], Awaitable[None]]) -> None:
    """Run ``work`` on the settings' database, on that of the ``up`` that runs on ``data_dir``, or on its stopped one."""
    install_logging("admin")
    install_fault_hook_from(os.environ)
    settings = evolve(settings, data_dir=data_dir.absolute())
    if settings.database_url is not None:
        trio.run(_work_on, settings.database_url, work)
        return
    if not (settings.data_dir / POSTGRES_DIR).exists():
        raise StartRefused(f"there is no control plane in {settings.data_dir}: set TUNEPLANE_DATABASE_URL or --data-dir")
    open_data_dir(settings.data_dir)
    try:
        lock = lock_data_dir(settings.data_dir)
    except StartRefused:  # it runs: its server answers on the socket in the directory
        trio.run(_work_on, embedded_dsn(settings.data_dir / POSTGRES_DIR), work)
        return
    with lock:
        trio.run(partial(_work_embedded, settings, work))


async def _work_on(dsn: str, work: Callable[[str], Awaitable[None]]) -> None:
    async with open_bridge():
        await work(dsn)


async def _work_embedded(settings: ControlSettings, work: Callable[[str], Awaitable[None]]) -> None:
    async with open_database(settings) as dsn:
        await _work_on(dsn, work)
