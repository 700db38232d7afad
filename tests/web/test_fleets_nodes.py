"""R-FLT and R-ENR through the HTTP API, on the real storage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.web.support import Running, make_app, now, open_server
from tests.web.world import connect_node, join_body, join_node, make_fleet, ready_node
from tuneplane.control.api_accounts import USER_NAME
from tuneplane.domain.clocks import Offset
from tuneplane.domain.ids import FleetId, NodeId
from tuneplane.domain.inventory import EpochHold, Gpu, Interface, Stranger
from tuneplane.domain.secrets import secret_hash

pytestmark = pytest.mark.postgres


async def test_new_console_has_no_fleets_and_defaults_are_the_contracts(database: str, tmp_path: Path) -> None:
    """R-FLT-04, R-FLT-10, R-FLT-02."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        assert (await http.get("/api/fleets")).json() == {"items": [], "next_cursor": None}
        for kind, delivery in (("node", "shared-mount"), ("slurm", "shared-mount"), ("kubernetes", "object-pull")):
            fleet = (await http.post("/api/fleets", json={"id": kind, "kind": kind, "capabilities": ["train"]})).json()
            assert (fleet["delivery"], fleet["visibility"], fleet["state"], fleet["config"]) == (delivery, "public", "active", {})


@pytest.mark.parametrize("change", [{"kind": "slurm"}, {"delivery": "object-pull"}])
async def test_kind_and_delivery_never_change(database: str, tmp_path: Path, change: dict[str, str]) -> None:
    """R-FLT-02: refused, naming the field; nothing changed."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        refused = await http.patch("/api/fleets/lab", json={**change, "state": "draining"})
        assert (refused.status_code, refused.json()["field"]) == (422, next(iter(change)))
        assert (await http.get("/api/fleets/lab")).json()["state"] == "active"
        assert (await http.patch("/api/fleets/lab", json={"kind": "node", "state": "draining"})).json()["state"] == "draining"


async def test_unread_config_key_is_kept_and_warned_about(database: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """R-FLT-03."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        body = {"id": "lab", "kind": "node", "capabilities": ["train"], "config": {"storage_root": "/srv", "storage_rot": "/x"}}
        made = (await http.post("/api/fleets", json=body)).json()
        assert made["config"] == body["config"]
        assert len(made["warnings"]) == 1
        assert "storage_rot" in made["warnings"][0]
        assert (await http.get("/api/fleets/lab")).json()["warnings"] == made["warnings"]
    assert "storage_rot" in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": "Lab"}, "id"),
        ({"id": "x" * 64}, "id"),
        ({"capabilities": []}, "capabilities"),
        ({"visibility": "project"}, "project"),
        ({"project": "vision"}, "project"),
        ({"config": {"a": 1}}, "config.a"),
        ({"config": {"gang_deadline_seconds": "soon"}}, "config.gang_deadline_seconds"),
        ({"config": {"gang_deadline_seconds": "0"}}, "config.gang_deadline_seconds"),
        ({"config": {"gang_deadline_seconds": "nan"}}, "config.gang_deadline_seconds"),
        ({"config": {"gang_deadline_seconds": "1e309"}}, "config.gang_deadline_seconds"),
        ({"config": {"gang_deadline_seconds": "6_0"}}, "config.gang_deadline_seconds"),
        ({"config": {"gang_deadline_seconds": "\uff16\uff10\uff10"}}, "config.gang_deadline_seconds"),
        ({"config": {"a": "x" * 5000}}, "config.a"),
    ],
)
async def test_bad_fleet_is_refused_naming_the_field(database: str, tmp_path: Path, change: dict[str, Any], field: str) -> None:
    """R-FLT-01, R-FLT-10."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        refused = await http.post("/api/fleets", json={"id": "lab", "kind": "node", "capabilities": ["train"]} | change)
        assert (refused.status_code, refused.json()["field"]) == (422, field)
        assert (await http.get("/api/fleets")).json()["items"] == []


async def test_project_fleet_is_like_none_to_outsiders(database: str, tmp_path: Path) -> None:
    """R-FLT-08: the same status and body as a Fleet that does not exist, here and in a JobSpec."""
    async with open_server(database, tmp_path) as running, running.user() as bob:
        await make_fleet(running, "hidden", visibility="project", project="vision")
        await join_node(running, FleetId("hidden"))
        assert (await bob.get("/api/fleets")).json()["items"] == []
        assert (await bob.get("/api/nodes")).json()["items"] == []
        for path in ("/api/fleets/{}", "/api/fleets/{}/nodes"):
            there, nowhere = [(await bob.get(path.format(name))).json() for name in ("hidden", "absent")]
            assert there["status"] == 404
            assert there["detail"].replace("hidden", "absent") == nowhere["detail"]


async def test_fleet_with_a_node_cannot_be_deleted_and_says_why(database: str, tmp_path: Path) -> None:
    """R-FLT-06."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        node = await join_node(running, await make_fleet(running))
        refused = await http.delete("/api/fleets/lab")
        assert (refused.status_code, refused.json()["code"]) == (409, "fleet-in-use")
        assert node in refused.text or "1 Node" in refused.text
        assert (await http.post("/api/fleets", json={"id": "lab", "kind": "node", "capabilities": ["train"]})).json()["code"] == "exists"


