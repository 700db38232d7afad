"""What nobody claims, and what contradicts itself, as people see it: P-07, R-LCH-05."""

from __future__ import annotations

import pytest
from attrs import evolve
from rich.console import Console

from tests.web.support import make_app, open_server, open_site
from tests.web.world import INVENTORY, connect_node, make_fleet, ready_node
from tuneplane.app.tables import nodes_table
from tuneplane.domain.inventory import Stranger

pytestmark = pytest.mark.postgres
STRANGER = Stranger(container="c" * 64, name="<script>alert(1)</script>", member="job-x-1-0", gpu_uuids=(), cpu_millis=1, memory_bytes=1)


async def test_node_page_lists_strangers_escaped_with_what_an_operator_needs_to_stop_one(database: str) -> None:
    async with open_site(database) as running:
        fleet = await make_fleet(running)
        node, _ = await ready_node(running, fleet)
        await connect_node(running, fleet, node, evolve(INVENTORY, strangers=(STRANGER,)))
        client = make_app(running).test_client()
        html = await (await client.get("/nodes", headers={"Authorization": f"Bearer {running.admin_token}"})).get_data(as_text=True)
    assert "<script>alert" not in html
    assert "c" * 64 in html
    assert "job-x-1-0" in html


async def test_command_line_names_strangers_and_a_ready_machine_stays_ready(database: str, tmp_path: object) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:  # type: ignore[arg-type]
        fleet = await make_fleet(running)
        node, _ = await ready_node(running, fleet)
        await connect_node(running, fleet, node, evolve(INVENTORY, strangers=(STRANGER,)))
        seen = (await http.get(f"/api/nodes/{node}")).json()
        assert seen["ready"]["value"] is True
        refused = await http.post(f"/api/nodes/{node}/stop-stranger", json={"container": "c" * 64, "member": "job-y-1-0"})
        assert (refused.status_code, refused.json()["code"]) == (409, "no-such-stranger")
        bad = await http.post(f"/api/nodes/{node}/stop-stranger", json={"container": "c" * 64, "member": "../x"})
        assert bad.status_code in (400, 422)
    out = Console(width=400, record=True)
    out.print(nodes_table([seen]))
    assert "c" * 64 in out.export_text()
