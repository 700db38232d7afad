"""``tuneplane users | projects | audit`` against the real API: thin, and the same exit statuses as everywhere."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from tests.web.support import PASSWORD, Running, open_server
from tuneplane.app.cli import main

pytestmark = pytest.mark.postgres


async def _run(running: Running, token: str, *words: str, typed: str = "") -> Result:
    environment = {
        "TUNEPLANE_URL": running.url,
        "TUNEPLANE_TOKEN": token,
        "TUNEPLANE_CA": str(running.ca),
        "TUNEPLANE_CREDENTIALS": "/nowhere",
    }
    return await trio.to_thread.run_sync(partial(CliRunner().invoke, main, words, input=typed, env=environment))


async def test_administrator_manages_people_from_the_command_line(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running:

        async def ada(*words: str, typed: str = "", status: int = 0) -> str:
            result = await _run(running, running.admin_token, *words, typed=typed)
            assert result.exit_code == status, result.output
            return result.output

        async def read(*words: str) -> Any:
            return json.loads(await ada(*words, "--json"))

        assert "cy" in await ada("users", "add", "cy", typed=PASSWORD + "\n")
        assert PASSWORD not in await ada("users")
        assert "wrong" not in await ada("users", "set", "cy", "--role", "admin")
        assert "disabled" in await ada("users", "set", "cy", "--role", "user", "--disable")
        assert "say what to change" in await ada("users", "set", "cy", status=2)
        assert "last enabled administrator" in await ada("users", "set", "ada", "--disable", status=2)
        await ada("projects", "create", "vision")
        await ada("projects", "add", "vision", "cy")
        assert [(one["id"], one["members"]) for one in await read("projects")] == [("vision", ["cy"])]
        assert "nothing at this address" in await ada("projects", "remove", "vision", "../../../fleets/lab", status=2)
        assert "No username" in await ada("users", "set", "cy?x=1", "--disable", status=2)
        assert "id is empty" in await ada("projects", "remove", "vision", "", status=2)
        assert "cannot be sent" in await ada("audit", "--actor", "\udcff", status=2)
        await ada("projects", "remove", "vision", "cy")
        assert "No member" in await ada("projects", "remove", "vision", "cy", status=2)
        lines = await read("audit", "--subject", "vision")
        assert [line["action"] for line in lines] == ["project.remove-member", "project.add-member", "project.create"]
        assert "project.create" in await ada("audit", "--actor", "ada", "--limit", "5")
        assert await read("audit", "--forced") == []
        refused = await _run(running, running.user_token, "users")
        assert (refused.exit_code, "administrator" in refused.output) == (2, True)