async def test_fleets_are_listed_in_pages(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        names = {await make_fleet(running, f"lab-{number}") for number in range(5)}
        seen: list[str] = []
        cursor: str | None = None
        while True:
            query = {"limit": "2", **({"cursor": cursor} if cursor else {})}
            page = (await http.get("/api/fleets", params=query)).json()
            seen += [fleet["id"] for fleet in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert len(seen) == 5
        assert set(seen) == names


async def test_join_answers_once_and_stores_only_hashes(database: str, tmp_path: Path) -> None:
    """R-ENR-01, R-ENR-03: single use; the same token and join key again give the same Node a fresh credential."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        minted = (await http.post("/api/fleets/lab/join-tokens")).json()
        assert minted["command"] == (
            f"curl -fsSL https://console.example/install.sh | TUNEPLANE_FLEET=lab TUNEPLANE_JOIN_TOKEN={minted['token']} sh"
        )
        body = join_body(minted["token"])
        first = (await http.post("/api/fleets/lab/nodes", json=body)).json()
        assert first["credential"].startswith("tpn_")
        assert (first["gateway_target"], first["warnings"]) == ("gateway.example:8443", [])
        again = (await http.post("/api/fleets/lab/nodes", json=body | {"try": 2})).json()
        assert again["id"] == first["id"]
        assert again["credential"] != first["credential"]
        stale = await http.post("/api/fleets/lab/nodes", json=body | {"try": 1})
        assert (stale.status_code, stale.json()["code"]) == (409, "stale-try")
        other = await http.post("/api/fleets/lab/nodes", json=join_body(minted["token"]))
        assert (other.status_code, other.json()["code"]) == (403, "token-used")
        identity = await running.storage.authenticate(secret_hash(again["credential"]), now())
        assert identity.node == first["id"]
        listed = (await http.get("/api/fleets/lab/join-tokens")).json()["items"]
        assert (listed[0]["state"], listed[0]["used_by"]) == ("used", first["id"])


async def test_four_bad_tokens_have_four_reasons(database: str, tmp_path: Path) -> None:
    """R-ENR-03, L-A13: garbage, revoked, expired and foreign; none of them burns anything."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        await make_fleet(running, "other")
        revoked, foreign = [(await http.post("/api/fleets/lab/join-tokens")).json() for _ in range(2)]
        await http.delete(f"/api/fleets/lab/join-tokens/{revoked['id']}")
        bad, revoked_token, foreign_token = "tpj_garbage", revoked["token"], foreign["token"]
        cases = [(bad, "lab", "token-unknown"), (revoked_token, "lab", "token-revoked"), (foreign_token, "other", "token-unknown")]
        for token, fleet, code in cases:
            refused = await http.post(f"/api/fleets/{fleet}/nodes", json=join_body(token))
            assert (refused.status_code, refused.json()["code"]) == (403, code)
        assert (await http.post("/api/fleets/lab/nodes", json=join_body(foreign["token"]))).status_code == 201
        [line] = (await http.get("/api/audit?action=node.join-refused")).json()["items"]
        assert (line["subject"], USER_NAME.fullmatch(line["actor"])) == ("lab", None)  # R-ADM-02: taken for no person


async def test_two_machines_racing_with_one_token_exactly_one_joins(database: str, tmp_path: Path) -> None:
    """R-ENR-03."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        token = (await http.post("/api/fleets/lab/join-tokens")).json()["token"]
        statuses: list[int] = []

        async def race() -> None:
            statuses.append((await http.post("/api/fleets/lab/nodes", json=join_body(token))).status_code)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(race)
        assert sorted(statuses) == [201] + [403] * 7
        assert len((await http.get("/api/nodes")).json()["items"]) == 1


async def test_only_node_fleets_enrol_machines(database: str, tmp_path: Path) -> None:
    """R-ENR-08."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running, "big", kind="slurm")
        refused = await http.post("/api/fleets/big/join-tokens")
        assert (refused.status_code, refused.json()["code"]) == (409, "not-a-node-fleet")


async def test_join_warns_of_an_unseen_storage_root_and_a_shared_address(database: str, tmp_path: Path) -> None:
    """R-ENR-05, R-ENR-07: warnings, not refusals."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        first, _ = await ready_node(running, await make_fleet(running))
        token = (await http.post("/api/fleets/lab/join-tokens")).json()["token"]
        body = join_body(token)
        body["inventory"] |= {"storage_root_seen": False}
        joined = (await http.post("/api/fleets/lab/nodes", json=body)).json()
        assert any("storage" in warning and "/srv/tuneplane" in warning for warning in joined["warnings"])
        assert any(first in warning for warning in joined["warnings"])
        node = (await http.get(f"/api/nodes/{joined['id']}")).json()
        assert [cordon["owner"] for cordon in node["scheduling"]["cordons"]] == ["storage"]


async def test_wrong_wire_protocol_is_refused_and_the_token_stays_good(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        token = (await http.post("/api/fleets/lab/join-tokens")).json()["token"]
        refused = await http.post("/api/fleets/lab/nodes", json=join_body(token) | {"protocol": 99})
        assert refused.json()["code"] == "wire-protocol"
        assert (await http.post("/api/fleets/lab/nodes", json=join_body(token))).status_code == 201


async def test_node_shows_three_things_apart_and_readiness_with_every_reason(database: str, tmp_path: Path) -> None:
    """R-LIV-06, R-ENR-09."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        fleet = await make_fleet(running)
        node = await join_node(running, fleet)
        seen = (await http.get(f"/api/nodes/{node}")).json()
        assert seen["connection"]["state"] == "never"
        assert seen["ready"] == {"value": False, "reasons": ["no live control session"]}
        await connect_node(running, fleet, node)
        await http.patch(f"/api/nodes/{node}", json={"state": "draining", "reason": "disk swap"})
        seen = (await http.get(f"/api/nodes/{node}")).json()
        assert (seen["connection"]["state"], seen["scheduling"]["state"]) == ("connected", "draining")
        assert (seen["inventory"]["healthy"], seen["inventory"]["cpu_count"]) == (True, 16)
        assert not seen["ready"]["value"]
        assert any("draining" in reason for reason in seen["ready"]["reasons"])
        assert seen["capacity"]["cpu_millis"] == 8000


async def test_node_whose_gateways_lease_ran_out_is_not_shown_as_connected(database: str, tmp_path: Path) -> None:
    """R-ADM-04: a stale state is never shown as a fresh one."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        fleet = await make_fleet(running)
        node, _ = await ready_node(running, fleet)
        from tuneplane.domain.ids import GatewayId

        await running.storage.renew_gateway(GatewayId(f"gateway-of-{node}"), now() - timedelta(seconds=1))
        seen = (await http.get(f"/api/nodes/{node}")).json()
        assert seen["connection"]["state"] == "disconnected"
        assert not seen["ready"]["value"]


async def test_active_node_is_not_removed_without_force_and_force_is_audited(
    database: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """R-LIV-05, R-CRD-04."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        node = await join_node(running, await make_fleet(running))
        refused = await http.delete(f"/api/nodes/{node}")
        assert (refused.status_code, refused.json()["code"]) == (409, "node-busy")
        assert (await http.delete(f"/api/nodes/{node}?force=true")).status_code == 204
        assert (await http.get(f"/api/nodes/{node}")).status_code == 404
        assert (await http.delete(f"/api/nodes/{node}?force=true")).status_code == 404
    assert "forced=True" in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": [Gpu(index=0, uuid="same", name="h100", memory_bytes=1), Gpu(index=1, uuid="same", name="h100", memory_bytes=1)]},
        {"cpu_count": 0},
        {"memory_bytes": -1},
        {"hostname": "x" * 2000},
        {"problems": ["x"] * 100},
        {"interfaces": [Interface(name="eth0", addresses=("host-a",))]},
        {"interfaces": [Interface(name="")]},
        {"interfaces": [Interface(name="eth0")] * 300},
        {"route_address": "host-a"},
        {"strangers": [Stranger(container="c" * 64, name="x", member="m", cpu_millis=-(10**9))]},
        {"hold": EpochHold(id="h", known_epoch=2**53, told_epoch=1, since=datetime(2026, 1, 1, tzinfo=UTC))},
    ],
)
async def test_impossible_inventory_is_refused(database: str, tmp_path: Path, change: dict[str, Any]) -> None:
    from tuneplane.domain import codec

    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        token = (await http.post("/api/fleets/lab/join-tokens")).json()["token"]
        body = join_body(token)
        body["inventory"] |= codec.encode(change)
        refused = await http.post("/api/fleets/lab/nodes", json=body)
        assert (refused.status_code, refused.json()["field"].split(".")[0]) == (422, "inventory")


