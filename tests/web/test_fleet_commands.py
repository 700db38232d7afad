"""``tuneplane fleets`` and ``tuneplane hardware`` against the real console (R-FLT-01 to R-FLT-06, R-ENR-06)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from tests.web.support import open_server
from tests.web.world import join_node, make_fleet
from tuneplane.app.cli import main
from tuneplane.domain.ids import FleetId

pytestmark = pytest.mark.postgres

Type = Callable[..., Awaitable[Result]]


@asynccontextmanager
async def open_terminal(database: str, tmp_path: Path) -> AsyncIterator[tuple[Type, Type]]:
    """What an administrator and a user type."""
    async with open_server(database, tmp_path) as running:

        def terminal(token: str) -> Type:
            env = {"TUNEPLANE_URL": running.url, "TUNEPLANE_TOKEN": token, "TUNEPLANE_CA": str(running.ca), "COLUMNS": "200"}

            async def type_in(*words: str, status: int = 0) -> Result:
                result = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, words, env=env))
                assert result.exit_code == status, (words, result.output, result.exception)
                return result

            return type_in

        type_in = terminal(running.admin_token)
        type_in.running = running  # type: ignore[attr-defined]
        yield type_in, terminal(running.user_token)


async def test_fleet_is_created_shown_changed_and_deleted_by_commands(database: str, tmp_path: Path) -> None:
    async with open_terminal(database, tmp_path) as (admin, user):
        made = await admin("fleets", "create", "lab", "--capability", "train", "--capability", "serve", "--config", "storage_rot=/srv/a=b")
        assert "warning: config key 'storage_rot'" in made.stderr
        assert "lab" in made.stdout
        shown = json.loads((await user("fleets", "show", "lab", "--json")).stdout)
        assert (shown["config"], shown["capabilities"]) == ({"storage_rot": "/srv/a=b"}, ["train", "serve"])
        change = ("--state", "draining", "--config", "storage_root=/srv", "--unset", "storage_rot")
        changed = await admin("fleets", "update", "lab", *change)
        assert "warning" not in changed.stderr
        assert "storage_root = /srv" in changed.stdout
        listed = json.loads((await user("fleets", "--json")).stdout)
        assert [(one["state"], one["config"], one["capabilities"]) for one in listed] == [
            ("draining", {"storage_root": "/srv"}, ["train", "serve"])
        ]
        assert "Only an administrator" in (await user("fleets", "delete", "lab", status=2)).stderr
        await admin("fleets", "delete", "lab")
        assert "No Fleet named" in (await admin("fleets", "show", "lab", status=2)).stderr


async def test_commands_say_what_is_wrong_and_change_nothing(database: str, tmp_path: Path) -> None:
    async with open_terminal(database, tmp_path) as (admin, _):
        running = admin.running  # type: ignore[attr-defined]
        node = await join_node(running, await make_fleet(running))
        refused = await admin("fleets", "delete", "lab", status=2)
        assert f"Node {node} is enrolled in it" in refused.stderr
        assert "config.serving_port_range" in (await admin("fleets", "update", "lab", "--config", "serving_port_range=9", status=2)).stderr
        assert "KEY=VALUE" in (await admin("fleets", "update", "lab", "--config", "odd", status=2)).stderr
        assert "does not override 'odd'" in (await admin("fleets", "update", "lab", "--unset", "odd", status=2)).stderr
        assert "nothing to change" in (await admin("fleets", "update", "lab", status=2)).stderr
        assert "exclude" in (await admin("fleets", "update", "lab", "--public", "--project", "vision", status=2)).stderr
        assert (await running.storage.get_fleet(FleetId("lab"))).config == {}


async def test_hardware_is_added_listed_and_removed_by_commands(database: str, tmp_path: Path) -> None:
    async with open_terminal(database, tmp_path) as (admin, user):
        await admin("hardware", "add", "h100", "NVIDIA H100 PCIe", "NVIDIA H100 NVL")
        assert "NVIDIA H100 NVL" in (await user("hardware")).stdout
        assert "belongs to series h100" in (await admin("hardware", "add", "hopper", "h100 nvl", status=2)).stderr
        await admin("hardware", "remove", "h100", "--card", "", status=2)  # an empty variable of a script is not "all of them"
        await admin("hardware", "remove", "h100", "--card", "H100 NVL")
        assert json.loads((await user("hardware", "--json")).stdout) == [{"series": "h100", "card_names": ["NVIDIA H100 PCIe"]}]
        await admin("hardware", "remove", "h100")
        assert json.loads((await user("hardware", "--json")).stdout) == []
