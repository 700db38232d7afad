"""The cards of a Node as people see them and act on them: L-D1, L-D13."""

from __future__ import annotations

import re
from typing import Any

import pytest
from attrs import evolve
from rich.console import Console

from tests.web.support import make_app, open_server, open_site
from tests.web.world import INVENTORY, connect_node, join_body, join_node, make_fleet
from tuneplane.app.tables import cards_table, nodes_table
from tuneplane.domain.ids import FleetId, NodeId
from tuneplane.domain.inventory import Budgets, CardBinding, CardFault, Gpu, Inventory

from .support import Running, now

pytestmark = pytest.mark.postgres
BUDGETS = Budgets(cpu_millis=8000, memory_bytes=32 * 10**9, gpu_indexes=(0, 1, 2))


def with_cards(*uuids: str, **changes: Any) -> Inventory:
    gpus = tuple(Gpu(index=at, uuid=uuid, name="NVIDIA H100 80GB HBM3", memory_bytes=80 << 30) for at, uuid in enumerate(uuids))
    return evolve(INVENTORY, gpus=gpus, gpu_runtime=True, budgets=BUDGETS, **changes)


THREE = with_cards("GPU-a", "GPU-b", "GPU-c")


async def node_with(running: Running, fleet: FleetId, inventory: Inventory) -> NodeId:
    node = await join_node(running, fleet)
    await connect_node(running, fleet, node, inventory)
    return node


async def test_one_card_is_cordoned_and_back_by_an_administrator_alone(database: str, tmp_path: Any) -> None:
    """L-D13: the Node stays ready, and its page says who keeps which card aside, and why."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        fleet = await make_fleet(running)
        node = await node_with(running, fleet, THREE)
        done = await http.patch(f"/api/nodes/{node}/cards/GPU-b", json={"cordoned": True, "reason": "it runs hot"})
        assert done.status_code == 200, done.text
        seen = done.json()
        assert (seen["ready"]["value"], seen["capacity"]["gpus"]) == (True, 3)
        card = seen["cards"][1]
        assert (card["uuid"], card["index"], card["name"], card["member"]) == ("GPU-b", 1, "NVIDIA H100 80GB HBM3", None)
        assert [(one["owner"], one["reason"]) for one in card["cordons"]] == [("operator", "it runs hot")]
        lines = Console(width=200, record=True)
        lines.print(nodes_table([seen]))
        lines.print(cards_table([seen]))
        text = lines.export_text()
        assert "0/3, 1 aside" in text
        assert re.search(r"1\s+GPU-b\s+.*operator: it runs hot", text)
        assert (await http.patch(f"/api/nodes/{node}/cards/GPU-x", json={"cordoned": True})).status_code == 404
        assert (await http.patch(f"/api/nodes/{node}/cards/GPU-b", json={"cordoned": True, "reason": "x" * 501})).status_code == 422
        back = await http.patch(f"/api/nodes/{node}/cards/GPU-b", json={"cordoned": False})
        assert back.json()["cards"][1]["cordons"] == []


async def test_change_of_cards_is_accepted_by_the_id_that_the_cordon_names(database: str, tmp_path: Any) -> None:
    """L-D1."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        fleet = await make_fleet(running)
        node = await node_with(running, fleet, THREE)
        remembers = tuple(CardBinding(index=at, uuid=uuid) for at, uuid in enumerate(("GPU-a", "GPU-b", "GPU-c")))
        await connect_node(running, fleet, node, with_cards("GPU-b", "GPU-a", "GPU-c", card_bindings=remembers))
        seen = (await http.get(f"/api/nodes/{node}")).json()
        (cordon,) = seen["scheduling"]["cordons"]
        assert "index 0 was GPU-a and is GPU-b now" in cordon["reason"]
        wrong = await http.post(f"/api/nodes/{node}/accept-cards", json={"change": "cards-0123456789ab"})
        assert (wrong.status_code, wrong.json()["code"]) == (409, "no-such-change")
        change = re.findall(r"cards-[0-9a-f]{12}", cordon["reason"])[0]
        accepted = await http.post(f"/api/nodes/{node}/accept-cards", json={"change": change})
        assert [(card["index"], card["uuid"]) for card in accepted.json()["cards"]] == [(0, "GPU-b"), (1, "GPU-a"), (2, "GPU-c")]


async def test_node_page_shows_each_card_with_who_has_it_and_who_keeps_it_aside(database: str) -> None:
    async with open_site(database) as running:
        fleet = await make_fleet(running)
        fault = CardFault(card="GPU-c", code="xid-48", detail="<b>double bit</b>", since=now())
        node = await node_with(running, fleet, evolve(THREE, card_faults=(fault,)))
        client = make_app(running).test_client()
        html = await (await client.get("/nodes", headers={"Authorization": f"Bearer {running.admin_token}"})).get_data(as_text=True)
    assert "GPU-c" in html
    assert "xid-48: &lt;b&gt;double bit" in html
    assert "<b>double" not in html
    assert f"/api/nodes/{node}/cards/GPU-a" in html


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"card_bindings": [{"index": 0, "uuid": "GPU-a"}]}, "inventory"),
        ({"budgets": {"gpu_indexes": [], "gpu_uuids": ["no uuid"]}}, "inventory.gpus"),
        ({"budgets": {"gpu_indexes": list(range(65))}}, "inventory.budgets"),
        ({"gpus": [{"index": 0, "uuid": "GPU a", "name": "h", "memory_bytes": 1}]}, "inventory.gpus"),
        ({"gpus": [{"index": 0, "uuid": "a", "name": "h", "memory_bytes": 1, "links": [{"peer": "b"}] * 65}]}, "inventory.gpus"),
    ],
)
async def test_join_with_cards_that_are_none_is_refused_by_field(database: str, tmp_path: Any, changes: dict[str, Any], field: str) -> None:
    """Bytes from outside are hostile: a join is not a session's frame, and is checked alike."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        fleet = await make_fleet(running)
        body = join_body((await http.post(f"/api/fleets/{fleet}/join-tokens")).json()["token"])
        body["inventory"] |= changes
        refused = await http.post(f"/api/fleets/{fleet}/nodes", json=body)
        assert (refused.status_code, refused.json()["field"]) == (422, field)