async def test_control_characters_of_a_joining_machine_are_replaced(database: str, tmp_path: Path) -> None:
    """Bytes from outside are hostile: what it says of itself is printed on an operator's terminal."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        await make_fleet(running)
        body = join_body((await http.post("/api/fleets/lab/join-tokens")).json()["token"])
        body["inventory"] |= {"hostname": "h\x1b]0;pwned\x07", "problems": ["one\n\ttwo\x9b2J"]}
        joined = await http.post("/api/fleets/lab/nodes", json=body)
        assert joined.status_code == 201
        seen = (await http.get(f"/api/nodes/{joined.json()['id']}")).json()["inventory"]
        assert (seen["hostname"], seen["problems"]) == ("h\ufffd]0;pwned\ufffd", ["one\n\ttwo\ufffd2J"])


async def test_unknown_node_is_not_found_everywhere(database: str, tmp_path: Path) -> None:
    async with open_server(database, tmp_path) as running, running.admin() as http:
        node = NodeId("node-nowhere")
        assert (await http.get(f"/api/nodes/{node}")).status_code == 404
        assert (await http.patch(f"/api/nodes/{node}", json={"state": "active"})).status_code == 404
        assert (await http.delete(f"/api/nodes/{node}")).status_code == 404


async def _nodes_page(running: Running) -> str:
    """The console's page, which is in no OpenAPI document."""
    client = make_app(running).test_client()
    answer = await client.get("/nodes", headers={"Authorization": f"Bearer {running.admin_token}"})
    return str(await answer.get_data(as_text=True))


