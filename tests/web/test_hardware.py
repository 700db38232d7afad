"""The hardware registry through the HTTP API (R-ENR-06)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from tests.web.support import IMAGE, job_spec, open_server
from tests.web.world import INVENTORY, connect_node, join_body, join_node, make_fleet
from tuneplane.domain import codec
from tuneplane.domain.inventory import Budgets, Gpu, Inventory

pytestmark = pytest.mark.postgres


def with_cards(*names: str) -> Inventory:
    gpus = tuple(Gpu(index=index, uuid=f"GPU-{index}", name=name, memory_bytes=80 * 10**9) for index, name in enumerate(names))
    budgets = Budgets(cpu_millis=8000, memory_bytes=32 * 10**9, gpu_indexes=tuple(range(len(names))))
    return evolve(INVENTORY, gpus=gpus, gpu_runtime=True, budgets=budgets)


def pinned(series: str) -> dict[str, Any]:
    pool = {"gpus_per_node": 1, "cpus": 1, "memory_gb": 1, "series": series}
    return job_spec(resources={"pools": [pool]}, runtime={"image": IMAGE})


async def test_registry_is_read_by_all_and_changed_by_administrators(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http, running.user() as bob:
        body = {"series": "h100", "card_names": ["NVIDIA H100 PCIe"]}
        assert (await bob.post("/api/hardware", json=body)).json()["code"] == "forbidden"
        assert (await http.post("/api/hardware", json=body)).status_code == 201
        assert (await bob.delete("/api/hardware/h100")).json()["code"] == "forbidden"
        more = await http.post("/api/hardware", json={"series": "h100", "card_names": ["h100  pcie", "NVIDIA H100 NVL"]})
        assert (more.status_code, more.json()["card_names"]) == (200, ["NVIDIA H100 PCIe", "NVIDIA H100 NVL"])
        assert (await bob.get("/api/hardware")).json()["items"] == [more.json()]
        assert (await http.delete("/api/hardware/h100", params={"card_name": "H100 NVL"})).status_code == 204
        assert (await http.get("/api/hardware")).json()["items"] == [body]
        actions = await running.storage._db.fetch("SELECT action, subject FROM audit WHERE action LIKE 'hardware.%' ORDER BY sequence")
        assert [tuple(row.values()) for row in actions] == [("hardware.add", "h100")] * 2 + [("hardware.remove", "h100")]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"series": "H100"}, "series"),
        ({"card_names": []}, "card_names"),
        ({"card_names": ["x" * 300]}, "card_names[0]"),
        ({"card_names": ["NVIDIA H100", "\u001b]0;x"]}, "card_names[1]"),
        ({"card_names": [3]}, "card_names[0]"),
        ({"colour": "blue"}, "colour"),
    ],
)
async def test_bad_series_is_refused_naming_the_field(database: str, tmp_path: Path, change: dict[str, Any], field: str) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        refused = await http.post("/api/hardware", json={"series": "h100", "card_names": ["NVIDIA H100"]} | change)
        assert (refused.status_code, refused.json()["field"]) == (422, field)
        assert (await http.get("/api/hardware")).json()["items"] == []


async def test_registry_is_listed_in_pages_by_name(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        for number in (2, 0, 1):
            await http.post("/api/hardware", json={"series": f"s{number}", "card_names": [f"card {number}"]})
        first = (await http.get("/api/hardware", params={"limit": 2})).json()
        assert [one["series"] for one in first["items"]] == ["s0", "s1"]
        last = (await http.get("/api/hardware", params={"limit": 2, "cursor": first["next_cursor"]})).json()
        assert ([one["series"] for one in last["items"]], last["next_cursor"]) == (["s2"], None)
        assert (await http.get("/api/hardware", params={"cursor": "S!"})).json()["field"] == "cursor"


async def test_unknown_card_is_named_at_join_and_on_its_node_until_it_is_added(database: str, tmp_path: Path) -> None:
    """Jobs that pin a series are refused or placed accordingly, with the reason."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        fleet = await make_fleet(running)
        token = (await http.post("/api/fleets/lab/join-tokens")).json()["token"]
        inventory = with_cards("NVIDIA B300", "NVIDIA B300")
        joined = (await http.post("/api/fleets/lab/nodes", json=join_body(token, inventory=codec.encode(inventory)))).json()
        (warning,) = joined["warnings"]
        assert "'NVIDIA B300'" in warning
        assert "tuneplane hardware add" in warning
        await connect_node(running, fleet, joined["id"], inventory)
        node = (await http.get(f"/api/nodes/{joined['id']}")).json()
        assert (node["unknown_cards"], node["card_series"]) == (["NVIDIA B300"], {})
        refused = (await http.post("/api/jobs/preview", json=pinned("b300"))).json()
        assert (refused["code"], refused["reasons"][0]["code"]) == ("no-fleet-fits", "series")
        assert "NVIDIA B300" in refused["reasons"][0]["detail"]
        await http.post("/api/hardware", json={"series": "b300", "card_names": ["NVIDIA B300"]})
        node = (await http.get(f"/api/nodes/{joined['id']}")).json()
        assert (node["unknown_cards"], node["card_series"]) == ([], {"GPU-0": "b300", "GPU-1": "b300"})
        assert (await http.post("/api/jobs/preview", json=pinned("b300"))).json()["placed"] is True
        assert (await http.post("/api/jobs/preview", json=pinned("h100"))).json()["code"] == "no-fleet-fits"


async def test_series_in_use_and_card_of_another_series_are_refused_with_reasons(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        fleet = await make_fleet(running)
        node = await join_node(running, fleet)
        await connect_node(running, fleet, node, with_cards("NVIDIA B300"))
        await http.post("/api/hardware", json={"series": "b300", "card_names": ["NVIDIA B300"]})
        taken = await http.post("/api/hardware", json={"series": "b200", "card_names": ["nvidia b300"]})
        assert (taken.status_code, taken.json()["code"], taken.json()["reasons"][0]["subject"]) == (409, "card-taken", "b300")
        job = (await http.post("/api/jobs", json=pinned("b300"))).json()["id"]
        in_use = await http.delete("/api/hardware/b300")
        assert (in_use.status_code, in_use.json()["code"]) == (409, "series-in-use")
        assert job in in_use.text
        assert (await http.delete("/api/hardware/b300", params={"card_name": "NVIDIA B300"})).json()["code"] == "last-card-name"
        assert (await http.delete("/api/hardware/nothing")).status_code == 404