async def test_node_tells_what_its_silence_means_what_a_drain_waits_for_and_a_clock_that_is_off(database: str, tmp_path: Path) -> None:
    """R-LIV-01, R-LIV-06, R-ADM-04, L-F1: three separate things, each true; nothing old is shown as fresh."""
    async with open_server(database, tmp_path) as running, running.admin() as http:
        fleet = await make_fleet(running, capabilities=["train", "serve"])
        node, epoch = await ready_node(running, fleet)
        await running.storage.look_around(False, now())
        await running.storage.note_clock(node, epoch, Offset(seconds=-17.0, error_seconds=0.01), now())
        seen = (await http.get(f"/api/nodes/{node}")).json()
        assert (seen["liveness"]["presence"], seen["liveness"]["suspended"], seen["inventory"]["healthy"]) == ("live", "", True)
        assert "17.0 s behind" in seen["warnings"][0]
        assert seen["ready"]["value"] is True  # a warning, no reason
        drained = (await http.patch(f"/api/nodes/{node}", json={"state": "draining"})).json()["scheduling"]
        assert (drained["state"], drained["drained"], drained["left"]) == ("draining", True, [])
        await running.storage.close_session(node, epoch, "cut", now())
        seen = (await http.get(f"/api/nodes/{node}")).json()
        assert (seen["connection"]["state"], seen["inventory"]["healthy"]) == ("disconnected", False)
        assert seen["liveness"]["presence"] == "quiet"
        answers = {answer["capability"]: answer["consequence"] for answer in seen["liveness"]["answers"]}
        assert answers == {"train": "no-new-work", "serve": "not-ready"}
        page = await _nodes_page(running)
        for text in ("disconnected", "drained", "not confirmed", "-17.0 s", "no-new-work"):
            assert text in page


async def test_mass_failure_brake_is_told_everywhere_and_counts_only_for_administrators(database: str, tmp_path: Path) -> None:
    """P-19, R-PLC-02: readyz, console and API say it; how many Nodes there are is not everybody's business."""
    async with open_server(database, tmp_path) as running, running.admin() as http, running.user() as user:
        assert (await http.get("/readyz")).json() == {"ready": True, "warnings": ["no worker has looked at the Nodes yet"]}
        fleet = await make_fleet(running)
        nodes = [await ready_node(running, fleet) for _ in range(3)]
        await running.storage.look_around(False, now())
        assert (await http.get("/readyz")).json()["warnings"] == []
        for node, epoch in nodes:
            await running.storage.close_session(node, epoch, "cut", now())
        await running.storage.look_around(False, now())
        (warning,) = (await user.get("/readyz")).json()["warnings"]
        assert "suspects itself" in warning
        assert "suspects itself" in await _nodes_page(running)
        sight = (await http.get("/api/sight")).json()
        assert (sight["judging"], sight["vanished"], sight["brake"]["population"]) == (False, 3, 3)
        assert (await user.get("/api/sight")).status_code == 403
        assert "suspects itself" in (await http.get(f"/api/nodes/{nodes[0][0]}")).json()["liveness"]["suspended"]
